"""Skips: offsets that an operator has given up (`tidemark skip`), and their effect on the range of a batch.

    skips.json      {"format": 1, "skips": [["readings", 2, 1207, 1211], ...]}      half open: 1207 to 1210

Spark's Kafka source reads one contiguous range of each partition. A batch therefore ends where a skip begins (`narrowed`), and
the batch behind it begins where the skip ends (`jumped`): service/checkpoint/narrow.py writes both into the offset log. A skip is
pending until the query has passed it. The file keeps all skips, so that a later read of the topic leaves them out, too.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from service.checkpoint.document import Document
from service.errors import SettingsError
from service.kafka.source import READ_AHEAD
from service.micro_batch import MicroBatch, Offsets, at, ranges
from service.spark.files import Folder

_PLACE = re.compile(
    r"^(?P<topic>[A-Za-z0-9._-]+)(\[(?P<p>\d+)\]@|/(?P<p2>\d+)/|:(?P<p3>\d+):)(?P<first>\d+)(-(?P<last>\d+))?\Z"
)


class ReadAnewError(Exception):
    """Ends a query that must be started again to continue. It is not an error: nothing of the batch is read or written."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Offsets of one partition: `begin <= offset < end`."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.begin

    def __str__(self) -> str:
        """As on the command line, where both ends are included."""
        last = f"-{self.end - 1}" if self.offsets > 1 else ""
        return f"{self.topic}[{self.partition}]@{self.begin}{last}"

    @staticmethod
    def parse(text: str) -> "Span":
        """Parse `topic[partition]@offset` or `topic[partition]@first-last`; also with `topic/partition/`, or with
        `topic:partition:` as versions before 0.4.0 have written it. Raises SettingsError.
        """
        place = _PLACE.match(text)
        first = int(place["first"]) if place else 0
        last = int(place["last"] or first) if place else -1
        if place is None or last < first:
            msg = f"{text!r} names no offsets"
            raise SettingsError(msg, remedy="Write readings[2]@1207, or readings[2]@1207-1210 for four of them")
        return Span(place["topic"], int(place["p"] or place["p2"] or place["p3"]), first, last + 1)


@dataclass(frozen=True, slots=True)
class Care:
    """How a query must read: `pending` skips are ahead of it; it reads the batch `careful`, if any, one record at a time.

    Kafka's client decompresses as many records as it may return in one poll, also those after the end of the batch.
    """

    pending: Sequence[Span] = ()
    careful: int | None = None

    @property
    def is_needed(self) -> bool:
        return self.careful is not None

    def check(self, micro_batch: MicroBatch) -> None:
        """Raise ReadAnewError for a batch over a skip, or near one and not careful, or behind the careful one."""
        ahead = 0 if micro_batch.batch == self.careful else READ_AHEAD
        over = [str(span) for span in self.pending if _has(micro_batch, span, ahead)]
        if over:
            raise ReadAnewError(f"batch {micro_batch.batch} reaches over {', '.join(over)}")
        if self.careful is not None and micro_batch.batch > self.careful:
            raise ReadAnewError(f"batch {self.careful} is committed")


@dataclass(frozen=True, slots=True)
class _Skips:
    format: Literal[1]
    skips: tuple[tuple[str, int, int, int], ...]


DOCUMENT = Document[_Skips]("skips.json", _Skips)


def _has(micro_batch: MicroBatch, span: Span, ahead: int) -> bool:
    start = micro_batch.start.get(span.topic, {}).get(span.partition, 0)
    return start < span.end and span.begin < micro_batch.end.get(span.topic, {}).get(span.partition, 0) + ahead


def read(folder: Folder) -> tuple[Span, ...]:
    """All skips of a checkpoint, ascending and disjoint; raises CheckpointError."""
    document = DOCUMENT.read(folder)
    return merged(Span(*each) for each in document.skips) if document is not None else ()


def write(folder: Folder, spans: Iterable[Span]) -> None:
    """Replace all skips; raises CheckpointError, or SetupError for a full disk."""
    skips = tuple((span.topic, span.partition, span.begin, span.end) for span in merged(spans))
    DOCUMENT.write(folder, _Skips(1, skips))


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same offsets in as few spans as possible, ascending."""
    union: list[Span] = []
    for span in sorted(spans):
        last = union[-1] if union else None
        if last and (last.topic, last.partition) == (span.topic, span.partition) and span.begin <= last.end:
            union[-1] = Span(span.topic, span.partition, last.begin, max(last.end, span.end))
        else:
            union.append(span)
    return tuple(union)


def without(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """The offsets of `spans` that are in none of the `others`."""
    left = list(merged(spans))
    for other in others:
        parts = []
        for span in left:
            if (span.topic, span.partition) != (other.topic, other.partition):
                parts.append(span)
                continue
            pieces = (span.begin, min(span.end, other.begin)), (max(span.begin, other.end), span.end)
            parts += [Span(span.topic, span.partition, begin, end) for begin, end in pieces if begin < end]
        left = parts
    return tuple(left)


def pending(begin: Offsets, spans: Iterable[Span]) -> tuple[Span, ...]:
    """The skips that a query that continues at `begin` has not passed."""
    return tuple(span for span in spans if span.end > at(begin, span.topic, span.partition, 0))


def jumped(begin: Offsets, spans: Iterable[Span]) -> Offsets:
    """Move the begin of a range that lies in a skip to the end of the skip. `spans` are disjoint."""
    offsets = {topic: dict(partitions) for topic, partitions in begin.items()}
    for span in spans:
        if span.begin <= at(offsets, span.topic, span.partition, 0) < span.end:
            offsets.setdefault(span.topic, {})[span.partition] = span.end
    return offsets


def is_near(begin: Offsets, spans: Iterable[Span], ahead: int = READ_AHEAD) -> bool:
    """Whether a query that continues at `begin` (jumped) may read a skip ahead that is not in its range."""
    return any(0 <= span.begin - at(begin, span.topic, span.partition, 0) <= ahead for span in spans)


def narrowed(begin: Offsets, end: Offsets, spans: Sequence[Span], ahead: int = 0) -> Offsets:
    """Move the end of a range from `begin` (jumped) to the begin of the first skip in it.

    With `ahead` the range ends so many offsets before the skip. A range that begins nearer to a skip ends at the skip, and has
    at most `ahead` offsets of each partition: it is read slowly.
    """
    ends: dict[str, dict[int, int]] = {topic: {} for topic in end}
    near = ahead > 0 and is_near(begin, spans, ahead)
    for topic, partition, first, offset in ranges(begin, end):
        mine = [span.begin for span in spans if (span.topic, span.partition) == (topic, partition)]
        limits = [skip if near else skip - ahead for skip in mine if skip >= first]
        limits += [first + ahead] if near else []
        ends[topic][partition] = max(first, min([offset, *limits]))
    return ends


def stretches(
    begin: Offsets, end: Offsets, spans: Sequence[Span], ahead: int = READ_AHEAD
) -> Iterator[tuple[Offsets, Offsets, bool]]:
    """The contiguous ranges that together are `begin` to `end` without the skips: (begin, end, whether to read it with care)."""
    while True:
        after = jumped(begin, spans)
        first = {topic: {p: at(after, topic, p, 0) for p in partitions} for topic, partitions in end.items()}
        last = narrowed(first, end, spans, ahead)
        yield first, last, is_near(first, spans, ahead)
        if all(done >= offset for *_, done, offset in ranges(last, end)):
            return
        begin = last
