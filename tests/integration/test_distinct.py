"""Duplicates on real parts: in a batch, in later ones, after restarts and losses, and read again; the oracle is asked."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load.testbed import to_toml
from service import failpoint, settings
from service.aggregation import seen_keys
from service.failpoint import InjectedError, Plan, Point
from service.recompute import correct
from service.rejects import reject_log
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record

pytestmark = [pytest.mark.integration, pytest.mark.spark]

INPUT = {"format": "json", "measures": {"temperature": "temperature"}, "columns": {"message": "message"}}
VIEWS = [{"name": "device", "by": ["device"], "window": "1 m"}, {"name": "total", "window": "none"}]
TIME = ["device", "event_time"]


def reading(device: str, seconds: int, temperature: float, message: str | None = None, at: int = -1) -> Record:
    fields = {"device_id": device, "event_time": BASE_MS + seconds * 1000, "temperature": temperature}
    value = json.dumps({**fields, "message": message}).encode()
    return Record(value, BASE_MS + (seconds if at < 0 else at) * 1000, device.encode())


class Distinct(World):
    def configure(self, **admission: Any) -> None:
        """Keys of [admission] from the next term on."""
        document = tomllib.loads(self.config.read_text(encoding="utf-8"))
        document["admission"] |= admission
        self.config.write_text(to_toml(document), encoding="utf-8")
        self.settings = settings.load(self.config)

    def duplicates(self) -> dict[tuple[int, int], str]:
        """The details of rejects that are duplicates, by place."""
        rejects = [each for each in reject_log.read(self.settings.kafka) if each.reason == "duplicate"]
        return {
            (each.place.partition, each.place.offset): each.detail.removeprefix("the same reading as ")
            for each in rejects
        }

    def count(self, device: str = "a") -> int:
        return int(self.window(device).get("count", 0))


@pytest.fixture
def world(parts: Parts) -> Iterator[Distinct]:
    admission = {"max_delay": "20 s", "max_ahead": "5 s", "distinct": TIME}
    made = Distinct(*parts, input=INPUT, views=VIEWS, admission=admission)
    yield made
    made.redis.close()
    failpoint._plan = None


def test_a_reading_counts_once_however_often_and_wherever_it_comes(world: Distinct) -> None:
    topic = world.topic
    # The places: 0@0, 1@0, 0@1, 1@1.
    world.term(reading("a", 0, 20.0), reading("b", 0, 1.0), reading("a", 0, 20.0), reading("a", 0, 20.0))
    assert world.duplicates() == {(0, 1): f"{topic}[0]@0", (1, 1): f"{topic}[0]@0"}
    world.term(reading("a", 1, 21.0), reading("b", 0, 1.0))
    world.term(reading("a", 0, 20.0), reading("a", 1, 21.0), reading("a", 2, 21.0))
    assert world.duplicates() == {
        (0, 1): f"{topic}[0]@0",
        (1, 1): f"{topic}[0]@0",
        (1, 2): f"{topic}[1]@0",
        (0, 3): f"{topic}[0]@0",
        (1, 3): f"{topic}[0]@2",
    }
    assert (world.count("a"), world.count("b")) == (3, 1)
    assert int(world.redis.hget(world.key("window:total:temperature:all:0"), "count")) == 4
    world.assert_right()


@pytest.mark.thorough
def test_a_batch_that_is_repeated_and_values_that_are_written_or_read_again_have_it_once(
    world: Distinct, tmp_path: Path
) -> None:
    world.term(reading("a", 0, 20.0), reading("b", 0, 1.0), reading("a", 0, 20.0))
    failpoint._plan = Plan((Point("after_publish_before_commit", 1, "raise"),), None)
    with pytest.raises(InjectedError):
        world.term(reading("a", 1, 21.0), reading("b", 1, 1.0), reading("a", 1, 21.0))
    failpoint._plan = None
    seen_keys._CACHE.clear()
    world.term(reading("a", 1, 21.0))
    world.term(reading("b", 200, 1.0), reading("b", 200, 1.0), reading("a", 200, 5.0), reading("a", 200, 5.0))
    assert len(world.duplicates()) == 5
    assert world.count("a") == 2
    world.assert_right()
    before = world.values()
    world.lose()
    world.term()
    assert world.values() == before
    world.begin_again(tmp_path / "again")
    world.term()
    assert world.count("a") == 2
    world.assert_right()


@pytest.mark.thorough
def test_a_late_copy_is_late_and_a_correction_does_not_count_it(world: Distinct) -> None:
    world.term(reading("a", 0, 20.0), reading("b", 0, 1.0))
    world.term(reading("b", 300, 1.0), reading("b", 301, 1.0))
    late = [reading("a", 0, 20.0, at=301), reading("a", 5, 30.0, at=301), reading("a", 5, 30.0, at=301)]
    world.term(*late, reading("b", 302, 1.0))
    assert not world.duplicates()
    report = correct.correct(world.settings, 0, None, print, spark=world.spark)
    assert (report.corrected, report.refused) == (1, 2)
    assert world.count("a") == 2
    assert correct.correct(world.settings, 0, None, print, spark=world.spark).corrected == 0
    assert world.count("a") == 2


@pytest.mark.thorough
def test_an_id_is_of_its_device_and_a_checkpoint_takes_it_on_and_off(world: Distinct) -> None:
    world.configure(distinct=[])
    world.term(reading("a", 0, 20.0, "m0"), reading("a", 0, 20.0, "m0"))
    assert (world.count("a"), world.duplicates()) == (2, {})
    world.configure(distinct="message")
    world.term(
        reading("a", 1, 20.0, "m1"),
        reading("b", 1, 20.0, "m1"),
        reading("a", 2, 20.0, "m1"),
        reading("a", 3, 20.0),
        reading("a", 3, 20.0),
        reading("a", 3, 20.0, "x" * 300),
        reading("a", 3, 20.0, "x" * 300),
    )
    assert list(world.duplicates().values()) == [f"{world.topic}[0]@1"]
    assert (world.count("a"), world.count("b")) == (7, 1)
    world.term(reading("a", 4, 20.0, "m1"), reading("a", 4, 20.0, "m2"))
    assert (world.count("a"), len(world.duplicates())) == (8, 2)
    world.configure(distinct=[])
    world.term(reading("a", 5, 20.0, "m1"), reading("a", 5, 20.0, "m2"))
    assert (world.count("a"), len(world.duplicates())) == (10, 2)
    assert not (Path(world.settings.service.checkpoint) / "distinct").exists()
