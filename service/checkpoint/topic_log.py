"""The checkpoint's file of topics that came or left: `topics.json`.

    {"format": 1, "begun": {"plugs": {"0": 500}}, "came": {"plugs": {"0": 700}},
     "left": {"meters": {"offsets": {"0": 90}, "newest_ms": 1790000000000}}}

    begun   the offsets at which the checkpoint began to read a topic that it did not have at first
    came    the offsets at which a topic came last: the same, or where it went on when it came back
    left    topics that the settings no longer have: the offsets at which the query stopped, and the newest event time (ms) of all
            admitted readings by then. No reading of the topic in a value of the checkpoint is newer

An entry of `left` counts only while the topic is not in the offset log: service/checkpoint/topics.py writes the file first.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.errors import CheckpointError
from service.micro_batch import Offsets
from service.spark.files import RESTORE, Files, Folder, Local, unusable

NAME = "topics.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Left:
    """A topic that is not read any more."""

    offsets: Mapping[int, int]
    newest_ms: int


@dataclass(frozen=True, slots=True)
class TopicLog:
    """The content of the file; empty while the checkpoint has its first topics."""

    begun: Offsets = field(default_factory=dict)
    came: Offsets = field(default_factory=dict)
    left: Mapping[str, Left] = field(default_factory=dict)

    def missing_until_ms(self, read: Offsets) -> Mapping[str, int]:
        """Return the topics that have left, with the newest event time of their readings; `read` are the offsets of a batch."""
        return {topic: each.newest_ms for topic, each in self.left.items() if topic not in read}


def read(folder: Folder) -> TopicLog:
    """Read the file. Raises CheckpointError."""
    try:
        document = json.loads(folder.read(NAME))
        if document["format"] != FORMAT:
            what = f"{folder}/{NAME} is of format {document['format']}, this version reads {FORMAT}"
            raise CheckpointError(what, remedy="Start the version that wrote it")
        begun, came = (
            {topic: _partitions(each) for topic, each in document[name].items()} for name in ("begun", "came")
        )
        left = {
            topic: Left(_partitions(each["offsets"]), int(each["newest_ms"]))
            for topic, each in document["left"].items()
        }
        return TopicLog(begun, came, left)
    except FileNotFoundError:
        return TopicLog()
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        what = f"{folder}/{NAME} cannot be read: {error}"
        raise CheckpointError(what, remedy=RESTORE) from error


def write(files: Files | Local, log: TopicLog) -> None:
    """Replace the file. Raises CheckpointError, and SetupError when the disk is full."""
    left = {topic: {"offsets": each.offsets, "newest_ms": each.newest_ms} for topic, each in log.left.items()}
    document = {"format": FORMAT, "begun": log.begun, "came": log.came, "left": left}
    try:
        files.replace(NAME, json.dumps(document).encode())
    except OSError as error:
        what = f"{files}/{NAME} cannot be written: {error}"
        raise unusable(what, remedy=RESTORE) from error


def _partitions(document: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in document.items()}
