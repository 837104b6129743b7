"""Records that are small and would become large: what hostile devices send to inputs of arrays and of Protobuf.

A message bomb is the content of a message, an array bomb a record. All are rejected, and each is one reject.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence

from load.faults.raw import Message
from load.fleet.protobuf import NEXT, varint
from service.clock import now_ms

MOST = 100_000
"""Readings in an array."""
VALUES = 1_000
"""What `max_values` is of the column that gets a million of them."""


def nested(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = varint(NEXT << 3 | 2) + varint(len(content)) + content
    return content


def spaces(size: int) -> bytes:
    """Return so many blanks, gzip'd: a thousandth."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(b" " * (1 << 20)) for _ in range(size >> 20)]) + packer.flush()


def message_bombs() -> list[bytes]:
    """Return contents of messages of a schema whose field NEXT is such a message again."""
    return [
        nested(4_000),  # deeper than any parser goes
        b"\x0a\xff\xff\xff\xff\x07",  # text of 2 GiB that is not there
        (varint(NEXT << 3 | 2) + b"\0") * 30_000,  # 30,000 times an empty message, and no device
    ]


def array_bombs() -> list[bytes]:
    return [
        spaces(200 << 20),  # 200 KB of gzip
        gzip.compress(b"", mtime=0) * 20_000,
        b"[" * 500_000,
        b'[{"' * 300_000,
        b"[" + b",".join([b"{}"] * (MOST + 1)) + b"]",
    ]


PACKS: Mapping[str, Sequence[bytes]] = {
    "senml-cbor": (
        b"\x81" * 900_000,  # lists in one another
        b"\x9f" * 900_000,  # endless ones
        b"\x9b\x7f" + b"\xff" * 7,  # a list of 2^63 items that are not there
        b"\x81\xa2\x00\x61a\x02\xc2\x5a\x00\x0d\xbb\xa0" + b"\xff" * 900_000,  # a number of 900 KB
        b"\x81\xa2\x00\x61a\x02\xc4\x82\x1b\x0f" + b"\xff" * 7 + b"\x01",  # a decimal with a huge exponent
        b"\xd8\x1c\x81\xd8\x1d\x00",  # a list that holds itself
    ),
    "sparkplug-b": (
        b"".join(
            b"\x12\x05\x10" + varint(each | 1 << 27) for each in range(128_000)
        ),  # aliases that no birth has named
        b"\x12" * 900_000,
        b"\x12\xff\xff\xff\xff\x07",  # a metric of 2 GiB that is not there
    ),
    "csv": (b"," * 900_000, b'a,b\n"' + b'"' * 900_001, b"a,a\n1,2\n" * 100_000),
}
"""Records of formats that hold several readings, by topic."""


def slow_times(device: str) -> list[bytes]:
    """Return readings whose times a pattern takes long to refuse."""
    day = "2026-11-27T06:00:00"
    texts = (
        " " * 60_000 + "x",
        f"{day}.{'1' * 60_000}x",
        day + " " * 60_000 + "x",
        f"{day}[{'a/' * 30_000}",
        "0" * 60_000,
    )
    return [json.dumps({"device_id": device, "event_time": text, "value": 1}).encode() for text in texts]


def rejected_readings() -> bytes:
    """Return a record with as many readings as may be, each of which is rejected."""
    return gzip.compress(b"[" + b",".join([b"5"] * MOST) + b"]", mtime=0)


def many_values(device: str, count: int, first: int = 0) -> Iterator[Message]:
    """Yield records with so many readings, in each of which the column `line` has another value; of one partition, in order."""
    for begin in range(first, first + count, MOST):
        numbers = range(begin, min(begin + MOST, first + count))
        reading = json.dumps({"device_id": device, "event_time": now_ms(), "power": 200})[:-1]
        content = ",".join([f'{reading},"line":"{number:07}"}}' for number in numbers])
        yield {"value": gzip.compress(f"[{content}]".encode(), 1), "partition": 0}
