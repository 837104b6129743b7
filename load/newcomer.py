"""The way of a newcomer: the wheels in an empty environment, then the commands from a topic to a value.

    python -m load.newcomer --wheels .build/dist [--json FILE]       # make newcomer

A broker with SASL over TLS, a schema registry, a reference database and Redis run on this machine, and a fleet sends readings.
The commands run in an empty folder, with the file that `init` wrote as it stands. The time begins with `init`: installation and
downloads before it are reported apart. In the end all of Redis is compared with the oracle. Exit status 0 only within LIMITS.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from load.fleet.encode import SCHEMAS
from load.fleet.fleet import REFERENCE_QUERY, Fleet, FleetSettings, write_reference_sqlite
from load.fleet.generator import Generator
from load.judge.compare import compare
from load.report import machine, reported
from load.servers.certificates import Authority
from load.servers.child_process import Child, spawn
from load.servers.kafka import LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from load.servers.schema_registry import Registry
from load.servers.server_process import PATIENCE, free_port, until
from load.testbed import ended, kill_tree, log_tail, output_of
from service.errors import SetupError
from service.spark.places import cache

LIMITS = {"seconds_to_first_value": 90.0, "commands": 6, "mismatches": 0}
TOPIC, USER, PREFIX = "readings", "newcomer", "tidemark"
BEFORE_S = 20.0
"""Seconds of readings before `init` looks at the topic."""
BATCHES = 10
"""Of the service, before the load stops and all is compared."""
_WITHIN_S = 300.0
_COMMAND_S = 3_600.0
"""pip builds the wheel of PySpark."""


class Newcomer:
    """An environment with nothing but the wheels, and an empty folder in which the commands run, one after the other."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.settings = self.home / "tidemark.toml"
        self.environment = folder / "environment"
        self.steps: list[dict[str, Any]] = []
        self._wheels = [str(wheel) for wheel in sorted(wheels.resolve().glob("*.whl"))]
        self.log = folder / "run.log"
        unset = {"PYTHONPATH", "TIDEMARK_JARS", "TIDEMARK_CONFIG", "VIRTUAL_ENV"}
        self._environ = {
            **{name: value for name, value in os.environ.items() if name not in unset},
            "TIDEMARK_CACHE": str(folder / "cache"),
            "TIDEMARK_METRICS__PORT": str(free_port()),
            "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}",
        }

    def install(self) -> None:
        if not self._wheels:
            raise SetupError("There are no wheels", remedy="Run `make newcomer`, which builds them")
        subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
        self.command("pip", "install", "--quiet", "--disable-pip-version-check", *self._wheels)
        self.command("tidemark", "jars")

    def command(self, program: str, *words: str) -> None:
        """Run a command to its end; raises SetupError with its output if its status is not 0."""
        begin = time.monotonic()
        output_of([str(self.environment / "bin" / program), *words], self.home, self._environ, _COMMAND_S)
        self._note(program, words, time.monotonic() - begin)

    @contextmanager
    def started(self, program: str, *words: str) -> Iterator[Child]:
        """Start a command that goes on; it is killed at the end of the block if it still runs."""
        self._note(program, words, 0.0)
        line = [str(self.environment / "bin" / program), *words]
        child = spawn(line, cwd=self.home, log=self.log, environ=self._environ)
        try:
            yield child
        finally:
            kill_tree(child)

    def wait(self, condition: Callable[[], object], child: Child, what: str) -> None:
        """Ask until the answer is true; raises SetupError when the command ends or the time is over."""
        why = partial(log_tail, self.log)
        until(condition, _WITHIN_S * PATIENCE, what, why, goes_on=lambda: child.poll() is None)

    def _note(self, program: str, words: Sequence[str], seconds: float) -> None:
        self.steps.append({"command": " ".join([program, *words[:1]]), "seconds": round(seconds, 1)})


def measure(wheels: Path) -> dict[str, Any]:
    """Run the whole way; raises SetupError when a command fails or nothing is published in time."""
    folder = cache() / "newcomer"
    newcomer = Newcomer(folder, wheels)
    newcomer.install()
    downloads_s = sum(step["seconds"] for step in newcomer.steps)
    fleet = Fleet(7, FleetSettings(devices=100, rate=200.0))
    with ExitStack() as parts:
        authority = Authority(folder / "tls")
        broker = parts.enter_context(Broker(folder / "broker", authority=authority))
        redis = parts.enter_context(Redis(folder / "redis"))
        registry = parts.enter_context(Registry())
        password = newcomer.home / "kafka.password"
        password.write_text("a newcomer's password")
        broker.add_user(USER, password.read_text())
        broker.create_topic(TOPIC, 2, LOG_APPEND_TIME)
        for file in sorted(SCHEMAS.glob("*.avsc")):
            registry.register(f"{TOPIC}-value", json.loads(file.read_text()))
        database = newcomer.home / "devices.db"
        write_reference_sqlite(database, fleet)
        generator = Generator(broker.bootstrap, TOPIC, fleet)
        pool = parts.enter_context(ThreadPoolExecutor(1))
        parts.callback(generator.stop)  # the end of the pool waits for it
        sending = pool.submit(generator.run)
        with redis.client() as client:
            time.sleep(BEFORE_S)
            begin = time.monotonic()
            where = ["--bootstrap", broker.secure("SCRAM"), "--topic", TOPIC, "--redis", redis.url]
            login = ["--user", USER, "--password-file", password.name, "--ca-file", str(authority.ca_file)]
            facts = ["--registry", registry.url, "--reference", f"jdbc:sqlite:{database}", "--query", REFERENCE_QUERY]
            newcomer.command("tidemark", "init", *where, *login, *facts, "--yes")
            newcomer.command("tidemark", "check")
            service = parts.enter_context(newcomer.started("tidemark", "run"))
            newcomer.wait(lambda: next(client.scan_iter(f"{PREFIX}:window:*"), None), service, "a window in Redis")
            first_s = time.monotonic() - begin
            newcomer.wait(lambda: int(client.hget(f"{PREFIX}:progress", "batch") or 0) >= BATCHES, service, "batches")
            generator.stop()
            ends = {str(partition): end for partition, (_, end) in sending.result().offsets.items()}
            newcomer.wait(lambda: _offsets(client) == ends, service, f"progress to be {ends}")
        os.kill(service.pid, signal.SIGTERM)
        status = ended(service, 60, "tidemark run", newcomer.log)
        verdict = compare(newcomer.settings, bootstrap=broker.bootstrap)
    return {
        "seconds_to_first_value": round(first_s, 1),
        "downloads_s": round(downloads_s, 1),
        "commands": len(newcomer.steps),
        "mismatches": verdict.mismatches,
        "compared": dict(verdict.compared),
        "examples": list(verdict.examples),
        "service_exit": status,
        "steps": newcomer.steps,
        "machine": machine(),
    }


def _offsets(client: Any) -> Any:
    return json.loads(client.hget(f"{PREFIX}:progress", "offsets") or "{}").get(TOPIC)


def _passes(report: Mapping[str, Any]) -> bool:
    return report["service_exit"] == 0 and all(report[name] <= limit for name, limit in LIMITS.items())


def main(argv: Sequence[str] | None = None) -> int:
    """0 within LIMITS, 1 outside of them, an error's own status if there is no result."""
    parser = argparse.ArgumentParser(prog="make newcomer", description="From the wheels and a topic to a value.")
    parser.add_argument("--wheels", type=Path, required=True, metavar="FOLDER", help="the wheels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the report")
    args = parser.parse_args(argv)
    return reported(lambda: measure(args.wheels), args.json, _passes)


if __name__ == "__main__":
    sys.exit(main())
