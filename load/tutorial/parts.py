"""The servers of the tutorial in one folder, with files of their addresses and passwords for a shell."""

import secrets
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from load.servers.certificates import Authority
from load.servers.kafka import Broker
from load.servers.postgres import Postgres
from load.servers.redis import Redis
from load.servers.schema_registry import Registry
from load.servers.server_process import Started
from load.tutorial.feed import METERS, MODELS, PLANTS, PUMPS, SCHEMA, SERIALS, Feed

USER = "tutorial"
ADDRESSES = "parts.env"
"""A file for a shell: the addresses and user names of the parts, and the path of `tidemark`."""


class Parts(Started):
    """All parts; their data are in the sub-folder `parts`, the files for the reader of the tutorial in `folder` itself.

    Kafka wants SASL over TLS, the registry and PostgreSQL a password. Redis has none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        data = self.folder / "parts"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(parents=True)
        self._authority = Authority(data / "authority")
        self.broker = Broker(data, authority=self._authority)
        self.postgres = Postgres(data)
        self.redis = Redis(data)
        self.registry = Registry(user=USER, password=secrets.token_hex(8))
        self._running = ExitStack()

    def start(self) -> None:
        """Start the servers, make topics, schema and table, and begin to send readings."""
        for part in (self.broker, self.postgres, self.redis, self.registry):
            self._running.enter_context(part)
        password = secrets.token_hex(8)
        self.broker.add_user(USER, password)
        for topic in (PUMPS, METERS):
            self.broker.create_topic(topic, 2)
        self.postgres.execute("create table pumps (serial text primary key, plant text, model text)")
        rows = [(each, PLANTS[n % len(PLANTS)], MODELS[n % len(MODELS)]) for n, each in enumerate(SERIALS)]
        self.postgres.execute("insert into pumps values (%s, %s, %s)", rows)
        number = self.registry.register(f"{PUMPS}-value", SCHEMA)
        self._write(password)
        self._running.enter_context(Feed(self.broker.bootstrap, number))

    def close(self) -> None:
        self._running.close()

    def _write(self, password: str) -> None:
        passwords = {"kafka": password, "registry": self.registry.password, "postgres": self.postgres.password}
        for name, secret in passwords.items():
            file = self.folder / f"{name}.password"
            file.touch(mode=0o600)
            file.write_text(f"{secret}\n")
        shutil.copy(self._authority.ca_file, self.folder / "kafka-ca.pem")
        addresses = {
            "KAFKA": self.broker.secure("SCRAM"),
            "REGISTRY": self.registry.url,
            "POSTGRES": self.postgres.jdbc_url,
            "REDIS": self.redis.url,
        }
        users = {"KAFKA_USER": USER, "REGISTRY_USER": USER, "POSTGRES_USER": self.postgres.user}
        lines = [f"export {name}={value}" for name, value in {**addresses, **users}.items()]
        lines.append(f'export PATH="{Path(sys.executable).parent}:$PATH"')
        (self.folder / ADDRESSES).write_text("\n".join(lines) + "\n")
