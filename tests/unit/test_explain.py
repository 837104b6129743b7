"""What an operator reads about a reject: the field, its value, and what was expected."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from service.admission.readings import TOO_MANY
from service.commands import dissect, rejects
from service.commands.explain import explain
from service.printing import document
from service.rejects import fetch
from service.rejects.fetch import Record
from service.rejects.reject_log import Coordinates, Reject
from service.settings import RECORD_KEY, Settings
from service.units import rough_duration
from tests import minimal
from tests.stream.records import BASE_MS, avro, write_schemas
from tests.unit.test_cli import GOOD

NOW_MS = 1_795_479_828_029
"""2026-11-24T00:23:48.029Z"""


def settings(**form: Any) -> Settings:
    given = {"format": "json", "device_id": "sensor", "event_time": "ts", "event_time_unit": "iso"}
    return minimal.settings(
        input={**given, "measures": {"temp": "env.temp", "hum": "env.hum"}, **form},
        admission={"ranges": {"temp": (-40, 85)}, "max_bytes": 200},
    )


def explained(
    value: bytes | None,
    reason: str,
    detail: str = "",
    key: bytes | None = b"the-key",
    loaded: Settings | None = None,
    **times: int,
) -> str:
    loaded = loaded or settings()
    reject = Reject(Coordinates("readings", 0, 1), reason, detail, NOW_MS, 1, 1, key, value, (), **times)
    seen = dissect.dissect(value, loaded.input, dissect.writers(loaded.input))
    return explain(reject, seen, loaded)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'{"sensor":"a","ts":"x","env":{"temp":"hot"}}', 'env.temp = "hot": expected a number'),
        (
            b'{"env":{"temp":true,"hum":[1]}}',
            "env.temp = true: expected a number (input.text_numbers = true reads it); env.hum = [1]: expected a number",
        ),
        (
            b'{"env":3}',
            "env = 3: expected an object, to read env.temp; env = 3: expected an object, to read env.hum",
        ),
        (b'{"sensor":1.5}', "sensor = 1.5: expected text, or a whole number of 64 bits"),
        (rb'{"sensor":"\ud800"}', 'sensor = "\ud800": expected text, or a whole number of 64 bits'),
        (b'{"sensor":"a","env":{"temp":1.5,}}', "is not JSON: Expecting property name enclosed in double quotes"),
        (b'\n{"sensor":"a"} x', "is not JSON: Extra data (byte 16 of 17)"),
        (b'{"env":{"temp":NaN,"hum":nan}}', "is not JSON: Expecting value (byte 25 of 30)"),
        (b'{"sensor":"\xff\x1b[2J"}', "is not UTF-8: 0xff (byte 11 of 18)"),
        (b"[1]", "is an array in JSON, expected an object (byte 0 of 3)"),
        (None, "the record has no value"),
        (b'{"sensor":"a"}', "14 bytes"),  # fits the present settings: the stored detail is all that is left
    ],
)
def test_an_undecodable_json_record_is_explained_by_field_value_and_type(value: bytes | None, text: str) -> None:
    assert explained(value, "undecodable", "14 bytes").startswith(text)


def test_a_value_is_cut_and_stays_one_line_of_text() -> None:
    long = explained(b'{"env":{"temp":"' + b"x" * 5_000 + b'"}}', "undecodable")
    assert len(long) < 200
    assert "... (5002 characters)" in long


@pytest.mark.parametrize(
    ("value", "reason", "detail", "text"),
    [
        (b'{"sensor":"a"}', "no_time", "", "ts is missing: expected an ISO 8601 date and time with seconds"),
        (b'{"ts":null}', "no_time", "", "ts is null: expected an ISO 8601"),
        (b'{"ts":"noon"}', "no_time", "", 'ts = "noon": expected an ISO 8601'),
        (b'{"ts":1790000000}', "no_time", "", "ts = 1790000000: expected an ISO 8601"),
        (b'{"ts":"x"}', "no_device", "", "sensor is missing: expected a device id"),
        (b'{"sensor":" "}', "no_device", "", 'sensor = " ": expected a device id'),
        (
            b'{"sensor":"a\\u0007"}',
            "bad_device",
            "",
            'sensor = "a\\u0007": character 2 is U+0007, a control character',
        ),
        (b'{"sensor":"' + b"x" * 300 + b'"}', "bad_device", "", f'sensor = "{"x" * 79}... (302 characters): 300 bytes'),
        (b'{"sensor":7}', "unknown_device", "device 7", 'sensor = "7": not in the reference'),
        (
            b'{"sensor":"a"}',
            "ahead",
            "broker time 1795000000000 ms is ahead of the service's clock, 1763459200000 ms",
            "the record's time in Kafka, 2026-11-18T11:06:40.000Z, is the producer's, and 365.1 d ahead of the service's clock "
            "2025-11-18T09:46:40.000Z, limit 10 s (admission.max_ahead)",
        ),
        (b'{"sensor":"a"}', "too_many_devices", TOO_MANY, f'sensor = "a": {TOO_MANY}'),
        (
            b'{"env":{"temp":900}}',
            "out_of_range",
            "temp = 900.0, allowed -40.0 to 85.0 (admission.ranges.temp)",
            "env.temp = 900 (measure temp): allowed -40.0 to 85.0 (admission.ranges.temp)",
        ),
        (
            b'{"env":{"hum":1e999}}',
            "not_finite",
            "hum = Infinity",
            "env.hum = Infinity (measure hum): expected a finite",
        ),
        (b"x" * 300, "oversized", "3250000 bytes, limit 200", "3.099 MiB (3250000 bytes), limit 200 bytes (admission"),
    ],
)
def test_a_reject_names_the_field_its_value_and_the_limit(value: bytes, reason: str, detail: str, text: str) -> None:
    assert explained(value, reason, detail).startswith(text)


def test_times_are_told_in_iso_and_differences_in_units_that_people_read() -> None:
    assert explained(b"{}", "early", event_ms=1924992000000) == (
        "ts = 2031-01-01T00:00:00.000Z: 4.1 years ahead of the broker's time 2026-11-24T00:23:48.029Z, "
        "limit 10 s (admission.max_ahead)"
    )
    assert explained(b"{}", "behind", event_ms=NOW_MS - 7_200_000, watermark_ms=NOW_MS) == (
        "ts = 2026-11-23T22:23:48.029Z: 2 h behind the watermark 2026-11-24T00:23:48.029Z"
    )
    late = explained(b"{}", "late", event_ms=NOW_MS - 60_001)
    assert "60.001 s behind the broker's time" in late
    assert late.endswith("limit 1 m (admission.max_delay)")


def test_a_converted_measure_is_explained_by_the_field_and_the_measure() -> None:
    tenths = settings(measures={"temp": {"path": "env.temp", "scale": 0.1}})
    detail = "temp = 90.0, allowed -40.0 to 85.0 (admission.ranges.temp)"
    assert explained(b'{"env":{"temp":900}}', "out_of_range", detail, loaded=tenths) == (
        "env.temp = 900 (measure temp = 90.0): allowed -40.0 to 85.0 (admission.ranges.temp)"
    )


def test_a_device_id_from_the_key_is_explained_by_the_key() -> None:
    by_key = settings(device_id=RECORD_KEY)
    assert explained(b"{}", "no_device", key=None, loaded=by_key).startswith("the record has no key")
    assert explained(b"{}", "undecodable", key=b"\xff", loaded=by_key).startswith(r"the key b'\xff' is not UTF-8")
    assert explained(b"{}", "bad_device", key=b"a\nb", loaded=by_key).startswith('the key = "a\\nb": character 2')


def test_an_avro_record_is_explained_as_far_as_it_decodes(tmp_path: Path) -> None:
    loaded = settings(
        format="avro",
        schemas=write_schemas(tmp_path),
        device_id="device_id",
        event_time="event_time",
        event_time_unit="logical",
        measures={"temp": "temperature"},
    )
    value = avro(device_id="d1", event_time=BASE_MS, temperature=900.0)
    assert explained(value[:-3], "undecodable", loaded=loaded).startswith("temperature: ")
    assert f"of {len(value) - 3})" in explained(value[:-3], "undecodable", loaded=loaded)
    assert explained(b"\0\0\0\0\7x", "unknown_schema", loaded=loaded) == "schema 7 is not known; known: 1"
    assert explained(value, "unknown_schema", loaded=loaded) == "schema 1 is known now"
    ranged = explained(
        value, "out_of_range", "temp = 900.0, allowed -40.0 to 85.0 (admission.ranges.temp)", loaded=loaded
    )
    assert ranged == "temperature = 900.0 (measure temp): allowed -40.0 to 85.0 (admission.ranges.temp)"


@pytest.mark.parametrize(
    ("changed", "without", "text"),
    [
        (
            {"temperature": ("string", "warm")},
            (),
            'temperature = "warm": is string, the reader\'s schema has null or double',
        ),
        ({"device_id": (["int", "null"], 5)}, (), "device_id = 5: is int, the reader's schema has string"),
        ({}, ("device_id",), "device_id is missing: the writer's schema lacks it, and the reader's has no default"),
    ],
)
def test_an_avro_field_that_cannot_be_read_into_the_readers_type_is_named_with_both_types(
    tmp_path: Path, changed: dict[str, tuple[Any, Any]], without: tuple[str, ...], text: str
) -> None:
    loaded = settings(
        format="avro",
        schemas=write_schemas(tmp_path),
        reader_schema=1,
        device_id="device_id",
        event_time="event_time",
        event_time_unit="logical",
        measures={"temp": "temperature"},
    )
    types = {"device_id": "string", "event_time": "long", "temperature": "double"}
    types |= {name: kind for name, (kind, _) in changed.items()}
    fields = [{"name": name, "type": kind} for name, kind in types.items() if name not in without]
    schema = {"type": "record", "name": "Reading", "fields": fields}
    (tmp_path / "2.avsc").write_text(json.dumps(schema))
    values = {"device_id": "d1", "event_time": BASE_MS, "temperature": 1.5}
    values |= {name: value for name, (_, value) in changed.items()}
    assert explained(avro(2, schema, **values), "undecodable", "27 bytes", loaded=loaded) == text


def test_a_duration_is_exact_below_ten_minutes_and_short_above() -> None:
    cases = {0: "0 ms", 999: "999 ms", 5_001: "5.001 s", 599_999: "599.999 s", 900_000: "15 min", 5_400_000: "1.5 h"}
    assert {ms: rough_duration(ms) for ms in cases} == cases
    assert rough_duration(3 * 86_400_000) == "3 d"
    assert rough_duration(9_000_000_000_000_000) == "285192.8 years"


def test_a_reject_with_a_number_that_json_does_not_have_is_json() -> None:
    seen = dissect.Dissected({"temp": float("nan"), "hum": [float("-inf")]}, {}, 1)
    reject = Reject(Coordinates("readings", 0, 1), "not_finite", "temp = nan", NOW_MS, 1, 1, b"a", b"x", ())
    entry = rejects._Entry(reject, None, dissect.Dissector(settings()))
    vars(entry).update(seen=seen, device="a")
    shown = document(rejects._all(entry, settings()))
    assert json.loads(shown, parse_constant=pytest.fail)["decoded"] == {"temp": "NaN", "hum": ["-Infinity"]}


def chosen(folder: Path, form: str) -> rejects.Selection:
    """All rejects, of records in this format."""
    path = folder / "tidemark.toml"
    path.write_text(GOOD.replace("[input]", f'[input]\nformat = "{form}"').replace("temperature", "t"))
    return rejects.Selection(path)


def test_of_many_rejects_those_that_are_listed_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Reject(Coordinates("readings", 0, number), "late", "", NOW_MS + number, 1, 1, None, b'{"device_id": "d1"}', ())
        for number in range(100)
    ]
    monkeypatch.setattr(rejects.marks, "read", lambda _: {})
    monkeypatch.setattr(rejects.reject_log, "read", lambda *_: found)
    decoded, usual = list[int](), dissect.dissect
    monkeypatch.setattr(dissect, "dissect", lambda *given: decoded.append(1) or usual(*given))
    for as_json in (True, False):
        decoded.clear()
        assert rejects.list_(chosen(tmp_path, "json"), 20, as_json=as_json) == 0
        shown = capsys.readouterr().out.splitlines()
        assert (len(decoded), sum("readings" in line for line in shown)) == (20, 20)
    assert "readings[0]@99" in shown[20], "the newest is the last"


def test_rejects_are_listed_and_shown_while_their_schemas_cannot_be_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As while the registry is away: the service has stored a detail with each reject."""
    value, detail = b"\0\0\0\0\1xx", "t = 900.0, allowed -40 to 85"
    found = [
        Reject(Coordinates("readings", 0, n), "out_of_range", detail, NOW_MS, 1, 1, b"d1", value, ()) for n in (1, 2)
    ]
    monkeypatch.setattr(rejects.marks, "read", lambda _: {})
    monkeypatch.setattr(rejects.reject_log, "read", lambda *_: found)
    assert rejects.list_(chosen(tmp_path, "avro"), None, as_json=False) == 0
    assert all(line.endswith(f"open   d1      {detail}") for line in capsys.readouterr().out.splitlines()[1:3])
    assert [each.getMessage().partition(". ")[0] for each in caplog.records] == [
        f"{tmp_path}/schemas/avro: the folder has no schema"
    ]
    assert rejects.show(chosen(tmp_path, "avro"), as_json=False) == 0
    assert "decoding stops at byte 0: the schemas of its input cannot be read" in capsys.readouterr().out


def test_all_rejects_as_json_are_kept_without_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many, value = 40, b'{"device_id": "d1", "note": "' + b"x" * (1 << 20) + b'"}'
    places = [Coordinates("readings", 0, number) for number in range(many)]
    found = (Reject(place, "late", "", NOW_MS, 1, 1, None, bytes(bytearray(value)), ()) for place in places)
    monkeypatch.setattr(rejects.marks, "read", lambda _: {})
    monkeypatch.setattr(rejects.reject_log, "read", lambda *_: found)
    tracemalloc.start()
    try:
        assert rejects.list_(chosen(tmp_path, "json"), None, as_json=True) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(capsys.readouterr().out.splitlines()) == many
    assert peak < many / 2 * len(value)


def test_bytes_that_a_reject_lacks_are_cut_from_the_record_as_its_format_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reject = Reject(Coordinates("readings", 0, 1, 1), "late", "", NOW_MS, 1, 1, None, None, (), omitted_bytes=17)
    monkeypatch.setattr(rejects.marks, "read", lambda _: {})
    monkeypatch.setattr(rejects.reject_log, "read", lambda *_: [reject])
    record = Record(None, b"device_id,t\na,1\nb,2\n", [])
    monkeypatch.setattr(fetch, "records_once", lambda _, rows: [(row, record) for row in rows])
    assert rejects.show(chosen(tmp_path, "csv"), as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["decoded"], shown["device"]) == ({"device_id": "b", "t": 2}, "b")
