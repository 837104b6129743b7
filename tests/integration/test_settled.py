"""Rows that are written with hardly a look at what is stored, and the terms in which that is allowed."""

import pytest

from schemas import contract
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

DEVICES = [f"d{number}" for number in range(40)]


@pytest.fixture
def world(parts: Parts) -> World:
    return World(*parts)


def readings(second: int) -> list[Record]:
    """One of each device."""
    return [reading(device, second, 20.0) for device in DEVICES]


class Continued:
    """A term that goes on where the last one was, batch by batch."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.epoch += 1
        world.redis.set(world.key("epoch"), world.epoch)
        republisher = world.republisher()
        republisher.begin()
        self.term = republisher.term

    def reads(self, *records: Record) -> int:
        """Of how many keys some fields are read to publish a batch of these."""

        def calls() -> int:
            return int(self.world.redis.info("commandstats").get("cmdstat_hmget", {"calls": 0})["calls"])

        before = calls()
        self.world.publish(self.term.published, *records, settled_ms=self.term.settled_ms)
        return calls() - before


@pytest.mark.thorough
def test_rows_are_read_until_every_window_of_the_terms_before_is_closed(world: World) -> None:
    """A device has three rows: a window, a session and itself. The longest window has two minutes."""
    world.term(*readings(0), *readings(10))
    term = Continued(world)
    # The last window of before ends at two minutes, so it takes a watermark of four.
    assert term.reads(*readings(100)) >= 3 * len(DEVICES)
    assert term.reads(*readings(270)) >= 3 * len(DEVICES), "the watermark before a batch decides"
    assert term.reads(*readings(280)) < len(DEVICES)
    assert term.reads(*readings(290)) < len(DEVICES)
    assert {world.window(device, 280)["count"] for device in DEVICES} == {"3"}
    assert contract.check(world.redis, world.prefix) == []


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["lost", "republish", "rebuild"])
def test_a_term_that_does_not_go_on_where_the_last_one_was_reads_all_rows(world: World, what: str) -> None:
    world.term(*readings(0), *readings(10))
    if what == "lost":
        world.lose("progress")
    else:
        world.redis.set(world.key(what), "asked 1" if what == "republish" else f"1 {BASE_MS} 1")
    term = Continued(world)
    assert term.term.settled_ms is None
    term.reads(*readings(900))
    assert term.reads(*readings(910)) >= 3 * len(DEVICES)
