"""The checkpoint on a local folder, on HDFS and on S3: the driver dies at each crash point, what a batch costs, and a reshape.

The rows are played one after the other with the same load, so that their times can be compared.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from load.demo import SECTIONS
from load.faults.row import Row
from load.faults.rows.driver_killed import CELLS, crash_points
from load.faults.run import STARTS_S, Figures, Run, Setup
from load.servers import go_program
from load.servers.hdfs import Hdfs
from load.servers.s3 import MODULE, S3, totals
from load.testbed import output_of
from service.spark import jars, repository
from service.spark.places import cache

WARM, BATCHES = 15, 40
"""After `WARM` batches, time, files and bytes of so many batches are measured. Spark removes nothing before batch 100."""
APART = 6
"""Batches from the last one that is measured to the first crash."""
SHORT = tuple(cell for cell in CELLS if cell[1] == "raise" or cell[0] == "after_publish_before_commit")
"""A failure at each point, which begins the query again, and a kill between the progress in Redis and Spark's commit."""
PATH = "checkpoint"
JARS = cache() / "cluster" / "jars"
"""Where `make cluster` keeps the jars of all groups. In the usual folder the group `s3` would be on every class path."""
RATE, DEVICES = 300.0, 200
BUCKETS = 3
"""What `tidemark checkpoint reshape` gives a checkpoint that has begun with as many as there are cores."""

Totals = Callable[[str], tuple[int, int]]
Report = Callable[[Row, Path], Mapping[str, Any]]

_SERVERS: Mapping[str, Callable[[Path], Hdfs | S3]] = {"hdfs": Hdfs, "s3": S3}
STORES = ("file", *_SERVERS)


def prepare() -> None:
    """Fetch the jars of HDFS and S3, and build the S3 server. Raises SetupError."""
    go_program.built(MODULE)
    JARS.mkdir(parents=True, exist_ok=True)
    for group in jars.GROUPS:
        if not (JARS / group).exists():
            (JARS / group).symlink_to(jars.folder(group).absolute())
    for group in jars.MORE_GROUPS:
        repository.fetch(group, JARS)
    os.environ["TIDEMARK_JARS"] = str(JARS)


def measure(
    names: tuple[str, ...], root: Path, report: Report, former: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Mapping[str, Any]]]:
    """Play each store, and yield the figures of all stores so far.

    `batch_to_file` compares them with the local folder. `former` are figures of an earlier run, of stores that are not played.
    """
    measured = dict(former)
    for name in names:
        folder = root / name
        with _store(name, root / f"{name}-server") as (url, of_store):
            place = of_store or partial(_of_folder, folder)
            measured[name] = report(_row(name, url, place), folder)
        of_file = measured.get("file", {}).get("batch_ms")
        if of_file and (batch_ms := measured[name].get("batch_ms")):
            measured[name] = {**measured[name], "batch_to_file": round(batch_ms / of_file, 2)}
        yield measured


def _of_folder(folder: Path, path: str) -> tuple[int, int]:
    return totals(folder / path)


@contextlib.contextmanager
def _store(name: str, folder: Path) -> Iterator[tuple[str, Totals | None]]:
    """The URL of a store's root, "" for a folder of the run, and how its files are counted."""
    if name not in _SERVERS:
        yield "", None
        return
    server: Hdfs | S3 = _SERVERS[name](folder)
    with server:
        environ = server.environ()
        os.environ.update(environ)
        try:
            yield server.url, server.totals
        finally:
            for each in environ:
                del os.environ[each]


def _row(name: str, url: str, place: Totals) -> Row:
    sections: dict[str, Mapping[str, Any]] = {**SECTIONS, "reference": {"timeout": "1 m"}}
    if url:
        sections["service"] = {"checkpoint": f"{url}/{PATH}"}
    # Redis' clients have the address of the servers' host.
    testbed = {"sections": sections, "redis": {"protected-mode": "no"}}
    return Row(Setup(name, f"the checkpoint on {name}", RATE, DEVICES, testbed), partial(_play, place))


def _play(place: Totals, run: Run) -> Figures:
    cells, costs = SHORT if run.short else CELLS, Figures()
    warm, batches = (WARM // 3, BATCHES // 3) if run.short else (WARM, BATCHES)

    def measure() -> None:
        _until_batch(run, warm)
        began, before, first = time.monotonic(), place(PATH), run.observer.progress[1]
        _until_batch(run, first + batches)
        ended, after, last = time.monotonic(), place(PATH), run.observer.progress[1]
        costs["batch_ms"] = round((ended - began) * 1000 / (last - first))
        costs["files_a_batch"] = round((after[0] - before[0]) / (last - first), 1)
        costs["bytes_a_batch"] = round((after[1] - before[1]) / (last - first))

    crash_points(run, first=warm + batches + APART, cells=cells, before=measure)
    run.drain()
    run.stop()
    run.compare()
    if not run.short:
        _reshape(run)
    _checkpoint(run, "verify")
    return {"crash_points": len(cells), **costs}


def _reshape(run: Run) -> None:
    """Give the checkpoint another number of buckets, and go on with it."""
    _checkpoint(run, "reshape", "--buckets", str(BUCKETS))
    run.begin()
    run.drain()
    run.stop()
    run.compare()


def _until_batch(run: Run, batch: int) -> None:
    run.wait(lambda: run.observer.progress[1] >= batch, STARTS_S, f"batch {batch}")


def _checkpoint(run: Run, *words: str) -> None:
    output_of(run.testbed.command("checkpoint", *words))
