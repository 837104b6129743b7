"""Records that are arrays, on real parts: values, rejects with their index, corrections, losses, replays; the oracle is asked."""

import gzip
import json
from typing import Any

import pytest

from service import clock
from service.admission.arrays import NO_INDEX
from service.cli import main
from service.commands import replay
from service.recompute import correct
from service.rejects import marks, reject_log
from service.rejects.reject_log import Coordinates, Reject
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record

pytestmark = [pytest.mark.integration, pytest.mark.spark]

INPUT = {"format": "json", "array": True, "measures": {"temperature": "temperature"}}
VIEWS = [{"name": "device", "by": ["device"], "window": "1 m"}, {"name": "total", "window": "none"}]
NOW_MS = clock.now_ms()
BROKEN = gzip.compress(b"[{}]")[:-9]


def reading(device: str, seconds: int, temperature: Any = 20.0, base_ms: int = BASE_MS) -> bytes:
    fields = {"device_id": device, "event_time": base_ms + seconds * 1000, "temperature": temperature}
    return json.dumps(fields).encode()


def record(*readings: bytes, at: int = 0, base_ms: int = BASE_MS) -> Record:
    """A compressed array."""
    return Record(gzip.compress(b"[" + b",".join(readings) + b"]"), base_ms + at * 1000)


class Gateways(World):
    def rejects(self) -> dict[tuple[int, int, int], Reject]:
        return {
            (each.place.partition, each.place.offset, each.place.index): each
            for each in reject_log.read(self.settings.kafka)
        }


@pytest.fixture
def world(parts: Parts, request: pytest.FixtureRequest) -> Gateways:
    admission = getattr(request, "param", {"max_delay": "20 s", "max_ahead": "5 s"})
    return Gateways(*parts, input=INPUT, views=VIEWS, admission=admission)


@pytest.mark.thorough
def test_readings_of_arrays_are_values_rejects_and_corrections_each_with_its_place(world: Gateways) -> None:
    world.term(
        record(reading("a", 0), reading("a", 5, "hot"), reading("a", 4), reading("b", 1)),
        Record(reading("c", 2), BASE_MS),
        Record(b"[]", BASE_MS),
        Record(BROKEN, BASE_MS),
    )
    assert {place: each.reason for place, each in world.rejects().items()} == {
        (0, 0, 1): "undecodable",
        (1, 1, NO_INDEX): "undecodable",
    }
    assert world.rejects()[0, 0, 1].value == reading("a", 5, "hot")
    assert world.rejects()[1, 1, NO_INDEX].value == BROKEN
    assert (world.window("a")["count"], world.window("b")["count"], world.window("c")["count"]) == ("2", "1", "1")
    world.assert_right()
    world.term(record(reading("a", 300), at=300), record(reading("b", 300), at=300))
    late = record(reading("a", 302), reading("a", 8), b"{}", reading("c", 9), reading("b", 302), at=302)
    world.term(late, record(reading("b", 303), at=303))
    place = (0, 3)
    assert [world.rejects()[*place, index].reason for index in (1, 2, 3)] == ["late", "no_device", "late"]
    world.assert_right()
    before = world.values()
    world.lose()
    world.term()
    assert world.values() == before
    report = correct.correct(world.settings, 0, None, print, spark=world.spark)
    assert (report.corrected, report.refused) == (2, 0)
    known = {each.place: each.state for each in marks.read(world.settings.kafka).values()}
    assert known == {Coordinates(world.topic, *place, index): "corrected" for index in (1, 3)}
    assert (world.window("a")["count"], world.window("c")["count"]) == ("3", "2")
    world.assert_right()
    assert correct.correct(world.settings, 0, None, print, spark=world.spark).corrected == 0
    world.lose()
    world.term()
    assert (world.window("a")["count"], world.window("c")["count"]) == ("3", "2")
    world.assert_right()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "world", [{"max_delay": "1 h", "max_ahead": "1 h", "distinct": ["device", "event_time"]}], indirect=True
)
def test_a_rejected_reading_is_replayed_alone_and_once(world: Gateways, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = reading("a", 0, 20.0, NOW_MS), reading("a", 1, "hot", NOW_MS)
    world.term(record(good, bad, good, base_ms=NOW_MS), record(reading("b", 0, 1.0, NOW_MS), good, base_ms=NOW_MS))
    rejects = world.rejects()
    assert {place: each.reason for place, each in rejects.items()} == {
        (0, 0, 1): "undecodable",
        (0, 0, 2): "duplicate",
        (1, 0, 1): "duplicate",
    }
    assert rejects[0, 0, 2].detail == rejects[1, 0, 1].detail == f"the same reading as {world.topic}[0]@0#0"
    world.assert_right()
    place = f"{world.topic}[0]@0#1"
    assert main(["rejects", "list", "--config", str(world.config), "--json", "--reason", "undecodable"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["offset"], listed["index"], listed["bytes"]) == (0, 1, len(bad))
    assert main(["rejects", "show", "--config", str(world.config), place]) == 0
    assert 'temperature = "hot": expected a number' in capsys.readouterr().out
    mend = replay.Mend({"temperature": 21.5})
    for sent in (1, 0):
        chosen = [rejects[0, 0, 1]]
        counts = replay.replay(world.settings, chosen, mend, print, force=True)
        assert counts["sent"] == sent
    world.sent[0] += 1
    world.term(record(reading("b", 1, 1.0, NOW_MS), base_ms=NOW_MS))
    assert world.redis.hget(world.key("window:total:temperature:all:0"), "count") == "4"
    [at] = Coordinates.parse(place)
    assert marks.read(world.settings.kafka)[at].state == "replayed"
    world.assert_right()
