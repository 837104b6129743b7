"""Views without windows on real parts: what is late, lost, read again, added and removed; the oracle is asked."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from load.testbed import to_toml
from service import settings
from service.errors import SinkRefusedError
from service.recompute import correct
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

DEVICE = {"name": "device", "by": ["device"], "window": "1 m"}
TOTAL = {"name": "total", "by": ["device"], "window": "none", "statistics": ["count", "mean", "max", "first", "p95"]}
EVER = {"name": "ever", "window": "none"}
MAX_AHEAD_MS = 5_000


class Endless(World):
    def configure(self, *views: dict[str, Any]) -> None:
        """The views from the next term on."""
        document = tomllib.loads(self.config.read_text(encoding="utf-8"))
        self.config.write_text(to_toml({**document, "views": list(views)}), encoding="utf-8")
        self.settings = settings.load(self.config)

    def total(self, key: str, view: str = "total") -> dict[str, str]:
        stored: dict[str, str] = self.redis.hgetall(self.key(f"window:{view}:temperature:{key}:0"))
        return stored

    def count(self, key: str, view: str = "total") -> int:
        return int(self.total(key, view).get("count", 0))


@pytest.fixture
def world(parts: Parts) -> Endless:
    return Endless(*parts, views=[DEVICE, TOTAL, EVER])


@pytest.mark.thorough
def test_late_readings_are_rejected_and_count_at_once_and_a_correction_does_not_add_them_again(world: Endless) -> None:
    world.term(reading("a", 0, 20.0), reading("a", 5, 22.0))
    world.term(reading("b", 230, 1.0), reading("b", 231, 2.0))
    world.term(reading("a", 10, 50.0, at=200), reading("a", 174, 60.0, at=190))
    assert (world.count("a"), world.count("b"), world.count("all", "ever")) == (4, 2, 6)
    assert world.total("a")["complete_from"] == "0"
    assert float(world.total("a")["max"]) == 60.0
    assert world.window("a")["count"] == "2"
    assert world.redis.pttl(world.key("window:total:temperature:a:0")) == -1
    world.assert_right()
    before = world.total("a")
    # Only the two windows of the view `device`: totals have the late readings already.
    planned = correct.correct(world.settings, 0, None, print, dry=True, spark=world.spark)
    assert (planned.windows, planned.unrecoverable.total()) == (2, 0)
    assert correct.correct(world.settings, 0, None, print, spark=world.spark).corrected == 2
    assert world.window("a")["count"] == "3"
    assert world.total("a") == before
    world.assert_right()


@pytest.mark.thorough
def test_what_redis_loses_and_what_is_read_again_is_as_it_was(world: Endless, tmp_path: Path) -> None:
    world.term(reading("a", 0, 20.0), reading("b", 5, 22.0))
    world.term(reading("b", 200, 1.0), reading("a", 10, 50.0, at=200))
    before = world.values()
    assert world.count("a") == 2
    world.lose()
    world.term()
    assert world.values() == before
    world.begin_again(tmp_path / "again")
    world.term()
    assert {name: each for name, each in world.values().items() if "total" in name or "ever" in name} == {
        name: each for name, each in before.items() if "total" in name or "ever" in name
    }
    world.term(reading("a", 201, 3.0))
    assert (world.count("a"), world.count("all", "ever")) == (3, 5)
    world.assert_right()


@pytest.mark.thorough
def test_a_view_has_all_readings_since_its_first_batch_and_goes_with_the_batch_after_its_last(world: Endless) -> None:
    world.configure(DEVICE)
    world.term(reading("a", 0, 20.0), reading("a", 1, 20.0))
    world.configure(DEVICE, TOTAL)
    world.term(reading("a", 30, 21.0), reading("a", 31, 23.0))
    assert world.count("a") == 2
    began = int(world.total("a")["complete_from"])
    assert began == BASE_MS + 31_000 + MAX_AHEAD_MS + 1
    world.term(reading("a", 32, 21.0))
    assert (world.count("a"), int(world.total("a")["complete_from"])) == (3, began)
    world.configure(DEVICE)
    world.term(reading("a", 40, 21.0), reading("a", 41, 21.0))
    assert world.count("a") == 3
    world.term(reading("a", 42, 21.0), reading("a", 43, 21.0))
    assert not world.total("a")
    assert not world.redis.exists(world.key("keys:total"))
    world.configure(DEVICE, TOTAL)
    world.term(reading("a", 50, 21.0), reading("a", 51, 21.0))
    assert world.count("a") == 2
    assert int(world.total("a")["complete_from"]) > began


@pytest.mark.thorough
def test_no_value_of_a_view_stays_when_its_measures_end_one_after_the_other(world: Endless) -> None:
    document = tomllib.loads(world.config.read_text(encoding="utf-8"))
    document["input"]["measures"]["humidity"] = "humidity"
    world.config.write_text(to_toml(document), encoding="utf-8")
    both = {**TOTAL, "measures": ["temperature", "humidity"]}
    for number, views in enumerate(([both], [{**TOTAL, "measures": ["humidity"]}], [], [])):
        world.configure(DEVICE, *views)
        world.term(reading("a", number, 20.0, humidity=40.0))
    assert list(world.redis.scan_iter(world.key("window:total:*"))) == []
    assert not world.redis.exists(world.key("keys:total"))


def test_a_view_does_not_lose_its_windows_or_get_some_under_its_name(world: Endless) -> None:
    world.term(reading("a", 0, 20.0))
    world.configure({**TOTAL, "window": "1 m"})
    with pytest.raises(
        SinkRefusedError, match=r"views\.total is 1 m by device, its published windows are without windows"
    ):
        world.term()
    world.configure({**DEVICE, "window": "none"}, TOTAL)
    with pytest.raises(
        SinkRefusedError, match=r"views\.device is without windows by device, its published windows are 1 m"
    ):
        world.term()


@pytest.mark.thorough
def test_a_checkpoint_behind_deleted_records_has_complete_from(world: Endless, tmp_path: Path) -> None:
    world.term(*(reading("a", second, 20.0) for second in range(6)))
    assert (world.count("a"), world.total("a")["complete_from"]) == (6, "0")
    for future in world.broker.admin.delete_records([TopicPartition(world.topic, p, 2) for p in (0, 1)]).values():
        future.result(10)
    world.begin_again(tmp_path / "again")
    world.term()
    world.term(reading("a", 7, 20.0), reading("a", 8, 20.0))
    assert world.count("a") == 4
    assert int(world.total("a")["complete_from"]) == BASE_MS + 5_000 + MAX_AHEAD_MS + 1
