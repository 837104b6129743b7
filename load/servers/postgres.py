"""PostgreSQL as a child process on loopback."""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from load.servers.packages import POSTGRES, postgres_programs
from load.servers.server_process import HOST, ServerProcess, free_port


class Postgres(ServerProcess):
    """PostgreSQL, from the PATH or from a package (load/servers/packages.py), by TCP with a password; one database, `tidemark`.

    PostgreSQL refuses to run as root. For root the server runs as the account `nobody`, which cannot be expected to
    reach the caller's folder (nor an interpreter in /root): its data, and a copy of its programs where they are out of
    reach, are then in a folder of their own in the system's temporary folder, which `close` removes.
    """

    name = "postgres"
    death = signal.SIGQUIT  # "immediate": its children go too, and it leaves no shared memory behind
    user = "tidemark"
    database = "tidemark"

    def __init__(self, folder: Path | str, port: int = 0, *, keep: bool = False) -> None:
        """With `keep` it goes on with the data of a former one in the folder, and leaves its own there."""
        super().__init__(folder, port)
        self._keep = keep
        elsewhere = self.folder / "data-is-in"
        is_known = keep and elsewhere.exists() and Path(elsewhere.read_text().strip()).is_dir()
        self._own: Path | None = Path(elsewhere.read_text().strip()) if is_known else None
        self._installed = postgres_programs()

    @functools.cached_property
    def password(self) -> str:
        """Made once a folder, kept in its file `password`."""
        kept = self.folder / "password"
        if not kept.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            kept.touch(mode=0o600)
            kept.write_text(secrets.token_hex(8))
        return kept.read_text()

    @property
    def jdbc_url(self) -> str:
        """jdbc:postgresql://host:port/tidemark"""
        return f"jdbc:postgresql://{self.address}/{self.database}"

    @property
    def dsn(self) -> str:
        """The argument of psycopg.connect, with the password."""
        return f"postgresql://{self.user}:{self.password}@{self.address}/{self.database}"

    @property
    def version(self) -> str:
        """The version of the server that runs."""
        return str(self.execute("show server_version")[0][0])

    def execute(self, sql: str, rows: Sequence[Sequence[object]] | None = None) -> list[tuple[Any, ...]]:
        """Run statements in a connection of their own and commit; the last one's rows, [] when it gives none.

        With `rows`, `sql` is one statement with %s for each column and is run once a row.
        """
        with psycopg.connect(self.dsn, connect_timeout=10) as connection, connection.cursor() as cursor:
            if rows is not None:
                cursor.executemany(sql, rows)
            else:
                cursor.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def upgrade(self, programs: Path) -> None:
        """Go on with the data under the programs of a newer PostgreSQL: dump, and restore.

        Meanwhile the old server is on another port, so that nobody can write what the dump would not have.
        """
        self.stop()
        known, self.port = self.port, free_port()
        self.start()
        self._installed, dump = programs, self._home() / "dump.sql"
        self._run([str(self._programs() / "pg_dump"), "--dbname", self.dsn, "--file", str(dump)])
        self.stop()
        (self._home() / "data").rename(self._home() / "former")
        self.port = known
        self.start()
        self._run([str(self._programs() / "psql"), "--quiet", "--dbname", self.dsn, "--file", str(dump)])

    def stop(self) -> None:
        """The fast shutdown: open transactions are rolled back."""
        self._end(signal.SIGINT)

    def close(self) -> None:
        """Stop for good; data that had to live outside the folder is removed."""
        super().close()
        if self._own is not None and not self._keep:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None

    def _user(self) -> str:
        return "nobody" if os.geteuid() == 0 else ""

    def _home(self) -> Path:
        return self._own or self.folder

    def _programs(self) -> Path:
        if not self._user() or _all_may_enter(self._installed):
            return self._installed
        package = self._installed.parent
        copy = self._home() / POSTGRES / package.name
        if not copy.exists():
            # Side by side, as installed: programs find their libraries by that.
            libraries = package.parents[1] / f"{POSTGRES}.libs"
            shutil.copytree(package, copy)
            if libraries.exists():
                shutil.copytree(libraries, self._home() / libraries.name)
        return copy / "bin"

    def _prepare(self) -> None:
        if self._user() and self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix="tidemark-postgres-"))
            shutil.chown(self._own, self._user())
            (self.folder / "data-is-in").write_text(f"{self._own}\n")
        if not (self._home() / "data" / "PG_VERSION").exists():
            secret = self._home() / "initial"
            secret.touch(mode=0o600)
            secret.write_text(self.password)
            if self._user():
                shutil.chown(secret, self._user())
            access = ["--username", self.user, "--pwfile", str(secret), "--auth", "scram-sha-256"]
            text = ["--encoding", "UTF8", "--locale", "C.UTF-8"]
            initdb = str(self._programs() / "initdb")
            self._run([initdb, "--pgdata", str(self._home() / "data"), *access, *text, "--no-sync"])
            secret.unlink()

    def _command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",  # a socket's path may be 107 characters, a test's folder may be longer
            "fsync": "off",  # survives a kill of the process, which is what is promised
            "shared_buffers": "32MB",
            "max_connections": "30",
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        return [str(self._programs() / "postgres"), "-D", str(self._home() / "data"), *options]

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            server = self.dsn.removesuffix(self.database) + "postgres"
            with psycopg.connect(server, connect_timeout=2, autocommit=True) as connection:
                known = connection.execute("select from pg_database where datname = %s", [self.database])
                if known.fetchone() is None:
                    connection.execute(f"create database {self.database}".encode())
                return True
        return False


def _all_may_enter(folder: Path) -> bool:
    """Whether any account can reach into `folder`, by the permissions of the folders on the way."""
    return all(each.stat().st_mode & 0o001 for each in (folder, *folder.parents))
