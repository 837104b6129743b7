"""Kafka's topics as the service needs them: described, checked, and the rejects topics made where they are missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from service import lag
from service.errors import SourceError
from service.settings import Kafka

_kafka: Any = kafka_admin  # the client's types do not cover all that it exports
TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists; `timestamp_type` is "" where the service may not read its configuration."""

    name: str
    partitions: int
    timestamp_type: str
    max_bytes: int


def admin(kafka: Kafka) -> AdminClient:
    """A client that waits `lag.TIMEOUT_S` for an answer."""
    return AdminClient(lag.client(kafka))


def describe(client: AdminClient, kafka: Kafka) -> Mapping[str, Topic]:
    """The input and rejects topics that exist, by name. Raises SourceError when Kafka does not answer."""
    wanted = {*kafka.topics, *map(kafka.rejects_topic, kafka.topics)}
    try:
        known = client.list_topics(timeout=lag.TIMEOUT_S).topics
    except KafkaException as error:
        raise unreachable(kafka, error) from error
    found = {}
    for name in sorted(wanted & known.keys()):
        values = _configuration(client, name)
        found[name] = Topic(
            name,
            len(known[name].partitions),
            values.get(TIMESTAMP_TYPE, ""),
            int(values.get("max.message.bytes", 0)),
        )
    return found


def prepare(kafka: Kafka) -> None:
    """Make sure that the input topics exist, and make the rejects topics that do not.

    A rejects topic gets as many partitions as its input topic; the rest are the broker's defaults. Raises SourceError.
    """
    client = admin(kafka)
    found = describe(client, kafka)
    lacking = [topic for topic in kafka.topics if topic not in found]
    if lacking:
        raise missing(kafka, lacking)
    wanted = {kafka.rejects_topic(topic): found[topic].partitions for topic in kafka.topics}
    problem = create(client, {name: partitions for name, partitions in wanted.items() if name not in found})
    if problem is not None:
        raise problem


def create(client: AdminClient, partitions: Mapping[str, int], *, dry_run: bool = False) -> SourceError | None:
    """Make topics, or only ask whether they might be made; returns the first problem. One that exists is none."""
    if not partitions:
        return None
    new = [_kafka.NewTopic(name, count) for name, count in partitions.items()]
    futures = client.create_topics(new, request_timeout=lag.TIMEOUT_S, validate_only=dry_run)
    for name, future in futures.items():
        try:
            future.result(lag.TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            what = f"The rejects topic {name} does not exist and cannot be created: {lag.text(error)}"
            return SourceError(what, remedy="Create it, or let this user create it")
    return None


def missing(kafka: Kafka, names: Sequence[str]) -> SourceError:
    """The error for input topics that do not exist."""
    what = f"kafka.topics: {', '.join(names)} does not exist at {kafka.bootstrap}"
    return SourceError(what, remedy="Create the topic, or mend its name")


def unreachable(kafka: Kafka, error: Exception) -> SourceError:
    what = f"Kafka at {kafka.bootstrap} does not answer: {lag.text(error)}"
    return SourceError(
        what, remedy="Check kafka.bootstrap, kafka.options and that the brokers can be reached from here"
    )


def _configuration(client: AdminClient, name: str) -> dict[str, str]:
    resource = _kafka.ConfigResource(_kafka.ResourceType.TOPIC, name)
    try:
        entries = client.describe_configs([resource], request_timeout=lag.TIMEOUT_S)[resource].result(lag.TIMEOUT_S)
    except (KafkaException, TimeoutError):
        return {}  # a service needs no right to read configurations; `tidemark check` says that it could not
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}
