"""Columns of the record on real Spark: whose values become keys, what is decided once, what a restart remembers."""

import json
from collections import Counter

import pyarrow as pa
import pytest

from service.admission import column_values
from service.admission.column_values import ColumnValues
from service.aggregation import task_counters
from service.errors import FencedError
from service.pipeline import builder
from service.row_schemas import PARTS
from service.spark.files import Local
from state import codec
from tests.stream.decisions import by_oracle, frame_of
from tests.stream.records import BASE_MS, SCHEMA, Record, avro, make_document, make_settings
from tests.stream.script import Add, Check, Expect, Restart, run
from tests.stream.test_pass import executed_plan

pytestmark = pytest.mark.spark

VIEWS = [
    {"name": "line", "by": ["line"], "window": "1 m"},
    {"name": "both", "by": ["device", "line"], "window": "1 m"},
    {"name": "device", "by": ["device"], "window": "1 m"},
]


def document(folder, limit=10_000, views=VIEWS, kind="json"):
    columns = {"line": {"path": "env.line", "max_values": limit}, "ok": "ok"}
    form = {"format": kind, "columns": columns, "measures": {"temperature": "temperature"}}
    return make_document(folder, input=form, views=views)


def settings(folder, limit=10_000, views=VIEWS):
    return make_settings(folder, **{name: document(folder, limit, views)[name] for name in ("input", "views")})


def reading(device, seconds, temperature, line=None, **more):
    fields = {"device_id": device, "event_time": BASE_MS + seconds * 1000, "temperature": temperature, **more}
    if line is not None:
        fields["env"] = {"line": line}
    return Record(json.dumps(fields).encode(), BASE_MS + seconds * 1000, device.encode())


def windows(world, view="line"):
    return {key: row["count"] for (name, _, key, _), row in world.windows.items() if name == view}


def expect(**counts):
    def check(world):
        assert windows(world) == counts

    return Check(check)


def test_a_value_above_the_limit_is_other_for_good_and_also_after_a_restart(spark, tmp_path):
    first = [reading("a", at, 1.0, line) for at, line in enumerate(("l1", "l2", "l3"))]
    again = [reading("a", 10 + at, 1.0, line) for at, line in enumerate(("l3", "l4", "l1"))]
    world = run(
        spark,
        settings(tmp_path, limit=2),
        tmp_path,
        [
            Add(*first),
            expect(l1=1, l2=1, **{"(other)": 1}),
            Add(*again),
            expect(l1=2, l2=1, **{"(other)": 3}),
            Restart(),
            Add(reading("a", 20, 1.0, "l3"), reading("a", 21, 1.0, "l2"), reading("a", 22, 1.0)),
            expect(l1=2, l2=2, **{"(other)": 4, "(none)": 1}),
        ],
    )
    assert world.counted(task_counters.OTHER) == 4
    assert json.loads((tmp_path / "checkpoint" / "columns" / "values.json").read_text()) == {"line": ["l1", "l2"]}


def test_a_batch_that_fails_after_the_decision_decides_the_same_when_it_is_repeated(spark, tmp_path):
    def fail(world):
        def crash():
            raise RuntimeError

        world.crash_in_batch = crash

    def mend(world):
        world.crash_in_batch = None

    def add_and_fail(world):
        with pytest.raises(Exception, match="RuntimeError"):
            Add(reading("a", 1, 1.0, "b"), reading("a", 2, 1.0, "a")).do(world)
        world.stop()

    run(
        spark,
        settings(tmp_path, limit=2),
        tmp_path,
        [
            Add(reading("a", 0, 1.0, "z")),
            Check(fail),
            Check(add_and_fail),
            Check(mend),
            Restart(),
            expect(z=1, a=1, **{"(other)": 1}),
        ],
    )


def test_a_writer_that_is_fenced_decides_nothing(spark, tmp_path):
    values = ColumnValues(spark.sparkContext, Local(tmp_path), {"line": 2})

    def fence():
        # The successor has decided while this writer was frozen.
        Local(tmp_path).replace(column_values.DOCUMENT.name, b'{"line": ["first"]}')
        raise FencedError("fenced")

    with pytest.raises(FencedError):
        values.decide({"line": ["late"]}, fence)
    assert json.loads((tmp_path / column_values.DOCUMENT.name).read_text()) == {"line": ["first"]}


@pytest.mark.thorough
def test_more_values_than_one_report_has_are_all_decided(spark, tmp_path):
    count = 2 * column_values.AT_ONCE + 10
    values = [f"a rather long name of a line, to fill a report: {number}" for number in range(count)]
    records = [reading("a", 0, 1.0, value) for value in values]

    def check(world):
        assert windows(world) == dict.fromkeys(values, 1)

    def check_restart(world):
        assert windows(world) == Counter([*values, *values[:5]])

    run(
        spark,
        settings(tmp_path, views=VIEWS[:1]),
        tmp_path,
        [Add(*records), Check(check), Restart(), Add(*records[:5]), Check(check_restart)],
    )


@pytest.mark.thorough
def test_a_million_different_values_leave_as_many_windows_as_the_limit_allows(spark, tmp_path):
    chosen = settings(tmp_path, limit=3, views=VIEWS[:1])
    records = [reading(f"d{at % 7}", at % 60, 1.0, f"l{at}") for at in range(20_000)]
    world = run(spark, chosen, tmp_path, [Add(*records)])
    assert sorted(windows(world).values()) == [1, 1, 1, 19_997]
    assert world.counted(task_counters.OTHER) == 19_997


def test_a_text_that_can_be_in_no_key_is_other_and_never_listed(spark, tmp_path):
    texts = ("x" * 257, "two\nlines", "\u202eover", "(other)")
    records = [reading("a", at, 1.0, text) for at, text in enumerate(texts)]
    run(spark, settings(tmp_path, limit=1), tmp_path, [Add(*records), expect(**{"(other)": 4})])
    assert not (tmp_path / "checkpoint" / "columns").exists()


WRONG = {"an object": {"a": 1}, "an array": [1], "a fraction": 1.5, "too large": 1 << 63}


def test_a_value_of_another_type_makes_the_record_undecodable(spark, tmp_path):
    records = [reading("a", at, 1.0, value) for at, value in enumerate(WRONG.values())]
    run(spark, settings(tmp_path), tmp_path, [Add(*records), Expect(rejects=["undecodable"] * 4, windows={})])


def test_a_column_of_avro_is_text_a_number_or_a_symbol(spark, tmp_path):
    kinds = {"line": ["null", "string"], "ok": "boolean", "number": "long"}
    kinds["state"] = {"type": "enum", "name": "State", "symbols": ["UP", "DOWN"]}
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"], *({"name": n, "type": each} for n, each in kinds.items())]}
    columns = {name: name for name in kinds}
    chosen = make_settings(
        tmp_path, input={"columns": columns}, views=[{"name": "v", "by": list(kinds), "window": "1 m"}]
    )
    (tmp_path / "schemas" / "1.avsc").write_text(json.dumps(schema))
    fields = {"device_id": "a", "event_time": BASE_MS, "temperature": 1.0, "ok": True, "number": -1 << 63}
    values = [
        avro(schema=schema, **fields, line="Süd", state="UP"),
        avro(schema=schema, **fields, line=None, state="DOWN"),
        avro(schema=schema, **fields, line="xy", state="UP").replace(b"xy", b"\xff\xfe"),
    ]

    def check(world):
        assert windows(world, "v") == {
            "Süd|true|-9223372036854775808|UP": 1,
            "(none)|true|-9223372036854775808|DOWN": 1,
        }

    records = [Record(value, BASE_MS) for value in values]
    run(spark, chosen, tmp_path, [Add(*records), Check(check), Expect(rejects=["undecodable"])])


def test_a_recomputation_decides_as_the_stream_did(spark, tmp_path):
    chosen = settings(tmp_path, limit=2)
    records = [reading("a", at, 1.0, line) for at, line in enumerate(("l3", "l1", "l2", "l1"))]
    run(spark, chosen, tmp_path, [Add(records[0]), Add(*records[1:]), expect(l3=1, l1=2, **{"(other)": 1})])
    known = column_values.stored(chosen, Local(tmp_path / "checkpoint"))
    folded = builder.fold(builder.readings.admit(frame_of(spark, records), chosen), chosen, None, known).collect()
    parts = [codec.unpack(b"W", bytes(row.payload)) for row in folded if row.kind == PARTS]
    counts = Counter()
    for row in (row for part in parts for row in part.to_pylist() if row["view"] == "line"):
        counts[row["key"]] += row["count"]
    assert counts == {"l3": 1, "l1": 2, "(other)": 1}


def test_a_recomputation_has_no_more_keys_than_the_limit_allows(tmp_path):
    Local(tmp_path).replace(column_values.DOCUMENT.name, json.dumps({"line": ["l1", "l2"]}).encode())
    known = column_values.stored(settings(tmp_path, limit=5), Local(tmp_path))

    def keys(*unlisted):
        values = pa.chunked_array([["l1", None, "(other)", *unlisted]])
        return known.decided({"line": values})["line"].cast(pa.string()).to_pylist()[3:]

    assert keys("x", "y", "z") == ["x", "y", "z"]
    assert keys(*(f"x{number}" for number in range(10_000)), "l2") == ["(other)"] * 10_000 + ["l2"]
    full = column_values.stored(settings(tmp_path, limit=1), Local(tmp_path))
    assert full.decided({"line": pa.chunked_array([["l2", "x"]])})["line"].to_pylist() == ["l2", "(other)"]


def test_a_view_without_columns_has_the_plan_that_it_had(spark, tmp_path):
    plans = {}

    def keep(name):
        def look(world):
            plans[name] = executed_plan(world)

        return Check(look)

    views = [VIEWS[2]]
    run(spark, settings(tmp_path / "on", views=views), tmp_path / "on", [Add(reading("a", 0, 1.0)), keep("on")])
    assert "column_line" not in plans["on"]


def test_the_oracle_has_the_same_keys(spark, tmp_path):
    texts = ["l1", "l|2", 7, True, None, "x" * 257, "\u2028", "", *WRONG.values()]
    records = [reading("a", at, 1.0, text) for at, text in enumerate(texts)]
    ledger, _ = by_oracle(tmp_path, document(tmp_path), records)
    expected = ledger.close(0)

    def check(world):
        actual = {(v, m, k, s + BASE_MS): row["count"] for (v, m, k, s), row in world.windows.items()}
        assert actual == {key: window.count for key, window in expected.windows.items()}
        assert len(world.rejects) == len(expected.rejects) == len(WRONG)

    run(spark, settings(tmp_path), tmp_path, [Add(*records), Check(check)])
