"""What `tidemark init` proposes for samples of records, and what it says of those that do not tell enough."""

import base64
import io
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from google.protobuf import descriptor_pb2

from load.servers.schema_registry import Registry
from service.admission import protobuf
from service.admission.formats import framings
from service.admission.schema_sources import Schemas
from service.commands import dissect, records
from service.commands.places import Form, Request, form
from service.commands.records import Decoded
from service.errors import SchemaError
from service.proposal import proposal, rhythm
from service.proposal.columns import MOST_FIELDS, Seen
from service.proposal.names import measure_name, words
from service.proposal.proposal import Proposal, Table
from service.proposal.settings_text import Places, text
from service.settings import Input, field_path, parse
from tests.samples import BROKER_MS, sample

BEGIN_MS = BROKER_MS
PLACES = Places(
    {"bootstrap": "localhost:9092", "topics": ["t"]},
    {"url": "redis://localhost"},
    {"format": "json"},
    {"checkpoint": "checkpoint"},
)


def iso(ms: int, zone: str = "Z") -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", zone)


def readings(count: int = 200, devices: int = 10, every_ms: int = 1_000, **fields: Any) -> list[Seen]:
    """Readings of some devices, one after the other; a field that is callable gets the number of the record."""
    sample = []
    for n in range(count):
        at_ms = BEGIN_MS + n * every_ms // devices
        record = {"device": f"d{n % devices}", "ts": at_ms, "temp": 20 + n % 7}
        record |= {name: value(n) if callable(value) else value for name, value in fields.items()}
        sample.append(Seen(record, None, at_ms + 40))
    return sample


def decoded(messages: Sequence[confluent_kafka.Message], form: str, schemas: Schemas | None = None) -> Decoded:
    """The sample as init decodes it."""
    return records.decode(messages, {"format": form}, schemas)


def of_avro(types: Mapping[str, Any], seen: Sequence[Seen]) -> Proposal:
    """The proposal for a sample that is written as Avro, with these types of its fields."""
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    schema = {"type": "record", "name": "R", "namespace": "com.x", "fields": fields}
    parsed = fastavro.parse_schema(schema)
    messages = []
    for each in seen:
        out = io.BytesIO(b"\0\0\0\0\1")
        out.seek(5)
        fastavro.schemaless_writer(out, parsed, each.record)
        messages.append(sample(out.getvalue(), ms=each.broker_ms))
    return proposal.propose(decoded(messages, "avro", {1: schema}).sample, types=Form({}, {1: schema}, 1).types)


def settings(made: Proposal) -> Mapping[str, Any]:
    """The settings file as a document."""
    return tomllib.loads(text(made, PLACES, ["made by a test"]))


def test_each_time_has_its_unit_from_its_values_alone() -> None:
    for unit, of in {"s": 1e-3, "ms": 1, "us": 1_000, "ns": 1_000_000}.items():
        made = proposal.propose(readings(ts=lambda n, of=of: int((BEGIN_MS + n * 100) * of)))
        assert made.clock is not None
        assert (made.clock.path, made.clock.unit) == ("ts", unit)


def test_the_key_is_no_event_time() -> None:
    sample = [replace(each, key=iso(each.broker_ms), record={**each.record, "ts": None}) for each in readings()]
    made = proposal.propose(sample)
    assert made.clock is not None
    assert (made.clock.path, list(made.clock.ms)) == ("$timestamp", [each.broker_ms for each in sample])
    assert "no field has times, so a reading has its record's time in Kafka" in made.doubts["input.event_time"]
    document = settings(made)
    assert (document["input"]["event_time"], "event_time_unit" in document["input"]) == ("$timestamp", False)
    parse(document)


def test_a_local_time_without_a_zone_and_a_copy_of_old_data_are_named() -> None:
    made = proposal.propose(readings(ts=lambda n: iso(BEGIN_MS + n * 100 + 7_200_000, "")))
    assert (
        "it has no zone, is read as UTC and then is 2 h ahead of the broker's time" in made.doubts["input.event_time"]
    )
    assert made.max_ahead_ms is None
    made = proposal.propose(readings(ts=lambda n: 1_072_915_200 + n))
    assert "behind the broker's time: a reading that old is rejected as late" in made.doubts["input.event_time"]


def test_lateness_of_the_sample_becomes_the_limit_and_what_is_beyond_it_is_counted() -> None:
    made = proposal.propose(readings(ts=lambda n: BEGIN_MS + n * 100 - (100_000 if n % 2 else 0)))
    assert (made.max_delay_ms, made.status_delay_ms) == (300_000, None)
    assert proposal.final_after(made).endswith(" after their end (max_delay 5 m + max_ahead 10 s)")
    assert proposal.delays(made).startswith("99 % of the readings are at most ")
    assert proposal.settled_after(made) == "", "half of the readings are late"
    made = proposal.propose(readings(count=400, ts=lambda n: BEGIN_MS + n * 100 - (100_000 if n % 20 == 0 else 0)))
    assert proposal.settled_after(made).startswith("90 % of the readings are at most ")
    assert 'behind: with final_after = "1 s" windows leave 11 s after their end' in proposal.settled_after(made)
    made = proposal.propose(
        readings(count=400, ts=lambda n: BEGIN_MS + n * 100 - (10 * 86_400_000 if n % 20 == 0 else 0))
    )
    assert made.doubts["admission.max_delay"] == "20 of 400 readings are further behind, and are rejected as late"


def test_an_outage_need_not_wait_for_the_few_readings_that_are_late() -> None:
    made = proposal.propose(
        readings(count=400, ts=lambda n: BEGIN_MS + n * 100 - (3_000_000 if n % 20 == 0 else 2_000))
    )
    assert made.status_delay_ms == 10_000
    document = settings(made)
    assert document["sessions"]["status_delay"] == "10 s"
    assert parse(document).sessions.status_delay_ms == 10_000
    off_ms = {0: 3_000_000, 1: -300_000}
    made = proposal.propose(readings(count=400, ts=lambda n: BEGIN_MS + n * 100 - off_ms.get(n % 20, 2_000)))
    assert (made.max_ahead_ms, made.status_delay_ms) == (600_000, 610_000), "a clock that is ahead takes nobody offline"
    assert parse(settings(made)).sessions.status_delay_ms == 610_000


def test_two_fields_of_the_same_devices_are_no_doubt_and_two_of_different_ones_are() -> None:
    made = proposal.propose(readings(device_serial=lambda n: f"SN{n % 10}"))
    assert "input.device_id" not in made.doubts
    made = proposal.propose(readings(device=lambda n: f"d{n % 10}", sensor=lambda n: f"s{n % 7}"))
    assert made.doubts["input.device_id"] == "it may also be sensor"
    made = proposal.propose(readings(device=lambda n: f"d\n{n % 10}"))
    assert made.doubts["input.device_id"] == "10 of 10 ids are too long or have control characters, and are rejected"
    alone = proposal.propose(readings(devices=1))
    assert alone.doubts["input.device_id"] == "the sample has one value of it"


def test_the_id_of_a_message_is_not_proposed() -> None:
    made = proposal.propose(readings(message_id=lambda n: f"m{n}", id=lambda n: n))
    assert made.device is not None
    assert made.device.path == "device"
    assert "id" not in {each.path for each in made.measures}


def test_a_whole_number_is_an_id_and_a_fraction_is_none() -> None:
    made = proposal.propose(readings(device=lambda n: n % 10))
    assert made.device is not None
    assert (made.device.path, made.device.devices) == ("device", 10)
    made = proposal.propose(readings(device=lambda n: n % 10 + 0.5))
    assert made.open["input.device_id"] == "no field looks like the id of a device"


def test_a_field_that_would_reject_records_is_no_measure() -> None:
    made = proposal.propose(
        readings(
            mixed=lambda n: n if n % 9 else "n/a",
            flag=lambda n: n % 2 == 0,
            part=lambda n: {"x": n} if n % 3 else "none",
            huge=1e200,
            nothing=None,
            text=str,
            list=[1, 2],
        )
    )
    assert {each.path for each in made.measures} == {"temp"}
    assert set(made.left_out) == {"mixed", "part.x", "huge", "text", "list"}
    assert made.left_out["text"] == "whole numbers in texts, which may be codes; text_numbers = true reads them"
    assert made.left_out["mixed"] == "also text: such a record would be rejected"


def test_a_few_broken_values_are_counted_and_leave_the_measure_and_the_time() -> None:
    sample = readings(1_000, broken=lambda n: 20.5 if n % 250 else "n/a", often=lambda n: n if n % 50 else "n/a")
    for n in (7, 400):
        sample[n].record["ts"] = "soon"  # type: ignore[index]
    made = proposal.propose(sample)
    assert {each.path: each.stray for each in made.measures} == {"temp": 0, "broken": 4}
    assert made.left_out == {"often": "also text: such a record would be rejected"}
    assert made.clock is not None
    assert made.clock.path == "ts"
    assert "4 of broken" in made.doubts["input.measures"]
    assert "0.2% of the records have no such time" in made.doubts["input.event_time"]


def test_names_that_settings_cannot_have_are_made_or_left_out() -> None:
    fields = {"a.b": 1, "a`b": 2, "": 3, "x\ny": 4, "\ud800": 5, "Température °C": 6, "9x": 7, "status": 8, "TEMP": 9}
    made = proposal.propose(readings(**fields, **{"*": 10}, env={"value": 1, "temp": 2, "status": 3}))
    names = {each.path: each.name for each in made.measures}
    assert names == {
        "temp": "temp",
        "`a.b`": "a_b",
        "`Température °C`": "temperature_c",
        "9x": "m_9x",
        "status": "status_value",
        "env.value": "env_value",
        "env.temp": "env_temp",
        "env.status": "env_status",
        "TEMP": "temp_2",
    }
    document = settings(made)
    parse(document)
    assert document["input"]["measures"] == {name: path for path, name in names.items()}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"Temp": lambda n: {"raw": n % 3}}, "Temp.raw"),
        ({"Env": lambda n: {"hum": n % 3}, "env": 7}, "env"),
        ({"Device": lambda n: {"load": n % 3}}, "Device.load"),
        ({"TS": lambda n: {"drift": n % 5}}, "TS.drift"),
        ({"DEVICE": lambda n: n % 3}, "DEVICE"),
    ],
)
def test_a_path_that_crosses_another_but_for_case_is_a_field_of_its_own(fields: dict[str, Any], path: str) -> None:
    made = proposal.propose(readings(**fields))
    assert made.left_out == {}
    parse(settings(made))
    assert path in settings(made)["input"]["measures"].values()


@pytest.mark.parametrize(
    "name",
    [
        "Temperature (C)",
        "Temperature (°C)",
        "Humidity (%)",
        "flow - net",
        "a*b",
        "tank.level",
        "tank level",
        "km/h",
        "$level",
    ],
)
def test_a_field_whose_name_looks_like_an_expression_stays_a_field(name: str) -> None:
    loaded = parse(settings(proposal.propose(readings(**{name: lambda n: n % 7}))))
    assert loaded.input is not None
    assert field_path.spelled([name]) in {measure.path for measure in loaded.input.measures.values()}


def test_a_key_with_a_dot_is_another_field_than_one_of_an_object() -> None:
    given: dict[str, Any] = {"tank.level": lambda n: n % 7, "tank": lambda n: {"level": n % 5}, "$key": lambda n: n % 3}
    loaded = parse(settings(proposal.propose(readings(**given))))
    assert loaded.input is not None
    paths = {measure.path for measure in loaded.input.measures.values()}
    assert {"`tank.level`", "tank.level", "`$key`"} <= paths


def test_no_text_of_a_device_leaves_its_line_of_the_file() -> None:
    made = proposal.propose(readings(type=lambda n: f"a\n[redis]\nurl = 'x{n % 3}'", value=1, temp=lambda _: None))
    assert "one device sends values of several kinds" in made.doubts["input.measures"]
    assert set(settings(made)) == {"service", "kafka", "input", "views", "redis"} | (
        {"sessions"} if made.gap_ms else set()
    )


@pytest.mark.parametrize("given", ["select *\nfrom d -- \U0001f600", "a\x7f\x85\u202e\u2028\U000e0001b", '"\\\t°C'])
def test_a_text_of_the_command_line_is_the_same_in_the_file(given: str) -> None:
    places = replace(PLACES, reference={"url": "jdbc:x", "query": given})
    written = text(proposal.propose(readings()), places, [])
    assert tomllib.loads(written)["reference"]["query"] == given
    assert all(line.isprintable() for line in written.split("\n"))


def test_a_record_of_many_fields_is_bounded_and_says_so() -> None:
    record = {"device": "d1", "ts": BEGIN_MS, **{f"f{n}": n for n in range(3 * MOST_FIELDS)}}
    made = proposal.propose([Seen(record, None, BEGIN_MS)] * 3)
    assert len(made.columns.of) == MOST_FIELDS
    assert made.columns.more > 0
    assert len(made.measures) == 64
    deep: dict[str, Any] = {"x": 1}
    for _ in range(200):
        deep = {"x": deep}
    proposal.propose([Seen(deep, None, BEGIN_MS)])


def test_gaps_give_the_session_gap_and_the_window_and_too_few_are_said() -> None:
    made = proposal.propose(readings(every_ms=60_000, count=400))
    assert (made.rhythm.median_ms, made.gap_ms, made.window_ms) == (60_000, 600_000, 600_000)
    made = proposal.propose(readings(devices=200, count=200))
    assert "too few to tell" in made.doubts["sessions.gap"]
    assert "gap" not in settings(made).get("sessions", {})


def test_a_device_in_two_partitions_has_gaps_only_where_both_have_records() -> None:
    sample = [Seen({}, None, 1_000 * n, ("t", 0)) for n in range(50)]
    sample += [Seen({}, None, 30_000 + 1_000 * n, ("t", 1)) for n in range(20)]
    event_ms = [each.broker_ms for each in sample[:50]] + [each.broker_ms + 500 for each in sample[50:]]
    seen = rhythm.rhythm(["d"] * 70, event_ms, sample)
    assert (seen.median_ms, seen.long_ms) == (500, 500)


def test_topics_of_two_shapes_are_no_input_and_are_named() -> None:
    sample = [replace(each, partition=("climate", 0)) for each in readings(count=40)]
    meters = [
        Seen({"id": f"m{n % 3}", "at": BEGIN_MS + n, "u": 230, "i": n}, None, BEGIN_MS + n, ("meters", 0))
        for n in range(40)
    ]
    doubt = proposal.propose([*sample, *meters]).doubts["kafka.topics"]
    assert doubt.startswith(
        "the records have different shapes: climate has device, temp, ts, meters has at, i, id, u. Run init"
    )
    assert f"# NOT SURE: {doubt}" in text(proposal.propose([*sample, *meters]), PLACES, [])
    more = [replace(each, partition=("other", 0)) for each in readings(count=40, humidity=5, battery=3)]
    assert "kafka.topics" not in proposal.propose([*sample, *more]).doubts


def test_the_reference_gives_its_key_and_views_of_columns_with_few_values() -> None:
    ids = [f"d{n}" for n in range(10)]
    table = Table(
        {"name": [f"n{n}" for n in range(10)], "dev": ids, "site": ["a", "b"] * 5, "serial": [*ids[::-1][:9], None]}
    )
    made = proposal.propose(readings(), table)
    assert made.reference_key == "dev"
    assert made.categories == ["site"]
    assert [view["by"] for view in settings(made)["views"]] == [["device"], ["site"]]
    limited = proposal.propose(
        readings(), Table({**table.columns, "session_gap": ["30 s", None] * 5, "expected_interval": ["9"] * 10})
    )
    assert limited.limits == ["session_gap"]
    lacking = proposal.propose(readings(devices=14), table)
    assert lacking.doubts["reference.key"] == "the reference lacks 4 of 14 devices: their columns are (none)"
    foreign = proposal.propose(readings(), Table({"id": ["x", "y"], "site": ["a", "b"]}))
    assert "no column has the ids of the sample; there are id, site" in foreign.open["reference.key"]


def test_avro_types_that_no_setting_reads_are_left_out() -> None:
    types = {
        ("device",): {"string"},
        ("ts",): {"timestamp-millis"},
        ("temp",): {"double", "string"},
        ("hum",): {"float"},
    }
    made = proposal.propose(readings(hum=1.5, extra=2), types=lambda parts: types.get(tuple(parts), set()))
    assert [each.path for each in made.measures] == ["hum"]
    assert made.left_out["temp"] == "double or string in the reader's schema"
    assert made.left_out["extra"] == "numbers that the reader's schema lacks"
    assert made.doubts["input.measures"].startswith("the reader's schema lacks numbers that records have: extra")


def test_a_key_that_is_json_is_not_sure_and_goes_behind_a_field() -> None:
    def keyed(key: Callable[[str], str], **fields: Any) -> list[Seen]:
        return [replace(each, key=key(each.record["device"])) for each in readings(**fields)]

    def quoted(text: str) -> str:
        return json.dumps(text)

    def wrapped(text: str) -> str:
        return json.dumps({"schema": {"type": "string"}, "payload": text})

    for key in (quoted, wrapped):
        made = proposal.propose(keyed(key))
        assert made.device is not None
        assert made.device.path == "device"
        assert "input.device_id" not in made.doubts
        # The field that tells the devices apart is gone.
        made = proposal.propose([replace(each, record={**each.record, "device": None}) for each in keyed(key)])
        assert made.device is not None
        assert made.device.path == "$key"
        assert (
            f"the ids are JSON, and keep their quotes and brackets: {key('d0')[:60]}" in made.doubts["input.device_id"]
        )
    made = proposal.propose(keyed(quoted))
    assert made.device is not None
    assert made.device.why == "the same as the record's key"
    made = proposal.propose(readings(device=lambda n: json.dumps({"id": n % 10})))
    assert "the ids are JSON" in made.doubts["input.device_id"]


def test_decimals_and_keys_of_a_map_are_measures() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    types = {"device": "string", "ts": "long", "temp": decimal, "tags": {"type": "map", "values": "double"}}
    made = of_avro(types, readings(temp=lambda n: Decimal(n % 7) / 10, tags=lambda n: {"hum.raw": n % 5 + 0.5}))
    assert {each.path: (each.low, each.high) for each in made.measures} == {
        "temp": (0.0, 0.6),
        "tags.`hum.raw`": (0.5, 4.5),
    }
    assert not made.doubts


@pytest.mark.silent("1.9")
def test_records_of_two_types_are_read_as_the_most_frequent_one_and_that_is_not_sure(tmp_path: Path) -> None:
    def schema(name: str, *numbers: str) -> dict[str, Any]:
        fields = [{"name": "device", "type": "string"}, {"name": "ts", "type": "long"}]
        fields += [{"name": each, "type": "double"} for each in numbers]
        return {"type": "record", "name": name, "namespace": "fleet", "fields": fields}

    schemas = {1: schema("Reading", "temp"), 2: schema("Reading", "temp", "hum"), 9: schema("Status", "battery")}
    for number, each in schemas.items():
        (tmp_path / f"{number}.avsc").write_text(json.dumps(each))
    request = Request(
        tmp_path / "x.toml",
        {"bootstrap": "localhost:1", "topics": ["t"]},
        {"url": "redis://localhost"},
        100,
        schemas=str(tmp_path),
    )

    def messages(*numbers: int) -> list[confluent_kafka.Message]:
        made = []
        for n, number in enumerate(numbers):
            out = io.BytesIO(b"\0" + number.to_bytes(4))
            out.seek(5)
            record = {"device": f"d{n % 10}", "ts": BEGIN_MS + n, "temp": 1.5, "hum": 2.5, "battery": 3.5}
            fields = {each["name"] for each in schemas[number]["fields"]}
            fastavro.schemaless_writer(
                out, fastavro.parse_schema(schemas[number]), {k: v for k, v in record.items() if k in fields}
            )
            made.append(sample(out.getvalue()))
        return made

    found = form(messages(*[1, 1, 9] * 50), request)
    assert (found.reader, found.input["reader_schema"]) == (2, 2)
    doubt = found.doubts["input.reader_schema"]
    assert "fleet.Reading (100 records, id 1), fleet.Status (50 records, id 9). All are read as fleet.Reading" in doubt
    decoded = records.decode(messages(*[1, 1, 9] * 50), found.input, found.schemas)
    made = proposal.propose(decoded.sample, types=found.types)
    made.doubts |= found.doubts
    assert [each.path for each in made.measures] == ["temp"]
    assert "the reader's schema lacks numbers that records have: battery" in made.doubts["input.measures"]
    assert f"# NOT SURE: {doubt}" in text(made, PLACES, [])
    of_one = form(messages(1, 1, 2), request)
    assert (of_one.reader, of_one.input["reader_schema"], of_one.doubts) == (2, 2, {})
    (tmp_path / "9.avsc").unlink()
    assert form(messages(1, 1, 2), request).input == {"schemas": str(tmp_path)}


def test_a_fingerprint_is_that_of_a_schema_of_the_registry_or_the_folder_or_of_none(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "Reading", "fields": [{"name": "temp", "type": "double"}]}
    head = b"\xc3\1" + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
    known, unknown = ([sample(each + b"\0" * 8)] * 3 for each in (head, b"\xc3\1" + b"x" * 8))
    given = tmp_path / "x.toml", {"bootstrap": "localhost:1", "topics": ["t"]}, {"url": "redis://localhost"}, 100
    (tmp_path / "7.avsc").write_text(json.dumps(schema))
    folder = Request(*given, schemas=str(tmp_path))
    assert form(known, folder).input == {"schemas": str(tmp_path), "framing": "single-object"}
    with Registry(first_id=7) as server:
        server.register("t-value", schema)
        registry = Request(*given, registry={"url": server.url})
        assert form(known, registry).input == {"reader_schema": 7, "framing": "single-object"}
        for request in (folder, registry):
            with pytest.raises(SchemaError, match="has no schema with this fingerprint"):
                form(unknown, request)


@pytest.mark.parametrize("name", ["a`b", "", "^", "\0", "\ud800"])
def test_an_array_that_settings_cannot_name_is_not_proposed(name: str) -> None:
    messages = [sample(json.dumps({name: [{"temp": 1.5}]}).encode())] * 3
    assert records.array_of(messages) is False


def test_a_text_with_a_long_line_is_no_csv() -> None:
    assert records.format_of([sample(b"<a>" + b"x" * 200_000 + b"\n</a>\n")]) is None


def test_an_avro_type_by_name_is_the_type() -> None:
    vector = {"type": "record", "name": "Vec", "fields": [{"name": "x", "type": "double"}]}
    types = {
        "device": {"type": "enum", "name": "Dev", "symbols": [f"d{n}" for n in range(10)]},
        "ts": "long",
        "temp": "int",
        "inner": vector,
        "outer": ["null", "Vec"],
        "other": "com.x.Dev",
    }
    made = of_avro(types, readings(inner=lambda n: {"x": n + 0.5}, outer=lambda n: {"x": n + 0.5}, other="d1"))
    assert {"inner.x", "outer.x"} <= {each.path for each in made.measures}
    assert made.device is not None
    assert not made.left_out


def test_an_avro_union_of_several_types_is_left_out() -> None:
    types = {"device": "string", "ts": "long", "temp": ["null", "long", "double"], "hum": ["null", "int", "long"]}
    made = of_avro(types, readings(hum=lambda n: n % 9))
    assert [each.path for each in made.measures] == ["hum"]
    assert made.left_out == {"temp": "union in the reader's schema"}


def test_a_uuid_of_avro_is_a_text_and_may_be_the_device() -> None:
    types = {"device": {"type": "string", "logicalType": "uuid"}, "ts": "long", "temp": "int"}
    made = of_avro(types, readings(device=lambda n: str(UUID(int=n % 10 + 1))))
    assert made.device is not None
    assert (made.device.path, made.device.values[0]) == ("device", str(UUID(int=1)))


@pytest.mark.parametrize(
    "value",
    [
        b'\xef\xbb\xbf{"d": "a", "ts": 1, "m": 1}',
        '{"d": "a", "ts": 1, "m": 1}'.encode("utf-16"),
        b'{"d": "a", "ts": 1, "m": 1, "other": nan}',
        b'{"d": "a\xff", "ts": 1, "m": 1}',
    ],
)
def test_json_that_the_service_rejects_is_not_decoded(value: bytes) -> None:
    refused = decoded([sample(value)], "json")
    assert (refused.sample, refused.refused) == ([], {"no JSON": 1})
    assert not dissect.dissect(value, Input(format="json"), {}).whole


def test_a_message_has_the_values_that_its_mapped_fields_would_have() -> None:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="p", syntax="proto3")
    file.dependency.extend(["google/protobuf/any.proto", "google/protobuf/wrappers.proto"])
    kinds = (
        {"device": field.TYPE_STRING, "temp": field.TYPE_DOUBLE, "on": field.TYPE_BOOL, "raw": field.TYPE_BYTES}
        | {"extra": ".google.protobuf.Any", "hum": ".google.protobuf.DoubleValue", "wind": ".p.R", "none": ".p.R"}
        | {"some": field.TYPE_INT64, "more": field.TYPE_INT64}
    )
    made = file.message_type.add(name="R")
    for number, (name, kind) in enumerate(kinds.items(), 1):
        of = {"type": field.TYPE_MESSAGE, "type_name": kind} if isinstance(kind, str) else {"type": kind}
        label = field.LABEL_REPEATED if name in {"some", "more"} else field.LABEL_OPTIONAL
        made.field.add(name=name, number=number, label=label, **of)
    schema = {"files": [["r.proto", base64.b64encode(file.SerializeToString()).decode()]]}
    message = protobuf.parsed(b"\0\0\0\0\1\0", protobuf.files_of(schema), framings.FRAMINGS["confluent"])
    of_zeros = {"temp": 0.0, "on": False}
    assert protobuf.plain(message) == of_zeros
    message.extra.value, message.raw, message.wind.device = b"1", b"2", "d1"  # type: ignore[attr-defined]
    message.hum.value, message.more[:] = 0.0, [1]  # type: ignore[attr-defined]
    message.hum.SetInParent()  # type: ignore[attr-defined]
    value = b"\0\0\0\0\1\0" + message.SerializeToString()
    [seen] = decoded([sample(value)], "protobuf", {1: schema}).sample
    assert seen.record == of_zeros | {
        "raw": None,
        "extra": None,
        "hum": 0.0,
        "wind": {"device": "d1", **of_zeros},
        "more": ["1"],
    }


def test_words_of_names() -> None:
    assert words("endDeviceIds") == ["end", "device", "id"]
    assert words("moteid") == ["mote", "id"]
    assert words("humid") == ["humid"]
    assert words("PULocationID") == ["pu", "location", "id"]
    assert measure_name(["a", "value"], ["a_value"]) == "a_value_2"


def test_a_long_record_gets_a_measure_for_each_name_and_the_settings_are_valid() -> None:
    kinds = ("temperature", "Rel. Humidity", "it's")
    made = proposal.propose(
        readings(metric=lambda n: kinds[n % 3], value=lambda n: n % 50 + n % 3, temp=lambda _: None)
    )
    assert "each is a measure of its own" in made.doubts["input.measures"]
    form = parse(settings(made)).input
    assert {name: (each.path, each.where) for name, each in form.measures.items()} == {
        "it_s": ("value", "metric = 'it''s'"),
        "rel_humidity": ("value", "metric = 'Rel. Humidity'"),
        "temperature": ("value", "metric = 'temperature'"),
    }
    assert form.is_long


def test_half_of_a_character_names_no_measure() -> None:
    kinds = ("temperature", "humidity", "\ud800")
    made = proposal.propose(
        readings(metric=lambda n: kinds[n % 3], value=lambda n: n % 50 + n % 3, temp=lambda _: None)
    )
    assert {each.where for each in made.measures} == {"metric = 'temperature'", "metric = 'humidity'"}
    parse(settings(made))


@pytest.mark.parametrize(
    ("form", "pattern", "is_sure"),
    [
        ("%d.%m.%Y %H:%M:%S", "dd.MM.yyyy HH:mm:ss", True),
        ("%m/%d/%Y %I:%M:%S %p", "M/d/yyyy h:mm:ss a", True),
        ("%d/%b/%Y:%H:%M:%S +0000", "dd/MMM/yyyy:HH:mm:ss X", True),
        ("%Y%m%d%H%M%S", "yyyyMMddHHmmss", True),
        ("05/09/2026 %H:%M:%S", "dd/MM/yyyy HH:mm:ss", False),
    ],
)
def test_texts_of_another_form_get_a_pattern(form: str, pattern: str, is_sure: bool) -> None:
    begin_ms = BEGIN_MS if is_sure else round(datetime(2026, 9, 5, 12, tzinfo=UTC).timestamp() * 1000)
    sample = [
        replace(each, record={**each.record, "ts": at.strftime(form)}, broker_ms=round(at.timestamp() * 1000))
        for n, each in enumerate(readings())
        for at in [datetime.fromtimestamp(begin_ms // 1000 + n, UTC)]
    ]
    made = proposal.propose(sample)
    assert settings(made)["input"]["event_time_pattern"] == pattern
    assert "event_time_unit" not in settings(made)["input"]
    doubt = made.doubts.get("input.event_time", "")
    assert ("MM/dd/yyyy HH:mm:ss, too" in doubt) is not is_sure


def test_numbers_in_texts_are_measures_and_times() -> None:
    sample = readings(ts=lambda n: str(BEGIN_MS + n * 100), temp=lambda n: f" {n % 7}.5 " if n % 10 else "")
    made = proposal.propose(sample)
    assert made.clock is not None
    assert (made.clock.path, made.clock.unit, made.text_numbers) == ("ts", "ms", True)
    assert [(each.path, each.low, each.high, each.stray) for each in made.measures] == [("temp", 0.5, 6.5, 0)]
    assert "texts with numbers may be codes: temp" in made.doubts["input.measures"]
    document = settings(made)
    assert document["input"]["text_numbers"] is True
    parse(document)
    assert not proposal.propose(readings()).text_numbers
    avro = of_avro({"device": "string", "ts": "long", "temp": "string"}, readings(temp=lambda n: f"{n % 7}.5"))
    assert ([each.path for each in avro.measures], avro.text_numbers) == (["temp"], False)


@pytest.mark.parametrize(
    ("words", "path", "why"),
    [
        ({"$key.sensor.id": "s{}"}, "$key.`sensor`.id", "in the record's key"),
        ({"$header.device-id": "s{}", "$header.trace": "t"}, "$header.`device-id`", "a header"),
        ({"$topic": "plant.s{}"}, "$topic", "the topic"),
    ],
)
def test_the_device_is_in_the_key_a_header_or_the_topic(words: dict[str, str], path: str, why: str) -> None:
    spelled = {
        path.replace("`sensor`", "sensor") if name != "$header.trace" else name: text for name, text in words.items()
    }
    sample = [
        replace(each, record={**each.record, "device": None}, words={w: t.format(n % 10) for w, t in spelled.items()})
        for n, each in enumerate(readings())
    ]
    made = proposal.propose(sample)
    assert made.device is not None
    assert (made.device.path, made.device.devices, made.device.why) == (path.replace("`sensor`", "sensor"), 10, why)
    parse(settings(made))


def test_the_words_of_a_message_are_its_key_its_headers_and_its_topic() -> None:
    key = b'{"site":{"id":7},"deep":{"a":{"b":{"c":1}}},"on":true,"x`":1}'
    headers = [("device-id", b"old"), ("device-id", b"pump"), ("bytes", b"\xff"), ("a.b", b"")]
    [seen] = decoded([sample(b"{}", key, headers)], "json").sample
    assert seen.words == {"$topic": "topic", "$key.site.id": "7", "$header.`device-id`": "pump", "$header.`a.b`": ""}
