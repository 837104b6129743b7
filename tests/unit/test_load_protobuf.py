"""The fleet's Protobuf is what Google's parser reads, and the oracle reads any bytes as that parser does."""

import base64
import math

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from load.fleet.encode import encode
from load.fleet.fleet import MEASURES, Fleet, FleetSettings, Kind, with_outsiders
from load.fleet.protobuf import NEXT, SCHEMA_ID, ProtobufEncoder, framing, schema, varint
from load.judge.protobuf import Messages, NoMessageError

START_MS = 1_760_000_000_000
HEAD = framing(SCHEMA_ID)
DAMAGED = {Kind.RANDOM, Kind.TRUNCATED, Kind.TRAILING, Kind.HUGE_LENGTH, Kind.OVERSIZED}


def _class():
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema())))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fleet.Reading"))


READING = _class()
MESSAGES = Messages(schema())


def by_google(content: bytes) -> dict[str, object] | None:
    message = READING()
    try:
        message.ParseFromString(content)
    except DecodeError:
        return None
    return plain(message)


def plain(message) -> dict[str, object]:
    measures = {name: getattr(message, name) if message.HasField(name) else None for name in MEASURES}
    following = plain(message.next) if message.HasField("next") else None
    return {"device_id": message.device_id, "event_time": message.event_time, **measures, "next": following}


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
            assert not value.startswith(HEAD) or by_google(value[len(HEAD) :]) is None
        elif kind is Kind.ORDINARY:
            assert value is not None
            assert value.startswith(HEAD)
            numbers = [None if math.isnan(each) else each for each in readings.values[row].tolist()]
            reading = {"device_id": fleet.names[readings.device[row]], "event_time": event_ms[row]}
            measures = dict(zip(MEASURES, numbers, strict=True))
            assert by_google(value[len(HEAD) :]) == {**reading, **measures, "next": None}
    assert kinds >= DAMAGED | {Kind.ORDINARY, Kind.LATE, Kind.UNKNOWN_SCHEMA, Kind.NO_DEVICE}


def field(number: int, wire: int, content: bytes) -> bytes:
    return varint(number << 3 | wire) + content


contents = {
    0: st.integers(0, (1 << 64) - 1).map(varint),
    1: st.binary(min_size=8, max_size=8),
    2: st.one_of(st.binary(max_size=4), st.text(max_size=4).map(str.encode)).map(lambda b: varint(len(b)) + b),
    3: st.just(b""),
    4: st.just(b""),
    5: st.binary(min_size=4, max_size=4),
}
flat = st.integers(0, 5).flatmap(lambda wire: st.builds(field, st.integers(0, 9), st.just(wire), contents[wire]))
fields = st.recursive(
    flat,
    lambda inner: st.lists(inner, max_size=3).map(b"".join).map(lambda b: field(NEXT, 2, varint(len(b)) + b)),
    max_leaves=6,
)


@given(st.lists(fields, max_size=6).map(b"".join), st.binary(max_size=3), st.integers(0, 40))
def test_the_oracle_reads_any_bytes_as_googles_parser_does(whole: bytes, more: bytes, cut: int) -> None:
    for content in (whole, whole + more, whole[:cut]):
        assert repr(by_oracle(content)) == repr(by_google(content)), content


def test_messages_in_messages_are_read_as_deep_as_googles_parser_goes() -> None:
    content, depths = b"", set()
    for depth in range(300):
        there = by_google(content) is not None
        assert (by_oracle(content) is not None) == there, depth
        depths.add(there)
        content = field(NEXT, 2, varint(len(content)) + content)
    assert depths == {True, False}


def test_the_path_of_a_message_is_short_for_the_first_one_or_counts_its_numbers() -> None:
    content = field(1, 2, b"\x01a")
    assert MESSAGES.read(b"\0" + content) == MESSAGES.read(b"\x02\0" + content)
    for path in (b"\x02\x02", b"\x04\0\0", b"\x01", b""):
        try:
            MESSAGES.read(path + (content if path else b""))
        except NoMessageError:
            continue
        raise AssertionError(path)
