"""The users that docs/operator/redis.md creates may do what they are for, and no more. A real Redis."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as Client
from redis.exceptions import NoPermissionError

from load.servers.redis import Redis
from service.commands import check
from service.daemon.lease import Lease
from service.pipeline.batch_publisher import Sink
from service.publication import meta
from service.settings import Settings
from tests.outputs import micro_batch, settings, window
from tidemark_client import Client as Reader

pytestmark = pytest.mark.integration
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operator" / "redis.md"
ACL = dict(re.findall(r"^ +ACL SETUSER (\w+) (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.fixture
def users(redis_server: Redis, prefix: str) -> Iterator[Redis]:
    """The page's users, on a prefix of the test's own."""
    with redis_server.client() as client:
        for name, rules in ACL.items():
            client.execute_command("ACL", "SETUSER", name, *rules.replace("tidemark:", f"{prefix}:").split())
        yield redis_server
        client.acl_deluser(*ACL)


def url(server: Redis, user: str) -> str:
    return server.url.replace("redis://", f"redis://{user}:secret@")


def as_user(server: Redis, user: str, prefix: str) -> Settings:
    return settings(url(server, user), prefix)


def test_the_page_has_a_user_for_the_service_and_one_for_readers() -> None:
    assert list(ACL) == ["tidemark", "app"]


def test_the_service_starts_and_publishes_and_its_reader_reads_and_writes_nothing(users: Redis, prefix: str) -> None:
    service = as_user(users, "tidemark", prefix)
    assert [line.status for line in check._redis(service) if line.name == "redis"] == ["ok"]
    lease = Lease(service, "a")
    assert lease.acquire() == 1
    assert Sink(service, micro_batch(1, 1)).write([window([1.0])]).written == 1
    with Client.from_url(url(users, "tidemark")) as client:
        client.set(f"{prefix}:meta", meta.meta(service))
    meta.require_stored(service.redis)
    assert lease.release()
    with Reader.from_url(url(users, "app"), prefix=prefix) as reader:
        assert reader.views()
    with Client.from_url(url(users, "app")) as client, pytest.raises(NoPermissionError):
        client.set(f"{prefix}:epoch", 9)
