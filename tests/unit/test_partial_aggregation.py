"""The fold against a plain recomputation: whatever the readings and however they are cut into batches, nothing is lost."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from load.judge import calendars
from load.walks import admitted
from service.admission.questions import SCHEMA_IDS, UndecidedError
from service.admission.readings import COUNTED, PARTITION_BITS, REASONS
from service.aggregation import screen, seen_keys, task_counters
from service.aggregation import windows as window_parts
from service.aggregation.partial_aggregation import Fold
from service.aggregation.screen import STRETCH, Screen
from service.aggregation.task_counters import LATENCY_STEP_MS
from service.aggregation.windows import KEY_BYTES, NONE
from service.pipeline.outcome import measured
from service.reference import snapshots
from service.reference.attributes import Index
from service.reference.history import Period, Then
from service.row_schemas import COUNTS, FOLDED, PARTS, REJECT_TYPE, REJECTS, RUNS, TIMES
from service.settings import View, parse
from service.spark.batch_context import BatchContext
from state import codec, moments, runs, watermark
from state.rules import Rules
from state.watermark import Delays, EventTime, Partition
from tests.examples import examples
from tests.runs import fold
from tests.states import finish
from tests.stream.records import make_document

BASE_MS = 1_790_000_040_000
RULES = Rules(gap_ms=5_000, max_duration_ms=160_000, retain_ms=0, measures=("t", "h"))
PANES = ((View(name="panes", by=("device",), window=10_000), ("t", "h")),)
"""One view that shows the panes themselves."""
FOLD = Fold(Screen(("readings", "more"), 4), RULES, PANES, pane_ms=10_000)
REJECT_FIELDS = REJECT_TYPE.fieldNames()
SCHEMA = admitted.schema(("t", "h"))
DELAYS = Delays(20_000, 15_000)


def bucket_of(device):
    return len(device) * 7 % FOLD.screen.buckets


def admitted(device, ms, t=None, h=None, broker_ms=None):
    """A row of readings.admit, `ms` after BASE_MS."""
    at = BASE_MS + ms
    broker = at if broker_ms is None else BASE_MS + broker_ms
    row = {"bucket": bucket_of(device), "device": device, "event_ms": at, "broker_ms": broker, "t": t, "h": h}
    return {**row, "from_partition": len(device) % 3, "offset": ms, "reject": None}


def rejected(offset, reason="late", **fields):
    reject = dict.fromkeys(REJECT_FIELDS) | {
        "reason": reason,
        "detail": f"detail {offset}",
        "topic": "readings",
        "partition": 3,
        "offset": offset,
        "broker_ms": BASE_MS + offset,
        **fields,
    }
    row = dict.fromkeys(SCHEMA.names)
    return {**row, "broker_ms": BASE_MS + offset, "from_partition": 3, "offset": offset, "reject": reject}


def encoded(reject):
    """A reject as readings.admit hands it over."""
    if reject is None:
        return None
    return json.dumps({name: value for name, value in reject.items() if value is not None})


def folded(rows, *, sizes=(), fold=FOLD):
    """Rows cut into batches of `sizes` (the rest in one), folded in one task; rows of FOLDED."""
    table = table_of(rows)
    batches, start = [], 0
    for size in [*sizes, len(rows)]:
        part = table.slice(start, size).combine_chunks()
        batches += part.to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
        start += size
    out = list(fold(iter(batches)))
    for batch in out:
        assert batch.schema == to_arrow_schema(FOLDED)
    return [row for batch in out for row in batch.to_pylist()]


def table_of(rows):
    return pa.Table.from_pylist([{**row, "reject": encoded(row["reject"])} for row in rows], SCHEMA)


def of_kind(rows, kind):
    return [row for row in rows if row["kind"] == kind]


TABLES = {PARTS: b"W", REJECTS: b"J", RUNS: b"R"}


def unpacked(rows, kind):
    """The rows of the tables that all payloads of a kind hold."""
    payloads = (row["payload"] for row in of_kind(rows, kind))
    return [each for payload in payloads for each in codec.unpack(TABLES[kind], payload).to_pylist()]


def parts_of(rows):
    """The parts of windows in all payloads, each in the bucket that its view and key have everywhere."""
    all_parts, buckets = [], {}
    for row in of_kind(rows, PARTS):
        parts = unpacked([row], PARTS)
        assert row["first"] == min(p["first"] for p in parts)
        assert all(buckets.setdefault((p["view"], p["key"]), row["bucket"]) == row["bucket"] for p in parts)
        all_parts += parts
    return all_parts


def rejects_of(rows):
    """The rejects in all payloads, by offset."""
    return sorted(unpacked(rows, REJECTS), key=lambda reject: (reject["offset"], reject["reason"]))


def reasons_of(rows):
    return sorted(reject["reason"] for reject in unpacked(rows, REJECTS))


def panes(rows):
    """(device, measure, pane) -> its statistics."""
    return {key[1:]: row for key, row in merged(rows).items()}


def merged(rows):
    """(view, key, measure, start) -> its rows merged by addition, as Spark would, and finished."""
    groups = defaultdict(list)
    for row in parts_of(rows):
        groups[row["view"], row["key"], row["measure"], row["start"]].append(row)
    windows = {}
    for key, parts in groups.items():
        sums = [np.array([math.fsum(row[name] for row in parts)]) for name in moments.NAMES]
        count = sum(row["count"] for row in parts)
        total, mean, stddev = (float(a[0]) for a in finish(np.array([count]), *sums))
        windows[key] = {
            "count": count,
            "sum": total,
            "mean": mean,
            "stddev": stddev,
            "min": min(row["min"] for row in parts),
            "max": max(row["max"] for row in parts),
            "first": min(row["first"] for row in parts),
            "last": max(row["last"] for row in parts),
        }
    return windows


def plain_panes(rows, pane_ms):
    """The same from the readings, in fractions."""
    groups = defaultdict(list)
    for row in rows:
        for measure in ("t", "h"):
            if row["reject"] is None and row[measure] is not None:
                groups[row["device"], measure, row["event_ms"] // pane_ms * pane_ms].append(
                    (row["event_ms"], row[measure])
                )
    expected = {}
    for key, pairs in groups.items():
        values = [Fraction(value) for _, value in pairs]
        mean = sum(values) / len(values)
        expected[key] = {
            "count": len(values),
            "sum": pytest.approx(float(sum(values)), rel=1e-12, abs=1e-9),
            "mean": pytest.approx(float(mean), rel=1e-12, abs=1e-9),
            "stddev": pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)), rel=1e-6, abs=1e-3),
            "min": min(value for _, value in pairs),
            "max": max(value for _, value in pairs),
            "first": min(ms for ms, _ in pairs),
            "last": max(ms for ms, _ in pairs),
        }
    return expected


def run_set(table):
    """Runs as a set of rows in a form that depends neither on their order nor on a sum's rounding nor on a zero's sign."""
    rows = table.to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, float):
                row[name] = (round(value, 6) if name.endswith(".sum") else value) + 0.0
    return sorted((sorted((k, repr(v)) for k, v in row.items()) for row in rows), key=repr)


def runs_of(rows):
    """What state.runs makes of admitted rows."""
    kept = [row for row in rows if row["reject"] is None]
    values = {
        name: np.array([math.nan if row[name] is None else row[name] for row in kept], np.float64)
        for name in RULES.measures
    }
    device = pa.array([row["device"] for row in kept], pa.string())
    return fold(device, np.array([row["event_ms"] for row in kept], np.int64), values, RULES)


def stats_of(rows):
    """Broker time -> readings, over all rows of COUNTS."""
    counts = Counter()
    for row in of_kind(rows, COUNTS):
        counted = task_counters.unpack(row["payload"])
        times = counted.rows(task_counters.LATENCY)
        assert int(times.count.sum()) == counted.sum(task_counters.ADMITTED)
        counts.update(dict(zip(times.at.tolist(), times.count.tolist(), strict=True)))
    return dict(counts)


@pytest.mark.parametrize("inputs", [(0, 0), (0, 1)])
def test_readings_are_counted_by_input_and_measure(tmp_path, inputs):
    rows = [admitted("a", n, t=1.0 if n % 2 else None, h=2.0 if n < 3 else None) for n in range(10)]
    rows += [{**admitted("b", n, t=1.0), "from_partition": 1 << PARTITION_BITS} for n in range(6)]
    rows += [rejected(1)]
    tally = tally_of(folded(rows, sizes=(4, 7), fold=replace(FOLD, inputs=inputs)))
    shape = {"format": "json", "measures": {"t": "t", "h": "h"}}
    several = [
        {**shape, "name": "one", "topics": ["readings"]},
        {**shape, "name": "two", "topics": ["more"], "measures": {"t": "x"}},
    ]
    sections = {"inputs": several} if any(inputs) else {"input": shape, "kafka": {"topics": ["readings", "more"]}}
    document = make_document(tmp_path, **sections)
    if any(inputs):
        del document["input"], document["kafka"]["topics"]
    expected = ((0, 0, 5, 5), (0, 1, 3, 7), (1, 0, 6, 0)) if any(inputs) else ((0, 0, 11, 5), (0, 1, 3, 13))
    assert measured(tally, parse(document)) == expected


def tally_of(rows):
    return task_counters.total([task_counters.unpack(row["payload"]) for row in of_kind(rows, COUNTS)])


values = st.none() | st.integers(-800, 800).map(lambda n: n / 8) | st.floats(-1e6, 1e6)
rows_of_readings = st.lists(
    st.one_of(
        st.builds(
            admitted,
            device=st.sampled_from(["a", "bb", "ccc", "dddd", "\u00fc\u00df"]),
            ms=st.integers(0, 60_000),
            t=values,
            h=values,
            broker_ms=st.integers(0, 100),
        ),
        st.builds(rejected, offset=st.integers(0, 10**9), reason=st.sampled_from(["late", "undecodable"])),
    ),
    max_size=60,
)
cuts = st.lists(st.integers(0, 30), max_size=4)


@examples(150)
@given(rows_of_readings, cuts, st.integers(1, 40))
def test_any_readings_in_any_cut_into_batches_give_the_panes_of_a_plain_recomputation(rows, sizes, max_rows):
    output = folded(rows, sizes=sizes, fold=replace(FOLD, max_rows=max_rows))
    assert panes(output) == plain_panes(rows, 10_000)
    kept = [row for row in rows if row["reject"] is None]

    # Rejects keep all of their content, and are counted by reason.
    rejects = sorted(
        (row["reject"] for row in rows if row["reject"]), key=lambda reject: (reject["offset"], reject["reason"])
    )
    assert rejects_of(output) == rejects
    counted = Counter({reason: tally_of(output).sum(task_counters.REJECTED, of) for of, reason in enumerate(REASONS)})
    assert +counted == Counter(reject["reason"] for reject in rejects)

    # Statistics count by broker time in steps.
    assert stats_of(output) == dict(Counter(row["broker_ms"] // LATENCY_STEP_MS * LATENCY_STEP_MS for row in kept))
    times = defaultdict(list)
    for row in kept:
        times[row["from_partition"]].append(row["event_ms"])
    assert task_counters.times(tally_of(output)) == {code: (min(each), max(each)) for code, each in times.items()}
    assert tally_of(output).sum(task_counters.ADMITTED) == len(kept)


@examples(100)
@given(rows_of_readings, cuts)
def test_the_payload_of_a_bucket_is_what_state_makes_of_its_readings(rows, sizes):
    output = folded(rows, sizes=sizes)
    payloads = of_kind(output, RUNS)
    by_bucket = defaultdict(list)
    for row in rows:
        if row["reject"] is None:
            by_bucket[row["bucket"]].append(row)
    assert sorted(row["bucket"] for row in payloads) == sorted(by_bucket)
    for row in payloads:
        table = codec.unpack(b"R", row["payload"])
        mine = by_bucket[row["bucket"]]
        assert table.schema == runs.schema(RULES.measures)
        assert run_set(table) == run_set(runs_of(mine))
        times = [reading["event_ms"] for reading in mine]
        assert row["first"] == min(times)


@given(rows_of_readings)
@examples(50)
def test_the_same_readings_give_the_same_bytes_again(rows):
    """A batch that is replayed must publish the same values to the bit."""
    assert repr(folded(rows)) == repr(folded(rows))


def test_nothing_comes_of_nothing():
    assert list(FOLD(iter([]))) == []
    assert list(FOLD(iter([pa.RecordBatch.from_pylist([], SCHEMA)]))) == []


def test_only_rejects_give_only_rejects_spread_over_the_buckets():
    rows = [rejected(number * STRETCH // 2) for number in range(9)]
    output = folded(rows, sizes=[4, 1])
    assert {row["kind"] for row in output} == {REJECTS, COUNTS}
    of_bucket = Counter()
    for row in of_kind(output, REJECTS):
        of_bucket[row["bucket"]] += len(unpacked([row], REJECTS))
    assert of_bucket == {3: 3, 0: 2, 1: 2, 2: 2}
    assert rejects_of(output) == [row["reject"] for row in rows]


@pytest.mark.parametrize(
    "text", ["", "\n", '"', "\\", "{}", "\0", "\x1b[2J", "\ud7ff\U0001f600", "7", "null", "x" * 70_000]
)
def test_whatever_a_device_writes_into_a_reject_comes_out_as_it_went_in(text):
    rows = [rejected(1, device=text, event_ms=-1), rejected(2, "unknown_schema", detail=text, schema_id=(1 << 32) - 1)]
    assert rejects_of(folded(rows)) == [row["reject"] for row in rows]


def test_schema_ids_that_are_not_known_are_asked_for_by_how_many_records_have_them():
    rows = [rejected(n, schema_id=number) for n, number in enumerate([5, 7, (1 << 32) - 1, 7, 9, None])]
    with pytest.raises(UndecidedError) as asked:
        folded(rows, sizes=[2], fold=replace(FOLD, context=lambda: BatchContext(refused="9")))
    subject, (most, *others) = asked.value.question
    assert (subject, most, {*others}) == (SCHEMA_IDS, 7, {5, (1 << 32) - 1})
    assert len(rejects_of(folded(rows))) == len(rows), "a batch run asks nothing"


def test_unknown_schemas_of_a_topic_that_ignores_them_are_filtered_once_they_were_looked_up():
    rows = [rejected(n, "unknown_schema", schema_id=number) for n, number in enumerate([5, 5, 7])]
    rows += [rejected(9, "undecodable"), {**rejected(8, "unknown_schema", schema_id=5)}]
    rows[-1]["reject"] = {**rows[-1]["reject"], "topic": "more"}
    ignoring = replace(FOLD, screen=replace(FOLD.screen, ignoring=frozenset(["more"])))
    with pytest.raises(UndecidedError):
        folded(rows, fold=replace(ignoring, context=lambda: BatchContext(refused="7")))
    output = folded(rows, sizes=[2], fold=ignoring)
    assert rejects_of(output) == [row["reject"] for row in rows if row["reject"]["topic"] == "readings"]
    assert tally_of(output).sum(task_counters.FILTERED) == 1
    assert tally_of(output).sum(task_counters.REJECTED, REASONS.index("unknown_schema")) == 3
    output = folded(rows[-1:], fold=ignoring)
    assert (rejects_of(output), tally_of(output).sum(task_counters.FILTERED)) == ([], 1), "a batch may have no others"


def test_a_device_without_any_measure_has_no_window_but_a_session():
    output = folded([admitted("a", 0), admitted("a", 1), admitted("bb", 2, t=1.0)])
    assert {key[0] for key in panes(output)} == {"bb"}
    (payload,) = [row for row in of_kind(output, RUNS) if row["bucket"] == bucket_of("a")]
    assert codec.unpack(b"R", payload["payload"])["count"].to_pylist()[0] == 2


SITES = {"a": ("north", "x|y"), "bb": ("north", None), "ccc": ("so%uth", "z")}
VIEWS = (
    View(name="device", by=("device",), window=20_000),
    View(name="site", by=("site",), window=30_000, slide=10_000),
    View(name="pair", by=("site", "floor"), window=10_000, measures=("h",)),
    View(name="all", window=60_000),
)
BY_VIEW = replace(
    FOLD,
    views=[(view, view.measures or RULES.measures) for view in VIEWS],
    attributes=Index(
        pa.table(
            {
                "device": list(SITES),
                "site": [site for site, _ in SITES.values()],
                "floor": pa.array([floor for _, floor in SITES.values()], pa.string()),
            }
        )
    ),
)


def plain_key(view, device):
    site, floor = SITES.get(device, (None, None))
    text = {"device": device, "site": site, "floor": floor}
    parts = [NONE if text[name] is None else text[name] for name in view.by]
    if len(parts) > 1:
        parts = [part.replace("%", "%25").replace("|", "%7C") for part in parts]
    return "|".join(parts) if parts else "all"


@examples(100)
@given(rows_of_readings, cuts)
def test_windows_of_every_view_are_those_of_a_plain_recomputation(rows, sizes):
    expected = defaultdict(list)
    for row in rows:
        for view in VIEWS if row["reject"] is None else ():
            newest = row["event_ms"] - row["event_ms"] % view.step_ms
            for start in range(newest, newest - view.window_ms, -view.step_ms):
                for measure in view.measures or RULES.measures:
                    if row[measure] is not None:
                        key = view.name, plain_key(view, row["device"]), measure, start
                        expected[key].append((row["event_ms"], row[measure]))
    output = folded(rows, sizes=sizes, fold=BY_VIEW)
    windows = merged(output)
    assert windows.keys() == expected.keys()
    for key, window in windows.items():
        times, values = zip(*expected[key], strict=True)
        assert (window["count"], window["first"], window["last"]) == (len(times), min(times), max(times))
        assert (window["min"], window["max"]) == (min(values), max(values))
        assert window["sum"] == pytest.approx(math.fsum(values), rel=1e-9, abs=1e-6)
    for row in parts_of(output):
        assert row["end"] - row["start"] == next(view.window_ms for view in VIEWS if view.name == row["view"])
    unknown = sum(row["device"] not in SITES for row in rows if row["reject"] is None)
    assert tally_of(output).sum(task_counters.UNKNOWN) == unknown


def test_all_parts_of_a_window_have_one_bucket_whatever_else_their_tasks_have_read():
    tasks = [["a"], ["ccc", "a"], ["dddd", "ccc", "bb"], ["bb", "dddd"]]
    output = [row for task in tasks for row in folded([admitted(device, 0, t=1.0) for device in task], fold=BY_VIEW)]
    assert len({row["bucket"] for row in of_kind(output, PARTS)}) > 1
    assert sum(row["view"] == "site" for row in parts_of(output)) == 3 * (1 + 2 + 3 + 2)


def test_a_large_batch_is_folded_in_steps_of_bounded_size():
    rows = [admitted("a", ms, t=float(ms)) for ms in range(100)]
    output = folded(rows, sizes=[10] * 9, fold=replace(FOLD, max_rows=30))
    sizes = [task_counters.unpack(row["payload"]).sum(task_counters.ADMITTED) for row in of_kind(output, COUNTS)]
    assert sizes == [30, 30, 30, 10]
    assert panes(output) == panes(folded(rows))


def test_devices_and_times_at_the_edges_of_what_admission_lets_through_do_not_overflow():
    late, far = 1 << 41, (1 << 42) - 1
    rows = [admitted(f"d{n}", 0, t=1.0) | {"event_ms": ms} for n in range(500) for ms in (0, late, far)]
    by_key = panes(folded(rows))
    assert len(by_key) == 1_500
    assert all(row["count"] == 1 for row in by_key.values())


def test_runs_bring_the_limits_that_the_reference_has_of_their_device():
    reference = pa.table({"device": ["a", "bb"], "gap": ["9 s", None], "every": ["2 s", "700"]})
    fold = replace(BY_VIEW, views=[], attributes=Index(reference), gap="gap", interval="every")
    rows = [admitted(device, at) for device in ("a", "bb", "x") for at in (0, 8_000)]
    of_runs = unpacked(folded(rows, fold=fold), RUNS)
    limits = sorted((run["device"], run["last"] - run["start"], run["gap"], run["interval"]) for run in of_runs)
    assert limits == [("a", 8_000, 9_000, 2_000), *[("bb", 0, -1, 700)] * 2, *[("x", 0, -1, -1)] * 2]
    endless = replace(fold, attributes=Index(reference.set_column(1, "gap", pa.array(["1 d", None]))))
    assert max(run["gap"] for run in unpacked(folded(rows, fold=endless), RUNS)) == RULES.max_duration_ms


def stream_fold(watermark_ms, *unread):
    """The fold of a stream's task: with the event time and the unread partitions of its batch."""
    return replace(FOLD, context=lambda: BatchContext(EventTime(watermark_ms, watermark_ms), frozenset(unread)))


def test_readings_below_the_watermark_are_late_and_can_be_found():
    rows = [admitted("a", 10, 1.0), admitted("b", 9, 1.0), admitted("a", 11, 1.0)]
    out = folded(rows, fold=stream_fold(BASE_MS + 10))
    assert [part["first"] for part in parts_of(out)] == [BASE_MS + 10]
    (reject,) = unpacked(out, REJECTS)
    wanted = {"reason": "behind", "topic": "readings", "partition": 1, "offset": 9, "broker_ms": BASE_MS + 9}
    wanted |= {"event_ms": BASE_MS + 9, "watermark_ms": BASE_MS + 10, "detail": None}
    assert {name: reject[name] for name in wanted} == wanted
    kinds = (task_counters.ADMITTED, 0), (task_counters.REJECTED, REASONS.index("behind"))
    assert [tally_of(out).sum(*kind) for kind in kinds] == [2, 1]


def test_every_bucket_is_told_what_was_read_of_each_partition():
    rows = [admitted("a", 10, broker_ms=12), admitted("a", 3, broker_ms=7), rejected(5, partition=2, broker_ms=BASE_MS)]
    rows[2] |= {"from_partition": 2, "broker_ms": BASE_MS + 40}
    out = of_kind(folded(rows, fold=stream_fold(BASE_MS, 2, 5)), TIMES)
    assert [row["bucket"] for row in out] == list(range(FOLD.screen.buckets))
    (report,) = {row["payload"] for row in out}
    partitions = {
        1: Partition(BASE_MS + 10, BASE_MS + 12),
        2: Partition(-1, BASE_MS + 40, is_unread=True),
        5: Partition(is_unread=True),
    }
    assert report == watermark.report(EventTime(BASE_MS, BASE_MS), partitions)
    assert not of_kind(folded(rows), TIMES), "nobody is told anything in a batch run"


ENDLESS = View(name="total", by=("device",), window="none")


def totals(rows):
    """The number of readings by view and device."""
    counts = Counter()
    for part in unpacked(rows, PARTS):
        counts[part["view"], part["key"]] += part["count"]
    return counts


def test_an_original_counts_where_its_copy_does_not():
    """In a view without windows it does if it was late; else the copy counts, and the original is a reject."""
    views = [(ENDLESS, ("t",)), (View(name="device", by=("device",), window=10_000), ("t",))]
    late = admitted("a", 5_000, 1.0, broker_ms=90_000)
    late["reject"] = rejected(5_000, partition=1)["reject"]
    rows = [admitted("a", 10, 1.0), admitted("a", 11, 1.0), admitted("a", 12, 1.0), late, rejected(4, "undecodable")]
    places = (1, 10, -1, True), (1, 11, -1, False), (1, 5_000, -1, True), (3, 4, -1, False)
    fold = replace(FOLD, views=views, context=lambda: BatchContext(replaced=places))
    out = folded(rows, fold=fold)
    assert totals(out) == {("total", "a"): 3, ("device", "a"): 1}
    assert reasons_of(out) == ["late", "replayed", "replayed", "undecodable"]

    table = table_of([admitted("a", 20, 1.0), admitted("a", 21, 1.0), late])
    copies = table.append_column(COUNTED, pa.array([True, False, True]))
    out = [row for batch in fold.fold(copies) for row in batch.to_pylist()]
    assert totals(out) == {("total", "a"): 1, ("device", "a"): 2}


def test_a_view_without_windows_counts_what_is_late_and_nothing_else_that_is_rejected(monkeypatch):
    views = [(ENDLESS, ("t",)), (View(name="device", by=("device",), window=10_000), ("t",))]
    fold = replace(stream_fold(BASE_MS + 10), views=views)
    behind, too_late = admitted("a", 9, 1.0), admitted("a", 5_000, 1.0, broker_ms=90_000)
    too_late["reject"] = rejected(3, partition=1)["reject"]
    rows = [admitted("a", 11, 1.0), behind, too_late, rejected(4, "undecodable"), admitted("bb", 8, 1.0)]
    out = folded(rows, fold=fold)
    assert totals(out) == {("total", "a"): 3, ("total", "bb"): 1, ("device", "a"): 1}
    assert reasons_of(out) == ["behind", "behind", "late", "undecodable"]
    assert watermark.combine([row["payload"] for row in of_kind(out, TIMES)[:1]], DELAYS).newest_ms == BASE_MS + 11
    monkeypatch.setattr(screen, "are_known", lambda names, _: np.array([n == "bb" for n in names.to_pylist()]))
    listed = list(replace(fold, context=lambda: replace(fold.context(), devices="list"))(table_of(rows).to_batches()))
    out = [row for batch in listed for row in batch.to_pylist()]
    assert totals(out) == {("total", "bb"): 1}, "a late reading makes no key for a device that is not listed"


def test_of_copies_the_first_by_partition_and_offset_counts_and_the_others_name_it(tmp_path):
    seen_keys._CACHE.clear()
    calls = iter(range(9))

    def context():
        return BatchContext(EventTime(BASE_MS - 9, BASE_MS), distinct=(str(tmp_path), next(calls), 1, BASE_MS - 5))

    fold = replace(FOLD, context=context, max_rows=1)
    rows = [admitted("a", 3, value) | {"offset": offset, "from_partition": 1} for offset, value in ((7, 1.0), (5, 2.0))]
    rows += [admitted("a", 3, 3.0) | {"offset": 9, "from_partition": 0}, admitted("b", 3, 4.0)]
    out = folded(rows, sizes=[1, 1], fold=fold)
    assert {key[0]: (row["count"], row["max"]) for key, row in panes(out).items()} == {"a": (1, 3.0), "b": (1, 4.0)}
    details = {(r["reason"], r["partition"], r["offset"]): r["detail"] for r in unpacked(out, REJECTS)}
    first = "the same reading as readings[0]@9"
    assert details == {("duplicate", 1, 5): first, ("duplicate", 1, 7): first}
    (again,) = unpacked(folded([admitted("a", 3, 1.0) | {"offset": 11}], fold=fold), REJECTS)
    assert again["detail"] == first
    assert not of_kind(folded([admitted("a", -6, 1.0)], fold=fold), REJECTS)
    assert not of_kind(folded([admitted("a", -6, 1.0)], fold=fold), REJECTS), "it is forgotten at once"


@pytest.mark.parametrize(("watermark_ms", "floor_ms"), [(-9, -5), (-100, -96), (-3, -3)])
def test_keys_are_remembered_behind_the_newest_time_and_behind_a_held_watermark(watermark_ms, floor_ms):
    admission = SimpleNamespace(watermark_delay_ms=9, distinct_for_ms=5)
    assert seen_keys.floor_ms(EventTime(BASE_MS + watermark_ms, BASE_MS), admission) == BASE_MS + floor_ms


def test_a_reading_whose_broker_time_is_ahead_moves_no_watermark_and_names_its_device():
    state = BatchContext(now_ms=BASE_MS, latest_ms=BASE_MS + 100, trusted=frozenset({1}))
    rows = [admitted("a", 10, 1.0, broker_ms=10), admitted("a", 5_000, 1.0, broker_ms=5_000), rejected(7, partition=1)]
    rows.append(rejected(8, device="bb"))
    rows[2] = rejected(7, "no_time")
    for row, ms in zip(rows[2:], (6_000, 7_000), strict=True):
        row |= {"broker_ms": BASE_MS + ms, "from_partition": 1, "bucket": 0}
    out = folded(rows, fold=replace(FOLD, context=lambda: replace(state, unread=frozenset({1}))))
    assert totals(out).total() > 0
    rejects = unpacked(out, REJECTS)
    ahead = {each["device"]: each["broker_ms"] - BASE_MS for each in rejects if each["reason"] == "ahead"}
    assert ahead == {"a": 5_000, "bb": 7_000}
    assert len(rejects) == 3
    (report,) = {row["payload"] for row in of_kind(out, TIMES)}
    assert report == watermark.report(state.before, {1: Partition(BASE_MS + 10, BASE_MS + 10, is_unread=True)})
    out = folded([rows[1]], fold=replace(FOLD, context=lambda: state, screen=replace(FOLD.screen, has_filter=True)))
    assert not of_kind(out, PARTS), "a batch of nothing else"
    assert {row["payload"] for row in of_kind(out, TIMES)} == {watermark.report(state.before, {1: Partition()})}


@pytest.mark.parametrize("letter", ["x", "|", "é"])
def test_a_key_that_is_too_long_for_a_database_counts_as_other(letter):
    """Each column of a record has at most 256 bytes, an attribute of the reference has no limit, and | takes three bytes."""
    view = View(name="long", by=("line", "site"), window=10_000)
    devices = pa.array(["a", "b", "c"])
    texts = [letter, letter * (KEY_BYTES + 1), None]
    attributes = pa.table({"line": ["1", "2", "3"], "site": pa.array(texts, pa.string()), "known": [True] * 3})
    found = window_parts.groups(view, devices, attributes).keys.to_pylist()
    assert found == [f"1|{letter.replace('|', '%7C')}", "(other)|(other)", f"3|{NONE}"]
    alone = window_parts.groups(View(name="site", by=("site",), window=10_000), devices, attributes).keys.to_pylist()
    assert alone == [letter, "(other)", NONE]


def test_readings_of_the_past_count_where_their_batch_has_counted_them(tmp_path):
    """A device that moves and one that leaves: each reading has the attributes of the snapshot of its place."""
    folder = tmp_path / "reference"
    stored = [
        snapshots.store(folder, pa.table({"device": [*sites], "site": [*sites.values()]}))
        for sites in ({"a": "north", "b": "north"}, {"a": "south"})
    ]
    periods = [Period(each.path, ("site",), ((1, 3_000 * n),)) for n, each in enumerate(stored)]
    views = ((View(name="site", by=("site",), window=10_000), ("t",)),)
    fold = replace(FOLD, views=views, attributes=Then(tuple(periods), ("site",)))
    rows = [admitted(device, ms, t=1.0) for ms in (1_000, 2_000, 4_000) for device in ("a", "b")]
    assert totals(folded(rows, fold=fold)) == {("site", "north"): 4, ("site", "south"): 1, ("site", NONE): 1}


ROME = View(name="day", by=("device",), window="1 d", time_zone="Europe/Rome")
CALENDARS = (
    ROME,
    View(name="shift", by=(), window="1 d", time_zone="Australia/Lord_Howe", offset="6 h"),
    View(name="month", by=("device",), window="1 mo", time_zone="America/New_York"),
    View(name="minute", by=("device",), window="1 m"),
)
MARCH_MS = 1_774_656_000_000
"""2026-03-28, a day before clocks go forward in Rome, and some before they go back on Lord Howe."""


@examples(60)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10 * 86_400_000)), min_size=1, max_size=40))
def test_a_local_day_holds_exactly_the_readings_of_that_local_day(readings):
    """By the date that the zone's clock shows at each reading."""
    fold = replace(FOLD, views=[(view, ("t",)) for view in CALENDARS], pane_ms=60_000)
    rows = [admitted(device, MARCH_MS - BASE_MS + ms, t=1.0) for device, ms in readings]
    expected = Counter()
    for row in rows:
        at = datetime.fromtimestamp(row["event_ms"] / 1000, UTC)
        rome, howe, york = (
            at.astimezone(calendars.zone(name)) for name in ("Europe/Rome", "Australia/Lord_Howe", "America/New_York")
        )
        expected["day", row["device"], rome.date()] += 1
        expected["shift", "all", (howe.replace(tzinfo=None) - timedelta(hours=6)).date()] += 1
        expected["month", row["device"], york.date().replace(day=1)] += 1
    found = Counter()
    for (view, key, _, start), window in merged(folded(rows, fold=fold)).items():
        zone = next(each.time_zone for each in CALENDARS if each.name == view)
        if zone is not None:
            local = datetime.fromtimestamp(start / 1000, UTC).astimezone(calendars.zone(zone))
            assert (local.hour, local.minute) == ((6, 0) if view == "shift" else (0, 0))
            found[view, key, local.date()] += window["count"]
    assert found == expected


ZONES = {
    **dict(zip("abcd", ("Europe/Rome", "Asia/Kathmandu", "Australia/Lord_Howe", "America/New_York"), strict=True)),
    **dict(zip("efgh", (None, "", "Mars/Olympus", " Europe/Rome"), strict=True)),
}
"""Attributes of devices; those of the second line are no zones."""
BY_ZONE = View(name="day", by=("device", "zone"), window="1 d", time_zone={"column": "zone"})


def by_zone(view=BY_ZONE, **changes):
    zones = pa.table({"device": [*ZONES], "zone": pa.array(ZONES.values(), pa.string())})
    return replace(FOLD, views=[(view, ("t",))], pane_ms=view.step_ms, attributes=Index(zones), **changes)


@examples(60)
@given(st.lists(st.tuples(st.sampled_from([*ZONES]), st.integers(0, 10 * 86_400_000)), min_size=1, max_size=40))
def test_a_day_in_the_zone_of_each_device_holds_exactly_the_readings_of_that_day_there(readings):
    """Without a zone that tzdata has it is a day of UTC, and no reading is lost."""
    rows = [admitted(device, MARCH_MS - BASE_MS + ms, t=1.0) for device, ms in readings]
    expected = Counter()
    for row in rows:
        zone = ZONES[row["device"]] if row["device"] in "abcd" else "UTC"
        local = datetime.fromtimestamp(row["event_ms"] / 1000, UTC).astimezone(calendars.zone(zone))
        expected[f"{row['device']}|{NONE if zone == 'UTC' else zone}", local.date()] += 1
    found = Counter()
    for part in parts_of(folded(rows, fold=by_zone())):
        zone = part["key"].partition("|")[2].replace(NONE, "UTC")
        begin, end = (
            datetime.fromtimestamp(part[name] / 1000, UTC).astimezone(calendars.zone(zone)) for name in ("start", "end")
        )
        assert (begin.hour, begin.minute, end.hour, end.minute) == (0, 0, 0, 0)
        assert end.date() - begin.date() == timedelta(days=1)
        found[part["key"], begin.date()] += part["count"]
    assert found == expected


def test_a_reading_that_is_carried_over_a_change_of_clocks_is_in_the_days_of_its_zone():
    view = BY_ZONE.model_copy(update={"statistics": ("first", "time_weighted_mean"), "carry_for_ms": 2 * 86_400_000})
    rows = [admitted(device, MARCH_MS - BASE_MS + 12 * 3_600_000, t=1.0) for device in "ab"]
    spans = Counter((row["key"][0], row["end"] - row["start"]) for row in parts_of(folded(rows, fold=by_zone(view))))
    day, hour = 86_400_000, 3_600_000
    assert spans == {("a", day): 2, ("a", day - hour): 1, ("b", day): 3}


@pytest.mark.parametrize(("zone", "start_ms"), [("Africa/Monrovia", 2_670_000), ("Pacific/Kiritimati", 38_400_000)])
def test_days_of_a_zone_whose_clock_was_off_by_no_whole_quarter_of_an_hour_are_exact(zone, start_ms):
    """In 1970 a day of Liberia began at 00:44:30 of UTC."""
    zones = pa.table({"device": ["a"], "zone": [zone]})
    fold = replace(by_zone(), attributes=Index(zones))
    rows = [admitted("a", start_ms - BASE_MS + ms, t=1.0) for ms in (-1, 0)]
    starts = {(row["start"], row["end"], row["count"]) for row in parts_of(folded(rows, fold=fold))}
    assert starts == {(start_ms - 86_400_000, start_ms, 1), (start_ms, start_ms + 86_400_000, 1)}


def test_a_device_that_moves_to_another_zone_has_windows_of_its_own_there(tmp_path):
    folder = tmp_path / "reference"
    stored = [
        snapshots.store(folder, pa.table({"device": ["a"], "zone": [zone]}))
        for zone in ("Europe/Rome", "Asia/Kathmandu")
    ]
    periods = [Period(each.path, ("zone",), ((1, 3_000 * n),)) for n, each in enumerate(stored)]
    fold = replace(by_zone(), attributes=Then(tuple(periods), ("zone",)))
    keys = Counter(
        {
            row["key"]: row["count"]
            for row in parts_of(folded([admitted("a", ms, t=1.0) for ms in (1_000, 4_000)], fold=fold))
        }
    )
    assert keys == {"a|Europe/Rome": 1, "a|Asia/Kathmandu": 1}
