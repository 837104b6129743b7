"""A few transcripts by the builders and by the whole service; tests/unit/test_transcripts.py plays all by the pure rules."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from load.transcripts.__main__ import files, play
from load.transcripts.transcript import load

pytestmark = [pytest.mark.integration, pytest.mark.spark]

RIGHT = (
    "a reading that comes after a silence and is not late is counted",
    "nothing is closed while something is left to read",
    "records that are rejected or filtered end no silence",
    "a reading below the watermark is late although a window that it belongs to is open",
    "the day on which clocks go forward in Rome has 23 hours",
    "the same reading is in the day of Rome and in the next day of Kathmandu",
    "an outage that silence has found leaves once, and ends with the next reading",
)
FEW = (RIGHT[3], RIGHT[5], RIGHT[6])
"""What `make test` plays with Spark. A unit test plays all transcripts by the pure rules."""
WRONG = ("wrong, a correction without a revision",)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        pytest.param("builders", FEW, id="builders"),
        pytest.param("builders", RIGHT, id="builders, all", marks=pytest.mark.thorough),
        pytest.param("live", RIGHT, id="live", marks=[pytest.mark.end_to_end, pytest.mark.thorough]),
    ],
)
def test_silence_and_lateness_are_as_the_transcripts_say(
    name: str, right: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    every = {each.name: each for each in load(*files())}
    summary = play(name, tmp_path / "run", [every[each] for each in right], [every[each] for each in WRONG], spark)
    assert summary["failed"] == []
    assert len(summary["rejected"]) == len(WRONG)
