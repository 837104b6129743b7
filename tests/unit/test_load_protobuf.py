"""The fleet's Protobuf is what the oracle reads, by Google's parser."""

import math

import numpy as np

from load.fleet.encode import encode
from load.fleet.fleet import MEASURES, Fleet, FleetSettings, Kind, with_outsiders
from load.fleet.protobuf import SCHEMA_ID, ProtobufEncoder, framing, schema
from load.judge.protobuf import Messages, NoMessageError

START_MS = 1_760_000_000_000
HEAD = framing(SCHEMA_ID)
DAMAGED = {Kind.RANDOM, Kind.TRUNCATED, Kind.TRAILING, Kind.HUGE_LENGTH, Kind.OVERSIZED}
MESSAGES = Messages(schema())


def by_oracle(content: bytes) -> dict[str, object] | None:
    try:
        return MESSAGES.read(b"\0" + content)
    except NoMessageError:
        return None


def test_readings_are_messages_and_outsiders_are_what_they_say() -> None:
    shares = with_outsiders(0.5)
    fleet = Fleet(11, FleetSettings(devices=300, rate=1_000, shares=shares))
    readings = fleet.readings(0, 10_000, START_MS).between(0, 2_000)
    event_ms = (START_MS + readings.due_ms).astype(np.int64) - readings.delay_ms
    kinds = set()
    for row, value in enumerate(encode(ProtobufEncoder(fleet), fleet, readings, event_ms)):
        kind = Kind(int(readings.kind[row]))
        kinds.add(kind)
        if kind in DAMAGED:
            assert value is not None
            assert not value.startswith(HEAD) or by_oracle(value[len(HEAD) :]) is None
        elif kind is Kind.ORDINARY:
            assert value is not None
            assert value.startswith(HEAD)
            numbers = [None if math.isnan(each) else each for each in readings.values[row].tolist()]
            reading = {"device_id": fleet.names[readings.device[row]], "event_time": event_ms[row]}
            measures = dict(zip(MEASURES, numbers, strict=True))
            assert by_oracle(value[len(HEAD) :]) == {**reading, **measures, "next": None}
    assert kinds >= DAMAGED | {Kind.ORDINARY, Kind.LATE, Kind.UNKNOWN_SCHEMA, Kind.NO_DEVICE}


def test_the_path_of_a_message_is_short_for_the_first_one_or_counts_its_numbers() -> None:
    content = b"\x0a\x01a"
    assert MESSAGES.read(b"\0" + content) == MESSAGES.read(b"\x02\0" + content)
    for path in (b"\x02\x02", b"\x04\0\0", b"\x01", b""):
        try:
            MESSAGES.read(path + (content if path else b""))
        except NoMessageError:
            continue
        raise AssertionError(path)
