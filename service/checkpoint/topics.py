"""Topics come and go at a restart: the offset log is changed to the topics of the settings before the query starts.

    a new topic           begins where `kafka.starting` says
    a topic that is left  is not read; its offsets stay in topics.json (service/checkpoint/topic_log.py)
    a topic that is back  goes on from these offsets

Without the change Spark (4.1.1) begins a topic that its offset log does not have at its first record, whatever `startingOffsets`
says, and takes a topic that is in the log and not subscribed for lost data. The files of the log are those that narrow.py
replaces:

    offsets/N-1     the begin of the next batch (sources/0/0 for the first batch)
    offsets/N       the end of a batch that was begun and not committed: it reads nothing of a new topic

The steps, each repeated by the next start after a crash: 1 topics.json, 2 the offset log, 3 topics.json without the topics that
are back, 4 the manifest.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from service.checkpoint import event_time, manifest, topic_log
from service.checkpoint.manifest import Manifest
from service.checkpoint.topic_log import Left, TopicLog
from service.errors import CheckpointError
from service.kafka import starting
from service.micro_batch import Offsets
from service.settings import Kafka
from service.spark.files import Files
from service.spark.internals import offset_log
from service.spark.internals.offset_log import Position

_log = logging.getLogger(__name__)


def apply(files: Files, kafka: Kafka, stored: Manifest, expected: Manifest) -> None:
    """Change the checkpoint to the topics of the settings. `stored` is its manifest, `expected` that of the settings.

    The logs must be undamaged, and the manifest must fit. Raises CheckpointError, SourceError; SettingsError for an offset of
    `kafka.starting` that a new topic does not have.
    """
    position = offset_log.position(files)
    if position is not None:
        _change(files, kafka, position)
    elif offset_log.is_begun(files) and set(offset_log.first(files)) != set(kafka.topics):
        files.remove(offset_log.FIRST)  # no batch was begun: the source chooses all offsets again
    settings = {**stored.settings, "kafka.topics": expected.settings["kafka.topics"]}
    ids = {**stored.topic_ids, **expected.topic_ids}
    changed = stored.model_copy(update={"settings": settings, "topic_ids": dict(sorted(ids.items()))})
    if changed != stored:
        manifest.DOCUMENT.write(files, changed)


def _change(files: Files, kafka: Kafka, position: Position) -> None:
    log, read = topic_log.read(files), position.offsets
    new = [topic for topic in kafka.topics if topic not in read]
    gone = sorted(set(read) - set(kafka.topics))
    if not new and not gone:
        _forget(files, log, read)
        return
    if set(new) == set(kafka.topics):
        what = f"{files} reads the topics {', '.join(gone)}, the settings have none of them"
        raise CheckpointError(
            what, remedy="Name the checkpoint of these topics. To change all topics, start once with old and new ones"
        )
    _require_unread(files, position, gone)
    begin = {topic: log.left[topic].offsets for topic in new if topic in log.left}
    first = [topic for topic in new if topic not in begin]
    if first:
        begin |= starting.of_topics(kafka, first)
    newest_ms = event_time.read(files, position.batch - 1)[0].newest_ms
    left = {topic: Left(dict(read[topic]), newest_ms) for topic in gone}
    begun = {**log.begun, **{topic: begin[topic] for topic in first}}
    log = TopicLog(begun, {**log.came, **begin}, {**log.left, **left})
    topic_log.write(files, log)
    for batch, offsets in _ends(files, position):
        kept = {topic: each for topic, each in offsets.items() if topic not in gone}
        offset_log.replace(files, batch, {**kept, **begin})
    _forget(files, log, {**{topic: read[topic] for topic in read if topic not in gone}, **begin})
    for topic in new:
        how = "begins (kafka.starting)" if topic in first else "is back, and goes on"
        _log.info("The topic %s %s at %s", topic, how, _shown(begin, [topic]))
    if gone:
        text = "No longer read: %s. The offsets stay in the checkpoint. If a topic comes back, it goes on from there"
        _log.warning(text, _shown(read, gone))


def _ends(files: Files, position: Position) -> Iterable[tuple[int, Offsets]]:
    """Return the end of the next batch, if it was begun, and of the one before.

    The end of the one before is written last: the next start sees by it that there is something to do.
    """
    begin = position.batch - 1, position.offsets
    return [(position.batch, offset_log.ends(files, position.batch)), begin] if position.is_repeated else [begin]


def _forget(files: Files, log: TopicLog, read: Collection[str]) -> None:
    """Remove topics that are read from `left`."""
    left = {topic: each for topic, each in log.left.items() if topic not in read}
    if left != log.left:
        topic_log.write(files, replace(log, left=left))


def _require_unread(files: Files, position: Position, gone: Collection[str]) -> None:
    """Raise CheckpointError if a batch that will be repeated depends on a topic that is left.

    It may be published. Without the topic's records its values would go back, and without its unread partitions its watermark
    would move further.
    """
    if not position.is_repeated or not gone:
        return
    end = offset_log.ends(files, position.batch)
    held = {topic for topic, _ in event_time.noted_unread(files, position.batch)}
    needed = [
        topic for topic in gone if topic in held or end.get(topic, position.offsets[topic]) != position.offsets[topic]
    ]
    if needed:
        what = f"batch {position.batch} of {files} was begun and not committed, and reads {', '.join(needed)}"
        raise CheckpointError(
            what, remedy="Start once with that topic in the settings, stop the service with SIGTERM, and then remove it"
        )


def _shown(offsets: Offsets, topics: Iterable[str]) -> str:
    return ", ".join(f"{t}[{p}]@{o}" for t in topics for p, o in sorted(offsets[t].items())) or "no partition"
