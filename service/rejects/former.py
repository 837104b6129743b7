"""Which rejects are of an earlier checkpoint, of records that this checkpoint reads again.

Whether a reading is late, behind the watermark, a duplicate or of one device too many depends on when the stream reads it. A
checkpoint that begins anew decides again, and may admit the reading: then the earlier reject says nothing about it. Rejects of
records before the checkpoint's beginning still count, because this checkpoint decides nothing about those.

    rejects/begun.json    {"readings.rejects": {"0": 812}}: the end of the rejects topics when the checkpoint began

A checkpoint of version 0.3.0 or before has no such file: all rejects count.
"""

from dataclasses import dataclass, field

from service.checkpoint.document import Document
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.kafka.offsets import edges
from service.micro_batch import Offsets
from service.rejects.reject_log import Reject
from service.settings import Kafka
from service.spark.files import Folder
from service.spark.internals import offset_log

BEGUN = Document[Offsets]("rejects/begun.json", Offsets)


@dataclass(frozen=True, slots=True)
class Former:
    """`ends` are offsets of the rejects topics, `begin` those of the input topics, when the checkpoint began."""

    ends: Offsets = field(default_factory=dict)
    begin: Offsets = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(end for ends in self.ends.values() for end in ends.values())

    def has(self, reject: Reject) -> bool:
        """Whether an earlier checkpoint has rejected a record that this one reads."""
        (topic, partition, offset), place = reject.at, reject.place
        is_earlier = offset < self.ends.get(topic, {}).get(partition, 0)
        return is_earlier and place.offset >= self.begin.get(place.topic, {}).get(place.partition, 0)


NONE = Former()
"""No reject is of an earlier checkpoint."""


def note(files: Folder, kafka: Kafka) -> None:
    """Write where the rejects topics end, if the checkpoint has no batch. Raises SourceError, CheckpointError, SetupError."""
    if offset_log.last(files) is None and BEGUN.read(files) is None:
        BEGUN.write(files, _ends(kafka))


def read(files: Folder) -> Former:
    """Return what a checkpoint has noted. Raises CheckpointError."""
    ends = BEGUN.read(files)
    return Former(ends, offset_log.first(files)) if ends else NONE


def _ends(kafka: Kafka) -> Offsets:
    with clients.reading(kafka) as consumer:
        known = consumer.list_topics(timeout=TIMEOUT_S).topics
        topics = tuple(topic for topic in dict.fromkeys(map(kafka.rejects_topic, kafka.topics)) if topic in known)
        found = edges(consumer, kafka.model_copy(update={"topics": topics}))
    return {topic: {p: end for p, (_, end) in partitions.items()} for topic, partitions in found.items()}
