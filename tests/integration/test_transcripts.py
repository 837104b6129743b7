"""A few transcripts by the whole service; tests/unit/test_transcripts.py plays all by the pure rules."""

from pathlib import Path

import pytest

from load.transcripts.__main__ import files, play
from load.transcripts.transcript import load

pytestmark = [pytest.mark.integration, pytest.mark.end_to_end]

FEW = (
    "a reading below the watermark is late although a window that it belongs to is open",
    "the same reading is in the day of Rome and in the next day of Kathmandu",
    "an outage that silence has found leaves once, and ends with the next reading",
)
"""What `make test` plays."""
MORE = (
    "a reading that comes after a silence and is not late is counted",
    "nothing is closed while something is left to read",
    "records that are rejected or filtered end no silence",
    "the day on which clocks go forward in Rome has 23 hours",
)
WRONG = "wrong, a correction without a revision"


@pytest.mark.parametrize("right", [FEW, pytest.param(MORE, marks=pytest.mark.thorough)], ids=["few", "more"])
def test_silence_and_lateness_are_as_the_transcripts_say(right: tuple[str, ...], tmp_path: Path) -> None:
    every = {each.name: each for each in load(*files())}
    summary = play("live", tmp_path / "run", [every[each] for each in right], [every[WRONG]])
    assert summary["failed"] == []
    assert len(summary["rejected"]) == 1
