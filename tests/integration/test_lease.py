"""One writer: the lease decides who may start, the epoch who may write. Real Redis, real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load.servers.redis import Redis
from load.servers.server_process import PATIENCE
from service.daemon.lease import Lease, Waiting
from service.errors import FencedError, SinkError
from service.pipeline.batch_publisher import Sink
from service.redis.link import EpochLostError
from tests.outputs import micro_batch, settings, window

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


class Writers:
    """Leases under one prefix, all released at the end."""

    def __init__(self, part: Redis, prefix: str) -> None:
        self.part, self.prefix = part, prefix
        self.client: Any = part.client()
        self._made: list[Lease] = []

    def lease(self, owner: str, ttl: str = "400 ms") -> Lease:
        made = Lease(settings(self.part.url, self.prefix, lease=ttl), owner)
        self._made.append(made)
        return made

    def write(self, batch: int, epoch: int) -> int:
        return (
            Sink(settings(self.part.url, self.prefix), micro_batch(batch, epoch)).write([window([1.0] * batch)]).written
        )

    def get(self, name: str) -> str | None:
        value: str | None = self.client.get(f"{self.prefix}:{name}")
        return value

    def close(self) -> None:
        for made in self._made:
            made.release()
        self.client.close()


@pytest.fixture
def writers(redis_server: Redis, prefix: str) -> Iterator[Writers]:
    made = Writers(redis_server, prefix)
    yield made
    made.close()


def test_every_term_has_a_larger_epoch(writers: Writers) -> None:
    lease = writers.lease("a")
    assert lease.acquire() == 1
    assert writers.get("lease") == lease.token
    assert lease.release()
    assert writers.get("lease") is None
    assert writers.lease("b").acquire() == 2
    assert writers.get("epoch") == "2"


def test_a_holder_that_is_provably_gone_is_not_waited_for(writers: Writers) -> None:
    killed = f"""
from service.daemon import owner
from service.daemon.lease import Lease
from tests.outputs import settings
lease = Lease(settings({writers.part.url!r}, {writers.prefix!r}, lease="1 h"), owner.here())
print(lease.acquire(), flush=True)
input()
"""
    command = [sys.executable, "-c", killed]
    stop = threading.Event()
    waits: list[Waiting] = []
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        threading.Timer(0.5, stop.set).start()
        assert writers.lease("too-early", "1 h").acquire(waits.append, stop) is None  # it lives
        assert waits
        waits.clear()
        holder.kill()
        holder.wait()

    assert writers.lease("successor", "1 h").acquire(waits.append) == 2
    assert waits == []


def test_a_second_writer_waits_and_is_told_for_whom(writers: Writers) -> None:
    first, second = writers.lease("first"), writers.lease("second")
    first.acquire()
    waits: list[Waiting] = []
    stop = threading.Event()

    def waiting(whom: Waiting) -> None:
        waits.append(whom)
        if len(waits) == 8:  # longer than a term: the first one's renewals keep it waiting
            stop.set()

    assert second.acquire(waiting, stop) is None
    assert {whom.holder for whom in waits} == {first.token}
    assert all(0 < whom.remaining_ms <= 400 for whom in waits)
    assert not first.lost.is_set()
    assert writers.get("epoch") == "1"


def test_a_released_lease_is_taken_at_once(writers: Writers) -> None:
    first, second = writers.lease("first", "30 s"), writers.lease("second", "300 ms")
    first.acquire()
    assert second.acquire(lambda _: first.release()) == 2
    assert first.release() is False, "it belongs to the second by now"
    assert writers.get("lease") == second.token


def test_a_lease_that_never_expires_is_no_one_s(writers: Writers) -> None:
    """It was copied into this Redis without its time to live. The epoch refuses its holder, if there is one."""
    holder = writers.lease("a", "30 s")
    epoch = holder.acquire()
    writers.client.persist(f"{writers.prefix}:lease")
    waiting: list[Waiting] = []
    assert writers.lease("b", "30 s").acquire(waiting.append, _after(5)) == 2
    assert waiting == []
    assert not holder.renew()
    assert epoch is not None
    with pytest.raises(FencedError):
        writers.write(1, epoch)


def _after(seconds: float) -> threading.Event:
    """Return an event that is set so much later."""
    event = threading.Event()
    timer = threading.Timer(seconds, event.set)
    timer.daemon = True
    timer.start()
    return event


def test_of_writers_that_start_together_one_goes_first_and_epochs_are_never_shared(writers: Writers) -> None:
    epochs: list[int] = []

    def term(lease: Lease) -> None:
        epoch = lease.acquire()
        assert epoch is not None
        epochs.append(epoch)
        lease.release()

    threads = [threading.Thread(target=term, args=(writers.lease(f"w{i}"),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs) == [1, 2, 3, 4, 5, 6]


def test_a_writer_that_died_is_followed_after_its_lease_has_expired(writers: Writers) -> None:
    writers.client.set(f"{writers.prefix}:lease", "dead:1234", px=300)
    writers.client.set(f"{writers.prefix}:epoch", 7)
    waits: list[Waiting] = []
    assert writers.lease("next").acquire(waits.append) == 8
    assert {whom.holder for whom in waits} == {"dead:1234"}


FROZEN = """
import sys
from tests.outputs import micro_batch, settings, window
from service.errors import TidemarkError
from service.daemon.lease import Lease
from service.pipeline.batch_publisher import Sink

url, prefix = sys.argv[1:]
configured = settings(url, prefix, lease="300 ms")
lease = Lease(configured, "frozen")
epoch = lease.acquire()
print("epoch", epoch, flush=True)
batch = 0
try:
    while True:
        batch += 1
        Sink(configured, micro_batch(batch, epoch)).write([window([1.0], f"key{batch}")])
        print("wrote", flush=True)
except TidemarkError as error:
    print("refused", error.code, batch, flush=True)
    lease.lost.wait(10)
    print("lost", lease.lost.is_set(), flush=True)
"""


def test_a_frozen_writer_is_followed_and_refused_when_it_wakes(writers: Writers) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FROZEN, writers.part.url, writers.prefix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "epoch 1\n"
            assert child.stdout.readline() == "wrote\n"
            os.kill(child.pid, signal.SIGSTOP)
            waits: list[Waiting] = []
            assert writers.lease("next").acquire(waits.append) == 2
            assert waits
            keys = set(writers.client.scan_iter(f"{writers.prefix}:window:*"))
            os.kill(child.pid, signal.SIGCONT)
            lines = child.communicate(timeout=30)[0].split("\n")
        finally:
            child.kill()
    refused = next(line for line in lines if line.startswith("refused"))
    assert refused.startswith("refused FENCED")
    assert "lost True" in lines
    # What it had sent before it was stopped may have arrived; what it sent afterwards has not.
    assert set(writers.client.scan_iter(f"{writers.prefix}:window:*")) == keys


def test_the_loser_learns_who_has_it(writers: Writers) -> None:
    lease = writers.lease("a")
    lease.acquire()
    writers.client.set(f"{writers.prefix}:lease", "b:1")
    assert lease.lost.wait(10 * PATIENCE)
    assert lease.reason == "b:1 holds it"


def test_a_newer_epoch_ends_the_term_and_its_writes(writers: Writers) -> None:
    lease = writers.lease("a")
    epoch = lease.acquire()
    assert epoch is not None
    writers.client.incr(f"{writers.prefix}:epoch")
    assert lease.lost.wait(10 * PATIENCE)
    assert lease.reason == "the epoch is 2"
    with pytest.raises(FencedError):
        writers.write(1, epoch)


def test_a_lease_that_expired_unclaimed_is_taken_again_in_the_same_term(writers: Writers) -> None:
    lease = writers.lease("a", "30 s")
    epoch = lease.acquire()
    writers.client.delete(f"{writers.prefix}:lease")
    assert lease.renew()
    assert writers.get("lease") == lease.token
    assert writers.get("epoch") == str(epoch)


def test_the_epoch_grows_also_when_redis_came_back_empty(tmp_path: Path) -> None:
    with Redis(tmp_path) as part:
        writers = Writers(part, "tidemark")
        lease = writers.lease("a")
        assert lease.acquire(at_least=11) == 12
        assert writers.write(1, 12) == 1
        part.kill()
        part.start()
        with pytest.raises(EpochLostError):
            writers.write(2, 12)
        assert lease.lost.wait(10 * PATIENCE)
        assert lease.reason == "the epoch is gone"
        assert lease.acquire(at_least=12) == 13
        assert not lease.lost.is_set()
        assert writers.write(2, 13) == 1
        writers.close()


def test_an_epoch_that_only_progress_remembers_is_passed_too(writers: Writers) -> None:
    writers.client.hset(f"{writers.prefix}:progress", "epoch", 40)
    assert writers.lease("a").acquire() == 41


def test_the_lease_survives_a_redis_that_was_away(tmp_path: Path) -> None:
    with Redis(tmp_path, appendonly=True, settings={"appendfsync": "always"}) as part:
        writers = Writers(part, "tidemark")
        lease = writers.lease("a")
        epoch = lease.acquire()
        assert epoch is not None
        part.kill()
        part.start()
        deadline = time.monotonic() + 10
        while writers.client.pttl("tidemark:lease") < 200 and time.monotonic() < deadline:
            assert not lease.lost.is_set()
        assert writers.get("lease") == lease.token
        assert writers.write(1, epoch) == 1
        writers.close()


def test_a_renewal_that_fails_by_any_error_is_followed_by_the_next(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that another thread has closed raises an AttributeError."""
    lease = writers.lease("a")
    lease.acquire()
    renewed, renew = threading.Event(), lease.renew

    def closed() -> bool:
        monkeypatch.setattr(lease, "renew", lambda: renewed.set() or renew())
        raise AttributeError("'NoneType' object has no attribute 'readline'")

    monkeypatch.setattr(lease, "renew", closed)
    assert renewed.wait(10 * PATIENCE)
    assert not lease.lost.is_set()


def test_without_redis_acquiring_fails_by_name_and_releasing_does_not(tmp_path: Path) -> None:
    part = Redis(tmp_path)
    lease = Lease(settings(part.url, retry_for="100 ms"), "a")
    with pytest.raises(SinkError, match=f"Redis at {part.address}/0, the lease"):
        lease.acquire()
    assert lease.release() is False
