"""`tidemark try`: what it prints of windows and sessions."""

from dataclasses import replace

from service.admission.inputs import FieldCount
from service.commands import trial
from service.commands.trial import Trial, Value
from service.rejects.reject_log import Coordinates, Reject
from tests import minimal

KEY = "a-prefix-that-is-long:window:all:t:" + "device-with-a-very-long-name-" * 6 + ":1790000000000"


def test_each_key_in_redis_is_a_line_of_its_own_however_long_it_is() -> None:
    window = Value(KEY, {"start": "1790000000000", "count": "3", "mean": "2.123456789"}, "all", True)
    fields = {"last": "5", "state": "closed", "reason": "gap", "count": "1"}
    tried = Trial(3, 3, 1, (), (window,), (Value("s:1", fields, is_final=True),), 1_790_000_060_000)
    lines = list(trial.lines(minimal.settings(kafka={"topics": ["t"]}), tried))
    assert lines[0] == "3 records of t: 3 admitted, of 1 devices"
    assert f"    {KEY}" in lines
    assert lines[lines.index(f"    {KEY}") - 1] == "  all: 1 window, 1 final"
    assert lines[lines.index(f"    {KEY}") + 1] == "      count 3, mean 2.12346"
    assert "windows; the watermark is 2026-09-21T14:14:20.000Z" in lines
    assert lines[lines.index("    s:1") - 1 : lines.index("    s:1") + 2] == [
        "1 session, 1 closed",
        "    s:1",
        "      closed, gap, 1 reading",
    ]
    assert lines[-1] == "Nothing was written, to Kafka, Redis or the checkpoint."
    lines = list(trial.lines(minimal.settings(), replace(tried, windows=())))
    assert "  all: 0 windows, 0 final" in lines, "no reading meets the filter of the view"
    assert "    s:1" in lines


def test_rejects_are_lines_with_their_reason_and_fields_with_how_many_records_have_them() -> None:
    late = Reject(Coordinates("t", 0, 7), "late", "", 0, 0, 0, None, b"{}", ())
    fields = (FieldCount("input.device_id", "id", 3, 3, 3), FieldCount("input.measures.t", "x", 0, 3, 3))
    tried = Trial(3, 2, 1, ((late, "it is \x1b[2J late"),) * 5, (), (), 0, fields)
    lines = list(trial.lines(minimal.settings(), tried))
    assert lines[lines.index("5 rejects") + 1].split() == ["reason", "records", "such", "as", "why"]
    assert lines.count(r"late    5        t[0]@7   it is \x1b[2J late") == trial.SHOWN
    assert "input.device_id   id     3 of 3" in lines
    assert "input.measures.t: no record has x" in lines
