"""`tidemark checkpoint reshape` on real parts: the state goes on in other buckets, and the oracle finds no difference."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service import failpoint
from service.checkpoint import manifest, resume, shape
from service.cli import main
from service.commands import offline, reshape, verify
from service.daemon.lease import Lease
from service.errors import CheckpointError, FencedError, SettingsError
from service.failpoint import InjectedError, Plan, Point
from service.rejects import reject_log
from service.spark.files import Local, local
from state import distribution, reader
from state.distribution import Digest
from tests.integration.world import World
from tests.stream.records import Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

VIEWS = [
    {"name": "device", "by": ["device"], "window": "1 m"},
    {"name": "all", "window": "2 m", "slide": "1 m", "retain": "2 h"},
    {"name": "total", "by": ["device"], "window": "none"},
]
DEVICES = 40


class Reshaped(World):
    """Its terms begin as the service's do: with the checks of the checkpoint, and the numbers that it has."""

    def begins(self) -> None:
        unset = self.settings.model_copy(
            update={"sessions": self.settings.sessions.model_copy(update={"buckets": None})}
        )
        self.settings = resume.with_buckets(self.spark, unset)
        resume.prepare(self.spark, self.settings)

    def runs(self, *records: Record) -> None:
        """A term that is stopped when all is read."""
        self.begins()
        self.epoch = int(self.redis.get(self.key("epoch")) or 0)
        self.term(*records)

    def command(self, *arguments: str) -> int:
        return main(["checkpoint", "reshape", "--config", str(self.config), *arguments])

    def batch(self) -> int:
        return max(int(path.name) for path in (self.folder / "checkpoint/commits").glob("[0-9]*"))

    def shape(self) -> tuple[int, int, set[int]]:
        """Buckets and partitions as the manifest has them, and the buckets that are in the state."""
        stored = manifest.DOCUMENT.required(Local(self.folder / "checkpoint"))
        return *shape.of_manifest(stored), {bucket for bucket, _ in self.states()}

    def states(self) -> list[tuple[int, Any]]:
        return list(reader.states(self.spark, self.settings.service.checkpoint, self.batch()))

    def digest(self) -> Digest:
        return distribution.digest([state for _, state in self.states()])


def readings(seconds: float, copies: int = 1) -> list[Record]:
    """One of each device; in sessions that last, and of some devices that are new each time."""
    names = [f"d{n}" for n in range(DEVICES)] + [f"new-{seconds}-{n}" for n in range(5)]
    return [reading(name, seconds, 20.0 + n / 8) for n, name in enumerate(names) for _ in range(copies)]


@pytest.fixture
def world(
    shared_spark: SparkSession, broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str
) -> Iterator[Reshaped]:
    admission = {"max_delay": "20 s", "max_ahead": "5 s", "distinct": ["device", "event_time"]}
    sections: dict[str, Any] = {"views": VIEWS, "admission": admission, "sessions": {"gap": "30 s", "buckets": 2}}
    made = Reshaped(shared_spark, broker_server, redis_server, tmp_path, prefix, **sections)
    before = shared_spark.conf.get("spark.sql.shuffle.partitions")
    shared_spark.conf.set("spark.sql.shuffle.partitions", "2")
    resume.prepare(shared_spark, made.settings)
    made.term(*readings(0), *readings(25, copies=2))
    yield made
    failpoint._plan = None
    shared_spark.conf.set("spark.sql.shuffle.partitions", before or "2")
    made.redis.close()


def copied(world: Reshaped) -> int:
    return sum(each.reason == "duplicate" for each in reject_log.read(world.settings.kafka))


@pytest.mark.thorough
def test_a_checkpoint_goes_on_in_8_buckets_and_then_in_3_without_a_difference(
    world: Reshaped, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = world.digest()
    assert (world.shape(), whole.devices, copied(world)) == ((2, 2, {0, 1}), DEVICES + 10, DEVICES + 5)
    assert world.command("--buckets", "8") == 0
    assert "has 8 buckets, 8 shuffle partitions; read back: 50 devices" in capsys.readouterr().out
    assert world.shape() == (8, 8, set(range(8)))
    assert world.digest() == whole
    # Copies of readings that were read in other buckets are still copies, and sessions go on.
    world.runs(*readings(25), *readings(50))
    assert copied(world) == 2 * (DEVICES + 5)
    world.assert_right()
    assert world.command("--buckets", "3", "--partitions", "2") == 0
    world.runs(*readings(50), *readings(75))
    world.runs(*readings(75), *readings(300))
    assert world.shape() == (3, 2, {0, 1, 2})
    assert verify.verify(world.spark, world.settings).damage == {}
    assert copied(world) == 4 * (DEVICES + 5)
    assert world.assert_right().compared["sessions"] > DEVICES
    assert world.command("--forget") == 0
    assert sorted(path.name for path in (world.folder / "checkpoint/state/0").glob("[0-9]*")) == ["0", "1"]
    assert not list((world.folder / "checkpoint/reshape").glob("*"))


@pytest.mark.thorough
def test_a_batch_that_was_begun_is_repeated_in_the_other_buckets(world: Reshaped) -> None:
    failpoint._plan = Plan((Point("after_publish_before_commit", 1, "raise"),), None)
    with pytest.raises(InjectedError):
        world.runs(*readings(50))
    failpoint._plan = None
    began = world.batch() + 1
    offsets = world.folder / f"checkpoint/offsets/{began}"
    before = offsets.read_text().split("\n")
    assert world.command("--buckets", "6") == 0
    assert offsets.read_text().split("\n")[2:] == before[2:]
    world.runs(*readings(50))
    assert world.batch() >= began
    assert copied(world) == 2 * (DEVICES + 5)
    world.assert_right()


@pytest.mark.thorough
def test_a_reshape_that_is_interrupted_leaves_a_checkpoint_that_goes_on(world: Reshaped) -> None:
    whole, sizes = world.digest(), {"reshape_staged": 2, "reshape_begun": 7, "reshape_half": 3}
    for point, buckets in sizes.items():
        failpoint._plan = Plan((Point(point, 1, "raise"),), None)
        assert world.command("--buckets", "3" if point == "reshape_half" else "7") == InjectedError.status
        failpoint._plan = None
        if point != "reshape_staged":
            with pytest.raises(CheckpointError, match=r"interrupted.*each of them finishes it"):
                manifest.shown(Local(local(world.settings.service.checkpoint)))
        world.begins()
        assert (point, world.shape()[0]) == (point, buckets)
        assert world.digest() == whole
    world.runs(*readings(25), *readings(300))
    assert world.shape()[:2] == (3, 3)
    world.assert_right()
    assert copied(world) == 2 * (DEVICES + 5)


def refused(world: Reshaped, capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    folder = world.folder / "checkpoint"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert world.command(*arguments) == status
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "reshape" not in path.parts}
    assert before.items() >= after.items()
    assert after
    return capsys.readouterr().err


@pytest.mark.thorough
def test_a_reshape_is_undone_until_a_batch_is_committed_and_refused_where_it_cannot_be(
    world: Reshaped, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = world.digest()
    assert "there is no reshape to undo" in refused(world, capsys, CheckpointError.status, "--undo")
    assert "--buckets 0 is not from 1 to 4096" in refused(world, capsys, SettingsError.status, "--buckets", "0")
    wrong = refused(world, capsys, SettingsError.status, "--buckets", "4", "--partitions", "5")
    assert "--partitions 5 is not from 1 to 4" in wrong
    monkeypatch.setattr(offline, "WAIT_S", 1.0)
    lease = Lease(world.settings, "another:1:2:3")
    assert lease.acquire() is not None
    try:
        assert "holds the lease: the service runs" in refused(world, capsys, FencedError.status, "--buckets", "4")
    finally:
        lease.release()
    assert world.command("--buckets", "2", "--partitions", "2") == 0
    assert "has 2 buckets, 2 shuffle partitions already" in capsys.readouterr().out
    assert world.command("--buckets", "5", "--partitions", "3") == 0
    assert world.shape()[:2] == (5, 3)
    assert world.command("--undo") == 0
    assert world.shape() == (2, 2, {0, 1})
    assert world.digest() == whole
    world.runs(*readings(25), *readings(50))
    world.assert_right()
    assert copied(world) == 2 * (DEVICES + 5)
    assert world.command("--buckets", "4") == 0
    world.runs(*readings(75))
    error = refused(world, capsys, CheckpointError.status, "--undo")
    assert "is committed, and the reshape was after batch" in error
    assert "--buckets 2" in error
    world.assert_right()


def test_a_state_that_comes_back_with_a_difference_is_not_used(
    world: Reshaped, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = reshape.Reshaping._write

    def without_a_bucket(self: Any, states: Any, target: Any) -> None:
        write(self, dict(list(states.items())[1:]), target)

    monkeypatch.setattr(reshape.Reshaping, "_write", without_a_bucket)
    assert "which are not the 50 devices" in refused(world, capsys, CheckpointError.status, "--buckets", "4")
    assert world.shape() == (2, 2, {0, 1})
