"""The comparison of a rebuild: the values under two prefixes, as publish.lua writes them."""

from collections.abc import Iterator
from typing import Any

import pytest

from load.servers.redis import Redis
from service.pipeline.batch_publisher import Sink
from service.publication.shadow import Shadow
from service.recompute import comparison
from service.recompute.comparison import Comparison
from service.settings import Settings
from tests.outputs import MINUTE, T0, changes, micro_batch, reject, session, settings, windows

pytestmark = pytest.mark.integration

WATERMARK = T0 + 20 * MINUTE


class Prefixes:
    """A service's prefix, and that of a rebuild."""

    def __init__(self, part: Redis, prefix: str) -> None:
        self.client: Any = part.client()
        self.service, self.own = settings(part.url, prefix), settings(part.url, f"{prefix}.rebuild")
        for each in (self.service, self.own):
            self.client.set(f"{each.redis.prefix}:epoch", 1)

    def publish(self, of: Settings, *rows: Any, watermark_ms: int = WATERMARK, shadow: Shadow | None = None) -> None:
        Sink(of, micro_batch(1), shadow=shadow).write(rows)
        Sink(of, micro_batch(1, watermark_ms=watermark_ms)).progress()

    def change(self, of: Settings, name: str, **fields: str) -> None:
        key = f"{of.redis.prefix}:{name}"
        assert self.client.exists(key)
        self.client.hset(key, mapping=fields)

    def compare(self, from_ms: int = 0) -> Comparison:
        return comparison.compare(self.service, self.own, from_ms)


@pytest.fixture
def prefixes(redis_server: Redis, prefix: str) -> Iterator[Prefixes]:
    made = Prefixes(redis_server, prefix)
    yield made
    made.client.close()


def rows(*, start: int = T0) -> list[Any]:
    """Two windows and a session that the watermark has closed, a window that is open."""
    last = start + 30_000
    closed = session(start=start, last=last, state="closed", reason="gap", closed_by="watermark", count=2)
    values = [("device_1m", "d1", start, [1.5, 2.5]), ("all_1m", "all", start, [1.5, 2.5, 3.0])]
    return [windows([*values, ("all_1m", "all", WATERMARK, [9.0])]), changes([closed])]


def test_equal_values_are_equal_though_their_last_digits_differ(prefixes: Prefixes) -> None:
    for each in (prefixes.service, prefixes.own):
        prefixes.publish(each, *rows())
    name = f"window:device_1m:temperature:d1:{T0}"
    prefixes.change(prefixes.own, name, sum="4.000000000001", mean="2.0000000000004", batch="7")
    prefixes.change(prefixes.own, f"window:all_1m:temperature:all:{WATERMARK}", count="2")  # open
    found = prefixes.compare()
    assert (dict(found.counts), found.differences) == ({"equal": 3}, 0)
    assert list(found.lines()) == ["compared 3 closed values: 3 equal"]


def test_every_kind_of_difference_is_counted_and_named(prefixes: Prefixes) -> None:
    prefixes.publish(prefixes.service, *rows(), *rows(start=T0 + MINUTE), *rows(start=T0 + 2 * MINUTE))
    prefixes.publish(prefixes.own, *rows(), *rows(start=T0 + MINUTE), *rows(start=T0 + 3 * MINUTE))
    device, every = (f"window:{view}:temperature:{key}:{T0}" for view, key in (("device_1m", "d1"), ("all_1m", "all")))
    prefixes.change(prefixes.own, device, count="3")
    prefixes.change(prefixes.service, every, count="4", revision="1")
    prefixes.change(prefixes.own, f"session:d1:{T0}", state="merged")
    found = prefixes.compare()
    assert dict(found.counts) == {"equal": 3, "corrected": 1, "different": 2, "lacking": 3, "additional": 3}
    assert found.differences == 8
    text = "\n".join(found.lines())
    assert "compared 12 closed values: 3 equal, 1 corrected, 2 different, 3 lacking, 3 additional" in text
    assert f"{device} is count 2, sum 4, mean 2" in text
    assert len(found.examples) == comparison.SHOWN


def test_what_one_of_them_cannot_have_is_not_compared(prefixes: Prefixes) -> None:
    """Readings before the rebuild's first record, values that have expired, or that only one watermark has passed."""
    old = T0 - 70 * MINUTE
    prefixes.publish(prefixes.service, *rows(), windows([("device_1m", "d1", old, [1.0])]))
    prefixes.publish(prefixes.own, watermark_ms=T0 + 30_000)
    assert prefixes.compare().compared == 0
    prefixes.publish(prefixes.own, watermark_ms=WATERMARK)
    assert dict(prefixes.compare().counts) == {"lacking": 3}
    assert prefixes.compare(T0 + 1).compared == 0


def test_expired_values_are_not_written_and_no_reject_is_copied(prefixes: Prefixes) -> None:
    now_ms = T0 + 61 * MINUTE
    shadow = Shadow.of(prefixes.own, now_ms)
    prefixes.publish(prefixes.own, *rows(), reject(), shadow=shadow)  # no Kafka answers
    names = {key.split(":", 1)[1].split(":")[0] for key in prefixes.client.scan_iter(f"{prefixes.own.redis.prefix}:*")}
    assert {"window", "session"} <= names
    kept = {key.split(":")[2] for key in prefixes.client.scan_iter(f"{prefixes.own.redis.prefix}:window:*")}
    assert kept == {"all_1m"}  # `device_1m` is kept for an hour
