"""Marks: which rejects are corrected or replayed. They are in a compacted topic, `<rejects topic>.applied`.

    <partition>/<offset>            the reject is corrected or replayed, for ever; <offset>#<index> of a reading of an array
    <partition>/<offset>/taken      a run has begun with the reject; if it ended in between, the next run finishes it

The marks are in Kafka, so that they survive a loss of data in Redis: they say which rejects are in its values. The two have
different keys, so that a late `taken` of an older run cannot replace the final mark.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Message

from service import clock
from service.admission.arrays import NO_INDEX
from service.errors import SourceError
from service.kafka import clients, scan, topics
from service.kafka.clients import DELIVERY_S, TIMEOUT_S
from service.rejects.reject_log import Coordinates
from service.settings import Kafka

State = Literal["correcting", "replaying", "open", "corrected", "replayed"]
ENDS = ("corrected", "replayed")


@dataclass(frozen=True, slots=True)
class Mark:
    """A reject's mark. `details` has `at_ms`, the time at which it was set, and other values by state."""

    place: Coordinates
    state: State
    details: Mapping[str, Any]


def read(kafka: Kafka) -> dict[Coordinates, Mark]:
    """Return the marks of all rejects. A reject without a mark, or with the state `open`, is untouched. Raises SourceError."""
    names = {kafka.marks_topic(name): name for name in kafka.topics}
    newest: dict[Coordinates, Mark] = {}
    for message in scan.messages(kafka, list(names)):
        mark = _mark(names[str(message.topic())], message)
        if mark is not None and (mark.place not in newest or newest[mark.place].state not in ENDS):
            newest[mark.place] = mark
    return newest


def write(kafka: Kafka, marks: Iterable[Mark]) -> None:
    """Set marks and wait until all in-sync replicas have them. Raises SourceError; then some marks may be set."""
    _create(kafka)
    producer = clients.producer(kafka, "tidemark-marks", {"linger.ms": 5})
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for mark in marks:
        end = "" if mark.state in ENDS else "/taken"
        key = f"{mark.place.partition}/{mark.place.number}{end}"
        value = json.dumps({"state": mark.state, "at_ms": clock.now_ms(), **mark.details})
        topic = kafka.marks_topic(mark.place.topic)
        clients.produce(producer, topic, value=value.encode(), key=key.encode(), on_delivery=delivered)
        producer.poll(0)
    missing = producer.flush(DELIVERY_S + 1) + len(failures)
    if missing:
        reason = failures[0].str() if failures else f"no answer within {DELIVERY_S:.0f} s"
        what = f"Kafka at {kafka.bootstrap}: {missing} marks of rejects were not delivered: {reason}"
        raise SourceError(what, remedy="Check the brokers and run the command again: it continues where it stopped")


def _create(kafka: Kafka) -> None:
    client = clients.admin(kafka)
    try:
        existing = client.list_topics(timeout=TIMEOUT_S).topics
    except KafkaException as error:
        raise clients.unreachable(kafka, error, client) from error
    missing = {name: 1 for name in map(kafka.marks_topic, kafka.topics) if name not in existing}
    problem = topics.create(client, missing, configuration={"cleanup.policy": "compact"})
    if problem is not None:
        raise problem


def _mark(name: str, message: Message) -> Mark | None:
    try:
        partition, number = (message.key() or b"").decode().split("/")[:2]
        offset, _, index = number.partition("#")
        details = json.loads(message.value() or b"")
        place = Coordinates(name, int(partition), int(offset), int(index or NO_INDEX))
        return Mark(place, details["state"], details)
    except (ValueError, KeyError, TypeError):
        return None  # not a mark of Tidemark's
