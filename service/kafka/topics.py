"""Describe and check the topics, and create missing rejects topics."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from service.errors import DataLossError, SettingsError, SourceError, SourceRefusedError
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S, Kept, unreachable
from service.settings import Kafka

_kafka: Any = kafka_admin  # the client's types do not cover all that it exports
TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"
HEADERS_BYTES = 16 << 10
"""A reject's headers add at most this many bytes to its record."""
_NO_ID = "A" * 22  # zero, in base 64: a broker before 2.8
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
}


@dataclass(frozen=True, slots=True)
class Topic:
    """An existing topic. `configuration` has Kafka's texts by key; it is empty if the service may not read them."""

    name: str
    partitions: int
    replicas: int
    """Replicas of the partition that has the fewest."""
    configuration: Mapping[str, str]

    @property
    def timestamp_type(self) -> str:
        return self.configuration.get(TIMESTAMP_TYPE, "")

    @property
    def has_broker_times(self) -> bool:
        """Whether the brokers set the times of records; False if the configuration cannot be read."""
        return self.timestamp_type == LOG_APPEND_TIME

    @property
    def retention_ms(self) -> int | None:
        """How long Kafka keeps a record, -1 for ever; None if the configuration cannot be read."""
        return self._number("retention.ms")

    @property
    def retention_bytes(self) -> int | None:
        """The size above which Kafka deletes a partition's oldest records, -1 for no limit; None as above."""
        return self._number("retention.bytes")

    @property
    def max_bytes(self) -> int:
        return self._number("max.message.bytes") or 0

    def _number(self, key: str) -> int | None:
        return int(self.configuration[key]) if key in self.configuration else None


def describe(client: AdminClient, kafka: Kafka) -> Mapping[str, Topic]:
    """Return the existing input and rejects topics, by name. Raises SourceError when Kafka does not answer."""
    wanted = {*kafka.topics, *map(kafka.rejects_topic, kafka.topics)}
    try:
        existing = client.list_topics(timeout=TIMEOUT_S).topics
    except KafkaException as error:
        raise unreachable(kafka, error, client) from error
    names = sorted(wanted & existing.keys())
    configurations = _configurations(client, names)
    topics = {}
    for name in names:
        partitions = existing[name].partitions.values()
        replicas = min((len(partition.replicas) for partition in partitions), default=0)
        topics[name] = Topic(name, len(partitions), replicas, configurations[name])
    return topics


def have_broker_times(kafka: Kafka) -> bool:
    """Whether the brokers set the times of all input topics' records, so that these ascend in a partition. Raises SourceError."""
    described = describe(clients.admin(kafka), kafka)
    return all(topic in described and described[topic].has_broker_times for topic in kafka.topics)


def ids(kafka: Kafka) -> Mapping[str, str]:
    """Return Kafka's id of each input topic, "" from a broker without ids. Raises SourceError.

    A topic that is deleted and created again has a new id.
    """
    described = _described(clients.admin(kafka), kafka, kafka.topics)
    if lacking := [topic for topic in kafka.topics if topic not in described]:
        raise missing(kafka, lacking)
    topic_ids = {name: str(topic.topic_id) for name, topic in described.items()}
    return {name: "" if topic_id == _NO_ID else topic_id for name, topic_id in topic_ids.items()}


class IdCheck:
    """Compares the ids of the input topics with those that the checkpoint has, beside a batch.

    A topic that is deleted, created again and filled beyond the old offsets looks like the old one to Spark's source.
    """

    def __init__(self, kafka: Kafka | None = None, known: Mapping[str, str] = MappingProxyType({})) -> None:
        """`known` are the ids of the checkpoint by topic; "" where the broker does not tell. Without Kafka nothing is asked."""
        self._known = {} if kafka is None else {topic: known[topic] for topic in kafka.topics if known.get(topic)}
        self._kept = None if kafka is None or not self._known else Kept(kafka, partial(clients.admin, kafka))
        self._answers: Mapping[str, Any] = {}

    def ask(self) -> None:
        """Send the request, when the batch has read its records; returns at once."""
        if self._kept is None:
            return
        with suppress(SettingsError):  # a file is being replaced; the batch reads it again if it has to
            self._kept.get()
        if self._kept.client is not None:
            names = TopicCollection(list(self._known))
            self._answers = self._kept.client.describe_topics(names, request_timeout=TIMEOUT_S)

    def require(self) -> None:
        """Raise DataLossError if a topic has another id. Without an answer do nothing: the next batch asks again."""
        changed = []
        for topic, answer in self._answers.items():
            with suppress(KafkaException, TimeoutError):
                topic_id = str(answer.result(TIMEOUT_S).topic_id)
                if topic_id not in {_NO_ID, self._known[topic]}:
                    changed.append(f"the topic {topic} has the id {topic_id}, and had {self._known[topic]}")
        self._answers = {}
        if changed:
            what = f"{'; '.join(changed)}: it was deleted and created again while the service ran"
            raise DataLossError(
                what,
                remedy="Its offsets are of other records, and the first of them are in no value: start with a new checkpoint and "
                "read the topic again: docs/operator/procedures.md#rebuild-from-kafka",
            )


def prepare(kafka: Kafka) -> Mapping[str, Topic]:
    """Check the input topics, and create missing rejects topics. Return the input topics by name.

    A rejects topic has as many partitions as its input topic, and a limit of the record's size that is HEADERS_BYTES higher; the
    rest are the broker's defaults. Raises SourceError.
    """
    client = clients.admin(kafka)
    topics = describe(client, kafka)
    lacking = [topic for topic in kafka.topics if topic not in topics]
    if lacking:
        _described(client, kafka, lacking)
        raise missing(kafka, lacking)
    for topic in kafka.topics:
        name, limit = kafka.rejects_topic(topic), topics[topic].max_bytes
        larger = {"max.message.bytes": str(min(limit + HEADERS_BYTES, (1 << 31) - 1))} if limit else {}
        problem = None if name in topics else create(client, {name: topics[topic].partitions}, configuration=larger)
        if problem is not None:
            raise problem
    return {topic: topics[topic] for topic in kafka.topics}


def create(
    client: AdminClient,
    partitions: Mapping[str, int],
    *,
    dry_run: bool = False,
    configuration: Mapping[str, str] | None = None,
) -> SourceError | None:
    """Create topics, or with `dry_run` only check the right to; return the first error. An existing topic is no error."""
    if not partitions:
        return None
    new = [_kafka.NewTopic(name, count, config=dict(configuration or {})) for name, count in partitions.items()]
    futures = client.create_topics(new, request_timeout=TIMEOUT_S, validate_only=dry_run)
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            refused = isinstance(error, KafkaException) and error.args[0].code() in _REFUSALS
            family = SourceRefusedError if refused else SourceError
            what = f"The topic {name} does not exist and cannot be created: {clients.text(error)}"
            return family(what, remedy="Create it, or let this user create it")
    return None


def missing(kafka: Kafka, names: Sequence[str]) -> SourceRefusedError:
    """Return the error for input topics that do not exist."""
    what = f"kafka.topics: {', '.join(names)} does not exist at {kafka.bootstrap}"
    return SourceRefusedError(what, remedy="Create the topic, or correct its name")


def _described(client: AdminClient, kafka: Kafka, names: Sequence[str]) -> Mapping[str, Any]:
    """Return those of the topics that exist as the brokers describe them.

    Raises SourceError, and SourceRefusedError if the user may not see one of them: a list of topics leaves it out.
    """
    found = {}
    for name, future in client.describe_topics(TopicCollection(list(names)), request_timeout=TIMEOUT_S).items():
        try:
            found[name] = future.result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            code = error.args[0].code() if isinstance(error, KafkaException) else None
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                what = f"Kafka at {kafka.bootstrap} gives no right to the topic {name}: {clients.text(error)}"
                raise SourceRefusedError(what, remedy="Give [kafka] user this right: docs/operator/kafka.md") from error
            if code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise unreachable(kafka, error, client) from error
    return found


def _configurations(client: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return Kafka's texts by key for each topic, asked for in one request; none of a topic that the service may not read."""
    resources = {name: _kafka.ConfigResource(_kafka.ResourceType.TOPIC, name) for name in names}
    futures = client.describe_configs([*resources.values()], request_timeout=TIMEOUT_S) if names else {}
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for name, resource in resources.items():
        # The right to read configurations is optional; `tidemark check` reports if it is missing.
        with suppress(KafkaException, TimeoutError):
            entries = futures[resource].result(TIMEOUT_S)
            found[name] = {key: entry.value for key, entry in entries.items() if entry.value is not None}
    return found
