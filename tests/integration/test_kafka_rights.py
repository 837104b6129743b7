"""The rights that docs/operator/kafka.md gives the service's user are enough. A real broker with ACLs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pydantic import SecretStr
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.commands.check import checks
from service.errors import SourceError, SourceLoginError, SourceRefusedError
from service.kafka import clients, scan, topics
from service.kafka.offsets import committed, marked
from service.monitoring.lag import Lag
from service.rejects import marks
from service.rejects.reject_log import Coordinates
from service.settings import Kafka
from tests.integration.world import Parts, World
from tests.stream.records import reading

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.thorough]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operator" / "kafka.md"
USER, PASSWORD = "limited", "secret"
RIGHTS = re.findall(
    r"^ +kafka-acls\.sh .* --(topic|group) (\S+)((?: --operation \w+)+)$", PAGE.read_text(), re.MULTILINE
)
KINDS = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP}
OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


@pytest.fixture
def limited(parts: Parts) -> Iterator[World]:
    """A service whose user has the rights of the page, on its topic and group."""
    assert parts.broker.authority is not None
    parts.broker.add_user(USER, PASSWORD)
    login = {"user": USER, "password": PASSWORD, "ca_file": str(parts.broker.authority.ca_file)}
    world = World(*parts, kafka={"bootstrap": parts.broker.secure("SCRAM"), "group": parts.prefix, **login})
    parts.broker.delete_topic(f"{world.topic}.rejects")
    names = {"readings": world.topic, "tidemark": parts.prefix}
    rights = [
        acl(KINDS[kind], re.sub(r"^\w+", lambda word: names[word[0]], name), OPERATIONS[operation], USER)
        for kind, name, operations in RIGHTS
        for operation in re.findall(r"--operation (\w+)", operations)
    ]
    # Whoever is not named by a resource's rights has none: one right for another user closes the cluster and the topics.
    others = [
        acl(ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER, "somebody"),
        acl(ResourceType.TOPIC, "*", AclOperation.ALTER, "somebody"),
        acl(ResourceType.GROUP, "*", AclOperation.DELETE, "somebody"),
    ]
    set_rights(parts.broker, rights + others)
    yield world
    remove_rights(parts.broker, others)
    world.redis.close()


def acl(kind: Any, name: str, operation: Any, user: str) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def set_rights(broker: Broker, bindings: list[AclBinding]) -> None:
    for done in broker.admin.create_acls(bindings).values():
        done.result(30)


def remove_rights(broker: Broker, bindings: list[AclBinding]) -> None:
    filters = [
        AclBindingFilter(
            each.restype,
            each.name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in bindings
    ]
    for done in broker.admin.delete_acls(filters).values():
        done.result(30)


def test_the_service_reads_rejects_and_shows_its_offsets_with_the_rights_of_the_page(limited: World) -> None:
    kafka = limited.settings.kafka
    lines = {line.name: line for line in checks(limited.settings)}
    assert {lines[name].status for name in ("kafka", "kafka in Spark")} == {"ok"}, lines
    assert topics.prepare(kafka)
    limited.term(reading("a", 0), reading("b", 1), reading("c", 2, at=9_000_000))
    windows = [name for name in limited.values() if name.startswith("window:device")]
    assert len(windows) == 2
    assert len([*scan.messages(kafka, [kafka.rejects_topic(limited.topic)])]) == 1
    marks.write(kafka, [marks.Mark(Coordinates(limited.topic, 0, 1), "corrected", {})])
    assert len(marks.read(kafka)) == 1
    assert topics.ids(kafka)[limited.topic]
    lag = Lag(kafka, lambda _: None, lambda: pytest.fail("Kafka refuses what the lag needs"))
    lag.committed({limited.topic: {0: 2, 1: 1}})
    lag.start()
    lag.close()
    consumer = clients.consumer(kafka)
    try:
        assert committed(consumer, kafka) == {limited.topic: {0: 2, 1: 1}}
        assert marked(consumer, kafka, consumer.list_topics(timeout=30).topics) == 1
    finally:
        consumer.close()
    producer = clients.producer(kafka, "test")
    refusals: list[Any] = []
    producer.produce(limited.topic, b"x", on_delivery=lambda error, _: refusals.append(error))
    producer.flush(30)
    assert refusals[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, "else the broker gives rights to all"


@pytest.fixture
def kafka(broker_server: Broker, redis_server: Redis, spark: SparkSession, tmp_path: Path, prefix: str) -> Kafka:
    """Settings with the login of a user who may do everything."""
    assert broker_server.authority is not None
    broker_server.add_user(USER, PASSWORD)
    login = {"user": USER, "password": PASSWORD, "ca_file": str(broker_server.authority.ca_file)}
    address = {"bootstrap": broker_server.secure("SCRAM"), "group": prefix}
    return World(spark, broker_server, redis_server, tmp_path, prefix, kafka={**address, **login}).settings.kafka


def refusal(kafka: Kafka, **changed: Any) -> SourceError:
    with pytest.raises(SourceError) as raised:
        topics.prepare(kafka.model_copy(update=changed))
    return raised.value


def test_a_wrong_password_is_named_and_not_waited_for(kafka: Kafka) -> None:
    error = refusal(kafka, password=SecretStr("wrong"))
    assert type(error) is SourceLoginError, error
    assert "refuses the login" in error.what
    assert "password" in error.remedy


def test_a_topic_that_the_user_may_not_see_does_exist(kafka: Kafka, broker_server: Broker) -> None:
    (topic,) = kafka.topics
    others = [acl(ResourceType.TOPIC, topic, AclOperation.READ, "somebody")]
    set_rights(broker_server, others)
    try:
        error = refusal(kafka)
    finally:
        remove_rights(broker_server, others)
    assert type(error) is SourceRefusedError, error
    assert f"no right to the topic {topic}" in error.what
