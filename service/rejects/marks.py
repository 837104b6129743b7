"""Marks: what has become of rejects. A compacted topic beside the rejects topic, `<rejects topic>.applied`.

    <partition>/<offset>            corrected or replayed: that is for ever
    <partition>/<offset>/taken      somebody has begun to: a run that ended in between is finished by the next one

They are in Kafka because they must not be lost with Redis: what is in its values is known from here. The two have keys of
their own, so that a `taken` of a run that comes too late cannot hide the end.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Message

from service import clock
from service.errors import SourceError
from service.kafka import clients, scan, topics
from service.kafka.clients import DELIVERY_S, TIMEOUT_S
from service.rejects.reject_log import Coordinates
from service.settings import Kafka

State = Literal["correcting", "replaying", "open", "corrected", "replayed"]
ENDS = ("corrected", "replayed")


@dataclass(frozen=True, slots=True)
class Mark:
    """`said` is what whoever set it has to say: `at_ms`, when, and more by state."""

    place: Coordinates
    state: State
    details: Mapping[str, Any]


def topic(kafka: Kafka, name: str) -> str:
    """The marks' topic of an input topic."""
    return f"{kafka.rejects_topic(name)}.applied"


def read(kafka: Kafka) -> dict[Coordinates, Mark]:
    """All marks; a reject without one, or with the state `open`, is untouched. Raises SourceError."""
    names = {topic(kafka, name): name for name in kafka.topics}
    found: dict[Coordinates, Mark] = {}
    for message in scan.messages(kafka, list(names)):
        mark = _mark(names[str(message.topic())], message)
        if mark is not None and (mark.place not in found or found[mark.place].state not in ENDS):
            found[mark.place] = mark
    return found


def write(kafka: Kafka, marks: Iterable[Mark]) -> None:
    """Set marks, and return when all brokers in sync have them. Raises SourceError; then some may be set."""
    _create(kafka)
    producer = clients.producer(kafka, "tidemark-marks", {"linger.ms": 5})
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for mark in marks:
        end = "" if mark.state in ENDS else "/taken"
        key = f"{mark.place.partition}/{mark.place.offset}{end}"
        value = json.dumps({"state": mark.state, "at_ms": clock.now_ms(), **mark.details})
        while True:
            try:
                producer.produce(topic(kafka, mark.place.topic), value.encode(), key.encode(), on_delivery=delivered)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    missing = producer.flush(DELIVERY_S + 1) + len(failures)
    if missing:
        said = failures[0].str() if failures else f"no answer within {DELIVERY_S:.0f} s"
        what = f"Kafka at {kafka.bootstrap}: {missing} marks of rejects were not delivered: {said}"
        raise SourceError(what, remedy="Check the brokers, and run it again: it goes on where it stopped")


def _create(kafka: Kafka) -> None:
    client = clients.admin(kafka)
    try:
        known = client.list_topics(timeout=TIMEOUT_S).topics
    except KafkaException as error:
        raise clients.unreachable(kafka, error) from error
    lacking = {topic(kafka, name): 1 for name in kafka.topics if topic(kafka, name) not in known}
    problem = topics.create(client, lacking, configuration={"cleanup.policy": "compact"})
    if problem is not None:
        raise problem


def _mark(name: str, message: Message) -> Mark | None:
    try:
        partition, offset = (message.key() or b"").decode().split("/")[:2]
        said = json.loads(message.value() or b"")
        return Mark(Coordinates(name, int(partition), int(offset)), said["state"], said)
    except (ValueError, KeyError, TypeError):
        return None  # not one of ours
