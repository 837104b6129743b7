"""A micro-batch: what it covers, and on whose authority it is published."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch as its writer knows it before the first write.

    `start` and `end` map topic -> partition -> offset, half open: the batch holds `start <= offset < end`.
    `watermark_ms` is the watermark after this batch (before it, until its readings are counted): a window with
    `end <= watermark_ms` gets no reading in any later batch. `reference` is the snapshot's version, "" without a reference.
    """

    epoch: int
    batch: int
    watermark_ms: int
    start: Offsets
    end: Offsets
    reference: str = ""

    @property
    def rows(self) -> int:
        """Records in the batch, over all partitions."""
        return sum(
            offset - self.start.get(topic, {}).get(partition, 0)
            for topic, partitions in self.end.items()
            for partition, offset in partitions.items()
        )


def parse_offsets(text: str) -> Offsets:
    """Offsets as the Kafka source writes them: `{"topic":{"0":123}}`."""
    return {
        topic: {
            int(partition): int(offset) for partition, offset in sorted(partitions.items(), key=lambda p: int(p[0]))
        }
        for topic, partitions in json.loads(text).items()
    }
