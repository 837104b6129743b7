"""Why a window is closed, as a reader derives it from the window and from progress: the rule of schemas/redis.md."""

import json
from collections.abc import Mapping

import pytest

from schemas.contract import closed_by

END = 60_000
# A silence has closed windows up to END, as of batch 7 of epoch 3; the watermark is 1 ms short of that.
PROGRESS = {"final": str(END - 1), "idle": str(END), "idle_epoch": "3", "idle_batch": "7"}


def judged(progress: Mapping[str, str], epoch: int = 3, batch: int = 7, end: int = END) -> str:
    return closed_by({"end": str(end), "epoch": str(epoch), "batch": str(batch)}, progress, "device")


@pytest.mark.parametrize(("final", "why"), [(END - 1, ""), (END, "watermark"), (END + 1, "watermark")])
def test_the_watermark_closes_a_window_that_ends_by_final(final: int, why: str) -> None:
    assert judged({"final": str(final)}) == why
    # Whenever it was written.
    assert judged({"final": str(final)}, epoch=9, batch=9) == why


@pytest.mark.parametrize(("idle", "why"), [(END - 1, ""), (END, "idle"), (END + 1, "idle")])
def test_silence_closes_a_window_that_ends_by_idle(idle: int, why: str) -> None:
    assert judged({**PROGRESS, "idle": str(idle)}) == why


def test_what_both_have_passed_is_closed_by_the_watermark() -> None:
    assert judged({**PROGRESS, "final": str(END)}) == "watermark"
    assert judged({**PROGRESS, "final": str(END)}, batch=8) == "watermark"


@pytest.mark.parametrize(
    ("epoch", "batch", "why"),
    [
        pytest.param(3, 6, "idle", id="batch before the silence"),
        pytest.param(3, 7, "idle", id="same batch as the silence"),
        pytest.param(3, 8, "", id="batch after the silence"),
        pytest.param(2, 9, "idle", id="earlier epoch, whatever its batch"),
        pytest.param(4, 0, "", id="later epoch, whatever its batch"),
        pytest.param(3, 10, "", id="batches are numbers, not texts"),
        pytest.param(10, 7, "", id="epochs are numbers, not texts"),
    ],
)
def test_silence_closes_only_what_was_written_before_it(epoch: int, batch: int, why: str) -> None:
    assert judged(PROGRESS, epoch, batch) == why


@pytest.mark.parametrize(
    ("settled", "why"),
    [({"device": END - 1}, "idle"), ({"device": END}, "settled"), ({"site": END}, "idle"), ({}, "idle")],
)
def test_the_line_of_its_view_settles_a_window_that_no_watermark_has_passed(settled: dict[str, int], why: str) -> None:
    assert judged({**PROGRESS, "settled": json.dumps(settled)}) == why
    assert judged({**PROGRESS, "settled": json.dumps(settled), "final": str(END)}) == "watermark"


def test_without_progress_everything_is_open() -> None:
    assert judged({}) == ""
    assert judged({}, end=0) == ""
