"""The checkpoint's file of topics that came or left: `topics.json`.

    {"format": 1, "begun": {"plugs": {"0": 500}}, "came": {"plugs": {"0": 700}},
     "left": {"meters": {"offsets": {"0": 90}, "newest_ms": 1790000000000}}}

    begun   the offsets at which the checkpoint began to read a topic that it did not have at first
    came    the offsets at which a topic came last: the same, or where it went on when it came back
    left    topics that the settings no longer have: the offsets at which the query stopped, and the newest event time (ms) of all
            admitted readings by then. No reading of the topic in a value of the checkpoint is newer

An entry of `left` counts only while the topic is not in the offset log: service/checkpoint/topics.py writes the file first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from service.checkpoint.document import Document
from service.micro_batch import Offsets
from service.spark.files import Folder


@dataclass(frozen=True, slots=True)
class Left:
    """A topic that is not read any more."""

    offsets: Mapping[int, int]
    newest_ms: int


@dataclass(frozen=True, slots=True)
class TopicLog:
    """The content of the file; empty while the checkpoint has its first topics."""

    format: Literal[1] = field(default=1, kw_only=True)
    begun: Offsets = field(default_factory=dict)
    came: Offsets = field(default_factory=dict)
    left: Mapping[str, Left] = field(default_factory=dict)

    def missing_until_ms(self, read: Offsets) -> Mapping[str, int]:
        """Return the topics that have left, with the newest event time of their readings; `read` are the offsets of a batch."""
        return {topic: each.newest_ms for topic, each in self.left.items() if topic not in read}


DOCUMENT = Document[TopicLog]("topics.json", TopicLog)


def read(folder: Folder) -> TopicLog:
    """Read the file; an empty log without one. Raises CheckpointError."""
    return DOCUMENT.read(folder) or TopicLog()


def write(files: Folder, log: TopicLog) -> None:
    """Replace the file. Raises CheckpointError, and SetupError when the disk is full."""
    DOCUMENT.write(files, log)
