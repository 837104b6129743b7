"""Event time in the checkpoint.

    event_time/N           event time after batch N: {"watermark_ms": ..., "newest_ms": ..., "devices": ..., "limit": ...};
                           `devices` is that of service/admission/device_limit.py, `limit` the most records of batch N + 1
    event_time/ahead       is there when a batch has rejected readings as ahead: the rejects topic has which
    event_time/behind      the same for readings behind the watermark
    event_time/N.unread    the partitions that had unread records when batch N began: [["readings", 3], ...]

Spark's own watermark is not used: it follows the fastest partition, and drops unread records of the others. A batch begins with
the event time of the batch before; state/watermark.py computes how far the batch moves it. The partitions with unread records
are written before the batch runs, so that a replay has the same. A partition of which no record was read for `admission.max_hold`
is left out: the watermark no longer waits for it. The time is that of the process's own clock, and begins again with it.

Only two kinds of batches leave records unread that existed when they were planned: a batch as large as its limit allows
(service/pipeline/back_pressure.py), and a batch that was narrowed before its replay (service/checkpoint/narrow.py). Any other
batch reads all of them, and later records are not older, by the broker's time, than those it has read.
"""

import logging
import math
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field

from service import clock
from service.checkpoint.document import Document, store
from service.kafka.offsets import Edges, edges_now
from service.micro_batch import MicroBatch, at, each
from service.settings import Kafka
from service.spark.files import Folder
from state.watermark import EventTime

FOLDER = "event_time"
KEPT = 200
"""Batches; twice what Spark keeps of its own logs (`spark.sql.streaming.minBatchesToRetain`)."""
REFUSED = ("ahead", "behind")
"""Reasons that depend on when the stream has read a record."""
NO_LIST = -1
"""The number of the device list where all devices are admitted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _After:
    watermark_ms: int
    newest_ms: int
    devices: int = NO_LIST
    limit: int | None = None


AFTER = Document[_After](FOLDER, _After, is_synced=False, omits_none=True)
UNREAD = Document[tuple[tuple[str, int], ...]](FOLDER, tuple[tuple[str, int], ...], is_synced=False)


def read(folder: Folder, batch: int) -> tuple[EventTime, int, int | None]:
    """Event time after a committed batch, the number of its device list, and the limit of the next batch, None if that is not
    noted; before the first batch when `batch` is -1.

    Raises CheckpointError.
    """
    if batch < 0:
        return EventTime(), NO_LIST, None
    noted = AFTER.required(folder, f"{FOLDER}/{batch}")
    return EventTime(noted.watermark_ms, noted.newest_ms), noted.devices, noted.limit


@dataclass(slots=True)
class Log:
    """The checkpoint's log of event time, for the one writer. Raises CheckpointError or SetupError (a full disk).

    `files` of this machine are written without the JVM: a batch waits for them.
    """

    files: Folder
    _last: tuple[int, EventTime, int, int | None] = field(default=(-1, EventTime(), NO_LIST, None))
    _is_first: bool = True
    _read_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """When a record of each unread partition was read last, or the partition was first seen as unread."""
    _refused: set[str] = field(default_factory=set)
    behind: int = field(default=0, init=False)
    """Records that the last batch has left unread, as far as `unread` has asked Kafka: 0 for a batch that reads all, or that is
    repeated."""

    def before(self, batch: int) -> EventTime:
        """Event time when a batch begins."""
        return self._before(batch)[0]

    def devices(self, batch: int) -> int:
        """The number of the device list when a batch begins."""
        return self._before(batch)[1]

    def limit(self, batch: int, limit: int) -> int:
        """The most records that a batch may have been planned with, where the query has `limit` now.

        The first batch of a query may have been planned by an earlier one, under the limit that is noted.
        """
        noted = self._before(batch)[2]
        return min(limit, noted) if self._is_first and noted is not None else limit

    def _before(self, batch: int) -> tuple[EventTime, int, int | None]:
        if self._last[0] != batch - 1:
            self._last = batch - 1, *read(self.files, batch - 1)
        return self._last[1:]

    def note(self, batch: int, after: EventTime, devices: int = NO_LIST, limit: int | None = None) -> None:
        """Write the event time after a batch and the limit of the next one, before the batch is committed."""
        AFTER.write(self.files, _After(after.watermark_ms, after.newest_ms, devices, limit), f"{FOLDER}/{batch}")
        self._last = batch, after, devices, limit
        for name in (f"{batch - KEPT}", f"{batch - KEPT}.unread"):
            self.files.remove(f"{FOLDER}/{name}")

    def unread(
        self,
        kafka: Kafka,
        micro_batch: MicroBatch,
        limit: int | None = None,
        max_hold_ms: float = math.inf,
        ask: Callable[[], Edges] | None = None,
    ) -> frozenset[tuple[str, int]]:
        """The partitions with records after the batch's end, for which the watermark waits; the same for a replay.

        `limit` is the most records that the batch may have been planned with, `kafka.max_per_batch` by default. A partition of
        which no record was read for `max_hold_ms` is left out. `ask` asks Kafka; by default a new consumer does.
        Raises SourceError.
        """
        is_small = not micro_batch.reaches(limit or kafka.max_per_batch)
        is_first, self._is_first, self.behind = self._is_first, False, 0
        if is_small and not is_first:  # only the first batch of a query may have been narrowed: see `leaves`
            self._read_s.clear()
            return frozenset()
        noted = UNREAD.read(self.files, _unread_name(micro_batch.batch))
        if noted is None:
            if is_small:
                return frozenset()
            unread = _unread(ask() if ask is not None else edges_now(kafka), micro_batch)
            self.behind = sum(unread.values())
            noted = tuple(self._waited_for(micro_batch, unread, max_hold_ms))
            UNREAD.write(self.files, noted, _unread_name(micro_batch.batch))
        return frozenset(noted)

    def _waited_for(
        self, micro_batch: MicroBatch, unread: Collection[tuple[str, int]], max_hold_ms: float
    ) -> list[tuple[str, int]]:
        """Return the unread partitions of which a record was read within `max_hold_ms`."""
        now_s = clock.monotonic_s()
        former = self._read_s
        self._read_s = {place: now_s if micro_batch.reads(*place) else former.get(place, now_s) for place in unread}
        waited_for = [place for place, read_s in self._read_s.items() if now_s - read_s <= max_hold_ms / 1000]
        for topic, partition in set(unread).difference(waited_for):
            _log.warning(
                "The watermark no longer waits for %s[%d]: it has unread records, and none was read for %.0f s. Those behind the"
                " watermark become late",
                topic,
                partition,
                now_s - self._read_s[topic, partition],
            )
        return waited_for

    def note_refused(self, reasons: Container[str]) -> None:
        """Note, before the batch is committed, for which of REFUSED readings were rejected."""
        for reason in REFUSED:
            if reason in reasons and reason not in self._refused:
                store(self.files, f"{FOLDER}/{reason}", b"true")
                self._refused.add(reason)

    def leaves(self, kafka: Kafka, micro_batch: MicroBatch) -> None:
        """Write again which partitions a batch leaves unread, after it was made shorter. Raises SourceError."""
        UNREAD.write(self.files, tuple(_unread(edges_now(kafka), micro_batch)), _unread_name(micro_batch.batch))


def has_refused(files: Folder) -> bool:
    """Whether readings were ever rejected for one of REFUSED: admission alone admits them later. Raises CheckpointError."""
    return not set(REFUSED).isdisjoint(files.names(FOLDER))


def noted_unread(folder: Folder, batch: int) -> Sequence[tuple[str, int]]:
    """Return the partitions that a batch was begun with as unread, () for none. Raises CheckpointError."""
    return UNREAD.read(folder, _unread_name(batch)) or ()


def _unread_name(batch: int) -> str:
    return f"{FOLDER}/{batch}.unread"


def _unread(edges: Edges, micro_batch: MicroBatch) -> dict[tuple[str, int], int]:
    """The partitions with records after the batch's end, and how many offsets these have."""
    return {
        (topic, partition): end - reached
        for topic, partition, (_, end) in each(edges)
        if end > (reached := at(micro_batch.end, topic, partition, 0))
    }
