"""Readings as the bytes of Kafka records: Confluent's Avro framing or JSON, and what outsiders do to them.

fastavro encodes one template for each device; of a template only the event time and the measures vary, at places that
are the same for all devices of a layout, so that NumPy fills in thousands at once. A test holds the result against
fastavro's for each record. (fastavro alone: 3.5 us a record, this: 0.3 us.)
"""

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt

from load.fleet.fleet import DAY_MS, HOUR_MS, MEASURES, Fleet, Ints, Kind, Readings
from load.fleet.protobuf import ProtobufEncoder
from service.errors import SchemaError

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "avro"
YEAR_2099_MS = 4_070_908_800_000
FIRMWARE = "2.1.0"  # the same length for all that have one
HEADER = "kind"

Schema = str | list[Any] | dict[Any, Any]  # as fastavro has it
Record = dict[str, object]
Value = bytes | None

# A zigzag varint of milliseconds has six bytes from 1970-07-18 to 2039-09-07.
_TIME_BYTES = 6
_TIMES_MS = range(1 << 34, 1 << 41)
_UNKNOWN_SCHEMA = 999_983


@dataclass(frozen=True, slots=True)
class _Layout:
    """Devices whose records have the same length: their templates, and where in them the varying parts are."""

    templates: npt.NDArray[np.uint8]
    time_at: int
    measures_at: tuple[tuple[int, int], ...]


class AvroEncoder:
    """Confluent's framing: 0x00, the schema id in four bytes, big-endian, and the record's Avro body.

    Devices in `fleet.evolved` write schema 2, all others schema 1, both from `schemas`/<id>.avsc. Raises SchemaError
    when one is missing or is not the schema this encoder was made for.
    """

    def __init__(self, fleet: Fleet, schemas: Path = SCHEMAS) -> None:
        self._fleet = fleet
        ids = (1, 2) if fleet.evolved.any() else (1,)
        self._schemas = {each: _load(schemas / f"{each}.avsc") for each in ids}
        self._layout_of = np.empty(len(fleet.names), dtype=np.int64)
        self._row_of = np.empty(len(fleet.names), dtype=np.int64)
        groups: dict[tuple[int, bool, int], list[int]] = {}
        for device, name in enumerate(fleet.names):
            groups.setdefault((int(fleet.type[device]), bool(fleet.evolved[device]), len(name)), []).append(device)
        self._layouts = [self._lay_out(number, devices) for number, devices in enumerate(groups.values())]

    def ordinary(self, readings: Readings, event_ms: Ints) -> list[bytes]:
        """The records of `readings` as if all were ordinary; `event_ms` must lie between 1970-07 and 2039-09."""
        if len(event_ms) and not (_TIMES_MS.start <= event_ms.min() and event_ms.max() < _TIMES_MS.stop):
            what = f"event times from {event_ms.min()} to {event_ms.max()} ms are not all between 1970-07 and 2039-09"
            raise ValueError(what)
        records = [b""] * len(readings)
        layouts = self._layout_of[readings.device]
        shifts = np.arange(0, 7 * _TIME_BYTES, 7)
        times = (event_ms[:, None] << 1 >> shifts & 0x7F).astype(np.uint8)
        times[:, :-1] |= 0x80
        for number, layout in enumerate(self._layouts):
            mine = np.flatnonzero(layouts == number)
            if not len(mine):
                continue
            rows = layout.templates[self._row_of[readings.device[mine]]]
            rows[:, layout.time_at : layout.time_at + _TIME_BYTES] = times[mine]
            for column, at in layout.measures_at:
                doubles = readings.values[mine, column].astype("<f8")
                rows[:, at : at + 8] = doubles.view(np.uint8).reshape(-1, 8)
            length = rows.shape[1]
            every = rows.tobytes()
            for place, start in zip(mine.tolist(), range(0, len(every), length), strict=True):
                records[place] = every[start : start + length]
        return records

    def record(self, schema_id: int, record: Record) -> bytes:
        """One record, by fastavro."""
        body = io.BytesIO()
        body.write(struct.pack(">bI", 0, schema_id))
        fastavro.schemaless_writer(body, self._schemas[schema_id], record)
        return body.getvalue()

    def one(self, device: int, record: Record) -> bytes:
        """A record that is not as the device would write it, under the device's schema."""
        if self._fleet.evolved[device]:
            return self.record(2, {**record, "firmware": FIRMWARE})
        return self.record(1, record)

    def unknown_schema(self, whole: bytes, _random: bytes) -> bytes:
        """An id beyond all that are known."""
        return whole[:1] + struct.pack(">I", _UNKNOWN_SCHEMA) + whole[5:]

    def huge_length(self, whole: bytes, _random: bytes) -> bytes:
        """A device id of 2^40 bytes, by its length prefix."""
        return whole[:5] + b"\x80\x80\x80\x80\x80\x40" + whole[6:]

    def truncated(self, whole: bytes, random: bytes) -> bytes:
        """Cut inside the body."""
        return whole[: 6 + random[0] % (len(whole) - 6)]

    def trailing(self, whole: bytes, random: bytes) -> bytes:
        """Bytes after the end."""
        return whole + random[: 1 + random[0] % 7]

    def noise(self, _whole: bytes, random: bytes) -> bytes:
        """Random bytes that do not start as the framing does."""
        return b"\xff" + random * 4

    def _lay_out(self, number: int, devices: list[int]) -> _Layout:
        self._layout_of[devices] = number
        self._row_of[devices] = np.arange(len(devices))
        rows = [self._template(device) for device in devices]
        time_at = 6 + len(self._fleet.names[devices[0]])  # framing, one byte of the id's length, the id
        at = time_at + _TIME_BYTES
        places = []
        for column in range(len(MEASURES)):
            at += 1  # the union's branch
            if self._fleet.has[devices[0], column]:
                places.append((column, at))
                at += 8
        return _Layout(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1), time_at, tuple(places))

    def _template(self, device: int) -> bytes:
        measures = {name: 0.0 for column, name in enumerate(MEASURES) if self._fleet.has[device, column]}
        return self.one(device, {"device_id": self._fleet.names[device], "event_time": _TIMES_MS.start, **measures})


class JsonEncoder:
    """One object a record: device_id, event_time in milliseconds, the measures the device has."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._measures = [
            [(column, f',"{name}":') for column, name in enumerate(MEASURES) if fleet.has[device, column]]
            for device in range(len(fleet.names))
        ]

    def ordinary(self, readings: Readings, event_ms: Ints) -> list[bytes]:
        """The records of `readings` as if all were ordinary."""
        names, measures = self._fleet.names, self._measures
        rows = zip(readings.device.tolist(), event_ms.tolist(), readings.values.tolist(), strict=True)
        return [
            f'{{"device_id":"{names[device]}","event_time":{time}'
            f"{''.join([text + repr(values[column]) for column, text in measures[device]])}}}".encode()
            for device, time, values in rows
        ]

    def one(self, _device: int, record: Record) -> bytes:
        """A record that is not as the device would write it; NaN is written as JavaScript's NaN."""
        return json.dumps(record, separators=(",", ":")).encode()

    def unknown_schema(self, whole: bytes, _random: bytes) -> bytes:
        """A string where an object is expected."""
        return json.dumps(whole.decode()).encode()

    def huge_length(self, whole: bytes, _random: bytes) -> bytes:
        """A string that never ends."""
        return whole[:20] + b"x" * 4096

    def truncated(self, whole: bytes, random: bytes) -> bytes:
        """Cut anywhere before the end."""
        return whole[: 1 + random[0] % (len(whole) - 1)]

    def trailing(self, whole: bytes, random: bytes) -> bytes:
        """Text after the object."""
        return whole + b'}"' + random.hex().encode()

    def noise(self, _whole: bytes, random: bytes) -> bytes:
        """Random bytes, never text."""
        return b"\xff" + random * 4


Encoder = AvroEncoder | JsonEncoder | ProtobufEncoder


_OVERSIZE = 70_000


def encoder_of(fleet: Fleet, value_format: str, schemas: Path = SCHEMAS) -> Encoder:
    """The encoder of a format: "avro", "json" or "protobuf". Raises SchemaError."""
    if value_format == "avro":
        return AvroEncoder(fleet, schemas)
    return JsonEncoder(fleet) if value_format == "json" else ProtobufEncoder(fleet)


def encode(encoder: Encoder, fleet: Fleet, readings: Readings, event_ms: Ints) -> list[Value]:
    """The value of each reading's record, outsiders made what they are. A duplicate's is here once."""
    whole = encoder.ordinary(readings, event_ms)
    values: list[Value] = [*whole]
    for place in np.flatnonzero(readings.kind > Kind.DUPLICATE).tolist():
        reading = readings.between(place, place + 1)
        values[place] = _outsider(encoder, fleet, reading, int(event_ms[place]), whole[place])
    return values


def key_of(fleet: Fleet, device: int, kind: Kind) -> bytes:
    """A record's key: the device id that its value gives, or would give if it could be read."""
    if kind is Kind.NO_DEVICE:
        return b""
    return (_ghost(device) if kind is Kind.UNKNOWN_DEVICE else fleet.names[device]).encode()


def _ghost(device: int) -> str:
    return f"ghost-{device:06d}"


def _outsider(encoder: Encoder, fleet: Fleet, reading: Readings, event_ms: int, whole: bytes) -> Value:
    kind = Kind(int(reading.kind[0]))
    noise = int(reading.noise[0])
    damage: Mapping[Kind, Callable[[bytes, bytes], bytes]] = {
        Kind.RANDOM: encoder.noise,
        Kind.TRUNCATED: encoder.truncated,
        Kind.TRAILING: encoder.trailing,
        Kind.UNKNOWN_SCHEMA: encoder.unknown_schema,
        Kind.HUGE_LENGTH: encoder.huge_length,
    }
    if kind is Kind.NULL_VALUE:
        return None
    if kind is Kind.OVERSIZED:
        return whole + bytes(_OVERSIZE)
    if kind in damage:
        return damage[kind](whole, noise.to_bytes(8, "big"))
    device = int(reading.device[0])
    measures = {
        name: float(reading.values[0, column]) for column, name in enumerate(MEASURES) if fleet.has[device, column]
    }
    record: Record = {"device_id": fleet.names[device], "event_time": event_ms, **measures}
    if kind is Kind.LATE:
        record["event_time"] = event_ms - 6 * HOUR_MS - noise % HOUR_MS
    elif kind is Kind.AHEAD:
        record["event_time"] = event_ms + DAY_MS
    elif kind is Kind.YEAR_2099:
        record["event_time"] = YEAR_2099_MS + noise % DAY_MS
    elif kind is Kind.NO_DEVICE:
        record["device_id"] = ""
    elif kind is Kind.UNKNOWN_DEVICE:
        record["device_id"] = _ghost(device)
    else:
        record.update(dict.fromkeys(measures, float("nan") if kind is Kind.NOT_A_NUMBER else 1e9))
    return encoder.one(device, record)


def _load(path: Path) -> Schema:
    try:
        parsed = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        what = f"Avro schema {path}: {problem}"
        raise SchemaError(what, remedy="Give the folder that holds 1.avsc and 2.avsc.") from problem
    fields = [each["name"] for each in parsed["fields"]]
    if fields[: 2 + len(MEASURES)] != ["device_id", "event_time", *MEASURES]:
        what = f"Avro schema {path} starts with the fields {', '.join(fields)}"
        raise SchemaError(what, remedy=f"The generator writes device_id, event_time, {', '.join(MEASURES)}.")
    return fastavro.parse_schema(parsed)
