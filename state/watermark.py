"""Event time: how far one micro-batch moves the watermark.

    advance(before, partitions, rules) -> EventTime

The watermark follows the newest admitted event time, less the delay. A partition with unread records holds the watermark: its
unread readings are not older than the newest broker time read of it, less the longest delay that admission allows. Partitions
without unread records do not hold it. The hold has no bound in event time: a backlog of hours is read in full. A partition that
is not read does not hold it for ever: the driver leaves it out (service/checkpoint/event_time.py).

Each task of a batch reports what it has read to every bucket, so each bucket computes the same watermark from the same rows, and
a batch closes what its own readings have passed. The next batch rejects readings below it as late. A replay reads the same
records with the same unread partitions (service/checkpoint/event_time.py), and so has the same watermark.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from state.waiting import AT_ONCE, Pace

_TIME = struct.Struct("<2q")
_PACE = struct.Struct("<2q?")
_NUMBER = struct.Struct("<q")
_PARTITION = struct.Struct("<3q?")


@dataclass(frozen=True, slots=True)
class EventTime:
    """After a batch: the watermark, and the newest event time that was ever admitted (-1: none), in ms."""

    watermark_ms: int = 0
    newest_ms: int = -1

    def pack(self, waiting: int = 0) -> bytes:
        """Payload of a row of TIMES that the operator gives, with the number of rows that wait (state/waiting.py)."""
        return _TIME.pack(self.watermark_ms, self.newest_ms) + (_NUMBER.pack(waiting) if waiting else b"")

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """The event time in the bytes of `pack`."""
        return cls(*_TIME.unpack_from(payload))


@dataclass(frozen=True, slots=True)
class Delays:
    """In ms: `delay_ms` is how far the watermark is behind the newest event time, `max_delay_ms` how far an admitted reading may
    be behind the broker's time for it. `status_ms` is how far the line of statuses is behind the newest event time, None where
    that is the watermark."""

    delay_ms: int
    max_delay_ms: int
    status_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """What was read of a partition: the newest admitted event time and the newest time of the broker's for any record, in ms (-1:
    none), and whether it has records that the batch does not read and for which the watermark waits."""

    newest_ms: int = -1
    broker_ms: int = -1
    is_unread: bool = False

    def __or__(self, other: "Partition") -> "Partition":
        return Partition(
            max(self.newest_ms, other.newest_ms),
            max(self.broker_ms, other.broker_ms),
            self.is_unread or other.is_unread,
        )


def advance(before: EventTime, partitions: Iterable[Partition], delays: Delays) -> EventTime:
    """Event time after a batch that has read these partitions; it never decreases."""
    partitions = tuple(partitions)
    newest_ms = max([before.newest_ms, *(each.newest_ms for each in partitions)])
    line_ms = newest_ms - delays.delay_ms
    bounds = [
        each.broker_ms - delays.max_delay_ms if each.broker_ms >= 0 else before.watermark_ms
        for each in partitions
        if each.is_unread
    ]
    return EventTime(max(before.watermark_ms, min([line_ms, *bounds])), newest_ms)


def line(reports: Sequence[bytes], delays: Delays) -> int | None:
    """Return the line of statuses after the batch, None where it is the watermark. Unread records hold it as they hold the
    watermark, with its own delay; it may be before that of the last batch."""
    if delays.status_ms is None:
        return None
    return combine(reports, Delays(delays.status_ms, delays.status_ms)).watermark_ms


def waiting(payload: bytes) -> int:
    """The number of rows that wait in the bytes of `EventTime.pack`."""
    return int(_NUMBER.unpack_from(payload, _TIME.size)[0]) if len(payload) > _TIME.size else 0


def report(before: EventTime, partitions: Mapping[int, Partition], pace: Pace = AT_ONCE) -> bytes:
    """Payload of a row of TIMES that a task sends to each bucket: partitions by their number, and when rows leave."""
    rows = (_PARTITION.pack(code, p.newest_ms, p.broker_ms, p.is_unread) for code, p in sorted(partitions.items()))
    return before.pack() + _PACE.pack(pace.planned_ms, pace.line_ms, pace.is_written) + b"".join(rows)


def pace(reports: Sequence[bytes]) -> Pace:
    """When rows leave, in the reports of all tasks of a batch."""
    return Pace(*_PACE.unpack_from(reports[0], _TIME.size))


def combine(reports: Sequence[bytes], delays: Delays) -> EventTime:
    """Event time after the batch whose tasks gave these reports, at least one."""
    partitions: dict[int, Partition] = {}
    for payload in reports:
        for code, *columns in _PARTITION.iter_unpack(payload[_TIME.size + _PACE.size :]):
            partitions[code] = partitions.get(code, Partition()) | Partition(*columns)
    return advance(EventTime.unpack(reports[0]), partitions.values(), delays)
