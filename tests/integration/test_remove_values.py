"""`checkpoint init --remove-values` removes the keys of one prefix, also where other programs have keys below it."""

import os
import signal

import pyarrow as pa
import pytest

from load.servers.redis import Redis
from service import clock
from service.commands import offline
from service.commands.remove_values import remove_values
from service.publication import covered
from tests.integration.redis_target import Target
from tests.outputs import MINUTE, T0, changes, session, window

pytestmark = pytest.mark.integration


def rows() -> list[pa.RecordBatch]:
    return [window([1.0], "a:b"), changes([session("d:1", T0, last=T0 + 1, state="closed", reason="gap")])]


@pytest.mark.parametrize("kind", ["second", "device", "session", "window", "device:x"])
def test_the_keys_of_a_prefix_inside_the_prefix_stay(redis_server: Redis, prefix: str, kind: str) -> None:
    """Prefixes of two services may share their beginning, even one that reads like the name of a key."""
    other, own = Target(redis_server, f"{prefix}:{kind}"), Target(redis_server, prefix)
    for target in (other, own):
        target.write(1, *rows())
        target.sink(1, watermark_ms=T0 + 10 * MINUTE).progress()
    own.client.set(own.key("note"), "of another program")
    stay = {*own.client.scan_iter(f"{other.prefix}:*"), own.key("note")}
    told: list[str] = []
    remove_values(own.settings, told.append, dry=True)
    many = len(set(own.client.scan_iter(f"{prefix}:*")) - stay)
    assert told == [f"{many} keys under {prefix} would be removed"]
    remove_values(own.settings, told.append)
    assert set(own.client.scan_iter(f"{prefix}:*")) == stay | {own.key("epoch")}
    for each in (other, own):
        each.client.close()


def test_a_command_that_holds_the_lease_outlives_the_signal_that_has_a_service_read_its_settings(
    redis_server: Redis, prefix: str
) -> None:
    own, before = Target(redis_server, prefix), signal.getsignal(signal.SIGHUP)
    with offline.term(own.settings, print):
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is before
    own.client.close()


def test_what_redis_has_is_read_beside_the_keys_of_other_programs(redis_server: Redis, prefix: str) -> None:
    target = Target(redis_server, prefix)
    target.write(1, *rows())
    target.sink(1, watermark_ms=T0 + 10 * MINUTE).progress()
    for name in ("session:meta", "session:a:b", "window:meta", "window:a:b:c", "other:1"):
        target.client.hset(target.key(name), "end", "x")
    assert len(covered.read(target.settings, 2, before_ms=clock.now_ms() + 1, until_ms=None)[0].windows) == 1
    target.client.close()
