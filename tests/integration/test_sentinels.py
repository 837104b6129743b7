"""A Redis that sentinels watch: the service and its readers follow the primary, and what a failover loses is published again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import ValidationError
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.sentinels import NAME, Sentinels
from service import settings
from service.errors import SinkError
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.redis.link import Budget, Link, Place
from tests.integration.world import World
from tests.stream.records import reading
from tidemark_client import AsyncClient, Client, UnavailableError
from tidemark_sql import question

pytestmark = pytest.mark.integration

KEYS = Keys("tidemark")
FIELDS = "epoch", "watermark", "final", "reference", "updated"
SECRET = "of-sentinels"  # noqa: S105


def of(url: str, **more: Any) -> settings.Redis:
    return settings.Redis.model_validate({"url": url, "retry_for": "30 s", **more})


def test_a_link_follows_the_primary_and_says_that_it_is_another(tmp_path: Path) -> None:
    password = tmp_path / "secret"
    password.write_text(SECRET, encoding="utf-8")
    with Sentinels(tmp_path, password=SECRET) as watched:
        given = of(watched.url, sentinel_password_file=password)
        link = Link(given, KEYS, b"return {redis.call('INCR', 'n')}", ())
        budget = Budget(given.retry_for_ms, Place(redis_client.address(given), "a test"))
        assert link.run([("step", b"")], budget) == [[1]]
        before = link.server(budget)
        with watched.client() as client:
            assert client.wait(1, 10_000) == 1
        watched.primary.kill()
        assert link.run([("step", b"")], budget) == [[2]], "retried until the replica is the primary"
        assert link.server(budget) != before
        with pytest.raises(SinkError, match="failed over"):
            link.run([("step", b"")], budget, before)
        link.close()


@pytest.mark.thorough
@pytest.mark.spark
def test_what_a_failover_loses_is_published_again(
    spark: SparkSession, broker_server: Broker, tmp_path: Path, prefix: str
) -> None:
    with Sentinels(tmp_path) as watched:
        server: Any = watched
        world = World(spark, broker_server, server, tmp_path, prefix, redis={"retry_for": "60 s"})
        world.term(reading("a", 0), reading("b", 10))
        watched.freeze_replica()
        world.term(reading("a", 700), reading("b", 705))
        watched.primary.kill()
        watched.replica.resume()
        watched.wait_failed_over()
        with Client.from_url(watched.url, prefix) as reader:
            progress = reader.progress()
            assert progress is not None
            assert progress.batch == 0, "the replica lacks the second term"
        world.term(reading("a", 710), reading("b", 715))
        assert world.lost == 1
        world.assert_right()
        world.redis.close()


@pytest.mark.thorough
def test_readers_follow_the_primary(tmp_path: Path) -> None:
    with Sentinels(tmp_path) as watched:
        with watched.client() as admin:
            admin.hset("tidemark:progress", mapping={**dict.fromkeys(FIELDS, 1), "batch": 4, "offsets": "{}"})
            assert admin.wait(1, 10_000) == 1

        async def asked() -> int:
            async with AsyncClient.from_url(watched.url) as client:
                progress = await client.progress()
                assert progress is not None
                return progress.batch

        with Client.from_url(watched.url) as client, question._client(of(watched.url)) as of_sql:
            for _ in range(2):
                progress = client.progress()
                assert progress is not None
                assert (progress.batch, of_sql.progress()) == (4, progress)
                assert asyncio.run(asked()) == 4
                if watched.primary is watched.nodes[0]:
                    watched.primary.kill()
                    watched.wait_failed_over()


@pytest.mark.thorough
def test_errors_name_the_sentinels_the_primary_and_the_remedy(tmp_path: Path) -> None:
    with Sentinels(tmp_path, password=SECRET) as watched:
        password = tmp_path / "secret"
        password.write_text(SECRET, encoding="utf-8")
        cases = [
            (
                of(watched.url.replace(NAME, "another"), sentinel_password_file=password),
                "no sentinel names the primary of another: 127.0.0.1:[0-9]+: does not know it; 127",
            ),
            (of(watched.url), "127.0.0.1:[0-9]+: Authentication required; 127"),
            (
                of(f"redis+sentinel://127.0.0.1:1/{NAME}"),
                f"{NAME}/0 of the sentinels 127.0.0.1:1, a test: no sentinel names the primary of {NAME}: 127.0.0.1:1: Error 111",
            ),
        ]
        for given, text in cases:
            budget = Budget(0, Place(redis_client.address(given), "a test"))
            with pytest.raises(SinkError, match=text) as error:
                Link(given, KEYS, b"return {1}", ()).server(budget)
            assert "Check the sentinels and the name in redis.url" in error.value.remedy
        with Client.from_url(watched.url) as client, pytest.raises(UnavailableError, match=f"primary {NAME}") as away:
            client.progress()
        assert len(str(away.value)) < 500, away.value
        with Client.from_url(watched.url, sentinel_kwargs={"password": SECRET}) as client:
            assert client.progress() is None


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"url": "redis+sentinel://a:26379"}, "redis\\+sentinel://user@host1:26379"),
        ({"url": "redis+sentinel://a/name", "cluster": True, "shards": 4}, "cluster = true is not for"),
        ({"url": "redis://a", "sentinel_password_file": "secret"}, "sentinel_password_file is for a url of sentinels"),
        ({"url": "redis://a,b"}, "names several hosts"),
    ],
)
def test_settings_that_do_not_fit_are_refused(document: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        settings.Redis.model_validate(document)


def test_a_connection_has_the_login_database_and_encryption_of_the_url() -> None:
    given = of("rediss+sentinel://user:pa%2Fss@[::1]:1,b/name/3?health_check_interval=7")
    pool: Any = redis_client.client(given, KEYS).connection_pool
    assert redis_client.address(given) == "name/3 of the sentinels [::1]:1,b:26379"
    options = pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("user", "pa/ss", 3)
    assert options["health_check_interval"] == 7
    assert issubclass(pool.connection_class, redis.SSLConnection)
    assert "password" not in pool.sentinel_manager.sentinel_kwargs
