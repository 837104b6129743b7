"""All plays as rows of the fault runner."""

from functools import partial

from load.cluster import executors, plays
from load.cluster.rack import Rack
from load.cluster.scene import PLAYS, Play, Scene
from load.demo import SECTIONS
from load.faults.row import Row
from load.faults.run import Figures, Run, Setup

MODULES = (plays, executors)
"""They register their plays."""
RATE, DEVICES = 300.0, 200


def rows() -> dict[str, Row]:
    """Return all plays as rows of the fault runner, in the order of this file."""
    return {name: Row(_setup(name, each), partial(_played, each)) for name, each in PLAYS.items()}


def _setup(name: str, chosen: Play) -> Setup:
    sections = {
        **SECTIONS,
        "metrics": {"address": "0.0.0.0"},  # noqa: S104 - of a host that only this run reaches
        "reference": {"timeout": "1 m"},
    }
    if chosen.buckets is not None:
        sections["sessions"] = {**SECTIONS.get("sessions", {}), "buckets": chosen.buckets}
    testbed = {
        "supervisor": Rack,
        "sections": sections,
        "submit_options": chosen.options,
        "redis": {"protected-mode": "no"},
    }
    return Setup(name, chosen.title, RATE, DEVICES, testbed)


def _played(chosen: Play, run: Run) -> Figures:
    rack = run.testbed.supervisor
    assert isinstance(rack, Rack)  # noqa: S101
    scene = Scene(run, rack, {})
    run.begin()
    scene.note_writer()
    figures = chosen.function(scene)
    scene.whole(chosen.executors)
    return {**figures, "writers": {str(epoch): host for epoch, host in scene.writers.items()}}
