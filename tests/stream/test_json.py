"""JSON values: what is a reading, what is none, and why. All cases of a table go through one frame."""

import json

import pytest

from load.judge.decoders import to_ms
from service.settings import parse
from tests.stream.decisions import by_oracle
from tests.stream.records import BASE_MS, Record, make_document, make_settings
from tests.stream.test_admission import decide

pytestmark = pytest.mark.spark

MEASURES = {"temperature": "temperature", "humidity": "air.humidity"}
GOOD = f'{{"device_id":"a","event_time":{BASE_MS},"temperature":1.5,"air":{{"humidity":40}}}}'
ADMITTED = ("a", 0, 1.5, 40.0)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def first(fields: str) -> str:
    """With more fields in front."""
    return "{" + fields + "," + GOOD[1:]


def time(text: str) -> str:
    return changed(str(BASE_MS), text)


# What is not a tuple is a reason; a tuple is (device, ms after BASE_MS, temperature, humidity).
CASES = {
    "a reading": (GOOD, ADMITTED),
    "white space around": (" \t\r\n" + GOOD + "\n\r\t ", ADMITTED),
    "white space inside": (json.dumps(json.loads(GOOD), indent=4), ADMITTED),
    "another order of fields": (json.dumps(dict(reversed(json.loads(GOOD).items()))), ADMITTED),
    "fields that nobody asked for": (first('"more":{"x":[1,{"y":null}]}'), ADMITTED),
    "a name written with an escape": (changed("device_id", "device\\u005fid"), ADMITTED),
    "text beyond ASCII": (changed('"a"', '"S\u00fcd-\U0001f321"'), ("S\u00fcd-\U0001f321", 0, 1.5, 40.0)),
    "a pair of surrogates": (changed('"a"', '"\\ud83c\\udf21"'), ("\U0001f321", 0, 1.5, 40.0)),
    "half of a character": (changed('"a"', '"\\ud800"'), "undecodable"),
    "halves in the wrong order": (changed('"a"', '"a\\udf21\\ud83c"'), "undecodable"),
    "half of a character after a pair": (changed('"a"', '"\\ud83c\\udf21\\udf21"'), "undecodable"),
    "half of a character that nobody asked for": (first('"more":"\\ud800"'), ADMITTED),
    "a question mark": (changed('"a"', '"?"'), ("?", 0, 1.5, 40.0)),
    "a backslash before what would be an escape": (changed('"a"', '"\\\\ud800?"'), ("\\ud800?", 0, 1.5, 40.0)),
    "a null measure": (changed("1.5", "null"), ("a", 0, None, 40.0)),
    "a missing measure": (changed('"temperature":1.5,', ""), ("a", 0, None, 40.0)),
    "a missing parent of a measure": (changed(',"air":{"humidity":40}', ""), ("a", 0, 1.5, None)),
    "a null parent of a measure": (changed('{"humidity":40}', "null"), ("a", 0, 1.5, None)),
    "no measure at all": (f'{{"device_id":"a","event_time":{BASE_MS}}}', ("a", 0, None, None)),
    "names are told apart by case": (changed("temperature", "Temperature"), ("a", 0, None, 40.0)),
    "a measure as a whole number": (changed("1.5", "-7"), ("a", 0, -7.0, 40.0)),
    "a measure with an exponent": (changed("1.5", "1.5E2"), ("a", 0, 150.0, 40.0)),
    "a device id that is a number": (changed('"a"', "17"), ("17", 0, 1.5, 40.0)),
    "a device id that is the least of all numbers": (changed('"a"', str(-(1 << 63))), (str(-(1 << 63)), 0, 1.5, 40.0)),
    "part of a millisecond is cut off": (time(f"{BASE_MS}.999"), ADMITTED),
    "a time with an exponent": (time(f"{BASE_MS / 1e12}e12"), ADMITTED),
    "the mark of a broken record in a sound one": (
        first('"tidemark_corrupt":"x","tidemark_decoded":false'),
        ADMITTED,
    ),
    # Not JSON, or not one object.
    "nothing": ("", "undecodable"),
    "blanks": (" \n ", "undecodable"),
    "a number": ("5", "undecodable"),
    "null": ("null", "undecodable"),
    "text": ('"a"', "undecodable"),
    "an array": ("[" + GOOD + "]", "undecodable"),
    "an empty array": ("[]", "undecodable"),
    "two objects": (GOOD + GOOD, "undecodable"),
    "two objects with blanks between": (GOOD + " " + GOOD, "undecodable"),
    "two objects with a comma between": (GOOD + "," + GOOD, "undecodable"),
    "a letter after the end": (GOOD + "x", "undecodable"),
    "a form feed after the end, which is no white space of JSON's": (GOOD + "\f", "undecodable"),
    "a bracket after the end": (GOOD + "]", "undecodable"),
    "a bracket and another array after the end": (GOOD + "],[{}", "undecodable"),
    "a bracket and text after the end": (GOOD + "] xyz", "undecodable"),
    "a brace and a bracket after the end": (GOOD + "}]", "undecodable"),
    "a brace and another member after the end": (GOOD + '},"s":{"a":1', "undecodable"),
    "another member after the end": (GOOD + ',"r":1', "undecodable"),
    "a brace after the end": (GOOD + "}", "undecodable"),
    "a comma after the end": (GOOD + ",", "undecodable"),
    "a zero byte after the end": (GOOD + "\0", "undecodable"),
    "a comment after the end": (GOOD + "/* */", "undecodable"),
    "cut in the middle": (GOOD[:40], "undecodable"),
    "cut before the last brace": (GOOD[:-1], "undecodable"),
    "a byte order mark": ("\ufeff" + GOOD, "undecodable"),
    "single quotes": (GOOD.replace('"', "'"), "undecodable"),
    "names without quotes": (changed('"device_id"', "device_id"), "undecodable"),
    "a comma before the brace": (changed("1.5,", "1.5,,"), "undecodable"),
    "a line break in a text": (changed('"a"', '"a\nb"'), "undecodable"),
    "more levels than a parser takes": (first('"x":' + "[" * 3_000 + "]" * 3_000), "undecodable"),
    "more digits than a parser takes": (changed("1.5", "1" * 2_000), "undecodable"),
    # Wrong types.
    "a measure as text": (changed("1.5", '"1.5"'), "undecodable"),
    "a measure as true": (changed("1.5", "true"), "undecodable"),
    "a measure as an object": (changed("1.5", "{}"), "undecodable"),
    "a measure as an array": (changed("1.5", "[1.5]"), "undecodable"),
    "a parent that is a number": (changed('{"humidity":40}', "40"), "undecodable"),
    "a time as text": (time(f'"{BASE_MS}"'), "undecodable"),
    "a time as true": (time("true"), "undecodable"),
    "a device that is a number of more than 64 bits": (changed('"a"', str(1 << 63)), "undecodable"),
    "a device that is a fraction": (changed('"a"', "17.0"), "undecodable"),
    "a device that is a number with an exponent": (changed('"a"', "1e2"), "undecodable"),
    "a device that is true": (changed('"a"', "true"), "undecodable"),
    "a device that is an object": (changed('"a"', '{"id":"a"}'), "undecodable"),
    "a device that is an array": (changed('"a"', '["a"]'), "undecodable"),
    "NaN": (changed("1.5", "NaN"), "not_finite"),
    "Infinity": (changed("1.5", "-Infinity"), "not_finite"),
    "NaN as text": (changed("1.5", '"NaN"'), "not_finite"),
    "Infinity as text": (changed("1.5", '"-Infinity"'), "not_finite"),
    "INF as text": (changed("1.5", '"INF"'), "undecodable"),
    "NaN in a field that is not mapped": (first('"x":NaN'), ADMITTED),
    "infinities in a field that is not mapped": (first('"x":{"y":[Infinity,-Infinity,NaN]}'), ADMITTED),
    "the text NaN where nobody looks": (first('"x":"NaN"'), ADMITTED),
    "NaN as a time": (time("NaN"), "no_time"),
    "NaN as a time, as text": (time('"NaN"'), "no_time"),
    "NaN as a device": (changed('"a"', "NaN"), "undecodable"),
    "a leading zero": (changed("1.5", "01.5"), "undecodable"),
    "a leading point": (changed("1.5", ".5"), "undecodable"),
    # JSON, but no reading.
    "an empty object": ("{}", "no_device"),
    "no device": (changed('"device_id":"a",', ""), "no_device"),
    "a null device": (changed('"a"', "null"), "no_device"),
    "an empty device": (changed('"a"', '""'), "no_device"),
    "a blank device": (changed('"a"', '" \\t\\n"'), "no_device"),
    "no time": (changed(f'"event_time":{BASE_MS},', ""), "no_time"),
    "a null time": (time("null"), "no_time"),
    "a measure without a range at its limit": (changed("1.5", "-1e140"), ("a", 0, -1e140, 40.0)),
    "a measure without a range beyond its limit": (changed("1.5", "1.0000001e140"), "out_of_range"),
    "a measure beyond a double": (changed("1.5", "1e400"), "not_finite"),
    "a whole measure beyond a double": (changed("1.5", "1" * 400), "not_finite"),
    "a measure with an exponent of nine digits": (changed("1.5", "-1e999999999"), "not_finite"),
    "a time beyond all integers": (time("1e300"), "early"),
    "a time before all integers": (time("-1e300"), "late"),
    "a time beyond a double": (time("1e999"), "early"),
    "a time before the epoch": (time("-1"), "late"),
}

ISO = {
    "2026-09-21T14:14:00Z": 0,
    "2026-09-21T14:14:00": 0,
    "2026-09-21T14:14:00.123Z": 123,
    "2026-09-21T14:14:00.123999Z": 123,
    "2026-09-21T16:14:00+02:00": 0,
    "2026-09-21 14:14:01": 1_000,
    "2026-09-21T14:13:59.5Z": -500,
    "2026-09-21T14:14": 0,
    " 2026-09-21 14:14:00\n": 0,
    "2026-09-21T14:14:00+00:00": 0,
    "2026-09-21T14:14:00+0000": 0,
    "2026-09-21T16:14:00.25+0200": 250,
    "2026-09-22T08:14:00+18:00": 0,
    "2026-09-21T14:14:00.1234567890123-00:00": 123,
    "2026-09-22T08:15:00+18:01": "no_time",
    "2026-09-21T15:14:00+00:60": "no_time",
    # Forms that Spark does not read, and who writes them.
    "2026-09-21T14:14Z": 0,  # Java, of a whole minute
    "2026-09-21T16:14+02:00": 0,
    "2026-09-21T16:14:00+02:00[Europe/Vienna]": 0,  # Java's ZonedDateTime
    "2026-09-21T14:14Z[UTC]": 0,
    "2026-09-21 14:14:00.123+00": 123,  # PostgreSQL
    "2026-09-21 19:44:00+05:30": 0,
    "2026-09-21 16:14:00.5 +0200 CEST": 500,  # Go's String
    "2026-09-21 14:14:00 +0000 UTC": 0,
    "2026-09-21T14:14:00.1234567Z": 123,  # .NET
    "2026-09-21T14:14:00 UTC": 0,
    "2026-09-21T14:14:00 Z": 0,
    "2026-09-21 14:14:00 GMT": 0,
    "2026-09-21t14:14:00z": 0,
    "2026-09-21T14:14:00,999Z": 999,
    "2026-09-21T14:14:00,9999": 999,
    "20260921T141400Z": 0,
    "20260921T161400.25+0200": 250,
    "20260921T1414": 0,
    "2026-09-21T08:14:00-06": 0,
    "2026-09-21T09:44:00-0430": 0,
    "2026-09-22T08:14+18": 0,
    "2026-09-21T14:14:00[Europe/Vienna]": "no_time",
    "2026-0921T14:14:00Z": "no_time",
    "2026-09-21T14:1400Z": "no_time",
    "2026-09-21T14:14:00+2": "no_time",
    "2026-09-21T14:14:00 +19": "no_time",
    "2026-09-21T14:14:00  Z": "no_time",
    "2026-02-29T14:14Z": "no_time",
    "2026-09-21T24:00Z": "no_time",
    "2026-09-21T14:60Z": "no_time",
    "2026-09-21t14:14:60z": "no_time",
    "20260921141400": "no_time",
    "0000-00-00 00:00:00": "no_time",  # MySQL's zero
    "21.09.2026 14:14:00": "no_time",
    "Mon, 21 Sep 2026 14:14:00 GMT": "no_time",
    "/Date(1790000040000)/": "no_time",
    "2026-09-21": "no_time",
    "2026-09": "no_time",
    "2026": "no_time",
    "14:14:00": "no_time",
    "T14:14": "no_time",
    "\u00a02026-09-21T14:14:00": "no_time",
    "": "no_time",
    "yesterday": "no_time",
    "now": "no_time",
    "2026-13-01T00:00:00Z": "no_time",
    "2026-09-21T14:14:60Z": "no_time",
    "2026-09-21T14:14:00 Nowhere/City": "no_time",
    "1790000040000": "no_time",
    "2099-01-01T00:00:00Z": "early",
    "9999-12-31T23:59:59-18:00": "early",
    "99999-01-01T00:00:00Z": "no_time",
    "1970-01-01T00:00:00Z": "late",
    "0001-01-01T00:00:00Z": "late",
    "0000-01-01T00:00:00Z": "no_time",
    "-0001-01-01T00:00:00Z": "no_time",
}


def outcome(row, *measures):
    """(device, ms after BASE_MS, measures...) or the reason."""
    if row["reject"] is not None:
        assert [row[name] for name in ("device", "event_ms", *measures)] == [None] * (2 + len(measures))
        # Those of early and late ones are kept: readings that are ahead are counted by device.
        assert (row["bucket"] is None) == (row["reject"]["reason"] not in {"early", "late"})
        return row["reject"]["reason"]
    return (row["device"], row["event_ms"] - BASE_MS, *(row[name] for name in measures))


@pytest.fixture(scope="module")
def outcomes(spark, tmp_path_factory):
    """Name of a case -> what became of it."""
    settings = make_settings(tmp_path_factory.mktemp("json"), input={"format": "json", "measures": MEASURES})
    records = [Record(text.encode(), BASE_MS) for text, _ in CASES.values()]
    rows = decide(spark, settings, records)
    return dict(zip(CASES, (outcome(row, "temperature", "humidity") for row in rows), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_value_is_admitted_or_rejected_for_what_it_holds(outcomes, case):
    assert outcomes[case] == CASES[case][1]


def test_the_oracle_decides_alike(tmp_path):
    """But for limits of the service's parser that the oracle does not have."""
    cases = {name: case for name, case in CASES.items() if not name.endswith(" than a parser takes")}
    document = make_document(tmp_path, input={"format": "json", "measures": MEASURES})
    _, reasons = by_oracle(tmp_path, document, [Record(text.encode(), BASE_MS) for text, _ in cases.values()])
    right = {name: each if isinstance(each, str) else None for name, (_, each) in cases.items()}
    assert dict(zip(cases, reasons, strict=True)) == right


def test_a_measure_in_another_unit_is_converted_before_its_range_as_the_oracle_does(spark, tmp_path):
    unit = {"path": "temperature", "scale": 0.1, "offset": -40}
    source = {"format": "json", "measures": {"temperature": unit, "humidity": MEASURES["humidity"]}}
    document = make_document(tmp_path, input=source, admission={"ranges": {"temperature": [-40, 85]}})
    numbers = ["1.5", "0", "-0.0", "1250", "1250.0000001", "-1", "1e308", "1e400", "null", "0.30000000000000004"]
    records = [Record(changed("1.5", text).encode(), BASE_MS) for text in numbers]
    decided = [outcome(row, "temperature") for row in decide(spark, parse(document), records)]
    expected = [float(text) * 0.1 - 40 if text != "null" else None for text in numbers]
    rejects = {4: "out_of_range", 5: "out_of_range", 6: "out_of_range", 7: "not_finite"}
    assert decided == [rejects.get(number, ("a", 0, value)) for number, value in enumerate(expected)]
    _, reasons = by_oracle(tmp_path, document, records)
    assert reasons == [each if isinstance(each, str) else None for each in decided]


def test_bytes_that_are_no_text_are_undecodable_wherever_they_are(spark, tmp_path):
    good = GOOD.encode()
    values = [
        None,
        b"\xff",
        good + b"\xff",
        b"\xff" + good,
        good.replace(b'"a"', b'"\xff"'),
        good.replace(b'"a"', b'"\xc3"'),
        good.replace(b'"a"', b'"\xed\xa0\x80"'),  # half of a pair of surrogates
        good.replace(b'"a"', b'"\xc0\x80"'),  # a zero in two bytes
        first('"x":"y"').encode().replace(b"y", b"\xfe"),  # in a field that nobody asked for
        GOOD.encode("utf-16"),
        GOOD.encode("utf-32-le"),
        bytes(range(256)),
    ]
    settings = make_settings(tmp_path, input={"format": "json", "measures": MEASURES})
    rows = decide(spark, settings, [Record(value, BASE_MS) for value in values])
    assert [outcome(row) for row in rows] == ["undecodable"] * len(values)
    assert rows[1]["reject"]["detail"] == "1 bytes"


def test_a_value_that_is_too_large_is_not_even_parsed(spark, tmp_path):
    settings = make_settings(
        tmp_path, input={"format": "json", "measures": MEASURES}, admission={"max_bytes": len(GOOD)}
    )
    rows = decide(spark, settings, [Record(text.encode(), BASE_MS) for text in (GOOD, GOOD + " ", "x" * 1_000)])
    assert [outcome(row) for row in rows] == [("a", 0), "oversized", "oversized"]
    assert rows[2]["reject"]["detail"] == f"1000 bytes, limit {len(GOOD)} (admission.max_bytes)"


def test_times_may_be_text_as_in_iso_8601(spark, tmp_path):
    settings = make_settings(tmp_path, input={"format": "json", "measures": MEASURES, "event_time_unit": "iso"})
    records = [Record(time(json.dumps(text)).encode(), BASE_MS) for text in ISO]
    decided = [outcome(row) for row in decide(spark, settings, records)]
    assert dict(zip(ISO, decided, strict=True)) == {
        text: right if isinstance(right, str) else ("a", right) for text, right in ISO.items()
    }
    lacking = [changed(f'"event_time":{BASE_MS},', ""), time("null"), time("5"), time("true")]
    decided = [outcome(row) for row in decide(spark, settings, [Record(text.encode(), BASE_MS) for text in lacking])]
    assert decided == ["no_time"] * len(lacking)


@pytest.mark.parametrize("text", ISO)
def test_the_oracle_reads_the_same_times(text):
    """Held against the same table, so that the two cannot drift apart."""
    ms, right = to_ms(text, "iso"), ISO[text]
    if ms is None or right == "no_time":
        assert (ms, right) == (None, "no_time")
    elif isinstance(right, str):
        assert ms > BASE_MS if right == "early" else ms < BASE_MS
    else:
        assert ms - BASE_MS == right


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("s", f"{BASE_MS // 1000}"),
        ("s", f"{BASE_MS // 1000}.0004"),
        ("ms", f"{BASE_MS}"),
        ("us", f"{BASE_MS}000"),
        ("us", f"{BASE_MS}999"),
    ],
)
def test_numeric_times_are_in_the_unit_of_the_settings(spark, tmp_path, unit, text):
    settings = make_settings(tmp_path, input={"format": "json", "measures": MEASURES, "event_time_unit": unit})
    (row,) = decide(spark, settings, [Record(time(text).encode(), BASE_MS)])
    assert outcome(row) == ("a", 0)


def test_the_device_may_be_nested_or_in_the_records_key(spark, tmp_path):
    value = f'{{"meta":{{"id":"n"}},"device_id":"x","event_time":{BASE_MS}}}'.encode()
    record = Record(value, BASE_MS, key=b"k")
    for path, device in (("meta.id", "n"), ("$key", "k")):
        settings = make_settings(tmp_path, input={"format": "json", "measures": MEASURES, "device_id": path})
        (row,) = decide(spark, settings, [record])
        assert outcome(row) == (device, 0)
