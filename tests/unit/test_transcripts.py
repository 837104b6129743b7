"""Transcripts are read strictly, judged strictly, and hold for the pure executor. The other one: `make transcripts`."""

from pathlib import Path

import pytest

from load.transcripts.__main__ import files, play
from load.transcripts.transcript import Transcript, TranscriptError, judge, load


def written(folder: Path, text: str) -> list[Transcript]:
    path = folder / "one.yaml"
    path.write_text(text)
    return load(path)


def test_all_transcripts_hold_for_the_pure_executor_and_the_wrong_ones_do_not(tmp_path: Path) -> None:
    """File after file: all transcripts of a run are one ledger, and each step computes all of its values."""
    every = load(*files())
    rejected = []
    for place in {each.place for each in every}:
        right, wrong = [], []
        for each in (each for each in every if each.place == place):
            (wrong if each.name.startswith("wrong, ") else right).append(each)
        result = play("pure", tmp_path / place, right, wrong)
        assert result["failed"] == []
        rejected += result["rejected"]
    assert len(rejected) == sum(each.name.startswith("wrong, ") for each in every) >= 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nstep: []", "allowed are name, views, site, interval, at, steps"),
        (
            "name: x\nsteps: [{add: [a 0 1], expects: {}}]",
            "allowed are restart, change, add, unread, silent, replay, expect, watermark",
        ),
        ("name: x\nsteps: [{add: [a 0 1], expect: {window device/temperature/a/0: {average: 1}}}]", "average"),
        ("name: x\nsteps: [{add: [a 0 1], expect: {widow a: 1}}]", "widow"),
        ("name: x\nsteps: [{expect: {}}]", "nothing happens"),
        ("name: x\nsteps: [{replay: true}, {silent: 1}]", "only the last step"),
        ("name: x\nsteps: []\n---\nname: x\nsteps: []", "names occur twice: ['x']"),
        ("name: x\nsteps: [{add: [a 0 1], expect: {device a: online, device a: quiet}}]", "twice: ['device a']"),
        ("name: x\nsteps: [", "one.yaml: "),
    ],
)
def test_what_a_transcript_may_not_say_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TranscriptError) as caught:
        written(tmp_path, text)
    assert message in str(caught.value)


def test_output_that_nobody_expected_is_an_error(tmp_path: Path) -> None:
    (made,) = written(tmp_path, "{name: x, steps: [{add: [a 0 1], expect: {device a: online}}]}")
    judge(made, 0, {"device a": {"status": "online", "last_seen": 0}}, None)
    with pytest.raises(TranscriptError, match="step 1: unexpected: session a/0"):
        judge(made, 0, {"device a": {"status": "online"}, "session a/0": {"state": "open"}}, None)
    with pytest.raises(TranscriptError, match="missing: device a"):
        judge(made, 0, {}, None)
    with pytest.raises(TranscriptError, match="status is 'offline', expected 'online'"):
        judge(made, 0, {"device a": {"status": "offline"}}, None)
