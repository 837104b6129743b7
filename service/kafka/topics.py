"""Kafka's topics as the service needs them: described, checked, and the rejects topics made where they are missing.

Offsets are asked of a consumer: service/kafka/offsets.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from service.errors import SourceError, SourceRefusedError
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S, unreachable
from service.settings import Kafka

_kafka: Any = kafka_admin  # the client's types do not cover all that it exports
TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"
HEADERS_BYTES = 16 << 10
"""A reject is larger than its record by no more than this."""
_NO_ID = "A" * 22  # zero, in base 64: a broker before 2.8
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists. `configuration` is Kafka's own text by key, empty where the service may not read it."""

    name: str
    partitions: int
    replicas: int
    """Copies of the partition that has the fewest."""
    configuration: Mapping[str, str]

    @property
    def timestamp_type(self) -> str:
        return self.configuration.get(TIMESTAMP_TYPE, "")

    @property
    def retention_ms(self) -> int | None:
        """How long a record is kept, -1 for ever; None where that is not known."""
        return self._number("retention.ms")

    @property
    def retention_bytes(self) -> int | None:
        """What a partition may hold before its oldest records are deleted, -1 for no limit; None where not known."""
        return self._number("retention.bytes")

    @property
    def max_bytes(self) -> int:
        return self._number("max.message.bytes") or 0

    def _number(self, key: str) -> int | None:
        return int(self.configuration[key]) if key in self.configuration else None


def describe(client: AdminClient, kafka: Kafka) -> Mapping[str, Topic]:
    """The input and rejects topics that exist, by name. Raises SourceError when Kafka does not answer."""
    wanted = {*kafka.topics, *map(kafka.rejects_topic, kafka.topics)}
    try:
        known = client.list_topics(timeout=TIMEOUT_S).topics
    except KafkaException as error:
        raise unreachable(kafka, error) from error
    found = {}
    for name in sorted(wanted & known.keys()):
        partitions = known[name].partitions.values()
        replicas = min((len(partition.replicas) for partition in partitions), default=0)
        found[name] = Topic(name, len(partitions), replicas, _configuration(client, name))
    return found


def ids(kafka: Kafka) -> Mapping[str, str]:
    """Kafka's id of each input topic, "" where the broker does not tell. Raises SourceError.

    The id is new when a topic is deleted and made again under its name.
    """
    client = clients.admin(kafka)
    futures = client.describe_topics(TopicCollection(list(kafka.topics)), request_timeout=TIMEOUT_S)
    found = {}
    for name, future in futures.items():
        try:
            said = str(future.result(TIMEOUT_S).topic_id)
            found[name] = "" if said == _NO_ID else said
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise missing(kafka, [name]) from error
            raise unreachable(kafka, error) from error
    return found


def prepare(kafka: Kafka) -> Mapping[str, int]:
    """Make sure that the input topics exist, and make the rejects topics that do not.

    A rejects topic gets as many partitions as its input topic, and takes records a little larger than the largest there; the
    rest are the broker's defaults. Returns for how many ms each input topic keeps its records, -1 for ever; without those whose
    configuration may not be read. Raises SourceError.
    """
    client = clients.admin(kafka)
    found = describe(client, kafka)
    lacking = [topic for topic in kafka.topics if topic not in found]
    if lacking:
        raise missing(kafka, lacking)
    for topic in kafka.topics:
        name, limit = kafka.rejects_topic(topic), found[topic].max_bytes
        larger = {"max.message.bytes": str(min(limit + HEADERS_BYTES, (1 << 31) - 1))} if limit else {}
        problem = None if name in found else create(client, {name: found[topic].partitions}, configuration=larger)
        if problem is not None:
            raise problem
    kept = {topic: found[topic].retention_ms for topic in kafka.topics}
    return {topic: keep_ms for topic, keep_ms in kept.items() if keep_ms is not None}


def create(
    client: AdminClient,
    partitions: Mapping[str, int],
    *,
    dry_run: bool = False,
    configuration: Mapping[str, str] | None = None,
) -> SourceError | None:
    """Make topics, or only ask whether they might be made; returns the first problem. One that exists is none."""
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
            what = f"The rejects topic {name} does not exist and cannot be created: {clients.text(error)}"
            return family(what, remedy="Create it, or let this user create it")
    return None


def missing(kafka: Kafka, names: Sequence[str]) -> SourceRefusedError:
    """The error for input topics that do not exist."""
    what = f"kafka.topics: {', '.join(names)} does not exist at {kafka.bootstrap}"
    return SourceRefusedError(what, remedy="Create the topic, or mend its name")


def _configuration(client: AdminClient, name: str) -> dict[str, str]:
    resource = _kafka.ConfigResource(_kafka.ResourceType.TOPIC, name)
    try:
        entries = client.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result(TIMEOUT_S)
    except (KafkaException, TimeoutError):
        return {}  # a service needs no right to read configurations; `tidemark check` says that it could not
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}
