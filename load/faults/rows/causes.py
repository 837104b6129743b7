"""causes: twenty-odd causes of failure, each named by its code, its exit status, its cause and its remedy.

Some end the service when it starts, some while it runs, and some pass by themselves, after which it must go on.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka import admin as kafka_admin

from load.faults.by_hand import MOUNTS, asked, between, fill_disk, small_disk
from load.faults.causes import Cause, Outcome, Stage, played
from load.faults.raw import send_zeros
from load.faults.row import row
from load.faults.run import Figures, Run
from load.servers.certificates import Authority, shaking_hands
from load.servers.postgres import Postgres
from load.servers.server_process import HOST, free_port
from load.testbed import PARTITIONS
from service.errors import (
    CheckpointError,
    DataLossError,
    OutletRefusedError,
    ReferenceDataError,
    RegistryError,
    SettingsError,
    SetupError,
    SinkError,
    SinkRefusedError,
    SourceError,
    SourceRefusedError,
    TidemarkError,
    WorkerLostError,
)
from service.spark.files import Local
from service.spark.internals import log_files

_kafka: Any = kafka_admin  # the client's types do not cover all that it exports
USER, PASSWORD = "limited", "right"
DISK = "24m"
BOMB = 300 << 20
"""Bytes of zeros in a record of some kilobytes: more than a JVM of HEAP can hold."""
HEAP = "700m"

SHORT = ("settings", "checkpoint removed while running", "Redis is out of memory")
Play = Callable[[Stage], AbstractContextManager[Any]]
TABLE: list[Cause] = []


def cause(name: str, family: type[TidemarkError], says: str, remedy: str, **how: Any) -> Callable[[Any], Play]:
    """Register the decorated generator as what brings a cause about, and mends it."""

    def register(play: Callable[[Stage], Iterator[None]]) -> Play:
        TABLE.append(Cause(name, family, says, remedy, contextlib.contextmanager(play), **how))
        return TABLE[-1].play

    return register


@row("causes", "every cause of a failure is named", rate=200, devices=200, tls=True)
def causes(run: Run) -> Figures:
    """Short: one that ends the start, one that ends a query, one that passes."""
    outcomes, right = {}, 0
    played_causes = chosen(run.only, SHORT if run.short else [each.name for each in TABLE])
    for number, each in enumerate(played_causes, 1):
        try:
            outcome, problems = played(run, number, each)
        except Exception as error:  # the others are played all the same
            outcome, problems = Outcome(None, "", f"{type(error).__name__}: {error}"), ["it could not be brought about"]
        run.note("cause", name=each.name, status=outcome.status, code=outcome.code, text=outcome.text)
        outcomes[each.name] = {"status": outcome.status, "code": outcome.code, "text": outcome.text}
        right += not problems
        for problem in problems:
            run.violation("cause", f"{each.name}: {problem}: {outcome.text}")
    if not run.only:
        _values_are_right(run)
    return {"causes": len(played_causes), "named_rightly": right, "outcomes": outcomes}


def chosen(only: str, names: Collection[str]) -> list[Cause]:
    """Return the causes whose names match `only`, or those of these names. Raises SetupError when there is none."""
    found = [each for each in TABLE if (re.search(only, each.name) if only else each.name in names)]
    if not found:
        raise SetupError(f"There is no cause {only!r}", remedy=f"Causes: {', '.join(each.name for each in TABLE)}")
    return found


def _values_are_right(run: Run) -> None:
    """The service of the testbed's own settings, after all that happened to its broker and its Redis."""
    run.begin()


# At the start.


@cause("settings", SettingsError, r"views\[0\]\.by|nowhere", r"tidemark|docs|by")
def _settings(stage: Stage) -> Iterator[None]:
    with stage.settings(views=[{"name": "device", "by": ["nowhere"], "window": "1 m"}]):
        yield


@cause("no such view in a command", SettingsError, r"--view nowhere: there is no view", r"device", runs=True)
def _view(stage: Stage) -> Iterator[None]:
    command = stage.testbed.command("backfill", "--from", "2h", "--to", "1h", "--view", "nowhere")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    code, _, text = done.stderr.removeprefix("tidemark: ").strip().partition(": ")
    stage.command = Outcome(done.returncode, code, text)
    yield


@cause("port in use", SetupError, r"metrics\.port = \d+.*in use", r"other|stop|free")
def _port(stage: Stage) -> Iterator[None]:
    with socket.create_server((HOST, stage.testbed.metrics_port)):
        yield


@cause("Redis: wrong password", SinkRefusedError, r"WRONGPASS|invalid username-password", r"password")
def _redis_password(stage: Stage) -> Iterator[None]:
    with _redis_user(stage, "~* &* +@all"), stage.settings(redis={"url": _redis_url(stage, "wrong")}):
        yield


@cause("Redis: no right to a command", SinkRefusedError, r"NOPERM|no permission", r"ACL|right")
def _redis_right(stage: Stage) -> Iterator[None]:
    with _redis_user(stage, "~* &* +@all -eval -evalsha"), stage.settings(redis={"url": _redis_url(stage, PASSWORD)}):
        yield


@cause("Kafka: wrong password", SourceRefusedError, r"(?i)authentication failed", r"user.*password")
def _kafka_password(stage: Stage) -> Iterator[None]:
    with _kafka_login(stage, "SCRAM", user=USER, password="wrong"):  # noqa: S106
        yield


@cause(
    "Kafka: TLS to a port without TLS",
    SourceError,
    r"(?i)SSL",
    r"security\.protocol|TLS|port",
    ends=False,
    passes=False,
)
def _plain_port(stage: Stage) -> Iterator[None]:
    authority = _authority(stage)
    with stage.settings(kafka={"options": {"security.protocol": "ssl"}, "ca_file": str(authority.ca_file)}):
        yield


@cause(
    "Kafka: no TLS to a port with TLS",
    SourceError,
    r"(?i)Disconnected|SSL|TLS",
    r"TLS|port|protocol",
    ends=False,
    passes=False,
)
def _tls_port(stage: Stage) -> Iterator[None]:
    with stage.settings(kafka={"bootstrap": stage.testbed.broker.secure("MUTUAL")}):
        yield


@cause(
    "Kafka: certificate of another authority",
    SourceRefusedError,
    r"(?i)self-signed certificate|unable to get (local )?issuer",
    r"ca_file",
)
def _other_authority(stage: Stage) -> Iterator[None]:
    other = Authority(stage.testbed.folder / "other-authority")
    with _kafka_login(stage, "SCRAM", user=USER, password=PASSWORD, ca_file=str(other.ca_file)):
        yield


@cause("Kafka: certificate expired, by the clock", SourceRefusedError, r"(?i)certificate has expired", r"clock")
def _expired(stage: Stage) -> Iterator[None]:
    authority = _authority(stage)
    context = authority.server("expired", expired=True)
    with shaking_hands(context) as address:
        kafka = {"bootstrap": address, "options": {"security.protocol": "ssl"}, "ca_file": str(authority.ca_file)}
        with stage.settings(kafka=kafka):
            yield


@cause("Kafka: Kerberos", SettingsError, r"sasl\.mechanism GSSAPI", r"SCRAM.*OIDC.*kafka\.md#logins")
def _kerberos(stage: Stage) -> Iterator[None]:
    with stage.settings(kafka={"options": {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}}):
        yield


@cause(
    "Kafka: token endpoint away",
    SourceError,
    r"token endpoint http://127\.0\.0\.1:\d+/token",
    r"endpoint answers",
    ends=False,
    passes=False,
)
def _token_endpoint(stage: Stage) -> Iterator[None]:
    url = f"http://{HOST}:{free_port()}/token"
    options = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": url}
    with _kafka_login(stage, "SCRAM", user=USER, password=PASSWORD, options=options):
        yield


@cause("Kafka: no right to the topic", SourceRefusedError, r"cause-\d+.*(?i:authoriz|right)", r"right|user")
def _kafka_right(stage: Stage) -> Iterator[None]:
    topic = _acl(stage.name, _kafka.AclOperation.READ, "somebody")
    with _rights(stage, topic), _kafka_login(stage, "SCRAM", user=USER, password=PASSWORD):
        yield


@cause("no such topic", SourceRefusedError, r"no topic|topic.*does not exist|nowhere", r"[Cc]reate")
def _no_topic(stage: Stage) -> Iterator[None]:
    with stage.settings(kafka={"topics": ["nowhere"]}):
        yield


@cause(
    "reference away at the first start",
    ReferenceDataError,
    r"127\.0\.0\.1:\d+|refused",
    r"database",
    ends=False,
    passes=False,
)
def _reference(stage: Stage) -> Iterator[None]:
    url = f"jdbc:postgresql://{HOST}:{free_port()}/tidemark"
    with stage.settings(reference={"url": url, "user": "u", "password": "p"}):
        yield


@cause(
    "registry away at the first start", RegistryError, r"http://127\.0\.0\.1:\d+", r"registry", ends=False, passes=False
)
def _registry(stage: Stage) -> Iterator[None]:
    with stage.settings(registry={"url": f"http://{HOST}:{free_port()}"}, input={"schemas": None, "reader_schema": 1}):
        yield


@cause(
    "outlet: the database refuses the password", OutletRefusedError, r"(?i)history.*password", r"password|login|user"
)
def _outlet(stage: Stage) -> Iterator[None]:
    with Postgres(stage.testbed.folder / "outlet") as database:
        outlet = {"name": "history", "kind": "jdbc", "url": database.jdbc_url, "table": "windows"}
        with stage.settings(outlets=[{**outlet, "user": database.user, "password": "wrong"}]):
            yield


@cause("temporary folder with noexec", SetupError, r"(?i)noexec|failed to map segment", r"noexec.*java\.io\.tmpdir")
def _noexec(stage: Stage) -> Iterator[None]:
    folder = stage.testbed.folder / "noexec"
    with small_disk(stage.run, folder, "256m", "noexec") as is_mounted:
        if not is_mounted:
            raise SetupError(f"A disk with noexec cannot be mounted at {folder}", remedy=MOUNTS)
        stage.environment = {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData"}
        yield


# While it runs; each ends the service.


@cause("checkpoint: a log file cut short", CheckpointError, r"offsets/\d+", r"a-damaged-checkpoint", runs=True)
def _log_cut(stage: Stage) -> Iterator[None]:
    stage.testbed.kill_service()
    newest = max(log_files.numbers(Local(stage.checkpoint), "offsets"))
    file = stage.checkpoint / "offsets" / str(newest)
    os.truncate(file, file.stat().st_size // 2)
    stage.start()
    yield


@cause("checkpoint removed while running", CheckpointError, r"cause-\d+/\S+", r"a-damaged-checkpoint", runs=True)
def _removed(stage: Stage) -> Iterator[None]:
    gone = stage.checkpoint.with_name(f"{stage.name}-gone")
    stage.checkpoint.rename(gone)  # in one step, however busy it is
    shutil.rmtree(gone)
    yield


@cause("disk full", SetupError, r"No space left on device", r"the-checkpoints-disk-is-full")
def _disk_full(stage: Stage) -> Iterator[None]:
    with small_disk(stage.run, stage.checkpoint, DISK):
        stage.start()
        stage.wait_running()
        fill_disk(stage.checkpoint)
        yield


@cause(
    "topic deleted and created again while stopped", CheckpointError, r"cause-\d+", r"rebuild|created again", runs=True
)
def _created_again(stage: Stage) -> Iterator[None]:
    stage.stop()
    stage.testbed.broker.delete_topic(stage.name)
    stage.testbed.broker.create_topic(stage.name, PARTITIONS)
    stage.start()
    yield


@cause("retention passed", DataLossError, r"cause-\d+\[\d\]: committed offset \d+", r"records-were-deleted", runs=True)
def _retention(stage: Stage) -> Iterator[None]:
    stage.stop()
    stage.send(400)
    _delete_records(stage)
    stage.start()
    yield


@cause("memory of the JVM", SetupError, r"OutOfMemoryError", r"driver-memory", by_spark=52, also=("REFERENCE",))
def _memory(stage: Stage) -> Iterator[None]:
    send_zeros(stage.testbed.broker.bootstrap, stage.name, BOMB)
    stage.options = ("--driver-memory", HEAP, "--conf", "spark.driver.extraJavaOptions=-Xmn200m")
    with stage.settings(kafka={"starting": "earliest"}):
        yield


# What passes by itself.


@cause("broker away", SourceError, r"127\.0\.0\.1:\d+", r"[Kk]afka|broker", ends=False, runs=True)
def _broker(stage: Stage) -> Iterator[None]:
    with between(stage.testbed.broker.kill, stage.testbed.broker.start):
        yield


@cause("Redis is out of memory", SinkError, r"127\.0\.0\.1:\d+.*OOM", r"maxmemory", ends=False, runs=True)
def _redis_memory(stage: Stage) -> Iterator[None]:
    with asked(stage.testbed.redis, "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"):
        yield


@cause("Redis is a replica", SinkError, r"127\.0\.0\.1:\d+.*READONLY", r"primary|replica", ends=False, runs=True)
def _redis_replica(stage: Stage) -> Iterator[None]:
    with asked(stage.testbed.redis, f"REPLICAOF {HOST} 1", "REPLICAOF NO ONE"):
        yield


@cause("Redis away", SinkError, r"127\.0\.0\.1:\d+", r"Redis", ends=False, runs=True)
def _redis_away(stage: Stage) -> Iterator[None]:
    with between(stage.testbed.redis.pause, stage.testbed.redis.resume):
        yield


@cause(
    "Python worker killed",
    WorkerLostError,
    r"(?i)python worker|stream closed",
    r"replayed.*memory",
    ends=False,
    runs=True,
)
def _worker(stage: Stage) -> Iterator[None]:
    with stage.killing("pyworker"):
        yield


@cause("executor killed", WorkerLostError, r"(?i)executor", r"replayed.*memory", ends=False)
def _executor(stage: Stage) -> Iterator[None]:
    master, stage.testbed.master = stage.testbed.master, "local-cluster[1,2,1024]"
    settings = {"executor.memory": "700m", "authenticate": "false", "network.crypto.enabled": "false"}
    stage.options = tuple(text for name, value in settings.items() for text in ("--conf", f"spark.{name}={value}"))
    stage.start()
    stage.wait_running()
    try:
        # An executor that dies before it runs a task is started again, and no task has failed.
        with stage.killing("CoarseGrainedExecutorBackend", every_s=20):
            yield
    finally:
        stage.testbed.master = master


# How it is done.


def _authority(stage: Stage) -> Authority:
    authority = stage.testbed.broker.authority
    assert authority is not None, "the row has TLS"  # noqa: S101
    return authority


@contextlib.contextmanager
def _kafka_login(stage: Stage, listener: str, **kafka: Any) -> Iterator[None]:
    stage.testbed.broker.add_user(USER, PASSWORD)
    login = {"bootstrap": stage.testbed.broker.secure(listener), "ca_file": str(_authority(stage).ca_file)}
    with stage.settings(kafka={**login, **kafka}):
        yield


def _acl(topic: str, operation: Any, user: str) -> Any:
    """A right; whoever is not named by a topic's rights has none."""
    kind, literal = _kafka.ResourceType.TOPIC, _kafka.ResourcePatternType.LITERAL
    return _kafka.AclBinding(kind, topic, literal, f"User:{user}", "*", operation, _kafka.AclPermissionType.ALLOW)


@contextlib.contextmanager
def _rights(stage: Stage, *rights: Any) -> Iterator[None]:
    admin = stage.testbed.broker.admin
    for done in admin.create_acls(list(rights)).values():
        done.result(30)
    try:
        yield
    finally:
        fields = ("restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
        filters = [_kafka.AclBindingFilter(*(getattr(each, name) for name in fields)) for each in rights]
        for gone in admin.delete_acls(filters).values():
            gone.result(30)


def _redis_url(stage: Stage, password: str) -> str:
    return f"redis://{USER}:{password}@{stage.testbed.redis.address}/0"


def _redis_user(stage: Stage, rights: str) -> AbstractContextManager[None]:
    return asked(stage.testbed.redis, f"ACL SETUSER {USER} reset on >{PASSWORD} {rights}", f"ACL DELUSER {USER}")


def _delete_records(stage: Stage) -> None:
    """Delete all records of the topic but the newest ten of each partition, as its retention would."""
    ends = stage.run.observer.ends(stage.name)
    stage.testbed.broker.delete_records(stage.name, {partition: end - 10 for partition, end in ends.items()})
