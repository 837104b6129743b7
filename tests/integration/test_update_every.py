"""`update_every` in the service's own pass: open values wait in the state, and whatever ends the waiting has all of them."""

from typing import Any

import pytest

from service.pipeline.back_pressure import BatchLimit
from tests.integration import test_back_pressure as backlog
from tests.integration.test_silence import Quiet, what
from tests.integration.world import VIEWS, Parts
from tests.stream.records import BASE_MS, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

PACED: dict[str, Any] = {
    "views": [{**view, "update_every": "1 h"} for view in VIEWS],
    "sessions": {"update_every": "1 h"},
}


@pytest.fixture
def world(parts: Parts) -> Quiet:
    return Quiet(*parts, **PACED)


def waiting(world: Quiet) -> str | None:
    found: str | None = world.redis.hget(world.key("progress"), "waiting")
    return found


def test_open_values_wait_over_a_restart_and_finals_and_status_changes_are_written_at_once(world: Quiet) -> None:
    world.term(reading("a", 0))
    assert what(world.device("a"), "status", "last_seen") == ("online", str(BASE_MS)), "it is new"
    assert what(world.session("a", 0), "count") == ("1",)
    assert world.window("a") == {}
    assert waiting(world) == "3", "a window of the first view, two of the second"
    world.term(reading("a", 12))
    assert what(world.session("a", 0), "count") == ("1",)
    assert waiting(world) == "4"
    world.term(reading("b", 130))
    assert what(world.window("a"), "count", "closed_by") == ("2", "watermark"), (
        "what the watermark has passed is complete"
    )
    assert what(world.session("a", 0), "count", "state") == ("2", "closed")
    assert what(world.device("a"), "status", "last_seen") == ("offline", str(BASE_MS + 12_000))
    assert world.window("b", 130) == {}
    assert waiting(world) == "4", "three of b, and the two minutes from 0 s on, which are open"


@pytest.mark.thorough
def test_silence_writes_what_waits_before_it_closes_it_and_what_comes_after_it_is_written_at_once(world: Quiet) -> None:
    world.term(reading("a", 0), reading("b", 5))
    world.term(reading("a", 12), reading("b", 20))
    world.reached = world.epoch, int(world.redis.hget(world.key("progress"), "batch"))
    assert waiting(world) == "6"
    assert world.be_silent(BASE_MS + 60_000)
    assert waiting(world) is None
    assert what(world.window("a"), "count", "closed_by") == ("2", "idle")
    assert what(world.session("a", 0), "count", "state", "closed_by") == ("2", "closed", "idle")
    assert what(world.device("a"), "status", "last_seen") == ("offline", str(BASE_MS + 12_000))
    world.term(reading("a", 41, 30.0))
    assert what(world.window("a"), "count", "closed_by", "revision") == ("3", "", "1"), "a correction does not wait"
    assert what(world.session("a", 0), "count", "state", "revision") == ("3", "open", "1")
    assert what(world.session("b", 5), "count", "state", "closed_by", "revision") == ("2", "closed", "idle", "0")
    assert what(world.device("b"), "status") == ("offline",), "no reading of b has come"
    world.term(reading("c", 400))
    world.reached = world.epoch, int(world.redis.hget(world.key("progress"), "batch"))
    assert world.be_silent(BASE_MS + 900_000)
    world.assert_right()


@pytest.mark.thorough
def test_values_that_waited_when_redis_lost_its_data_are_published_from_the_state(world: Quiet) -> None:
    world.term(reading("a", 0))
    world.term(reading("a", 12))
    world.lose()
    world.term()
    assert what(world.window("a"), "count", "closed_by") == ("2", "")
    assert what(world.session("a", 0), "count") == ("2",)
    assert what(world.device("a"), "last_seen") == (str(BASE_MS + 12_000),)


@pytest.mark.thorough
def test_a_backlog_writes_open_values_when_it_is_nearly_read_and_finals_with_every_batch(parts: Parts) -> None:
    late = {"catch_up_update_every": "1 m"}
    world = Quiet(*parts, service=late)
    # 100 readings a minute, of two devices: each batch has one minute, and half of the last one is behind the watermark.
    world.send([reading("ab"[at % 2], 60 * at / 100) for at in range(350)])
    reports = backlog.run(world, parts.spark, BatchLimit(100, target_s=0))
    assert [report.micro_batch.rows for report in reports] == [100, 100, 100, 50]
    assert [report.outcome.waiting > 0 for report in reports] == [True, True, False, False]
    assert [report.outcome.windows for report in reports[:2]] == [0, 3], (
        "two of the first minute by device, one of both"
    )
    assert all(report.outcome.devices == 0 for report in reports[1:2]), "they were online before"
    world.assert_right()
