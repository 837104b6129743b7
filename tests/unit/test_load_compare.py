"""The comparer's own sense: right values pass in whatever notation, and each kind of difference is found and named."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from load.judge import outlets
from load.judge.expected import Readings, View, devices, sessions, windows
from load.judge.hashes import check_hashes, check_indexes, statistics_of
from load.judge.oracle import Expected, Partition, Record, digest
from load.judge.rejects import check_partitions, check_rejects
from load.judge.statistics import PLAIN
from load.judge.verdict import EXAMPLES, Verdict

# Two devices; "d" is silent for more than the gap of 100, and has the measure h once. The first window is final.
ROWS = [("d", 1_000, 0.1, 5.0), ("d", 1_010, 0.2, math.nan), ("d", 1_200, 0.4, math.nan), ("e:1", 1_005, 7.0, math.nan)]
WATERMARK_MS = 1_120
VIEWS = (View("v", ("site",), 1_100, 1_100, ("t",)),)
REFERENCE: dict[str, dict[str, str | None]] = {"d": {"site": "a:b", "floor": None}}
REJECTS = {("in", 0, 4): "late", ("in", 0, 5): "undecodable"}
RAW = {("in", 0, 4): b"late one", ("in", 0, 5): None}

Hashes = dict[str, dict[str, str]]
NOW = {"epoch": "3", "batch": "9", "updated": "1"}


def expectation(views: tuple[View, ...] = VIEWS) -> Expected:
    names = list(dict.fromkeys(row[0] for row in ROWS))
    readings = Readings(
        names,
        np.array([names.index(row[0]) for row in ROWS], np.int32),
        np.array([row[1] for row in ROWS], np.int64),
        {"t": np.array([row[2] for row in ROWS]), "h": np.array([row[3] for row in ROWS])},
    )
    all_sessions = sessions(readings, 100, 1_600, WATERMARK_MS)
    values = {place: digest(raw) for place, raw in RAW.items()}
    return Expected(
        watermark_ms=WATERMARK_MS,
        statistics={view.name: view.statistics for view in views},
        windows=windows(views, readings, REFERENCE, WATERMARK_MS),
        sessions=all_sessions,
        devices=devices(readings, all_sessions, REFERENCE),
        rejects=REJECTS,
        values=values,
        partitions={("in", 0): Partition(0, 6, 6, 4, 2)},
        measures=("t", "h"),
    )


# What a reader must find, worked out by hand: a key, then its fields. The `closed_by` of windows comes from progress
# (load/judge/published.py).
RIGHT = """
p:window:v:t:a:b:0      start=0 end=1100 count=2 sum=0.30000000000000004 mean=0.15 min=0.1 max=0.2 stddev=0.05
                        first=1000 last=1010 closed_by=watermark
p:window:v:t:a:b:1100   start=1100 end=2200 count=1 sum=0.4 mean=0.4 min=0.4 max=4e-1 stddev=0
                        first=1200 last=1200 closed_by=
p:window:v:t:(none):0   start=0 end=1100 count=1 sum=7 mean=7.0 min=7 max=7 stddev=0.0
                        first=1005 last=1005 closed_by=watermark
p:session:d:1000        start=1000 last=1010 count=2 duration=10 state=closed reason=gap closed_by=watermark
                        t.count=2 t.mean=0.15000000000000002 t.min=0.1 t.max=0.2 h.count=1 h.mean=5 h.min=5 h.max=5
p:session:d:1200        start=1200 last=1200 count=1 duration=0 state=open reason= closed_by=
                        t.count=1 t.mean=0.4 t.min=0.4 t.max=0.4 h.count=0
p:session:e:1:1005      start=1005 last=1005 count=1 duration=0 state=closed reason=gap closed_by=watermark
                        t.count=1 t.mean=7 t.min=7 t.max=7 h.count=0
p:device:d              status=online last_seen=1200 session=1200 ref.site=a:b reference=x
                        t=0.4 t.at=1200 h=5 h.at=1000
p:device:e:1            status=offline last_seen=1005 session= reference=x t=7 t.at=1005
"""


def right() -> Hashes:
    hashes: Hashes = {}
    fields: dict[str, str] = {}
    for word in RIGHT.split():
        name, is_field, value = word.partition("=")
        if is_field:
            fields[name] = value
        else:
            fields = hashes[word] = dict(NOW)
    return hashes


def judge(hashes: Mapping[str, Mapping[str, str]], twice: bool = False, views: tuple[View, ...] = VIEWS) -> Verdict:
    verdict = Verdict(progress={"epoch": 3, "batch": 9})
    items = list(hashes.items())
    check_hashes(expectation(views), "p", items * 2 if twice else items, verdict)
    return verdict


def test_right_values_are_no_difference() -> None:
    verdict = judge(right())
    assert verdict.examples == []
    assert verdict.ok
    assert verdict.compared == {"windows": 3, "sessions": 3, "devices": 2}


def test_a_key_that_scan_gives_twice_is_looked_at_once() -> None:
    hashes = right()
    hashes["p:window:v:t:a:b:0"]["count"] = "3"
    hashes["p:device:x"] = hashes["p:session:x:1"] = hashes["p:window:v:t:x:0"] = NOW
    assert judge(hashes, twice=True).kinds == judge(hashes).kinds
    assert judge(hashes).mismatches == 4


@pytest.mark.parametrize("key", right())
def test_each_missing_key_is_named(key: str) -> None:
    hashes = right()
    del hashes[key]
    verdict = judge(hashes)
    kind = key.split(":")[1]
    assert verdict.kinds == {f"{kind}.missing": 1}
    assert key in verdict.examples[0]


@pytest.mark.parametrize(
    "key",
    [
        "p:window:v:t:a:b:2200",
        "p:window:v:t:a:b:00",
        "p:window:v:h:a:b:0",
        "p:window:w:t:a:b:0",
        "p:window:v:t:x",
        "p:session:d:1010",
        "p:session:d",
        "p:device:f",
    ],
)
def test_each_extra_key_is_named(key: str) -> None:
    verdict = judge({**right(), key: NOW})
    kind = key.split(":")[1]
    assert verdict.kinds == {f"{kind}.extra": 1}
    assert key in verdict.examples[0]


FIELDS = [
    (key, name)
    for key, fields in right().items()
    for name in fields
    if name not in {"updated", "reference", "epoch", "batch"}
]


@pytest.mark.parametrize(("key", "name"), FIELDS)
def test_each_changed_field_is_named_with_both_values(key: str, name: str) -> None:
    hashes = right()
    was = hashes[key][name]
    try:
        hashes[key][name] = repr(float(was) + 1e-6) if "." in was or "mean" in name else str(int(was) + 1)
    except ValueError:
        hashes[key][name] = was + "x"
    verdict = judge(hashes)
    assert verdict.kinds == {f"{key.split(':')[1]}.{name}": 1}
    assert f"{key} {name}: expected" in verdict.examples[0]
    assert hashes[key][name] in verdict.examples[0]


@pytest.mark.parametrize(("key", "name"), [each for each in FIELDS if right()[each[0]][each[1]] not in {"", "0"}])
def test_each_field_that_is_gone_is_named(key: str, name: str) -> None:
    hashes = right()
    del hashes[key][name]
    verdict = judge(hashes)
    assert verdict.kinds == {f"{key.split(':')[1]}.{name}": 1}
    assert "is not there" in verdict.examples[0]


def test_a_device_has_no_value_of_a_measure_that_it_never_sent() -> None:
    hashes = right()
    hashes["p:device:e:1"] |= {"h": "5", "h.at": "1005"}
    assert judge(hashes).kinds == {"device.h": 1, "device.h.at": 1}


def test_one_ulp_is_rounding_in_a_mean_and_a_difference_in_a_minimum() -> None:
    hashes = right()
    window = hashes["p:window:v:t:a:b:0"]
    window["mean"] = repr(math.nextafter(0.15, 1))
    assert judge(hashes).ok
    window["min"] = repr(math.nextafter(0.1, 1))
    assert judge(hashes).kinds == {"window.min": 1}


TWO = "p:window:v:t:a:b:0"
ONE = {"p:window:v:t:a:b:1100": "0.4", "p:window:v:t:(none):0": "7"}
"""The window with two readings, and those with one, of which the value is that of most statistics."""


def right_with_all() -> Hashes:
    hashes = right()
    hashes[TWO] |= {"first_value": "0.1", "last_value": "0.2", "delta": "0.1", "rate": "10.0", "median": "0.1"}
    hashes[TWO] |= {"p95": "0.2", "p99": "0.2", "distinct": "1"}
    for key, value in ONE.items():
        hashes[key] |= dict.fromkeys(("first_value", "last_value", "median", "p95", "p99"), value)
        hashes[key] |= {"delta": "0", "distinct": "1"}
    return hashes


@pytest.mark.parametrize(
    ("name", "text", "is_right"),
    [
        ("first_value", repr(math.nextafter(0.1, 1)), False),
        ("last_value", "0.1", False),
        ("delta", "-0.1", False),
        ("rate", "10.000000001", True),
        ("rate", "10.0001", False),
        ("median", "0.1009", True),
        ("median", "0.102", False),
        ("p95", "0.1981", True),
        ("p95", "0.1979", False),
        ("p99", "0.1", False),
        ("distinct", "2", False),
    ],
)
def test_each_statistic_is_judged_within_its_error(name: str, text: str, is_right: bool) -> None:
    views = (replace(VIEWS[0], statistics=tuple(PLAIN)),)
    hashes = right_with_all()
    assert judge(hashes, views=views).ok
    hashes[TWO][name] = text
    assert judge(hashes, views=views).kinds == ({} if is_right else {f"window.{name}": 1})
    del hashes[TWO][name]
    assert judge(hashes, views=views).kinds == {f"window.{name}": 1}


def test_a_rate_of_one_event_time_and_a_statistic_that_the_view_has_not_are_differences() -> None:
    hashes = right_with_all()
    hashes["p:window:v:t:(none):0"]["rate"] = "0"
    views = (replace(VIEWS[0], statistics=tuple(name for name in PLAIN if name != "p99")),)
    assert judge(hashes, views=views).kinds == {"window.rate": 1, "window.p99": 3}


def test_a_final_window_that_should_not_be_final_and_the_reverse() -> None:
    hashes = right()
    hashes["p:window:v:t:a:b:0"]["closed_by"] = ""
    hashes["p:window:v:t:a:b:1100"]["closed_by"] = "watermark"
    assert judge(hashes).kinds == {"window.closed_by": 2}


def test_silence_may_have_closed_what_is_open_but_not_what_is_final() -> None:
    hashes = right()
    hashes["p:window:v:t:a:b:1100"]["closed_by"] = "idle"
    assert judge(hashes).ok
    hashes["p:window:v:t:a:b:0"]["closed_by"] = "idle"
    assert judge(hashes).kinds == {"window.closed_by": 1}


@pytest.mark.parametrize(("epoch", "batch"), [("3", "10"), ("4", "0"), ("3", ""), ("x", "1")])
def test_a_value_newer_than_progress_is_a_difference(epoch: str, batch: str) -> None:
    hashes = right()
    hashes["p:device:d"] |= {"epoch": epoch, "batch": batch}
    assert judge(hashes).kinds == {"device.batch": 1}
    hashes["p:device:d"] |= {"epoch": "2", "batch": "999"}
    assert judge(hashes).ok


def test_a_merged_session_must_be_covered_by_one_that_is_expected() -> None:
    merged = {**NOW, "state": "merged", "reason": "merged", "merged_into": "1000"}
    verdict = judge({**right(), "p:session:d:1010": merged})
    assert verdict.ok
    assert verdict.merged == 1
    chained = {"p:session:d:1005": merged, "p:session:d:1010": {**merged, "merged_into": "1005"}}
    assert judge({**right(), **chained}).ok
    assert judge({**right(), "p:session:d:1011": merged}).kinds == {"session.extra": 1}
    assert judge({**right(), "p:session:e:1:1010": merged}).kinds == {"session.extra": 1, "session.merged_into": 1}
    elsewhere = {**merged, "merged_into": "900"}
    assert judge({**right(), "p:session:d:1010": elsewhere}).kinds == {"session.merged_into": 1}
    # One that is expected to be a session of its own is not merged.
    hashes = right()
    hashes["p:session:d:1200"] = merged
    assert "session.state" in judge(hashes).kinds


def test_indexes_hold_the_keys_of_a_view() -> None:
    def judged(keys: dict[str, float]) -> Mapping[str, int]:
        verdict = Verdict()
        check_indexes(expectation(), "p", {"p:keys:v": keys}, verdict)
        return verdict.kinds

    keys = {"a:b": 1100.0, "(none)": 0.0}
    assert judged(keys) == {}
    assert judged({**keys, "c": 1.0}) == {"keys.score": 1}
    assert judged({"a:b": 1010.0}) == {"keys.score": 2}


def reject(at: int, reason: str, value: bytes | None, **more: bytes) -> Record:
    fields = {"reason": reason.encode(), "topic": b"in", "partition": b"0", "offset": str(at).encode(), **more}
    headers = [("kind", b"x"), *((f"tidemark.{name}", text) for name, text in fields.items())]
    return Record("in.rejects", 0, 100 + at, 1, None, value, headers)


STORED = [reject(4, "late", b"late one"), reject(5, "undecodable", None)]


def test_rejects_are_found_by_their_coordinates() -> None:
    verdict = Verdict()
    assert check_rejects(expectation(), STORED, verdict) == {("in", 0): 2}
    assert verdict.ok
    assert verdict.compared == {"rejects": 2}


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (STORED[:1], "reject.missing"),
        ([*STORED, reject(3, "late", b"")], "reject.extra"),
        ([reject(4, "early", b"late one"), STORED[1]], "reject.reason"),
        ([reject(4, "late", b"late onE"), STORED[1]], "reject.value"),
        ([reject(4, "late", None), STORED[1]], "reject.value"),
        ([STORED[0], reject(5, "undecodable", b"")], "reject.value"),
        ([*STORED, reject(4, "early", b"late one")], "reject.reason"),
        ([reject(4, "late", None, omitted_bytes=b"7"), STORED[1]], "reject.value"),
        ([reject(4, "late", None, omitted_bytes=b"9")._replace(key=b"k"), STORED[1]], "reject.value"),
        ([*STORED, reject(4, "late", b"late one", offset=b"four")], "reject.headers"),
        ([*STORED, STORED[0]._replace(headers=())], "reject.headers"),
    ],
)
def test_each_difference_of_a_reject_is_named(stored: list[Record], kind: str) -> None:
    verdict = Verdict()
    check_rejects(expectation(), stored, verdict)
    assert verdict.kinds == {kind: 1}


def test_rejects_may_be_there_twice_ahead_of_progress_or_without_bytes_that_are_too_many() -> None:
    verdict = Verdict()
    stored = [*STORED, STORED[0], STORED[0], reject(6, "late", b"x"), reject(6, "late", b"x")]
    check_rejects(expectation(), stored, verdict)
    assert (verdict.ok, verdict.duplicates, verdict.ahead) == (True, 2, 2)
    omitting = Verdict()
    check_rejects(expectation(), [reject(4, "late", None, omitted_bytes=b"8"), STORED[1]], omitting)
    assert (omitting.ok, omitting.omitted) == (True, 1)


def test_per_partition_consumed_must_be_admitted_plus_rejects() -> None:
    verdict = Verdict()
    check_partitions(expectation(), {("in", 0): 2}, {"in": {0: 6}}, verdict)
    assert verdict.ok
    assert verdict.partitions == {
        "in[0]": {"start": 0, "end": 6, "consumed": 6, "admitted": 4, "rejected": 2, "filtered": 0, "further": 0}
    }
    for stored, ends in (({("in", 0): 1}, {0: 6}), ({}, {0: 6}), ({("in", 0): 2}, {0: 7}), ({("in", 0): 2}, {})):
        verdict = Verdict()
        check_partitions(expectation(), stored, {"in": ends}, verdict)
        assert verdict.kinds == {"partition.sum": 1}
    verdict = Verdict()
    check_partitions(expectation(), {("in", 0): 2}, {"in": {0: 6, 1: 3}}, verdict)
    assert verdict.kinds == {"partition.unknown": 1}


def test_records_before_the_start_were_never_there() -> None:
    wanted = replace(expectation(), partitions={("in", 0): Partition(2, 6, 4, 2, 2)})
    verdict = Verdict()
    check_partitions(wanted, {("in", 0): 2}, {"in": {0: 6}}, verdict)
    assert verdict.ok


def test_records_that_were_lost_are_consumed_all_the_same_and_as_many_as_that() -> None:
    for lost, kinds in ((3, {}), (2, {"partition.sum": 1}), (4, {"partition.sum": 1})):
        verdict = Verdict()
        check_partitions(expectation(), {("in", 0): 2}, {"in": {0: 9}}, verdict, {"in": {0: lost}})
        assert verdict.kinds == kinds


def test_a_verdict_counts_everything_and_shows_the_first_twenty() -> None:
    verdict = Verdict()
    assert json.loads(verdict.to_json())["ok"] is True
    for number in range(EXAMPLES + 5):
        verdict.add("window.count", f"number {number} of \udcff")
    shown = json.loads(verdict.to_json())
    assert (shown["ok"], shown["mismatches"], shown["kinds"]) == (False, 25, {"window.count": 25})
    assert len(shown["examples"]) == EXAMPLES
    assert shown["examples"][0] == "window.count: number 0 of \\udcff"


@pytest.mark.parametrize(
    ("rows", "problems"),
    [
        ([(None, "online", 1, 0), ("online", "offline", 1, 30)], []),
        ([(None, "online", 1, 0), ("quiet", "offline", 2, 30)], ["outlet.differences"]),
        ([(None, "online", 1, 0)], ["outlet.missing"]),
        ([(None, "online", 1, 0), ("online", "offline", 2, 30), ("online", "offline", 3, 30)], ["outlet.differences"]),
        ([(None, "online", 1, 0), ("online", "offline", 1, 30), (None, "online", 1, 0, "b")], ["outlet.differences"]),
    ],
)
def test_states_in_an_outlet_are_a_chain_that_ends_in_the_expected_status(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[Any, ...]], problems: list[str]
) -> None:
    columns = ("was", "status", "batch", "at", "device")
    found = [{"device": "a", "field": "status", "epoch": 1, **dict(zip(columns, row, strict=False))} for row in rows]
    monkeypatch.setattr(outlets, "read", lambda *_: found)
    right: Any = SimpleNamespace(windows={}, devices={"a": SimpleNamespace(status="offline", statuses={})})
    verdict, no_rules = Verdict(), cast("Any", None)
    outlets.check_outlets(right, no_rules, [{"name": "alarms", "states": True}], verdict)
    assert [*verdict.kinds] == problems


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"end": 1_101}, "end is 1101, expected 1100"),
        ({"local_start": "1970-01-01"}, "local_start is 1970-01-01, expected None"),
        ({"first": 1_000 + 1e-7}, "first is 1000.0000001, expected 1000"),
        ({"min": math.nextafter(0.1, 1)}, "expected 0.1"),
        ({"p95": 0.1979}, "p95 is 0.1979, expected 0.2"),
        ({"rate": None}, "rate is None, expected 10.0"),
        ({"p99": 0.2}, "p99 is 0.2, expected None"),
    ],
)
def test_a_window_in_an_outlet_has_each_statistic_of_its_view_and_no_other(
    monkeypatch: pytest.MonkeyPatch, change: Mapping[str, Any], problem: str
) -> None:
    view = replace(VIEWS[0], statistics=tuple(name for name in PLAIN if name != "p99"))
    right, rows = expectation((view,)), list[dict[str, Any]]()
    for place, value in right.windows.items():
        of = dict(zip(("view", "measure", "key", "start"), place, strict=True))
        numbers = {name: number for name, number, _ in statistics_of(value, view.statistics)}
        rows += [{**of, "end": value.end, **numbers, "revision": 0, "closed_by": "watermark"}] if value.final else []
    next(row for row in rows if row["key"] == "a:b").update(change)
    monkeypatch.setattr(outlets, "read", lambda *_: rows)
    verdict, no_rules = Verdict(), cast("Any", SimpleNamespace(views=(view,)))
    outlets.check_outlets(right, no_rules, [{"name": "history"}], verdict)
    assert (verdict.compared, verdict.kinds) == ({"outlet history": 2}, {"outlet.differences": 1} if problem else {})
    assert problem in " ".join(verdict.examples)
