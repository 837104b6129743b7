"""A soak that is played in parts: one history, and what the observer of a later part has not seen."""

from pathlib import Path

import pytest

from load.faults.history import History, read
from load.faults.run import parts_of
from load.faults.slopes import slopes
from service.errors import SetupError


def part(path: Path, seed: int, epoch: int, batches: range, *, keep: bool) -> None:
    history = History(path, keep=keep)
    history.add("run", row="batches", seed=seed)
    for batch in batches:
        history.add("sample", epoch=epoch, batch=batch, values={"open_files": 100 * epoch + batch / 10})
    history.close()


def test_a_later_part_adds_to_the_history_and_the_slope_is_of_all_parts(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    part(path, 7, 1, range(100), keep=True)
    part(path, 7, 2, range(100, 300), keep=True)
    assert len(parts_of(path, "batches", 7)) == 2
    slope = slopes(read(path))["open_files"]
    assert slope.per_1000_batches == 100
    assert slope.samples == 80 + 160, "the first fifth of each life warms up"
    part(path, 7, 3, range(10), keep=False)
    assert len(parts_of(path, "batches", 7)) == 1


def test_a_part_of_another_row_or_seed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert parts_of(path, "batches", 7) == ()
    part(path, 7, 1, range(3), keep=True)
    for row, seed in (("soak", 7), ("batches", 8)):
        with pytest.raises(SetupError, match="is of the row batches with the seed 7"):
            parts_of(path, row, seed)
