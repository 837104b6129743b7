"""A micro-batch: its offsets, and the epoch under which it is published."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Offsets = Mapping[str, Mapping[int, int]]
"""Of each topic, of each partition. Other values of partitions have the same form."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch, complete before the first write of its values.

    `start` and `end` map topic -> partition -> offset, half open: the batch holds `start <= offset < end`.
    `watermark_ms` is the watermark after this batch (before it, until its readings are counted): a window with
    `end <= watermark_ms` gets no reading in any later batch. `reference` is the snapshot's version, "" without a reference.
    `newest_ms` is the newest event time after it, None where that is not known.
    `planned_ms` is the service's time when the batch was planned, the same for a replay; 0 outside of a batch.
    """

    epoch: int
    batch: int
    watermark_ms: int
    start: Offsets
    end: Offsets
    reference: str = ""
    planned_ms: int = 0
    newest_ms: int | None = None

    @property
    def rows(self) -> int:
        """Records in the batch, over all partitions."""
        return sum(end - begin for *_, begin, end in ranges(self.start, self.end))

    def reads(self, topic: str, partition: int) -> bool:
        return at(self.end, topic, partition, 0) > at(self.start, topic, partition, 0)

    def reaches(self, limit: int) -> bool:
        """Whether the batch has as many records as a limit allows. The source rounds the share of each partition down."""
        return self.rows >= limit - sum(len(partitions) for partitions in self.end.values())


def each(values: Mapping[str, Mapping[int, T]]) -> Iterator[tuple[str, int, T]]:
    """Yield the topic, the number and the value of each partition."""
    for topic, partitions in values.items():
        for partition, value in partitions.items():
            yield topic, partition, value


def at(values: Mapping[str, Mapping[int, T]], topic: str, partition: int, default: T) -> T:
    """Return the value of a partition."""
    return values.get(topic, {}).get(partition, default)


def ranges(begin: Offsets, end: Offsets) -> Iterator[tuple[str, int, int, int]]:
    """Yield the topic, the number, the first and the last offset of each partition of `end`. Without a begin it is 0."""
    return ((topic, partition, at(begin, topic, partition, 0), last) for topic, partition, last in each(end))


def total(offsets: Offsets) -> int:
    """Return the sum of all offsets: that of later ones is larger."""
    return sum(offset for *_, offset in each(offsets))


def format_offsets(offsets: Offsets) -> str:
    """Offsets as the Kafka source writes and reads them: `{"topic":{"0":123}}`."""
    document = {topic: {str(p): offset for p, offset in partitions.items()} for topic, partitions in offsets.items()}
    return json.dumps(document, separators=(",", ":"))


def parse_offsets(text: str) -> Offsets:
    """The offsets in the text of `format_offsets`, or of the Kafka source."""
    return {
        topic: {
            int(partition): int(offset) for partition, offset in sorted(partitions.items(), key=lambda p: int(p[0]))
        }
        for topic, partitions in json.loads(text).items()
    }
