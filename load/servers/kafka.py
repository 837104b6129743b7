"""A Kafka broker as a child process on loopback."""

import contextlib
import functools
import hashlib
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from load.servers.certificates import Authority
from load.servers.server_process import HOST, START_S, ServerProcess, free_port, until
from load.servers.token_endpoint import AUDIENCE, ISSUER, TokenEndpoint
from service.errors import SetupError
from service.spark import jars, repository
from service.spark.java import java

LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
CREATE_TIME = {"message.timestamp.type": "CreateTime"}
KAFKA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
"""The columns of Spark's Kafka source, for frames that stand for it."""
_LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
]


class Broker(ServerProcess):
    """Kafka from the jars of a `group` (4.3): one KRaft node that is broker and controller.

    A group that the set-up has not fetched is fetched. Topics are not created by use. Records are kept for ever and may carry
    any time, so that a topic with simulated times (CreateTime) is neither refused nor deleted. Messages up to 16 MiB pass.

    With an `authority` there are two more listeners, `secure("SCRAM")` (SASL_SSL, SCRAM-SHA-512, users by `add_user`) and
    `secure("MUTUAL")` (mutual TLS). Who comes in by them may do everything with a resource that has no ACL.
    With the `tokens` of an endpoint there is also `secure("OAUTH")` (SASL_SSL, OAUTHBEARER).
    """

    name = "kafka"

    def __init__(
        self,
        folder: Path | str,
        port: int = 0,
        authority: Authority | None = None,
        tokens: TokenEndpoint | None = None,
        group: str = "broker",
    ) -> None:
        super().__init__(folder, port)
        self.authority = authority
        self._tokens = tokens
        names = ("SCRAM", "MUTUAL", *(("OAUTH",) if tokens is not None else ()))
        self._secure = {name: free_port() for name in names} if authority is not None else {}
        self.group = group
        self.jvm_options: Sequence[str] = ()
        self._controller = free_port()
        self._archive: Path | None = None

    @property
    def bootstrap(self) -> str:
        """The value of bootstrap.servers for clients."""
        return self.address

    @property
    def version(self) -> str:
        """The version of its jars."""
        return next(
            jar.coordinates.rpartition(":")[2] for jar in jars.locked(self.group) if jar.name.startswith("kafka_")
        )

    def secure(self, listener: str) -> str:
        """The bootstrap address of one of the listeners with TLS."""
        return f"{HOST}:{self._secure[listener]}"

    def add_user(self, name: str, password: str) -> None:
        """A user of the listener SCRAM."""
        kafka: Any = kafka_admin  # the client's types do not cover all that it exports
        mechanism = kafka.ScramCredentialInfo(kafka.ScramMechanism.SCRAM_SHA_512, 4096)
        user = kafka.UserScramCredentialUpsertion(name, mechanism, password.encode())
        for done in self.admin.alter_user_scram_credentials([user]).values():
            done.result(30)

    @functools.cached_property
    def admin(self) -> AdminClient:
        """One client for the broker's life: what it is asked fails when the client is collected before the answer."""
        return self._client()

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has a leader. Without `config` its times are LogAppendTime.

        Raises SetupError when the broker refuses (the topic exists, a setting is unknown).
        """
        topic = NewTopic(name, partitions, 1, config=dict(LOG_APPEND_TIME if config is None else config))
        try:
            self.admin.create_topics([topic], operation_timeout=30)[name].result(30)
            until(lambda: _has_leaders(self.admin, name, partitions), START_S, f"leaders of {partitions} x {name}")
        except KafkaException as problem:
            raise SetupError(f"Topic {name} could not be created: {problem.args[0].str()}") from problem

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the broker no longer lists it, so that it can be created again."""
        self.admin.delete_topics([name])[name].result(30)
        until(lambda: name not in self.admin.list_topics(timeout=10).topics, START_S, f"topic {name} to be gone")

    def delete_records(self, name: str, ends: Mapping[int, int]) -> None:
        """Delete the records of a topic before these offsets, by partition."""
        places = [TopicPartition(name, partition, end) for partition, end in ends.items()]
        for done in self.admin.delete_records(places).values():
            done.result(30)

    def configure_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        kafka: Any = kafka_admin  # the client's types do not cover all that it exports
        change = kafka.AlterConfigOpType.SET
        entries = [kafka.ConfigEntry(key, value, incremental_operation=change) for key, value in config.items()]
        topic = kafka.ConfigResource(kafka.ResourceType.TOPIC, name, incremental_configs=entries)
        for done in self.admin.incremental_alter_configs([topic]).values():
            done.result(30)

    def stop(self) -> None:
        """In order; the first one on a machine also leaves an archive of classes, which halves later starts."""
        running = self.is_running()
        super().stop()
        if self._archive is not None and running and self._archive.exists():
            with contextlib.suppress(OSError):
                self._archive.replace(self._class_archive())
        self._archive = None

    def _prepare(self) -> None:
        if self.group not in jars.GROUPS:
            repository.fetch(self.group, jars.root())
        config = self.folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        if not (self.folder / "data" / "meta.properties").exists():
            cluster = uuid.uuid4().hex[:22]
            options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
            tool = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(config)]
            self._run([java(), *options, *_LOGGING, *self._archive_options(), "-cp", self._class_path(), *tool])

    def _command(self) -> Sequence[str]:
        # The collector of a small heap on few cores: a third of G1's threads, and quicker to start.
        options = [
            "-Xmx512m",
            "-Xms512m",
            "-XX:+UseSerialGC",
            "-Djava.awt.headless=true",
            *self.jvm_options,
        ]
        if self._tokens is not None:
            options.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._tokens.jwks.as_uri()}")
        archive = self._archive_options()
        if not archive and os.access(jars.root(), os.W_OK):
            self._archive = self.folder / "classes.jsa"
            archive = [f"-XX:ArchiveClassesAtExit={self._archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        properties = str(self.folder / "server.properties")
        return [java(), *options, *_LOGGING, *archive, "-cp", self._class_path(), "kafka.Kafka", properties]

    def _answers(self) -> bool:
        with contextlib.suppress(KafkaException):
            return bool(self._client().list_topics(timeout=1.0).brokers)
        return False

    def _client(self) -> AdminClient:
        # Silent when the broker is down, and there again soon after it is up.
        quick = {"log_level": 0, "reconnect.backoff.max.ms": 500, "socket.timeout.ms": 10_000}
        return AdminClient({"bootstrap.servers": self.bootstrap, **quick})

    def _class_path(self) -> str:
        return os.pathsep.join(map(str, jars.complete(self.group)))

    def _class_archive(self) -> Path:
        """Where the loaded classes for this JVM and these jars are kept; the JVM ignores one that does not fit."""
        stamp = hashlib.sha256(f"{Path(java()).resolve()} {self._class_path()}".encode()).hexdigest()[:12]
        return jars.root() / f"broker-{stamp}.jsa"

    def _archive_options(self) -> list[str]:
        archive = self._class_archive()
        return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"] if archive.exists() else []

    def _secured(self) -> dict[str, object]:
        """Settings of the listeners with TLS. A key store in PEM is a file with the key and the certificate."""
        if self.authority is None:
            return {}
        own, store = self.authority.issue("broker"), self.folder / "broker.pem"
        store.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.ca_file,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": login,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            **(_oauth(self._tokens) if self._tokens is not None else {}),
        }

    def _settings(self) -> dict[str, object]:
        ours = {"PLAINTEXT": self.port, **self._secure}
        own = ",".join(f"{name}://{HOST}:{port}" for name, port in ours.items())
        return {
            **self._secured(),
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{own},CONTROLLER://{HOST}:{self._controller}",
            "advertised.listeners": own,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL,MUTUAL:SSL,OAUTH:SASL_SSL",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "num.network.threads": 2,
            "num.io.threads": 4,
            "num.recovery.threads.per.data.dir": 2,
            "background.threads": 2,
            "log.cleaner.dedupe.buffer.size": 8 << 20,  # 128 MiB by default: a quarter of the heap
            "message.max.bytes": 16 << 20,
            "log.retention.ms": -1,
            "log.message.timestamp.after.max.ms": (1 << 63) - 1,  # an hour by default since 4.0
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            # A broker back from a kill is refused until the session of its former self is over: 9 s by default.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
        }


def _oauth(tokens: TokenEndpoint) -> dict[str, object]:
    """Settings of the listener OAUTH, which checks tokens by the file of keys: it needs no endpoint at its start."""
    package = "org.apache.kafka.common.security.oauthbearer"
    return {
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": tokens.jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    metadata = admin.list_topics(topic, timeout=5.0).topics[topic].partitions
    return len(metadata) == partitions and all(each.leader >= 0 for each in metadata.values())
