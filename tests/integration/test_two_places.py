"""A reject that is sent again has two places in its topic, and counts once on every way to the past."""

import json
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from load.testbed import to_toml
from service import clock, settings
from service.commands import replay
from service.commands.replay import Mend
from service.recompute import backfill, correct
from service.rejects import marks, reject_log
from service.rejects.marks import Mark
from service.rejects.reject_log import Coordinates
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

NARROW, WIDE = [-50, 100], [-50, 10_000]
STATISTICS = ["count", "sum", "max"]
DEVICE = {"name": "device", "by": ["device"], "window": "1 m", "statistics": STATISTICS}
TOTAL = {"name": "total", "by": ["device"], "window": "none", "statistics": STATISTICS}


@cache
def minute() -> int:
    """The second, after BASE_MS, of a minute half an hour ago: what is sent again gets the broker's time of now."""
    return (clock.now_ms() - BASE_MS) // 60_000 * 60 - 1_800


@pytest.fixture(autouse=True)
def _its_own_time() -> None:
    """For each test: the files of a suite are read an hour before some of them run."""
    minute.cache_clear()


class TwoPlaces(World):
    def configure(self, *, views: Any = None, form: Any = None, **admission: Any) -> None:
        """The views, the settings of the input and those of admission from the next term on."""
        document = tomllib.loads(self.config.read_text(encoding="utf-8"))
        document["admission"] |= admission
        document["input"] |= form or {}
        document["views"] = views or document["views"]
        checkpoint = self.settings.service.checkpoint
        self.config.write_text(to_toml(document), encoding="utf-8")
        self.settings = settings.load(self.config)
        self.settings = self.settings.model_copy(
            update={"service": self.settings.service.model_copy(update={"checkpoint": checkpoint})}
        )

    def replay(self, place: Coordinates, *, value: bytes | None = None, **fields: Any) -> None:
        """Send a reject again, with or without changes; admission is not asked."""
        chosen = (each for each in reject_log.read(self.settings.kafka) if each.place == place)
        assert replay.replay(self.settings, chosen, Mend(fields, value), print, force=True)["sent"] == 1
        self.sent[place.partition] += 1

    def close(self) -> None:
        """Close all windows up to the time of now."""
        self.configure(max_delay="1 s", max_ahead="1 s")
        second = (clock.now_ms() - BASE_MS) / 1000
        self.term(reading("z", second), reading("z", second))
        self.configure(max_delay="1 h", max_ahead="5 s")

    def counted(self, view: str = "device", second: float | None = None) -> tuple[int, float]:
        """Count and sum of a window of the device d."""
        second = minute() if second is None else second
        start_ms = 0 if view == "total" else BASE_MS + int(second) // 60 * 60_000
        found: Any = self.redis.hgetall(self.key(f"window:{view}:temperature:d:{start_ms}"))
        return int(found.get("count", 0)), float(found.get("sum", 0))

    def session_count(self) -> int:
        """The readings of all sessions of the device d."""
        found = [each for name, each in self.hashes().items() if name.startswith("session:d:")]
        return sum(int(each["count"]) for each in found if each["state"] != "merged")

    def correct(self) -> correct.Report:
        return correct.correct(self.settings, 0, None, print, spark=self.spark)

    def backfill(self) -> backfill.Report:
        span = BASE_MS + (minute() - 600) * 1000, BASE_MS + (minute() + 1_860) * 1000
        return backfill.backfill(self.settings, span, [], print, spark=self.spark)

    def begin_anew(self, folder: Path) -> None:
        """A new checkpoint reads the topic from its beginning, into an empty Redis."""
        self.lose()
        self.begin_again(folder)
        self.term()


@pytest.fixture
def world(parts: Parts) -> TwoPlaces:
    admission = {"ranges": {"temperature": NARROW}, "max_delay": "1 h"}
    more: dict[str, Any] = {"views": [DEVICE, TOTAL], "admission": admission, "sessions": {"gap": "6 m"}}
    return TwoPlaces(*parts, **more)


def three(second: float | None = None) -> list[Record]:
    """A reading, one out of range, and one five minutes later."""
    second = minute() if second is None else second
    return [reading("d", second, 1.0), reading("d", second + 5, 5000.0), reading("d", second + 300, 1.0)]


@pytest.mark.silent("0.1")
def test_a_reject_that_was_sent_again_counts_once_whichever_way_the_past_is_computed(
    world: TwoPlaces, tmp_path: Path
) -> None:
    _, wrong, _ = world.term(*three())
    assert world.counted() == (1, 1)
    world.configure(ranges={"temperature": WIDE})
    world.replay(wrong)
    world.term()
    assert (world.counted(), world.counted("total"), world.session_count()) == ((2, 5001), (3, 5002), 3)
    world.close()
    before = world.values()
    report = world.backfill()
    assert (report.written, report.rejected) == (0, {"out_of_range": 1})
    assert world.values() == before
    world.lose()
    world.term()
    assert world.values() == before
    world.begin_anew(tmp_path / "anew")
    assert (world.counted(), world.counted("total"), world.session_count()) == ((2, 5001), (3, 5002), 3)
    reasons = {each.reason for each in reject_log.read(world.settings.kafka)}
    assert reasons <= {"out_of_range", "replayed"}, "one of the two rejects of the place is listed"


@pytest.mark.thorough
@pytest.mark.silent("0.1")
def test_a_copy_that_is_late_and_corrected_counts_once(world: TwoPlaces, tmp_path: Path) -> None:
    """What the page on rejects says for a reject whose time has passed: --force, then `correct`."""
    _, wrong, _ = world.term(*three())
    world.close()
    assert world.counted() == (1, 1)
    world.configure(ranges={"temperature": WIDE})
    world.replay(wrong, value=reading("d", minute() + 6, 4000.0).value)
    world.term()
    assert world.counted() == (1, 1)
    assert world.counted("total") == (3, 4002), "late readings count in views without windows"
    assert world.correct().corrected == 1
    assert (world.counted(), world.counted("total"), world.session_count()) == ((2, 4001), (3, 4002), 3)
    assert world.backfill().written == 0
    world.lose()
    world.term()
    assert (world.counted(), world.counted("total"), world.session_count()) == ((2, 4001), (3, 4002), 3)
    world.begin_anew(tmp_path / "anew")
    assert world.counted("total") == (3, 4002)
    assert world.counted() in {(1, 1), (2, 4001)}, "the copy is late, or was read before the watermark passed it"


@pytest.mark.thorough
@pytest.mark.silent("0.4")
def test_a_late_reading_whose_time_is_mended_counts_once_in_a_view_without_windows(
    world: TwoPlaces, tmp_path: Path
) -> None:
    late = reading("d", minute() - 7_200, 5.0, at=minute() + 10)
    *_, place, _ = world.term(
        reading("d", minute(), 1.0), reading("d", minute() + 1, 1.0), late, reading("d", minute() + 2, 1.0)
    )
    assert (world.counted(), world.counted("total")) == ((3, 3), (4, 8))
    world.replay(place, value=reading("d", minute() + 3, 5.0).value)
    world.term()
    assert (world.counted(), world.counted("total"), world.session_count()) == ((4, 8), (4, 8), 4)
    # A new checkpoint under which the original is not late any more.
    world.configure(max_delay="6 h")
    world.begin_anew(tmp_path / "anew")
    assert (world.counted(), world.counted("total")) == ((4, 8), (4, 8))
    assert world.counted(second=minute() - 7_200) == (0, 0)


def test_a_reject_that_the_service_has_not_published_is_not_sent_again(
    world: TwoPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new checkpoint that is still behind the reject would admit it, without knowing of the copy."""
    _, wrong, _ = world.term(*three())
    [reject] = reject_log.read(world.settings.kafka)
    offsets = world.redis.hget(world.key("progress"), "offsets")
    world.redis.hset(world.key("progress"), "offsets", f'{{"{world.topic}": {{"0": 0, "1": 0}}}}')
    counts = replay.replay(world.settings, [reject], Mend({}), print, force=True)
    assert counts == {"not read by the service yet, or not published: try later": 1, "sent": 0}
    assert f"{wrong}: not read by the service yet" in capsys.readouterr().out
    world.redis.hset(world.key("progress"), "offsets", offsets)
    world.replay(wrong)


@pytest.mark.thorough
def test_an_original_is_left_out_while_nobody_knows_whether_its_copy_was_sent(world: TwoPlaces, tmp_path: Path) -> None:
    _, wrong, _ = world.term(*three())
    world.configure(ranges={"temperature": WIDE})
    marks.write(world.settings.kafka, [Mark(wrong, "replaying", {"from": 9, "token": "none"})])
    world.begin_anew(tmp_path / "anew")
    assert world.counted() == (1, 1)
    marks.write(world.settings.kafka, [Mark(wrong, "open", {})])
    world.begin_anew(tmp_path / "again")
    assert world.counted() == (2, 5001)


@pytest.mark.thorough
@pytest.mark.silent("0.1")
def test_readings_of_arrays_and_arrays_as_a_whole_count_once(parts: Parts) -> None:
    """An array that was too large is a reject as a whole. Under other settings the original is readings with an index each."""
    world = TwoPlaces(
        *parts,
        input={"format": "json", "array": True, "max_array_bytes": 400},
        admission={"ranges": {"temperature": NARROW}, "max_delay": "1 h"},
        views=[DEVICE, TOTAL],
        sessions={"gap": "6 m"},
    )

    def array(*values: float, note: str = "") -> Record:
        at_ms = BASE_MS + minute() * 1000
        readings = [
            {"device_id": "d", "event_time": at_ms + number, "temperature": value, "note": note}
            for number, value in enumerate(values)
        ]
        return Record(json.dumps(readings).encode(), at_ms)

    places = world.term(array(1.0, 5000.0), array(7.0, 8.0, note="x" * 200))
    assert world.counted() == (1, 1)
    world.configure(ranges={"temperature": WIDE}, form={"max_array_bytes": 10_000})
    for place in (replace(places[0], index=1), places[1]):
        world.replay(place)
    world.term()
    assert (world.counted(), world.counted("total"), world.session_count()) == ((4, 5016), (4, 5016), 4)
    world.close()
    before = world.values()
    assert world.backfill().written == 0
    assert world.values() == before
    world.begin_anew(parts.folder / "anew")
    assert (world.counted(), world.counted("total"), world.session_count()) == ((4, 5016), (4, 5016), 4)
    world.redis.close()


@pytest.mark.thorough
@pytest.mark.silent("0.4")
def test_a_value_of_a_column_that_only_a_late_reading_has_stays_its_key_when_the_list_is_full(parts: Parts) -> None:
    columns = {"line": {"path": "line", "max_values": 2}}
    world = TwoPlaces(
        *parts,
        input={"format": "json", "columns": columns},
        admission={"max_delay": "10 m"},
        views=[{"name": "line", "by": ["line"], "window": "1 m", "statistics": STATISTICS}],
    )

    def sent(second: float, line: str, *, at: float | None = None) -> Record:
        record = {"device_id": "d", "event_time": BASE_MS + int(second * 1000), "temperature": 1.0, "line": line}
        return Record(json.dumps(record).encode(), BASE_MS + int((second if at is None else at) * 1000))

    def counts() -> dict[str, str]:
        found = {
            name.split(":")[3]: each["count"]
            for name, each in world.hashes().items()
            if name.startswith("window:") and name.endswith(str(start_ms))
        }
        return dict(sorted(found.items()))

    start_ms = BASE_MS + (minute() - 3_600) * 1000
    world.term(sent(minute() - 3_600, "l1"), sent(minute() - 3_599, "x", at=minute()), sent(minute(), "l1"))
    assert counts() == {"l1": "1"}
    assert world.correct().corrected == 1
    assert counts() == {"l1": "1", "x": "1"}
    world.term(sent(minute() + 1, "l2"), sent(minute() + 2, "x"))
    span = start_ms, start_ms + 60_000
    assert backfill.backfill(world.settings, span, [], print, spark=parts.spark).written == 0
    assert counts() == {"l1": "1", "x": "1"}
    world.redis.close()
