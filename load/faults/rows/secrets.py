"""secrets: every password and certificate is replaced while the service runs, in the right order and in the wrong one.

In the right order the new secret is accepted and in its file before the old one is revoked. In the wrong order the old one is
revoked first, and all connections are cut: the service must wait, and go on by itself when the file changes. The process and its
epoch stay the same through all of that. A secret of the environment then takes one planned restart.
"""

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from load.faults.by_hand import one_by_one
from load.faults.row import row
from load.faults.rows.outlets_away import outlets_caught_up
from load.faults.run import STARTS_S, Figures, Run
from load.fleet.encode import SCHEMAS
from load.fleet.postgres import write_reference_postgres
from load.servers.certificates import Authority
from load.servers.postgres import Postgres
from load.servers.proxy import Proxy
from load.servers.schema_registry import Registry
from load.servers.server_process import HOST
from load.testbed import TOPIC, by_label, to_toml

USER = "rotated"
REFRESH_S = 2.0
REFUSED_S = 6.0
"""How long a secret is revoked and its file still has the old one."""
_SUBJECT = f"{TOPIC}-value"


@row(
    "secrets",
    "passwords and certificates are replaced while the service runs",
    rate=100,
    devices=200,
    tls=True,
    testbed={"redis": {"appendonly": "yes"}},
)
def secrets(run: Run) -> Figures:
    """Short: all secrets at once in the wrong order, and one planned restart."""
    with contextlib.ExitStack() as cleanup:
        world = _World(run, cleanup)
        run.start()
        run.load(options=["--evolved", "0"])
        run.steady()
        process, epoch = run.testbed.service_pid, run.observer.epoch
        figures = {}
        if run.short:
            together = _together([begin() for begin in world.rotations.values()])
            figures["all, wrong order"] = _rotated(run, "all secrets: wrong order", together, is_early=True)
        for name, begin in () if run.short else world.rotations.items():
            for order in ("right order", "wrong order"):
                figure = _rotated(run, f"{name}: {order}", begin(), is_early=order == "wrong order")
                figures[f"{name}, {order}"] = figure
        figures["registry"] = _registry(run, world)
        seen = run.testbed.metrics()
        if run.testbed.service_pid != process or run.observer.epoch != epoch:
            what = f"process {process} became {run.testbed.service_pid}, epoch {epoch} became {run.observer.epoch}"
            run.violation("secrets", f"a secret in a file took a restart: {what}")
        figures["planned restart"] = _planned(run, world)
        outlets_caught_up(run)
        run.drain()
        run.stop()
        if leaked := [secret for secret in world.used if secret in run.testbed.log.read_text(errors="replace")]:
            run.violation("P9", f"{len(leaked)} of {len(world.used)} secrets are in the log")
        world.plain()
        run.compare()
    restarts = {code: value for code, value in by_label(seen, "tidemark_query_restarts_total").items() if value}
    return {"seconds": figures, "query_restarts": restarts, "process_restarts": 0, "secrets": len(world.used)}


@dataclass(slots=True)
class _Rotation:
    """`replace` has the server take a new secret and no other, `put` writes it into its file, `cut` ends what is connected.

    `refused` is what the log has when the service has missed it.
    """

    replace: Callable[[], object]
    put: Callable[[], object]
    cut: Callable[[], object]
    refused: str


@dataclass
class _World:
    """The servers with their secrets, and the settings that name the files."""

    run: Run
    cleanup: contextlib.ExitStack
    used: list[str] = field(default_factory=list)
    rotations: dict[str, Callable[[], _Rotation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = self.run
        self._plain = json.loads(json.dumps(run.testbed.settings))
        self.folder = run.folder / "secrets"
        self.folder.mkdir()
        self._authority = run.testbed.broker.authority
        self.database = run.part(Postgres(run.folder / "postgres"))
        self.registry = self.cleanup.enter_context(Registry(user=USER, password=self.new("registry")))
        self.registry.register(_SUBJECT, json.loads((SCHEMAS / "1.avsc").read_text()))
        write_reference_postgres(self.database.dsn, run.testbed.fleet)
        self._prepare()
        self._configure()
        self.rotations = {
            "Redis password": self._redis,
            "Kafka password": self._kafka,
            "reference password": lambda: self._role("reader", "reference", "password authentication failed"),
            "outlet password": lambda: self._role("writer", "outlet", "password authentication failed"),
            "certificates": self._certificates,
        }

    def new(self, name: str) -> str:
        """A new secret, in the file of its name."""
        secret = self.next(name)
        self.write(name, secret)
        return secret

    def next(self, name: str) -> str:
        """A new secret that no file has."""
        self.used.append(f"{name}-secret-{len(self.used):03d}-of-{self.run.seed}")
        return self.used[-1]

    def write(self, name: str, secret: str) -> None:
        """Replace a file in one step, as Kubernetes and systemd do."""
        draft = self.folder / f".{name}.new"
        draft.write_text(f"{secret}\n")
        draft.replace(self.file(name))

    def file(self, name: str) -> Path:
        return self.folder / name

    def redis_url(self, password: str = "") -> str:
        return f"rediss://{USER}{':' if password else ''}{password}@{HOST}:{self._port}/0"

    def plain(self) -> None:
        """Settings without a secret, for the oracle."""
        self.run.testbed.config.write_text(to_toml(self._plain), encoding="utf-8")

    def _prepare(self) -> None:
        run = self.run
        run.testbed.broker.add_user(USER, self.new("kafka"))
        self.accept(self.new("redis"))
        for role in ("reader", "writer"):
            self.database.execute(f"create role {role} login password '{self.new(role)}'")
        self.database.execute("grant select on all tables in schema public to reader")
        self.database.execute("grant create, usage on schema public to writer")
        self._put_authority()
        self._proxy: contextlib.ExitStack = self.cleanup.enter_context(contextlib.ExitStack())
        self._port = 0
        self._serve_redis()

    def _configure(self) -> None:
        run, ca_file = self.run, str(self.file("ca.pem"))
        settings = run.testbed.settings
        broker, pair = run.testbed.broker, {"certificate": str(self.file("own.pem")), "key": str(self.file("own.key"))}
        settings["kafka"] |= {
            "bootstrap": broker.secure("SCRAM"),
            "user": USER,
            "password_file": str(self.file("kafka")),
            "ca_file": ca_file,
        }
        settings["redis"] |= {"url": self.redis_url(), "password_file": str(self.file("redis")), "ca_file": ca_file}
        settings["reference"] |= {
            "url": self.database.jdbc_url,
            "user": "reader",
            "password_file": str(self.file("reader")),
            "refresh": f"{REFRESH_S} s",
            "timeout": "3 s",
        }
        settings["registry"] = {"url": self.registry.url, "user": USER, "password_file": str(self.file("registry"))}
        settings["input"] = {name: value for name, value in settings["input"].items() if name != "schemas"}
        settings["input"]["reader_schema"] = 1
        table = {
            "kind": "jdbc",
            "url": self.database.jdbc_url,
            "user": "writer",
            "password_file": str(self.file("writer")),
        }
        settings["outlets"] = [
            {"name": "history", "table": "windows", "timeout": "3 s", "retry_for": "2 s", **table},
            {
                "name": "topic",
                "kind": "kafka",
                "topic": "finals",
                "format": "json",
                "retry_for": "2 s",
                "bootstrap": broker.secure("MUTUAL"),
                "ca_file": ca_file,
                **pair,
            },
        ]
        self._plain["outlets"] = [
            {**settings["outlets"][0], "user": self.database.user, "password": self.database.password},
            {
                name: value
                for name, value in settings["outlets"][1].items()
                if name not in {*pair, "ca_file", "bootstrap"}
            },
        ]
        del self._plain["outlets"][0]["password_file"]
        run.testbed.write_settings()

    def accept(self, *passwords: str) -> None:
        """Have Redis take these passwords and no others."""
        with self.run.testbed.redis.client() as client:
            given = [f">{password}" for password in passwords]
            client.execute_command("ACL", "SETUSER", USER, "reset", "on", *given, "~*", "&*", "+@all")

    def _redis(self) -> _Rotation:
        secret = self.next("redis")
        return _Rotation(
            lambda: self.accept(secret),
            lambda: self.write("redis", secret),
            self._serve_redis,
            "WRONGPASS|invalid username",
        )

    def _kafka(self) -> _Rotation:
        secret = self.next("kafka")
        broker = self.run.testbed.broker
        return _Rotation(
            lambda: broker.add_user(USER, secret),
            lambda: self.write("kafka", secret),
            lambda: one_by_one(broker.stop, broker.start),
            "SaslAuthenticationException|refuses the login",
        )

    def _role(self, role: str, part: str, refused: str) -> _Rotation:
        secret = self.next(role)
        ends = f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"  # noqa: S608 - a name of this row
        return _Rotation(
            lambda: self.database.execute(f"alter role {role} password '{secret}'"),
            lambda: self.write(role, secret),
            lambda: self.database.execute(ends),
            f"{part}.*{refused}",
        )

    def _certificates(self) -> _Rotation:
        """Another authority: the brokers' certificate, that of Redis, and the outlet's own."""
        broker = self.run.testbed.broker
        self._authority = Authority(self.folder / f"authority-{len(self.used)}")
        self.used.append(self._authority.issue("outlet").key.read_text())

        def restart() -> None:
            broker.authority = self._authority
            one_by_one(broker.stop, broker.start, self._serve_redis)

        return _Rotation(lambda: None, self._put_authority, restart, "certificate|SslAuthenticationException")

    def _put_authority(self) -> None:
        authority = self._authority
        assert authority is not None, "the row has TLS"  # noqa: S101
        own = authority.issue("outlet")
        # Two files cannot be replaced in one step: between them the pair does not fit.
        for source, name in ((own.certificate, "own.pem"), (own.key, "own.key"), (authority.ca_file, "ca.pem")):
            shutil.copyfile(source, self.file(f".{name}.new"))
            self.file(f".{name}.new").replace(self.file(name))

    def _serve_redis(self) -> None:
        """End the connections to Redis, and take new ones with the authority's certificate."""
        assert self._authority is not None, "the row has TLS"  # noqa: S101
        self._proxy.close()
        context = self._authority.server("redis")
        proxy = self._proxy.enter_context(Proxy(HOST, self.run.testbed.redis.port, self._port, tls=context))
        self._port = proxy.port


def _together(rotations: Sequence[_Rotation]) -> _Rotation:
    return _Rotation(
        lambda: one_by_one(*(each.replace for each in rotations)),
        lambda: one_by_one(*(each.put for each in rotations)),
        lambda: one_by_one(*(each.cut for each in rotations)),
        "|".join(each.refused for each in rotations),
    )


def _rotated(run: Run, name: str, rotation: _Rotation, *, is_early: bool) -> float:
    """Replace a secret; seconds from the change of its file until the lag is back and three batches are published."""
    known = run.testbed.log.stat().st_size
    with run.fault(name):
        if is_early:
            rotation.replace()
            rotation.cut()
            _refused(run, rotation.refused, known)
            run.let_pass(REFUSED_S)  # the old secret is tried again
            rotation.put()
        else:
            rotation.put()
            rotation.replace()
            rotation.cut()
        began = time.monotonic()
    run.recover()
    run.steady(3)
    seconds = round(time.monotonic() - began, 1)
    outlets_caught_up(run)
    return seconds


def _refused(run: Run, pattern: str, known: int) -> None:
    run.until(
        lambda: re.search(pattern, run.testbed.log.read_bytes()[known:].decode(errors="replace"), re.IGNORECASE),
        STARTS_S,
        f"the service to be refused: {pattern}",
    )


def _registry(run: Run, world: _World) -> float:
    """A schema is new after the password has changed: the service gets it with the new one."""
    world.registry.password = world.new("registry")
    world.registry.register(_SUBJECT, json.loads((SCHEMAS / "2.avsc").read_text()))
    began = time.monotonic()
    run.load(options=["--evolved", "0.5"])
    asked = {"/schemas/ids/2", f"/subjects/{_SUBJECT}/versions/2"}
    run.wait(lambda: asked & {*world.registry.requests}, STARTS_S, "the service to ask for the new schema")
    run.steady()  # the oracle decides whether its records were admitted
    return round(time.monotonic() - began, 1)


def _planned(run: Run, world: _World) -> float:
    """A password of the environment: both are valid, one restart, and the old one is revoked."""
    former, new = world.file("redis").read_text().strip(), world.next("redis")
    began = time.monotonic()
    world.accept(former, new)
    with run.fault("planned restart", restarts=True):
        run.stop()
        run.testbed.settings["redis"].pop("password_file")
        run.testbed.write_settings()
        run.start({"TIDEMARK_REDIS__URL": world.redis_url(new)})
    world.accept(new)
    run.recover()
    return round(time.monotonic() - began, 1)
