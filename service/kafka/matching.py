"""The topics that `topics_pattern` matches, as settings that name them.

Every part of the service reads `kafka.topics`, and `topics` of an input. The topics of a pattern are added to these lists before
a term begins, and a new term begins when other topics match. A topic that several inputs may have is of the first that names it,
else of the first whose pattern matches. Topics of rejects and of their marks are never matched, nor those of outlets,
Kafka's own, whose names begin with two underscores, and those whose topic of rejects would have too long a name.
"""

import logging
import re
from collections.abc import Iterable
from typing import TypeVar

from confluent_kafka import KafkaException

from service.errors import SourceError, SourceRefusedError
from service.kafka import clients
from service.settings import Kafka, NamedInput, Settings
from service.settings.kafka import MARKS, MOST_TOPICS
from service.settings.topics_pattern import matches

_LONGEST_NAME = 249
"""Of a topic of Kafka."""
_log = logging.getLogger(__name__)
Named = TypeVar("Named", Kafka, NamedInput)


class TopicsChangedError(Exception):
    """Ends a query because other topics match the pattern of the settings. No batch is interrupted."""


def resolved(settings: Settings, read: Settings | None = None) -> Settings:
    """Return settings that name the topics which their patterns match now; the same settings without a pattern.

    `read` are those of a service that runs, which goes on with its topics when more than MOST_TOPICS match.
    Raises SourceError when Kafka does not answer, or has no topic that matches, or more than MOST_TOPICS.
    """
    kafka = settings.kafka
    if kafka.topics_pattern is None:
        return settings
    client = clients.admin(kafka)
    try:
        names = client.list_topics(timeout=clients.TIMEOUT_S).topics
    except KafkaException as error:
        raise clients.unreachable(kafka, error, client) from error
    for name in matches(kafka.topics_pattern, (each for each in names if _is_too_long(kafka, each))):
        _log.warning(
            "%s matches topics_pattern and is not read: the name of its topic of rejects would be too long", name
        )
    found = matched(settings, names)
    if lacking := [form.place for form in found.inputs if not form.topics] or ([] if found.kafka.topics else ["kafka"]):
        what = f"{lacking[0]}.topics_pattern: no topic at {kafka.bootstrap} that this user may see matches"
        raise SourceError(what, remedy="Create a topic, give the right to describe it, or correct the pattern")
    if (count := len(found.kafka.topics)) > MOST_TOPICS:
        if read is not None:
            return read
        what = f"kafka.topics_pattern: {count} topics match, the limit is {MOST_TOPICS}"
        raise SourceRefusedError(what, remedy="Narrow the pattern, and read the other topics by another service")
    return found


def matched(settings: Settings, names: Iterable[str]) -> Settings:
    """Return settings that also name those of the topics that their patterns match."""
    kafka = settings.kafka
    others = {topic for outlet in settings.outlets for topic in outlet.topics()}
    free = {
        name
        for name in {*names} - {*kafka.topics} - others
        if not name.startswith("__") and not _is_of_rejects(kafka, name) and not _is_too_long(kafka, name)
    }

    def with_topics(section: Named) -> Named:
        if section.topics_pattern is None:
            return section
        new: list[str] = matches(section.topics_pattern, free)
        free.difference_update(new)
        return section.model_copy(update={"topics": (*section.topics, *new)})

    if not settings.inputs:
        return settings.model_copy(update={"kafka": with_topics(kafka)})
    inputs = tuple(map(with_topics, settings.inputs))
    topics = tuple(dict.fromkeys(topic for form in inputs for topic in form.topics))
    return settings.model_copy(update={"inputs": inputs, "kafka": kafka.model_copy(update={"topics": topics})})


def _is_of_rejects(kafka: Kafka, name: str) -> bool:
    """Whether a name is that of a topic of rejects or marks, or has what such a name has twice.

    Two services that read each other's rejects, under names of their own, would make topics of these without end.
    """
    before, _, after = kafka.rejects.partition("{topic}")
    if name.startswith(before) and name.removesuffix(MARKS).endswith(after):
        return True
    words = [rf"(?<![A-Za-z0-9]){re.escape(before)}"] * bool(before) + [rf"{re.escape(after)}(?![A-Za-z0-9])"] * bool(
        after
    )
    return all(len(re.findall(word, name)) > 1 for word in words)


def _is_too_long(kafka: Kafka, name: str) -> bool:
    """Whether Kafka refuses the name of the topic's rejects, or of their marks. A new topic must not end the service."""
    return len(kafka.marks_topic(name)) > _LONGEST_NAME
