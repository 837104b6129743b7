"""Where views without windows begin and end, by batch: a replay may run with other settings than the attempt before it."""

from collections.abc import Collection
from pathlib import Path

import pytest

from service.checkpoint import beginnings
from service.checkpoint.beginnings import Beginnings
from service.errors import FencedError
from service.spark.files import Local

A, B = ("total", "t"), ("total", "h")


def begins(folder: Path, batch: int, *wanted: tuple[str, str], at_ms: int = 0) -> dict[tuple[str, str], int]:
    """What a new process finds in a batch with these views."""
    return Beginnings(Local(folder)).of_batch(batch, wanted, lambda: at_ms, lambda: None)


def over(folder: Path, batch: int) -> dict[str, list[str]]:
    return Beginnings(Local(folder)).over(batch)


def test_a_view_keeps_its_beginning_in_every_batch_and_process(tmp_path: Path) -> None:
    assert begins(tmp_path, 3, A, at_ms=70) == {A: 70}
    assert begins(tmp_path, 3, A, at_ms=80) == {A: 70}, "a replay"
    assert begins(tmp_path, 4, A, B, at_ms=90) == {A: 70, B: 90}
    assert beginnings.stored(Local(tmp_path), [A, B, ("new", "t")]) == {A: 70, B: 90}


def test_a_view_is_over_in_the_batch_after_its_last(tmp_path: Path) -> None:
    begins(tmp_path, 0, A, B)
    assert begins(tmp_path, 5, B) == {B: 0}
    assert over(tmp_path, 5) == {}, "the batch without the view may still be replayed with it"
    assert over(tmp_path, 6) == {"total": ["t"]}
    assert begins(tmp_path, 6, A, B, at_ms=9) == {A: 9, B: 0}
    assert over(tmp_path, 7) == {}


def test_no_measure_of_a_view_is_left_when_the_last_one_is_over(tmp_path: Path) -> None:
    begins(tmp_path, 0, A, B)
    begins(tmp_path, 5, B)
    begins(tmp_path, 6)
    assert not Beginnings(Local(tmp_path)).is_over("total", 6), "the other measure has values until batch 7"
    assert over(tmp_path, 7) == {"total": ["h"]}
    assert Beginnings(Local(tmp_path)).is_over("total", 7)


def test_a_replay_with_the_view_takes_its_end_back(tmp_path: Path) -> None:
    begins(tmp_path, 0, A, at_ms=1)
    begins(tmp_path, 5)
    assert begins(tmp_path, 5, A, at_ms=9) == {A: 1}
    assert over(tmp_path, 6) == {}


def test_a_replay_without_the_view_ends_what_the_attempt_before_it_began(tmp_path: Path) -> None:
    begins(tmp_path, 5, A, at_ms=1)
    assert begins(tmp_path, 5) == {}
    assert over(tmp_path, 6) == {"total": ["t"]}, "the attempt may have written values to Redis"


def test_nothing_is_written_without_views_or_by_a_writer_that_is_fenced(tmp_path: Path) -> None:
    assert begins(tmp_path, 0) == {}

    def fence() -> None:
        raise FencedError("another writer", remedy="none")

    def wanted(*views: tuple[str, str]) -> Collection[tuple[str, str]]:
        return Beginnings(Local(tmp_path)).of_batch(0, views, lambda: 0, fence)

    assert wanted() == {}
    with pytest.raises(FencedError):
        wanted(A)
    assert list(tmp_path.iterdir()) == []
