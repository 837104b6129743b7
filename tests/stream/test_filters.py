"""Filters on real Spark: what is let in, what a view has, what is refused by name, and what all of it costs without."""

import json

import pytest

from service.admission import filters, readings
from service.admission.formats.format import FILTERED
from service.aggregation import task_counters
from service.errors import SettingsError
from service.pipeline import builder
from service.row_schemas import FOLDED, PARTS
from state import codec
from tests.stream.decisions import admitted, by_oracle, frame_of, reason
from tests.stream.records import BASE_MS, Record, make_document, make_settings
from tests.stream.script import Add, Check, Expect, Restart, run

pytestmark = pytest.mark.spark

INPUT = {
    "format": "json",
    "measures": {"temperature": "temperature", "value": "v"},
    "columns": {"kind": "kind", "line": "line"},
}
REFERENCE = {"url": "jdbc:sqlite:x", "query": "q", "columns": ["site"]}
VIEWS = [{"name": "device", "by": ["device"], "window": "1 m", "measures": ["temperature"]}]


def settings(folder, where=None, views=VIEWS, **sections):
    form = {**INPUT, **({"where": where} if where else {})}
    return make_settings(folder, input=form, views=views, **sections)


def reading(device, seconds, temperature=20.0, **more):
    fields = {"device_id": device, "event_time": BASE_MS + seconds * 1000, "temperature": temperature, **more}
    return Record(json.dumps(fields).encode(), BASE_MS + seconds * 1000, device.encode())


def windows(world, view="device"):
    return {key: row["count"] for (name, _, key, _), row in world.windows.items() if name == view}


def filtered(count):
    def check(world):
        assert world.counted(task_counters.FILTERED) == count

    return Check(check)


def expect(view="device", **counts):
    def check(world):
        assert windows(world, view) == counts

    return Check(check)


def test_a_record_that_does_not_meet_the_filter_is_counted_and_leaves_nothing(spark, tmp_path):
    records = [
        reading("a", 0, kind="meter"),
        reading("b", 1, kind="pump"),
        reading("c", 2),  # null is not met
        reading("d", 3, -41.0, kind="meter"),
        Record(b'{"kind":"pump"}', BASE_MS),  # neither device nor time: another kind of record
        Record(b'{"kind":"meter"}', BASE_MS),
        Record(b"no JSON", BASE_MS),
        reading("e", 4, "warm", kind="pump"),
    ]
    run(
        spark,
        settings(tmp_path, "kind = 'meter' and (temperature > -40 or temperature is null)"),
        tmp_path,
        [
            Add(*records),
            expect(a=1),
            filtered(4),
            Expect(rejects=["no_device", "undecodable", "undecodable"], sessions={("a", 0): "open"}),
            Restart(),
            Add(reading("b", 5, kind="meter"), reading("a", 6, kind="pump")),
            expect(a=1, b=1),
            filtered(5),
        ],
    )


def test_an_input_is_filtered_by_attributes_and_an_unknown_device_has_none(spark, tmp_path):
    reference = spark.createDataFrame([("a", "north"), ("b", "south")], "device string, site string")
    run(
        spark,
        settings(tmp_path, "site <> 'south'", reference=REFERENCE),
        tmp_path,
        [Add(reading("a", 0), reading("b", 1), reading("c", 2)), expect(a=1), filtered(2)],
        reference,
    )


def counts_of(folded):
    """Readings by view, of rows of FOLDED."""
    counts: dict[str, int] = {}
    for row in (r for e in folded if e.kind == PARTS for r in codec.unpack(b"W", bytes(e.payload)).to_pylist()):
        counts[row["view"]] = counts.get(row["view"], 0) + row["count"]
    return counts


WHERE = {
    "kind = 'meter' and temperature > 20": "the operators",
    "kind in ('meter', 'pump') or kind is null": "in and null",
    "not (temperature between 10 and 20)": "between",
    "line like 'l_%' and lower(kind) = 'meter'": "like",
    "case when kind = 'meter' then temperature > 20 else temperature > 30 end": "case",
    "coalesce(temperature, value, 0) >= 20": "coalesce",
    "device <> 'a'": "the device",
    "line = '(other)'": "a value that no key may have",
    "temperature * 2 - 10 > 30 and length(line) < 3": "numbers",
}


@pytest.mark.thorough
def test_the_oracle_filters_alike(spark, tmp_path):
    records = [
        reading(device, at, temperature, **{name: text for name, text in more.items() if text is not None})
        for at, (device, temperature, more) in enumerate(
            (device, temperature, {"kind": kind, "line": line, "v": 25.0})
            for device in ("a", "b")
            for temperature in (10.0, 20.0, 31.0, None)
            for kind in ("meter", "METER", "pump", None)
            for line in ("l1", "L12", "two\nlines", None)
        )
    ]
    frame = frame_of(spark, records)
    views = [{**VIEWS[0], "name": f"v{at}", "where": where} for at, where in enumerate(WHERE)]
    for where in (None, *WHERE):
        chosen = settings(tmp_path, where, [*VIEWS, *views])
        rows = readings.admit(frame, chosen).mapInArrow(builder.folding(chosen, None), FOLDED).collect()
        counts = counts_of(rows)
        form = {**INPUT, **({"where": where} if where else {})}
        ledger, _ = by_oracle(tmp_path, make_document(tmp_path, input=form, views=[*VIEWS, *views]), records)
        expected: dict[str, int] = {}
        for (view, *_), window in ledger.close(0).windows.items():
            expected[view] = expected.get(view, 0) + window.count
        assert counts == expected, where
        if where is not None:
            assert 0 < ledger.partitions["readings", 0].filtered < len(records), where


REFUSED = {
    "rand() > 0.5": "the function rand is not allowed",
    "now() > event_time": "the function now is not allowed",
    "current_date > '2026'": "'current_date' is no name here",
    "current_timestamp() is null": "the function current_timestamp is not allowed",
    "uuid() = kind": "the function uuid is not allowed",
    "timestamp 'now' is null": "a value of type timestamp is not allowed",
    "cast(kind as date) is null": "a value of type date is not allowed",
    "kind in (select 1)": "InSubquery is not allowed",
    "exists (select 1)": "Exists is not allowed",
    "sum(temperature) > 1": "the function sum is not allowed",
    "sum(temperature) over () > 1": "WindowExpression is not allowed",
    "temperature > (select 1)": "ScalarSubquery is not allowed",
    "my_udf(temperature)": "the function my_udf is not allowed",
    "spark_catalog.default.f(kind)": "the function spark_catalog.default.f is not allowed",
    "kind rlike '(a+)+$'": "RLike is not allowed",
    "kind like line": "the pattern of LIKE must be a text between quotes",
    "kind like lower('A%')": "the pattern of LIKE must be a text between quotes",
    "kind ilike null": "the pattern of LIKE must be a text between quotes",
    r"kind like 'a\\bc'": "stands before something else than %, _ or",
    "kind not like 'a_/' escape '/'": "'/' stands before something else than %, _ or '/'",
    "kind like '%a%b%'": "more than 2 %",
    "(" * 3_000 + "kind = 'a'" + ")" * 3_000: "nested too deeply",
    "raise_error(kind)": "the function raise_error is not allowed",
    "reflect('java.lang.System', 'exit', 1) = ''": "the function reflect is not allowed",
    "colour = 'red'": "'colour' is no name here; there are device, kind, line, temperature, value",
    "offset > 5": "'offset' is no name here",
    "temperature": "is double, not true or false",
    "temperature >": "[PARSE_SYNTAX_ERROR]",
    "length(kind, kind, kind) > 1": "[WRONG_NUM_ARGS",
    "kind > :limit": "NamedParameter is not allowed",
    "*": "UnresolvedStar is not allowed",
}


@pytest.mark.parametrize("where", REFUSED, ids=lambda where: where[:40])
def test_a_filter_that_could_decide_twice_or_throw_is_refused_by_name(spark, tmp_path, where):
    frame = frame_of(spark, [])
    with pytest.raises(SettingsError) as of_input:
        readings.admit(frame, settings(tmp_path, where))
    assert str(of_input.value).startswith(f"input.where = {where!r}: ")
    assert REFUSED[where] in str(of_input.value)
    with pytest.raises(SettingsError, match=r"views\.device\.where"):
        readings.admit(frame, settings(tmp_path, views=[{**VIEWS[0], "where": where}]))


def test_no_value_makes_a_filter_throw(spark, tmp_path):
    where = (
        "cast(kind as int) / cast(line as int) > 0 or substring(kind, -5, 9) = line or cast(kind as bigint) div 0 = 1 or "
        "round(temperature, 400) = 1 or left(kind, -1) = '' or cast(line as decimal(3, 1)) > 1 or temperature % value > 0"
    )
    values = [0, -0.0, 1e308, -1e308, 5e-324, None]
    texts = ["", "0", "9" * 300, "\u0000", "\U0001f321" * 60, None, "-"]
    records = [
        reading("a", at % 50, number, kind=kind, line=line, v=value)
        for at, (number, kind, line, value) in enumerate(
            (n, k, x, v) for n in values for v in values for k in texts for x in texts
        )
    ]
    rows = readings.admit(frame_of(spark, records), settings(tmp_path, where)).toArrow()
    assert rows.num_rows == len(records)
    assert rows["device"].null_count > 0


def test_a_pattern_takes_no_long_time_for_a_hostile_text(spark, tmp_path):
    # Without the limits these records take hours: k wildcards look at the length to the power of k places.
    texts = {"kind": "a" * 256, "line": "%_/" * 85}
    records = [reading("a" * 60_000, 0, **texts), reading("b%", 1, **texts), reading("c", 2, kind="10%", line="/")]
    frame = frame_of(spark, records)
    where = "device like '%a%b' or device like '_/%' escape '/' or kind ilike '%A%_c' or line like '//' escape '/'"
    rows = readings.admit(frame, settings(tmp_path, where)).toArrow().sort_by("offset")
    assert rows["device"].to_pylist() == [None, "b%", "c"]
    assert rows["reject"].null_count == len(records)  # a long id does not meet the filter


def test_a_filter_reads_no_more_of_a_device_than_the_longest_id_has(spark, tmp_path):
    given = settings(tmp_path, "device like 'a%' and length(device) = 256")
    [row] = admitted(spark, given, [reading("a" * 300, 0)])
    assert reason(row) == "bad_device"


def test_without_a_filter_the_plan_is_as_it_was(spark, tmp_path):
    frame = frame_of(spark, [])
    plan = readings.admit(frame, settings(tmp_path))._jdf.queryExecution().optimizedPlan().toString()
    names = filters._ROW, FILTERED, f" AS {readings.MEETS}", "column_kind"
    assert not [name for name in names if name in plan]
