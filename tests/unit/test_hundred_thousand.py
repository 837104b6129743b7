"""A checkpoint after 100,000 batches: what is in it, and what a batch and a start cost by then. No Spark.

`make soak` shows Spark's own files: `offsets` and `commits` keep 200 of each (load/faults/rows/soak.py).
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from load.servers.server_process import PATIENCE
from service.outlets import recomputed
from service.outlets.delivery import Delivery
from service.outlets.outbox import FOLDER, Outbox, Stored
from service.outlets.outlet import Position
from service.pipeline.term import TermMetrics
from service.recompute import job_log
from service.rejects.fence import RANDOM_BITS
from service.spark.files import Local
from tests import minimal

BATCHES = 100_000


def quickest(action: Callable[[], object], times: int = 5) -> float:
    """The shortest of several times, in seconds: what other programs of the machine do is left out."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def settings() -> Any:
    return minimal.settings(outlets=[{"name": "away", "kind": "kafka", "topic": "x", "format": "json"}])


class Away:
    """An outlet that never answers."""

    def close(self) -> None:
        pass


def delivery(folder: Path, entries: int) -> Delivery:
    loaded = settings()
    made: Any = Delivery(Away(), loaded.outlets[0], loaded, Outbox(Local(folder)), 1, print, TermMetrics())  # type: ignore[arg-type]
    for batch in range(entries):
        made.add(Stored(Position(1, batch), 100, 0, None))
    return made


def test_a_batch_waits_no_longer_for_an_outlet_that_lacks_100_000_entries(tmp_path: Path) -> None:
    few, many = delivery(tmp_path, 100), delivery(tmp_path, BATCHES)
    assert (many.progress().pending, many.progress().pending_bytes) == (BATCHES, BATCHES * 100)

    def batch(of: Delivery) -> Callable[[], object]:
        numbers = iter(range(BATCHES, 2 * BATCHES))
        return lambda: [
            (of.add(Stored(Position(1, next(numbers)), 100, 0, None)), of.lacks_at_most(1 << 40, 0), of.progress())
            for _ in range(100)
        ]

    assert quickest(batch(many)) < 10 * quickest(batch(few)) + 0.01 * PATIENCE


def test_refused_rows_are_counted_without_reading_their_files_again(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for batch in range(5_000):
        (folder / f"refused-away-{batch:012d}").write_bytes(b"{}\n{}\n")
    read, files = [], Local(tmp_path)
    reader = files.read
    files.read = lambda name: (read.append(name), reader(name))[1]  # type: ignore[method-assign]
    outbox = Outbox(files)
    assert outbox.refused("away") == 10_000
    assert len(read) == 5_000
    (folder / "refused-away-000000000007").unlink()
    (folder / "refused-away-000000005000").write_bytes(b"{}\n")
    (folder / "refused-other-000000005000").write_bytes(b"{}\n")
    assert outbox.refused("away") == 9_999
    assert len(read) == 5_001


@pytest.mark.thorough
def test_a_folder_of_100_000_files_is_listed_quickly(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for number in range(BATCHES):
        os.close(os.open(folder / f"{number:012d}-1", os.O_CREAT | os.O_WRONLY))
    (folder / ".hidden").touch()
    files = Local(tmp_path)
    assert len(files.names(FOLDER)) == BATCHES
    assert files.names("nowhere") == []
    assert quickest(lambda: files.names(FOLDER)) < 0.5 * PATIENCE


def test_what_cut_off_backfills_have_left_goes_after_a_month(tmp_path: Path) -> None:
    day = 86_400_000
    now_ms = 1_800_000_000_000
    files = Local(tmp_path)
    for age in (1, 29, 31, 400):
        place = job_log.Place(now_ms - age * day << RANDOM_BITS, {"windows": 0, "sessions": 0})
        job_log.Log(files, f"key{age}", place).save()
        files.replace(f"{job_log.FOLDER}/key{age}-000000", b"an entry")
    files.replace(f"{job_log.FOLDER}/unreadable.json", b"{")
    run = now_ms - 99 * day << RANDOM_BITS
    content = {
        "run": run,
        "reached_ms": {"windows": 0},
        "entries": 4,
        "ready": [4],
        "rejected": {},
        "sessions": {"d": [1, 2]},
    }
    files.replace(f"{job_log.FOLDER}/key99.json", json.dumps(content).encode())
    files.replace(f"{job_log.FOLDER}/key99-000004", b"an entry")  # the run was cut off before it could move the entry
    job_log.prune(files, now_ms)
    assert files.names(FOLDER) == [Path(recomputed.name(run, 4)).name], "the outlets lack it"
    assert sorted(files.names(job_log.FOLDER)) == [
        "key1-000000",
        "key1.json",
        "key29-000000",
        "key29.json",
        "unreadable.json",
    ]
