"""Logins by OIDC: both clients fetch a token from a real endpoint, and a real broker checks it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from load.servers.certificates import Authority
from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.token_endpoint import TokenEndpoint
from service.commands.check import checks
from service.errors import SourceError, SourceLoginError, SourceTrustError
from service.kafka import clients, source, topics
from service.pipeline import failure
from service.settings import Kafka
from tests.integration.daemon import until
from tests.stream.records import make_settings

pytestmark = [pytest.mark.integration, pytest.mark.spark]

CLIENT, SECRET = "tidemark", 'se/c"r\\et:1'
CANARY = "canary-that-is-wrong"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the endpoint, which is not the brokers'."""
    return Authority(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, issuer: Authority) -> TokenEndpoint:
    folder = tmp_path_factory.mktemp("tokens")
    return TokenEndpoint(folder, {CLIENT: SECRET}, context=issuer.server("endpoint"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority, endpoint: TokenEndpoint) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka"), authority=authority, tokens=endpoint) as running:
        yield running


def login(
    broker: Broker, endpoint: TokenEndpoint, authority: Authority, issuer: Authority, secret: Path
) -> dict[str, Any]:
    options = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "sasl.oauthbearer.scope": "readings",
        "https.ca.location": str(issuer.ca_file),
    }
    return {
        "bootstrap": broker.secure("OAUTH"),
        "ca_file": str(authority.ca_file),
        "user": CLIENT,
        "password_file": str(secret),
        "options": options,
    }


@pytest.fixture
def given(
    broker: Broker, endpoint: TokenEndpoint, authority: Authority, issuer: Authority, tmp_path: Path
) -> Iterator[dict[str, Any]]:
    """The settings of a service that logs in by OIDC."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n", encoding="utf-8")
    with endpoint:
        endpoint.requests.clear()
        yield login(broker, endpoint, authority, issuer, secret)


def of_java(spark: SparkSession, kafka: Kafka) -> int:
    """How many records Spark's client reads."""
    reader = source.with_options(spark.read.format("kafka"), kafka)
    return reader.option("subscribe", ",".join(kafka.topics)).load().count()


def settings(given: Mapping[str, Any], topic: str) -> Kafka:
    return Kafka.model_validate({**given, "topics": [topic]})


def test_both_clients_fetch_a_token_and_the_broker_lets_them_in(
    spark: SparkSession,
    broker: Broker,
    redis_server: Redis,
    endpoint: TokenEndpoint,
    given: dict[str, Any],
    tmp_path: Path,
    prefix: str,
) -> None:
    topic = f"oauth-{prefix}"
    broker.create_topic(topic, 1)
    kafka = settings(given, topic)
    producer = clients.producer(kafka, "test")
    producer.produce(topic, b"{}")
    assert producer.flush(30) == 0
    assert topics.ids(kafka)[topic]
    seen = len(endpoint.requests)
    assert of_java(spark, kafka) == 1
    assert len(endpoint.requests) > seen > 0, "each client asks for itself"
    assert {(each["client"], each["scope"]) for each in endpoint.requests} == {(CLIENT, "readings")}
    full = make_settings(
        tmp_path,
        kafka={**given, "topics": [topic]},
        redis={"url": redis_server.url, "prefix": prefix},
        metrics={"port": 0},
    )
    assert {"kafka", "kafka in Spark"} <= {line.name for line in checks(full) if line.status == "ok"}


@pytest.mark.thorough
def test_librdkafka_renews_a_token_of_a_consumer_that_nobody_polls(
    broker: Broker, endpoint: TokenEndpoint, given: dict[str, Any], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "lifetime_s", 5)
    topic = f"oauth-{prefix}"
    broker.create_topic(topic, 1)
    consumer = clients.consumer(settings(given, topic))
    try:
        assert consumer.list_topics(topic, timeout=20).topics
        until(lambda: len(endpoint.requests) >= 2, 30, "a second token")
    finally:
        consumer.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wrong", "says", "java_says"),
    [
        ("secret", (SourceLoginError, r"invalid_client.*client's id"), (SourceLoginError, r"401.*client's id")),
        # The Java client does not say why it has no token, except in its log (3.9.1).
        ("trust", (SourceTrustError, r"certificate.*https\.ca\.location"), (SourceError, r"the endpoint answers")),
        ("away", (SourceError, r"connect.*the endpoint answers"), (SourceError, r"the endpoint answers")),
    ],
)
def test_an_endpoint_that_gives_no_token_is_named_and_not_the_brokers(
    spark: SparkSession,
    broker: Broker,
    endpoint: TokenEndpoint,
    authority: Authority,
    given: dict[str, Any],
    tmp_path: Path,
    prefix: str,
    wrong: str,
    says: tuple[type[SourceError], str],
    java_says: tuple[type[SourceError], str],
) -> None:
    topic = f"oauth-{prefix}"
    broker.create_topic(topic, 1)
    # The Java client keeps a login, and its token, for as long as somebody has the same one.
    given["options"]["sasl.oauthbearer.scope"] = wrong
    if wrong == "secret":
        Path(given["password_file"]).write_text(CANARY)
    elif wrong == "trust":
        given["options"]["https.ca.location"] = str(authority.ca_file)
    else:
        endpoint.close()
    settings = make_settings(tmp_path, kafka={**given, "topics": [topic]})
    client = clients.admin(settings.kafka)
    with pytest.raises(KafkaException) as of_librdkafka:
        client.list_topics(timeout=5)
    with pytest.raises(Py4JJavaError) as of_spark:
        of_java(spark, settings.kafka)
    named = clients.unreachable(settings.kafka, of_librdkafka.value, client)
    classified = failure.classify(of_spark.value, settings=settings)
    for error, (family, pattern) in ((named, says), (classified, java_says)):
        assert type(error) is family, error
        assert re.search(rf"^The token endpoint {re.escape(endpoint.url)} gives no token: .*{pattern}", str(error)), (
            error
        )
    assert CANARY not in f"{named!r} {classified!r} {of_librdkafka.value!r} {of_spark.value}"


@pytest.mark.thorough
def test_an_endpoint_of_a_public_authority_needs_no_file(given: dict[str, Any]) -> None:
    """librdkafka has one place of the system's certificates for an endpoint, which Debian has not."""
    del given["options"]["https.ca.location"]
    kafka = settings(given, "any")
    client = clients.admin(kafka)
    with pytest.raises(KafkaException) as error:
        client.list_topics(timeout=5)
    assert "self-signed certificate" in str(clients.unreachable(kafka, error.value, client))
