"""views: views are added, changed and removed under load, by SIGHUP, while the driver is killed at each step and at random."""

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil

from load.faults.row import row
from load.faults.rows.driver_killed import wait_fired
from load.faults.run import STARTS_S, Figures, Run
from service.errors import SetupError

POINTS = ("before_views", "after_views", "half_filled", "filled_before_noted")
COMPLETE_S = 180.0
"""Within that a new view, or version, must be complete, with the kills of its step."""
ADDED: Mapping[str, Any] = {
    "name": "added",
    "by": ["type", "device"],
    "window": "20 s",
    "slide": "10 s",
    "retain": "1 d",
}
LENGTHS = ("20 s", "30 s", "10 s")
"""Of the view `all`, one change after the other."""


@row("views", "views are added, changed and removed under load, with kills", rate=1_000, devices=300)
def views_changed(run: Run) -> Figures:
    """A view is added with a crash at each step; then rounds of changes with kills at random; short: one round."""
    fired = run.folder / "fired"
    armed = ",".join(f"{name}:1:kill" for name in POINTS)
    run.start({"TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": armed, "TIDEMARK_FAILPOINT_FIRED": str(fired)})
    run.load()
    run.steady()
    _change(run, [*_views(run), dict(ADDED)])
    for number, name in enumerate(POINTS, 1):
        wait_fired(run, fired, number)
        with run.fault(f"{name} kill", restarts=True):
            run.start_again()
    _complete(run, "added", "20 s")
    run.recover()
    rounds = run.times(3, short=1)
    for number in range(rounds):
        length = LENGTHS[number % len(LENGTHS)]
        _change(run, [{**view, "window": length} if view["name"] == "all" else view for view in _views(run)])
        run.run_on(run.nemesis.between(0.0, 8.0))
        run.kill_driver(run.nemesis.pick((0, 1)))
        _complete(run, "all", length)
        run.recover()
        _change(run, [view for view in _views(run) if view["name"] != "added"])
        run.wait(lambda: "added" not in served(run), STARTS_S, "the view to be gone")
        _change(run, [*_views(run), dict(ADDED)])
        run.run_on(run.nemesis.between(0.0, 8.0))
        run.kill_driver(run.nemesis.pick((0, 1)))
        _complete(run, "added", "20 s")
        run.recover()
    names = {view["name"]: view["keys"] for view in served(run).values()}
    run.drain()
    run.stop()
    run.compare()
    if names.get("all") != f"all@{rounds + 1}" or names.get("added") != f"added@{rounds + 1}":
        run.violation("P1", f"the views do not have the versions of {rounds} rounds: {names}")
    return {"crash_points": len(POINTS), "rounds": rounds, "versions": names}


def served(run: Run) -> dict[str, dict[str, Any]]:
    """Return a view in meta by its name: the name in keys, the length, and the time from which it is complete."""
    with run.testbed.redis_client() as client:
        text: Any = client.get("tidemark:meta")
    views = json.loads(text)["views"] if text else []
    return {
        each.get("of", each["name"]): {
            "name": each.get("of", each["name"]),
            "keys": each["name"],
            "window_ms": each["window_ms"],
            "complete_from": each.get("complete_from"),
        }
        for each in views
        if not each.get("next")
    }


def _views(run: Run) -> list[dict[str, Any]]:
    return [dict(view) for view in run.testbed.settings["views"]]


def _change(run: Run, views: list[dict[str, Any]]) -> None:
    """Write the settings and send SIGHUP to the driver's Python, as the command does: a JVM that was started with SIGHUP ignored,
    for instance under nohup, does not receive it."""
    run.testbed.settings["views"] = views
    run.testbed.write_settings()
    run.note("views", names=[f"{view['name']} {view['window']}" for view in views])
    pids: list[int] = []

    def has_driver() -> bool:
        with suppress(SetupError, psutil.Error):
            pids[:] = run.driver_pids()
        return bool(pids)

    run.wait(has_driver, STARTS_S, "a driver to signal")
    os.kill(pids[1], signal.SIGHUP)


def _complete(run: Run, name: str, length: str) -> None:
    """Until readers find the view with this length and all of its readings."""
    window_ms = int(length.partition(" ")[0]) * 1000

    def is_complete() -> bool:
        view = served(run).get(name)
        return view is not None and view["window_ms"] == window_ms and view["complete_from"] is None

    run.wait(is_complete, COMPLETE_S, f"the view {name} of {length} to be complete")
