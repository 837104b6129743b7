"""Records that are arrays, on real Spark: each reading is decided alone, and all of them as the oracle decides."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from service.admission import readings
from service.admission.arrays import NO_INDEX
from service.admission.expansion import BATCH_BYTES, INDEX
from service.aggregation import task_counters
from service.commands.dissect import Dissector
from service.commands.explain import explain
from service.rejects.reject_log import Coordinates, Reject
from service.settings import parse
from tests.stream.decisions import admitted, by_oracle, frame_of, reason
from tests.stream.records import BASE_MS, Record, make_document
from tests.stream.script import Add, Check, Expect, Restart, run

pytestmark = pytest.mark.spark

INPUT = {"format": "json", "array": True, "measures": {"temperature": "temperature"}, "columns": {"kind": "kind"}}


def text(device="a", seconds=0, temperature=20.5, **more):
    fields = {"device_id": device, "event_time": BASE_MS + seconds * 1000, "temperature": temperature, **more}
    return json.dumps(fields).encode()


def array(*elements):
    return b"[" + b", ".join(elements) + b"]"


GOOD, HOT = text(), text(temperature="hot")
CASES = {
    array(GOOD, HOT, GOOD): [20.5, "undecodable", 20.5],
    gzip.compress(array(GOOD, text(temperature=1e200), GOOD), mtime=0): [20.5, "out_of_range", 20.5],
    GOOD: [20.5],
    gzip.compress(GOOD, mtime=0): [20.5],
    array(b"5", b"null", array(GOOD), b'"x"', b"{}", GOOD[:-1] + b",}", b"", GOOD): [
        *["undecodable"] * 4,
        "no_device",
        *["undecodable"] * 2,
        20.5,
    ],
    array(text(seconds=-9_000), text(seconds=9_000), text(device=""), text(device="x" * 300)): [
        "late",
        "early",
        "no_device",
        "bad_device",
    ],
    array(GOOD, text(kind="pump"), GOOD): [20.5, "filtered", 20.5],
    array(GOOD, b'{"note": "%s"}' % (b"x" * 70_000), GOOD): [20.5, "oversized", 20.5],
    b"[]": ["filtered"],
    None: ["undecodable"],
    b"": ["undecodable"],
    b"warm": ["undecodable"],
    array(GOOD, GOOD)[:-1]: ["undecodable"],
    gzip.compress(array(GOOD, GOOD), mtime=0)[:-9]: ["undecodable"],
    b"[" + b" " * 100_000 + b"]": ["filtered"],
    b"[" + b" " * 200_000 + b"]": ["oversized"],
    gzip.compress(b"[" + b" " * 300_000 + b"]", mtime=0): ["oversized"],
    b"\xff" + array(GOOD): ["undecodable"],
    array(b'{"device_id":"\xff"}', GOOD): ["undecodable", 20.5],
}


def document(folder, **more):
    given = {**INPUT, "max_array_bytes": 150_000, "where": "coalesce(kind, 'meter') <> 'pump'"}
    return make_document(folder, input=given, **more)


def records_of(values):
    return [Record(value, BASE_MS, offset=n) for n, value in enumerate(values)]


def test_each_reading_is_admitted_filtered_or_rejected_alone_as_the_oracle_does(spark, tmp_path):
    given, records = document(tmp_path), records_of(CASES)
    rows = admitted(spark, parse(given), records)
    found = {}
    for row in rows:
        reject = json.loads(row["reject"]) if row["reject"] else {"index": row[INDEX]}
        assert reject.get("index") == row[INDEX]
        outcome = reject.get("reason", row["temperature"] if row["device"] else "filtered")
        found.setdefault(row["offset"], []).append((row[INDEX], outcome))
    for number, (value, expected) in enumerate(CASES.items()):
        indices, outcomes = zip(*found[number], strict=True)
        assert list(outcomes) == expected, value
        assert indices in (tuple(range(len(expected))), (None,)), value
    ledger, _ = by_oracle(tmp_path, given, records)
    expected = ledger.close(0).rejects
    places = {
        ("readings", 0, offset, *([] if index is None else [index])): outcome
        for offset, outcomes in found.items()
        for index, outcome in outcomes
        if isinstance(outcome, str) and outcome != "filtered"
    }
    assert places == expected
    count = ledger.partitions["readings", 0]
    assert count.consumed == count.admitted + count.rejected + count.filtered - count.further


def test_damaged_arrays_are_decided_as_the_oracle_decides(spark, tmp_path):
    chance, values = random.Random(11), []
    for _ in range(300):
        broken = bytearray(array(GOOD, text("b", 1, kind="pump"), text("c", 2, 1.5, note={"x": [1, "]"]})))
        for _ in range(chance.randrange(3)):
            broken[chance.randrange(len(broken))] = chance.choice(b'[]{},"\\x \xff0')
        packed = bytearray(gzip.compress(bytes(broken), mtime=0)) if chance.random() < 0.4 else broken
        if packed is not broken and chance.random() < 0.5:
            packed[chance.randrange(2, len(packed))] ^= 1 << chance.randrange(8)
        values.append(bytes(packed))
    given, records = document(tmp_path), records_of(values)
    rows = admitted(spark, parse(given), records)
    ledger, _ = by_oracle(tmp_path, given, records)
    places = {}
    for row in rows:
        if row["reject"]:
            index = [] if row[INDEX] is None else [row[INDEX]]
            places["readings", 0, row["offset"], *index] = reason(row)
    assert places == ledger.close(0).rejects
    assert sum(row["device"] is not None for row in rows) == ledger.partitions["readings", 0].admitted > 300


@pytest.mark.thorough
def test_a_record_with_100_000_readings_is_admitted_and_one_more_is_a_reject(spark, tmp_path):
    settings = parse(make_document(tmp_path, input=INPUT))
    many = [b'{"device_id":"d%d","event_time":%d,"temperature":1}' % (n % 7, BASE_MS) for n in range(100_000)]
    many[50_000] = b"[]"
    table = readings.admit(
        frame_of(spark, records_of([gzip.compress(array(*each), mtime=0) for each in (many, [*many, b"{}"])])), settings
    ).toArrow()
    assert pc.sum(pc.is_valid(table["device"])).as_py() == 99_999
    rejects = [json.loads(each) for each in table["reject"].drop_null().to_pylist()]
    assert [(each["reason"], each["detail"], each.get("index")) for each in rejects] == [
        ("undecodable", "2 bytes", 50_000),
        ("oversized", "more than 100000 readings in one record", None),
    ]


def test_readings_count_once_through_restarts_and_records_are_accounted_for(spark, tmp_path):
    def check(world):
        counts = task_counters.total(world.counts)
        decided = counts.sum(task_counters.ADMITTED) + sum(counts.rows(task_counters.REJECTED).count)
        decided += counts.sum(task_counters.FILTERED)
        assert (decided, counts.sum(task_counters.FURTHER)) == (7, 3)
        assert decided - counts.sum(task_counters.FURTHER) == 4
        places = {(each["offset"], each["index"]): each["reason"] for each in world.rejects}
        assert places == {(0, 1): "undecodable", (2, None): "undecodable"}

    run(
        spark,
        parse(make_document(tmp_path, input=INPUT)),
        tmp_path,
        [
            Add(Record(gzip.compress(array(GOOD, HOT, text(seconds=5, temperature=22.0)), mtime=0), BASE_MS, offset=0)),
            Restart(),
            Add(
                Record(array(text("b"), text("b", 1)), BASE_MS, offset=1),
                Record(b"\x1f\x8bbroken", BASE_MS, offset=2),
                Record(b"[]", BASE_MS, offset=3),
            ),
            Expect(
                windows={("device", "temperature", "a", 0): (2, 21.25), ("device", "temperature", "b", 0): (2, 20.5)}
            ),
            Check(check),
        ],
    )


def test_a_copy_in_the_same_array_or_in_a_later_one_has_the_index_of_the_first(spark, tmp_path):
    def check(world):
        places = {(each["offset"], each["index"]): each["detail"] for each in world.rejects}
        assert places == {
            (0, 1): "the same reading as readings[0]@0#0",
            (1, 0): "the same reading as readings[0]@0#2",
            (2, None): "the same reading as readings[0]@0#0",
        }

    admission = {"distinct": ["device", "event_time"]}
    run(
        spark,
        parse(make_document(tmp_path, input=INPUT, admission=admission)),
        tmp_path,
        [
            Add(Record(array(GOOD, GOOD, text(seconds=5)), BASE_MS, offset=0)),
            Restart(),
            Add(Record(array(text(seconds=5), text(seconds=4)), BASE_MS, offset=1), Record(GOOD, BASE_MS, offset=2)),
            Check(check),
        ],
    )


def test_large_records_are_handed_to_python_in_batches_of_bounded_bytes(spark, tmp_path):
    former = spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch")
    try:
        large = frame_of(spark, records_of([bytes(2 << 20)] * 60))
        readings.admit(large, parse(make_document(tmp_path, input=INPUT)))
        sizes = large.select("value").mapInArrow(_sizes, "rows int, bytes bigint").collect()
        assert sum(rows for rows, _ in sizes) == 60
        assert max(size for _, size in sizes) <= BATCH_BYTES + (4 << 20)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", former)


def _sizes(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int32()), "bytes": [batch.nbytes]})


def test_without_arrays_no_record_goes_through_python_and_nothing_has_an_index(spark, tmp_path):
    def plan(**more):
        admitted = readings.admit(frame_of(spark, []), parse(make_document(tmp_path, input={**INPUT, **more})))
        return admitted.columns, admitted._jdf.queryExecution().executedPlan().toString()

    columns, text_of_plan = plan(array=False)
    assert INDEX not in columns
    assert not any(each in text_of_plan for each in ("MapInArrow", "index", "fault"))
    columns, text_of_plan = plan()
    assert columns[-1] == INDEX
    assert text_of_plan.count("MapInArrow") == 1


def test_a_reject_of_a_record_says_why_it_holds_no_readings(tmp_path):
    settings = parse(document(tmp_path))
    dissector = Dissector(settings)
    for value, why, detail, expected in (
        (gzip.compress(array(GOOD), mtime=0)[:-9], "undecodable", "", "gzip: the stream ends early (byte 0 of"),
        (b"[{}", "undecodable", "", "the array has no end (byte 0 of 3)"),
        (HOT, "undecodable", "", 'temperature = "hot": expected a number'),
        (gzip.compress(HOT, mtime=0), "undecodable", "", 'temperature = "hot": expected a number'),
        (b"x", "oversized", "9 bytes, limit 8 (input.max_array_bytes)", "9 bytes, limit 8 (input.max_array_bytes)"),
        (b"x", "oversized", "70000 bytes, limit 9 (admission.max_bytes)", "68.36 KiB (70000 bytes), limit 64 KiB"),
    ):
        reject = Reject(Coordinates("readings", 0, 1, NO_INDEX), why, detail, BASE_MS, 0, 0, None, value, ())
        assert explain(reject, dissector("readings", value), settings).startswith(expected)
