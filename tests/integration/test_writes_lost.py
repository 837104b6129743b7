"""A Redis that has lost writes is noticed by every call and by the lease, and is written to by none of them."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from load.judge import feed, published
from load.servers.redis import Redis
from load.servers.server_process import PATIENCE
from schemas import contract
from service.daemon.lease import Lease
from service.pipeline.batch_publisher import Sink
from service.publication.policy import WritePolicy
from service.redis.link import EpochLostError, WritesLostError
from tests.outputs import MINUTE, T0, changes, device, micro_batch, session, settings, window, windows

pytestmark = pytest.mark.integration

WINDOW = f"window:device_1m:temperature:d1:{T0}"


class Target:
    def __init__(self, part: Redis, prefix: str) -> None:
        self.prefix, self.settings = prefix, settings(part.url, prefix, chunk=10)
        self.client: Any = part.client()
        self.client.set(self.key("epoch"), 2)

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    def sink(
        self, batch: int, after: tuple[int, int] | None = None, watermark_ms: int = 0, *, republishing: bool = False
    ) -> Sink:
        policy = WritePolicy.republish() if republishing else WritePolicy.stream(after)
        return Sink(self.settings, micro_batch(batch, 2, watermark_ms), policy=policy)


@pytest.fixture
def target(redis_server: Redis, prefix: str) -> Iterator[Target]:
    made = Target(redis_server, prefix)
    yield made
    made.client.close()


@pytest.mark.parametrize("progress", [None, (2, 4), (1, 9)], ids=["gone", "an older batch", "an older epoch"])
def test_no_step_is_carried_out_when_progress_is_behind_what_is_known(
    target: Target, progress: tuple[int, int] | None
) -> None:
    target.sink(3).write([window([1.0])])
    if progress is not None:
        target.client.hset(target.key("progress"), mapping={"epoch": progress[0], "batch": progress[1]})
    before = {key: target.client.dump(key) for key in target.client.scan_iter(f"{target.prefix}:*")}
    sink = target.sink(6, after=(2, 5), watermark_ms=T0 + MINUTE)
    for step in (lambda: sink.write([window([1.0, 2.0])]), sink.count_skewed, sink.progress):
        with pytest.raises(WritesLostError, match=r"there is no progress|progress is at batch") as caught:
            step()
        assert not isinstance(caught.value, EpochLostError)
    assert {key: target.client.dump(key) for key in target.client.scan_iter(f"{target.prefix}:*")} == before


@pytest.mark.parametrize("progress", [(2, 5), (2, 6), (3, 0)], ids=["level", "this batch before", "a newer epoch"])
def test_progress_that_is_level_or_ahead_is_no_loss(target: Target, progress: tuple[int, int]) -> None:
    target.client.hset(target.key("progress"), mapping={"epoch": progress[0], "batch": progress[1]})
    assert target.sink(6, after=(2, 5)).write([window([1.0])]).written == 1


def test_what_the_watermark_has_passed_and_is_not_final_is_removed_and_announced(target: Target) -> None:
    target.sink(1).write(
        [windows([("device_1m", f"d{i}", T0, [1.0]) for i in range(25)]), window([1.0], "d1", T0 + MINUTE)]
    )
    target.sink(2).write([window([1.0], "final", T0 - MINUTE)])
    target.sink(2, watermark_ms=T0).progress()
    before = len(feed.changes(target.client, target.prefix))
    sink = target.sink(3, watermark_ms=T0 + MINUTE)
    assert sink.scan("forget", "window", watermark=str(T0 + MINUTE)) == 25
    left = {
        key.removeprefix(f"{target.prefix}:window:") for key in target.client.scan_iter(f"{target.prefix}:window:*")
    }
    assert left == {f"device_1m:temperature:d1:{T0 + MINUTE}", f"device_1m:temperature:final:{T0 - MINUTE}"}
    assert len(feed.changes(target.client, target.prefix)) == before + 25
    assert contract.check(target.client, target.prefix) == []
    assert sink.scan("forget", "window", watermark=str(T0 + MINUTE)) == 0


def test_sessions_of_an_older_epoch_that_no_watermark_has_closed_are_removed_and_nothing_else(target: Target) -> None:
    target.client.set(target.key("epoch"), 1)
    old = [session(f"d{i}") for i in range(35)] + [session("over", state="closed", reason="gap")]
    Sink(target.settings, micro_batch(5, 1)).write([changes(old, [device()])])
    idle = [session(name, state="closed", reason="gap") for name in ("gone", "kept")]
    Sink(target.settings, micro_batch(5, 1), policy=WritePolicy.idle()).write([changes(idle)])
    target.client.set(target.key("epoch"), 2)
    target.sink(5).write([changes([session("d3"), session("kept"), session("d4", state="closed", reason="gap")])])
    target.client.hset(f"{target.prefix}2:session:d9:1", mapping={"state": "open", "epoch": 1})
    assert target.sink(5).scan("stale", "session", before=2, last="") == 34
    left = {key.removeprefix(f"{target.prefix}:") for key in target.client.scan_iter(f"{target.prefix}:session:*")}
    assert left == {f"session:{name}:{T0}" for name in ("d3", "d4", "kept", "over")}
    assert target.client.exists(f"{target.prefix}2:session:d9:1", target.key("device:d1")) == 2
    gone = [entry["key"] for _, entry in feed.changes(target.client, target.prefix)][-34:]
    names = {"gone", *(f"d{i}" for i in range(35))} - {"d3", "d4"}
    assert set(gone) == {target.key(f"session:{name}:{T0}") for name in names}


def test_a_session_that_has_not_ended_long_enough_ago_is_no_stale_one(target: Target) -> None:
    target.client.set(target.key("epoch"), 1)
    Sink(target.settings, micro_batch(5, 1)).write([changes([session("d1"), session("d2", last=T0 + 1, count=2)])])
    target.client.set(target.key("epoch"), 2)
    assert target.sink(5).scan("stale", "session", before=2, last=str(T0 + 1)) == 1
    names = {
        key.removeprefix(f"{target.prefix}:session:") for key in target.client.scan_iter(f"{target.prefix}:session:*")
    }
    assert names == {f"d2:{T0}"}


def test_a_mark_stays_until_the_one_who_set_it_takes_it_away(target: Target) -> None:
    sink = target.sink(3)
    assert sink.run("read_progress")[0][5] == b""
    assert sink.run("mark", mark="lost 17") == {0: [b"lost 17"]}
    assert sink.run("mark", mark="asked 18") == {0: [b"lost 17"]}
    assert sink.run("read_progress")[0][5] == b"lost 17"
    assert contract.check(target.client, target.prefix) == []
    sink.run("unmark", mark="asked 18")
    assert target.client.get(target.key("republish")) == "lost 17"
    sink.run("unmark", mark="lost 17")
    assert target.client.get(target.key("republish")) is None


def test_a_value_of_the_past_is_final_if_the_watermark_has_passed_it(target: Target) -> None:
    later = T0 + 10 * MINUTE
    target.sink(1).write([window([1.0])])  # less than there was, and not final
    target.sink(4).scan("forget", "window", watermark=str(later))
    target.sink(3, watermark_ms=later).progress()
    rows = [
        windows(
            [("device_1m", "d1", T0, [1.0, 2.0]), ("device_1m", "d2", T0, [3.0]), ("device_1m", "d1", later, [4.0])]
        ),
        changes([session(state="closed", reason="gap")], [device(status="offline", session=None)]),
    ]
    outcome = target.sink(4, watermark_ms=later, republishing=True).write(rows)
    assert (outcome.windows, outcome.sessions, outcome.devices, outcome.written) == (3, 1, 1, 5)
    names = [WINDOW, WINDOW.replace(":d1:", ":d2:"), WINDOW.replace(str(T0), str(later))]
    values = [published.read(target.client, target.prefix, name) for name in names]
    closed = [(value["count"], value["closed_by"]) for value in values]
    assert closed == [("2", "watermark"), ("1", "watermark"), ("1", "")]
    kept_ms = [target.client.pttl(target.key(name)) for name in names]
    # `retain` (1 h) from the window's end, at T0 + 1 min, plus max_ahead (10 s); the watermark is at T0 + 10 min.
    assert 0 <= kept_ms[0] - (3_600_000 - 9 * MINUTE) <= 10_000
    assert kept_ms[2] > 3_600_000 - 60_000
    again = target.sink(4, watermark_ms=later, republishing=True).write(rows)
    assert (again.written, again.refused_final) == (0, 0)


def test_a_running_batch_wins_over_a_value_of_the_past(target: Target) -> None:
    target.sink(9).write([window([1.0, 2.0, 3.0]), changes([session(count=3)], [device(last_seen=T0 + 9)])])
    old = [window([1.0, 2.0]), changes([session(count=2)], [device(last_seen=T0 + 5)])]
    outcome = target.sink(8, republishing=True).write(old)
    assert (outcome.written, outcome.refused_old) == (0, 3)


def test_the_renewal_of_the_lease_finds_out_without_a_batch(redis_server: Redis, prefix: str) -> None:
    lease = Lease(settings(redis_server.url, prefix, lease="300 ms"), "a")
    epoch = lease.acquire()
    assert epoch is not None
    with redis_server.client() as client:
        client.hset(f"{prefix}:progress", mapping={"epoch": epoch, "batch": 7})
        lease.reached = epoch, 7
        assert lease.renew()
        client.hset(f"{prefix}:progress", "batch", 8)
        assert lease.renew()
        client.hset(f"{prefix}:progress", "batch", 6)
        assert lease.lost.wait(10 * PATIENCE)
        assert lease.reason == f"progress is at batch 6 of epoch {epoch}"
        lease.acquire(at_least=epoch)
        assert lease.renew(), "a new term knows of nothing yet"
        lease.reached = epoch + 1, 0
        client.delete(f"{prefix}:progress")
        assert lease.lost.wait(10 * PATIENCE)
        assert lease.reason == "progress is gone"
        lease.release()


def test_two_threads_take_turns_on_one_connection(target: Target) -> None:
    """The query's thread and the republisher's write with the same settings in one process."""
    wrong: list[object] = []

    def ask(step: str) -> None:
        for _ in range(300):
            reply = target.sink(3).run_in(0, step, **({"mark": "lost 1"} if step == "mark" else {}))
            if len(reply) != (12 if step == "read_progress" else 1):
                wrong.append(reply)

    threads = [threading.Thread(target=ask, args=(step,)) for step in ("read_progress", "mark", "read_progress")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
