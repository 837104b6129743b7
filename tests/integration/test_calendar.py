"""A view of local days through a loss of Redis, a correction and a backfill: the oracle and the stream agree."""

import pytest

from service.recompute import backfill, correct
from tests.integration.test_correct import minutes
from tests.integration.world import VIEWS, Parts, World
from tests.stream.records import BASE_MS, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

DAY_MS = 86_400_000
EVENING_MS = BASE_MS + 60_000
"""Eight in the evening in Kathmandu, when the days of the view begin."""
NIGHT = {"name": "night", "by": ["device"], "window": "1 d", "time_zone": "Asia/Kathmandu", "offset": "20 h"}


@pytest.fixture
def world(parts: Parts) -> World:
    return World(*parts, views=[*VIEWS, NIGHT])


@pytest.mark.thorough
def test_a_closed_local_day_is_corrected_backfilled_and_published_again_as_the_stream_had_it(world: World) -> None:
    world.term(*minutes(0, 10), reading("d1", 30.5, 99.0, at=500), reading("n", 31, 5.0, at=500))
    world.assert_right()
    closed = f"window:night:temperature:d1:{EVENING_MS - DAY_MS}"
    value = world.hashes()[closed]
    assert (value["end"], value["closed_by"]) == (str(EVENING_MS), "watermark")
    assert value["local_start"] == "2026-09-20T20:00:00+05:45"
    assert world.redis.ttl(world.key(closed)) > DAY_MS // 1000

    before = world.values()
    world.lose()
    world.term()
    assert world.values() == before

    report = correct.correct(world.settings, 0, None, print, spark=world.spark)
    assert report.corrected == 2
    world.assert_right()
    after = world.hashes()[closed]
    assert (int(after["count"]), after["revision"]) == (int(value["count"]) + 1, "1")

    day = [
        name for name in world.hashes() if name.startswith("window:night:") and name.endswith(f":{EVENING_MS - DAY_MS}")
    ]
    assert len(day) > 3
    for name in day:
        world.redis.delete(world.key(name))
    span = EVENING_MS - DAY_MS, EVENING_MS
    done = backfill.backfill(world.settings, span, ["night"], print, spark=world.spark)
    assert done.windows == len(day)
    assert not done.unrecoverable.total()
    again = world.hashes()[closed]
    assert {name: again[name] for name in ("count", "sum", "min", "max", "local_start")} == {
        name: after[name] for name in ("count", "sum", "min", "max", "local_start")
    }
    world.assert_right()
