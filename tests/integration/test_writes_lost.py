"""A Redis that has lost writes is noticed by every call and by the lease, and is written to by none of them."""

import threading

import pytest

from load.servers.redis import Redis
from load.servers.server_process import PATIENCE
from service.daemon.lease import Lease
from service.pipeline.batch_publisher import Sink
from service.publication.policy import WritePolicy
from service.redis.link import EpochLostError, WritesLostError
from tests.integration.redis_target import WINDOW, Target, window_name
from tests.outputs import MINUTE, T0, changes, device, session, settings, window, windows

pytestmark = pytest.mark.integration


@pytest.fixture
def target(target: Target) -> Target:
    """The second term writes there."""
    target.begin_term(2)
    return target


def sink(target: Target, batch: int, after: tuple[int, int] | None = None, watermark_ms: int = 0) -> Sink:
    return target.sink(batch, WritePolicy.stream(after), epoch=2, watermark_ms=watermark_ms)


@pytest.mark.parametrize("progress", [None, (2, 4), (1, 9)], ids=["gone", "an older batch", "an older epoch"])
def test_no_step_is_carried_out_when_progress_is_behind_what_is_known(
    target: Target, progress: tuple[int, int] | None
) -> None:
    sink(target, 3).write([window([1.0])])
    target.is_broken_on_purpose = True
    if progress is not None:
        target.client.hset(target.key("progress"), mapping={"epoch": progress[0], "batch": progress[1]})
    before = {key: target.client.dump(key) for key in target.client.scan_iter(f"{target.prefix}:*")}
    of = sink(target, 6, after=(2, 5), watermark_ms=T0 + MINUTE)
    for step in (lambda: of.write([window([1.0, 2.0])]), of.count_skewed, of.progress):
        with pytest.raises(WritesLostError, match=r"there is no progress|progress is at batch") as caught:
            step()
        assert not isinstance(caught.value, EpochLostError)
    assert {key: target.client.dump(key) for key in target.client.scan_iter(f"{target.prefix}:*")} == before


@pytest.mark.parametrize("progress", [(2, 5), (2, 6), (3, 0)], ids=["level", "this batch before", "a newer epoch"])
def test_progress_that_is_level_or_ahead_is_no_loss(target: Target, progress: tuple[int, int]) -> None:
    target.is_broken_on_purpose = True
    target.client.hset(target.key("progress"), mapping={"epoch": progress[0], "batch": progress[1]})
    assert sink(target, 6, after=(2, 5)).write([window([1.0])]).written == 1


def test_what_the_watermark_has_passed_and_is_not_final_is_removed_and_announced(target: Target) -> None:
    sink(target, 1).write(
        [windows([("device_1m", f"d{i}", T0, [1.0]) for i in range(25)]), window([1.0], "d1", T0 + MINUTE)]
    )
    sink(target, 2).write([window([1.0], "final", T0 - MINUTE)])
    sink(target, 2, watermark_ms=T0).progress()
    before = len(target.feed())
    of = sink(target, 3, watermark_ms=T0 + MINUTE)
    assert of.scan("forget", "window", watermark=str(T0 + MINUTE)) == 25
    assert target.names("window") == {
        f"device_1m:temperature:d1:{T0 + MINUTE}",
        f"device_1m:temperature:final:{T0 - MINUTE}",
    }
    assert len(target.feed()) == before + 25
    assert of.scan("forget", "window", watermark=str(T0 + MINUTE)) == 0


def test_sessions_of_an_older_epoch_that_no_watermark_has_closed_are_removed_and_nothing_else(target: Target) -> None:
    target.begin_term(1)
    old = [session(f"d{i}") for i in range(35)] + [session("over", state="closed", reason="gap")]
    target.write(5, changes(old, [device()]))
    idle = [session(name, state="closed", reason="gap") for name in ("gone", "kept")]
    target.write(5, changes(idle), policy=WritePolicy.idle())
    target.begin_term(2)
    sink(target, 5).write([changes([session("d3"), session("kept"), session("d4", state="closed", reason="gap")])])
    target.client.hset(f"{target.prefix}2:session:d9:1", mapping={"state": "open", "epoch": 1})
    assert sink(target, 5).scan("stale", "session", before=2, last="") == 34
    assert target.names("session") == {f"{name}:{T0}" for name in ("d3", "d4", "kept", "over")}
    assert target.client.exists(f"{target.prefix}2:session:d9:1", target.key("device:d1")) == 2
    gone = [entry["key"] for _, entry in target.feed()][-34:]
    names = {"gone", *(f"d{i}" for i in range(35))} - {"d3", "d4"}
    assert set(gone) == {target.key(f"session:{name}:{T0}") for name in names}


def test_a_session_that_has_not_ended_long_enough_ago_is_no_stale_one(target: Target) -> None:
    target.begin_term(1)
    target.write(5, changes([session("d1"), session("d2", last=T0 + 1, count=2)]))
    target.begin_term(2)
    assert sink(target, 5).scan("stale", "session", before=2, last=str(T0 + 1)) == 1
    assert target.names("session") == {f"d2:{T0}"}


def test_a_mark_stays_until_the_one_who_set_it_takes_it_away(target: Target) -> None:
    of = sink(target, 3)
    assert of.run("read_progress")[0][5] == b""
    assert of.run("mark", mark="lost 17") == {0: [b"lost 17"]}
    assert of.run("mark", mark="asked 18") == {0: [b"lost 17"]}
    assert of.run("read_progress")[0][5] == b"lost 17"
    of.run("unmark", mark="asked 18")
    assert target.client.get(target.key("republish")) == "lost 17"
    of.run("unmark", mark="lost 17")
    assert target.client.get(target.key("republish")) is None


def test_a_value_of_the_past_is_final_if_the_watermark_has_passed_it(target: Target) -> None:
    later = T0 + 10 * MINUTE
    sink(target, 1).write([window([1.0])])  # less than there was, and not final
    sink(target, 4).scan("forget", "window", watermark=str(later))
    sink(target, 3, watermark_ms=later).progress()
    rows = [
        windows(
            [("device_1m", "d1", T0, [1.0, 2.0]), ("device_1m", "d2", T0, [3.0]), ("device_1m", "d1", later, [4.0])]
        ),
        changes([session(state="closed", reason="gap")], [device(status="offline", session=None)]),
    ]
    outcome = target.write(4, *rows, policy=WritePolicy.republish(), epoch=2, watermark_ms=later)
    assert (outcome.windows, outcome.sessions, outcome.devices, outcome.written) == (3, 1, 1, 5)
    names = [WINDOW, window_name("d2"), window_name(start=later)]
    assert [target.fields("count", "closed_by", of=name) for name in names] == [
        ("2", "watermark"),
        ("1", "watermark"),
        ("1", ""),
    ]
    kept_ms = [*map(target.left_ms, names)]
    # `retain` (1 h) from the window's end, at T0 + 1 min, plus max_ahead (10 s); the watermark is at T0 + 10 min.
    assert 0 <= kept_ms[0] - (3_600_000 - 9 * MINUTE) <= 10_000
    assert kept_ms[2] > 3_600_000 - 60_000
    again = target.write(4, *rows, policy=WritePolicy.republish(), epoch=2, watermark_ms=later)
    assert (again.written, again.refused_final) == (0, 0)


def test_a_running_batch_wins_over_a_value_of_the_past(target: Target) -> None:
    sink(target, 9).write([window([1.0, 2.0, 3.0]), changes([session(count=3)], [device(last_seen=T0 + 9)])])
    old = [window([1.0, 2.0]), changes([session(count=2)], [device(last_seen=T0 + 5)])]
    outcome = target.write(8, *old, policy=WritePolicy.republish(), epoch=2)
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
            reply = sink(target, 3).run_in(0, step, **({"mark": "lost 1"} if step == "mark" else {}))
            if len(reply) != (12 if step == "read_progress" else 1):
                wrong.append(reply)

    threads = [threading.Thread(target=ask, args=(step,)) for step in ("read_progress", "mark", "read_progress")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
