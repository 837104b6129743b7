"""TLS and logins with real parts: each connection that the service makes is made, and refused for the wrong reasons to trust.

The embedded Redis and PostgreSQL are built without TLS: load/servers/proxy.py ends it for them.
"""

import hashlib
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError
from pydantic import SecretStr
from pyspark.sql import SparkSession

from load.servers.certificates import Authority
from load.servers.kafka import Broker
from load.servers.postgres import Postgres
from load.servers.proxy import Proxy
from load.servers.redis import Redis
from load.servers.redis_cluster import RedisCluster
from load.servers.schema_registry import Registry
from load.servers.server_process import HOST
from service import settings
from service.admission.registry import Client
from service.commands.check import checks
from service.errors import ReferenceDataError, RegistryError
from service.kafka import clients, source, topics
from service.kafka.offsets import edges
from service.publication import meta
from service.redis import client as redis_client
from service.redis.keys import Keys, shards
from service.redis.link import Budget, Link, Place
from service.reference.database import fetch
from service.settings import Kafka
from tests.integration.daemon import until
from tests.stream.records import make_settings

pytestmark = [pytest.mark.integration, pytest.mark.spark]

CANARY = "canary-that-is-wrong"
"""A password that is refused, and that no error shows."""
AWKWARD = 'pa/s"s\\9@:#'
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody here trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(AWKWARD + "\n", encoding="utf-8")
    return path


# Kafka


def logins(broker: Broker, secret: Path) -> Mapping[str, Mapping[str, Any]]:
    """The settings of each way in."""
    assert broker.authority is not None
    own = broker.authority.issue("tidemark")
    trust = {"ca_file": str(broker.authority.ca_file)}
    return {
        "SCRAM": {**trust, "user": "tidemark", "password_file": str(secret)},
        "MUTUAL": {**trust, "certificate": str(own.certificate), "key": str(own.key)},
    }


@pytest.mark.parametrize("listener", ["SCRAM", "MUTUAL"])
def test_both_kafka_clients_come_in_and_the_check_says_so(
    spark: SparkSession,
    broker_server: Broker,
    redis_server: Redis,
    secret: Path,
    tmp_path: Path,
    prefix: str,
    listener: str,
) -> None:
    broker_server.add_user("tidemark", AWKWARD)
    topic = f"transports-{prefix}"
    broker_server.create_topic(topic, 1)
    address = {"bootstrap": broker_server.secure(listener), "topics": [topic]}
    given = make_settings(
        tmp_path,
        kafka={**address, **logins(broker_server, secret)[listener]},
        redis={"url": redis_server.url, "prefix": prefix},
        metrics={"port": 0},
    )
    producer = clients.producer(given.kafka, "test")
    producer.produce(topic, b"{}")
    assert producer.flush(30) == 0
    assert topics.ids(given.kafka)[topic]
    consumer = clients.consumer(given.kafka)
    try:
        assert edges(consumer, given.kafka) == {topic: {0: (0, 1)}}
    finally:
        consumer.close()
    ok = {line.name for line in checks(given) if line.status == "ok"}
    assert {"kafka", "kafka in Spark"} <= ok


def refused(spark: SparkSession, kafka: Kafka) -> str:
    """Neither client comes in; returns what both said."""
    with pytest.raises(KafkaException) as of_librdkafka:
        clients.admin(kafka).list_topics(timeout=5)
    reader = source.with_options(spark.read.format("kafka"), kafka)
    with pytest.raises(Py4JJavaError, match=r"SaslAuthenticationException|SslAuthenticationException") as of_java:
        reader.option("subscribe", ",".join(kafka.topics)).load().count()
    return f"{of_librdkafka.value!r} {of_java.value}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("listener", "wrong"), [("SCRAM", "password"), ("SCRAM", "authority"), ("MUTUAL", "certificate")]
)
def test_who_knows_no_password_or_shows_no_certificate_or_trusts_another_stays_out(
    spark: SparkSession, broker_server: Broker, secret: Path, stranger: Authority, listener: str, wrong: str
) -> None:
    broker_server.add_user("tidemark", AWKWARD)
    login = dict(logins(broker_server, secret)[listener])
    if wrong == "password":
        secret.write_text(CANARY)
    elif wrong == "authority":
        login["ca_file"] = str(stranger.ca_file)
    else:
        own = stranger.issue("tidemark")
        login |= {"certificate": str(own.certificate), "key": str(own.key)}
    given = Kafka.model_validate({"bootstrap": broker_server.secure(listener), "topics": ["any"], **login})
    assert CANARY not in refused(spark, given) + repr(given)


# Redis


def test_redis_over_tls_lets_each_user_do_what_it_is_for(
    tmp_path: Path, secret: Path, authority: Authority, stranger: Authority
) -> None:
    users = (DEPLOY / "redis-users.conf").read_text()
    password = hashlib.sha256(AWKWARD.encode()).hexdigest()
    (tmp_path / "users.conf").write_text(users.replace("0" * 64, password))
    included = Redis(tmp_path, settings={"include": str(tmp_path / "users.conf")})
    with included as part, Proxy(HOST, part.port, tls=authority.server("redis")) as proxy:

        def of(user: str, trusted: Authority = authority) -> settings.Redis:
            url = f"rediss://{user}@{HOST}:{proxy.port}/0"
            ca_file = trusted.ca_file
            return settings.Redis.model_validate({"url": url, "password_file": secret, "ca_file": ca_file})

        keys = Keys("tidemark")
        with (
            redis_client.client(of("tidemark"), keys) as service,
            redis_client.client(of("tidemark_reader"), keys) as reader,
        ):
            service.eval("redis.call('HSET', KEYS[1], 'mean', ARGV[1])", 1, "tidemark:window:a", "20")
            assert service.info("server")["redis_version"]
            assert reader.hgetall("tidemark:window:a") == {b"mean": b"20"}
            assert reader.xread({"tidemark:changes": "0"}) == []
            meta.require_stored(of("tidemark"))  # a start looks for the values of several shards, too
            assert reader.get("{tidemark:0}:meta") is None
            forbidden = [
                service.flushall,
                lambda: service.set("elsewhere", "1"),
                lambda: service.eval("redis.call('SET', 'elsewhere', '1')", 0),
                lambda: service.config_get("*"),
                lambda: service.keys("*"),
                lambda: reader.set("tidemark:window:a", "1"),
                lambda: reader.delete("tidemark:window:a"),
                lambda: reader.get("elsewhere"),
                lambda: reader.eval("return 1", 0),
            ]
            for call in forbidden:
                with pytest.raises(redis.ResponseError, match=r"(?i)no ?perm|permission|can't access"):
                    call()
        with (
            redis_client.client(of("tidemark", stranger), keys) as fooled,
            pytest.raises(redis.ConnectionError, match="verify"),
        ):
            fooled.ping()
        secret.write_text(CANARY)
        with redis_client.client(of("tidemark"), keys) as service, pytest.raises(redis.ConnectionError) as error:
            service.ping()
        assert CANARY not in "".join(traceback.format_exception(error.value))
        with part.client() as admin:
            assert admin.dbsize() == 1


@pytest.mark.thorough
def test_a_redis_cluster_over_tls_keeps_users_apart(tmp_path: Path, secret: Path, authority: Authority) -> None:
    users = (DEPLOY / "redis-users.conf").read_text()
    password = hashlib.sha256(AWKWARD.encode()).hexdigest()
    (tmp_path / "users.conf").write_text(users.replace("0" * 64, password))
    cluster = RedisCluster(tmp_path, replicas=0, settings={"include": str(tmp_path / "users.conf")})
    with ExitStack() as stack:
        for node in cluster.nodes:  # the cluster tells its clients the addresses with TLS
            node.announced_port = stack.enter_context(Proxy(HOST, node.port, tls=authority.server("redis"))).port
        stack.enter_context(cluster)
        ports = {node.announced_port for node in cluster.nodes}

        def told(node: Redis) -> set[int]:
            with node.client() as client:
                answer: Any = client.execute_command("CLUSTER SLOTS")
                return {int(primary[1]) for _first, _last, primary in answer}

        until(lambda: all(told(node) == ports for node in cluster.nodes), 30, "the nodes to know the addresses")

        def of(user: str) -> settings.Redis:
            url = f"rediss://{user}@{','.join(f'{HOST}:{port}' for port in ports)}/0"
            given = {"url": url, "password_file": secret, "ca_file": authority.ca_file, "cluster": True, "shards": 5}
            return settings.Redis.model_validate(given)

        for keys in shards(of("tidemark")):
            with (
                redis_client.client(of("tidemark"), keys) as service,
                redis_client.client(of("tidemark_reader"), keys) as reader,
            ):
                service.eval("redis.call('HSET', KEYS[1], 'mean', ARGV[1])", 1, keys.window("v", "m", "k", 0), "20")
                assert service.info("server")["redis_version"]
                assert reader.hgetall(keys.window("v", "m", "k", 0)) == {b"mean": b"20"}
                for call in (
                    service.flushall,
                    partial(service.set, "elsewhere", "1"),
                    partial(reader.set, keys.meta, "1"),
                ):
                    with pytest.raises(redis.ResponseError, match=r"(?i)no ?perm|permission|MOVED"):
                        call()
        link = Link(of("tidemark"), keys, b"return {1}", (keys.epoch,))
        assert link.run([("step", b"")], Budget(0, Place("here", "a test"))) == [[1]]
        link.close()
        secret.write_text(CANARY)
        with redis_client.client(of("tidemark"), keys) as service, pytest.raises(redis.ConnectionError) as error:
            service.ping()
        assert CANARY not in "".join(traceback.format_exception(error.value))


# PostgreSQL and the registry


def test_postgres_is_verified_with_its_name(
    spark: SparkSession, tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    with (
        Postgres(tmp_path) as part,
        Proxy(HOST, part.port, tls=authority.server("postgres"), postgres=True) as proxy,
        Proxy(HOST, part.port, tls=authority.server("another", host="127.0.0.2"), postgres=True) as another,
    ):
        part.execute("create table devices as select 'd1'::text as device_id, 'leeds'::text as site")

        def of(port: int, trusted: Authority) -> settings.Reference:
            url = f"jdbc:postgresql://{HOST}:{port}/{part.database}?sslmode=verify-full&sslrootcert={trusted.ca_file}"
            query = "select device_id, site from devices"
            return settings.Reference.model_validate(
                {"url": url, "query": query, "user": part.user, "password": part.password}
            )

        assert fetch(spark, of(proxy.port, authority)).num_rows == 1
        wrong = of(proxy.port, authority).model_copy(update={"password": SecretStr(CANARY)})
        with pytest.raises(ReferenceDataError, match="password authentication failed") as error:
            fetch(spark, wrong)
        assert CANARY not in "".join(traceback.format_exception(error.value))
        for port, trusted in ((proxy.port, stranger), (another.port, authority)):
            with pytest.raises(ReferenceDataError, match=r"(?i)certificat|hostname|PKIX"):
                fetch(spark, of(port, trusted))


def test_the_registry_over_tls_asks_for_a_certificate(
    tmp_path: Path, secret: Path, authority: Authority, stranger: Authority
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "device_id", "type": "string"}]}
    own, foreign = authority.issue("tidemark"), stranger.issue("tidemark")
    context = authority.server("registry", mutual=True)
    with Registry(user="me", password=AWKWARD) as plain, Proxy(HOST, plain.port, tls=context) as proxy:
        number = plain.register("a", schema)
        good: dict[str, Any] = {
            "url": f"https://{HOST}:{proxy.port}",
            "user": "me",
            "password_file": secret,
            "ca_file": authority.ca_file,
            "certificate": own.certificate,
            "key": own.key,
        }
        client = Client(settings.Registry.model_validate(good))
        assert client.schema(number) == schema
        client.close()
        secret.write_text(CANARY)
        with pytest.raises(RegistryError, match="401") as error:
            Client(settings.Registry.model_validate(good)).schema(number)
        assert CANARY not in "".join(traceback.format_exception(error.value))
        for wrong in (
            {"ca_file": stranger.ca_file},
            {"certificate": foreign.certificate, "key": foreign.key},
            {"certificate": None, "key": None},
        ):
            with pytest.raises(RegistryError, match="does not answer"):
                Client(settings.Registry.model_validate({**good, **wrong})).schema(number)
