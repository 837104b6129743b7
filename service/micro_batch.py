"""A micro-batch: its offsets, and the epoch under which it is published."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch, complete before the first write of its values.

    `start` and `end` map topic -> partition -> offset, half open: the batch holds `start <= offset < end`.
    `watermark_ms` is the watermark after this batch (before it, until its readings are counted): a window with
    `end <= watermark_ms` gets no reading in any later batch. `reference` is the snapshot's version, "" without a reference.
    `planned_ms` is the service's time when the batch was planned, the same for a replay; 0 outside of a batch.
    """

    epoch: int
    batch: int
    watermark_ms: int
    start: Offsets
    end: Offsets
    reference: str = ""
    planned_ms: int = 0

    @property
    def rows(self) -> int:
        """Records in the batch, over all partitions."""
        return sum(
            offset - self.start.get(topic, {}).get(partition, 0)
            for topic, partitions in self.end.items()
            for partition, offset in partitions.items()
        )

    def reads(self, topic: str, partition: int) -> bool:
        """Whether the batch has records of a partition."""
        return self.end.get(topic, {}).get(partition, 0) > self.start.get(topic, {}).get(partition, 0)

    def reaches(self, limit: int) -> bool:
        """Whether the batch has as many records as a limit allows. The source rounds the share of each partition down."""
        return self.rows >= limit - sum(len(partitions) for partitions in self.end.values())


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
