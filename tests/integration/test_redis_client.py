"""The password of Redis: any characters, read anew for each connection, never part of a URL."""

import socketserver
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
import redis

from load.servers.redis import Redis
from service import settings
from service.errors import SinkRefusedError
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.redis.link import Budget, Link, Place, require_answer

pytestmark = pytest.mark.integration

KEYS = Keys("tidemark")
FIRST, SECOND = "pa/ss9@:#?% ä", "another"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(FIRST + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("user", ["default@", "", "default:old@", ":old@"])
def test_a_password_file_replaces_the_password_of_the_url(tmp_path: Path, secret: Path, user: str) -> None:
    with Redis(tmp_path) as part, part.client() as admin:
        admin.config_set("requirepass", FIRST)
        url = part.url.replace("//", f"//{user}")
        given = settings.Redis.model_validate({"url": url, "password_file": secret})
        with redis_client.client(given, KEYS) as client:
            assert client.ping()
        budget = Budget(0, Place(redis_client.address(given), "a test"))
        link = Link(given, KEYS, b"return {1}", ())
        assert link.run([("step", b"")], budget) == [[1]]
        # The file is read for each connection: a new password needs no new process.
        admin.config_set("requirepass", SECOND)
        link.close()
        with pytest.raises(SinkRefusedError, match=r"Check redis\.url's user, redis\.password_file"):
            link.run([("step", b"")], budget)
        secret.write_text(SECOND)
        assert link.run([("step", b"")], budget) == [[1]]
        link.close()
        secret.unlink()
        with (
            redis_client.client(given, KEYS) as client,
            pytest.raises(redis.ConnectionError, match="secret cannot be read"),
        ):
            client.ping()


def test_a_refusal_has_its_own_remedy_and_is_no_missing_answer(tmp_path: Path, secret: Path) -> None:
    with Redis(tmp_path) as part, part.client() as admin:
        admin.config_set("requirepass", FIRST)
        secret.write_text(SECOND)
        for url, remedy in (
            (part.url, "Check redis.url's user"),
            (part.url.replace("/0", "/99"), "ends with a database"),
        ):
            given = settings.Redis.model_validate({"url": url, "password_file": secret})
            with pytest.raises(SinkRefusedError, match=remedy):
                require_answer(given)
            with pytest.raises(SinkRefusedError, match=remedy):
                Link(given, KEYS, b"return {1}", ()).run([("step", b"")], Budget(0, Place("here", "a test")))
            secret.write_text(FIRST)


def test_an_error_of_the_calls_is_none_of_redis_and_no_call_is_left_out(tmp_path: Path) -> None:
    def calls() -> Iterator[tuple[str, bytes]]:
        yield "step", b""
        raise FileNotFoundError(2, "No such file or directory", "snapshot.arrow")

    with Redis(tmp_path) as part:
        given = settings.Redis.model_validate({"url": part.url})
        link, budget = Link(given, KEYS, b"return {1}", ()), Budget(1_000, Place("here", "a test"))
        with pytest.raises(RuntimeError, match=r"cannot be made: .*snapshot\.arrow"):
            link.run(calls(), budget)
        assert (link.run([("step", b"")], budget), budget.retries) == ([[1]], 0)
        link.close()


class _Silent(socketserver.StreamRequestHandler):
    """Answers the commands of a login, and no other."""

    taken: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        for line in self.rfile:
            if line.strip() == b"CLIENT":
                self.wfile.write(b"+OK\r\n")
            elif line.strip() == b"INCRBY":
                self.taken.append(line)


def test_a_command_without_an_answer_is_sent_once() -> None:
    """redis-py repeats commands by default, an increment too: service/redis/link.py alone knows what may be repeated."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Silent) as server, ThreadPoolExecutor() as pool:
        serving = pool.submit(server.serve_forever, 0.05)
        url = f"redis://127.0.0.1:{server.server_address[1]}"
        given = settings.Redis.model_validate({"url": url, "timeout": "300 ms"})
        with redis_client.client(given, KEYS) as client, pytest.raises(redis.TimeoutError):
            client.incr("number")
        server.shutdown()
        serving.result()
    assert len(_Silent.taken) == 1
