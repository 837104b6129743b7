"""What publish.lua accepts of a correction, on a real Redis: closed values only, never fewer readings, one run at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from load.servers.redis import Redis
from service import clock
from service.errors import FencedError, SinkError
from service.micro_batch import MicroBatch
from service.publication.closed_sink import ClosedSink, Written, progress, servers, session_starts
from service.publication.policy import WritePolicy
from service.publication.rows import Rows, as_of_watermark, session_rows, window_rows
from service.redis.keys import Keys
from service.rejects.fence import Fence
from service.row_schemas import CHANGES
from service.settings import View
from service.settings.input import MOST_MEASURES
from state import codec
from state.layout import Changes, session_schema, status_schema
from state.statistics import DEFAULT, ORDERED, with_always
from tests import outputs
from tests.integration.redis_target import WINDOW, Target, window_name
from tests.outputs import MINUTE, T0, changes, device, filled_table, micro_batch, session, window, window_table, windows

pytestmark = pytest.mark.integration

PASSED = micro_batch(5, watermark_ms=T0 + 10 * MINUTE)
MEASURES = ("temperature", "humidity")


class Corrected(Target):
    """A Redis to which a batch was published, and a correction that has begun."""

    def __init__(self, part: Redis, prefix: str) -> None:
        super().__init__(part, prefix)
        self.keys = Keys(prefix)
        self.fence = Fence(self.settings.redis)
        self.correction = self.marked({})

    def marked(self, marks: dict[int, str]) -> ClosedSink:
        policy = WritePolicy.correct(self.fence.number, marks)
        return ClosedSink(self.settings, PASSED, servers(self.settings), policy=policy)

    def publish(self, *rows: pa.RecordBatch, passed: MicroBatch = PASSED) -> None:
        self.sink(replace(passed, watermark_ms=T0)).write(rows)
        self.sink(passed).progress()

    def windows(
        self, values: list[float], key: str = "d1", start: int = T0, statistics: Sequence[str] = DEFAULT
    ) -> list[Rows]:
        table = window_table([("device_1m", key, start, values)], statistics)
        rows = window_rows(table, self.keys, self.settings.views, PASSED.watermark_ms)
        return as_of_watermark(rows, PASSED.watermark_ms, 0)[:1]

    def sessions(self, *rows: dict[str, Any]) -> list[Rows]:
        table = pa.Table.from_pylist(list(rows), schema=session_schema(MEASURES))
        return [session_rows(table, self.keys, self.settings.sessions)]


@pytest.fixture
def target(redis_server: Redis, prefix: str) -> Iterator[Corrected]:
    made = Corrected(redis_server, prefix)
    yield made
    made.client.close()


def closed(start: int = T0, **fields: Any) -> dict[str, Any]:
    return session(start=start, state="closed", reason="gap", **fields)


def test_a_corrected_window_keeps_no_statistic_that_its_view_has_no_more(target: Corrected) -> None:
    target.publish(window([20.0]))
    assert target.correction.write(target.windows([20.0, 30.0], statistics=["mean"])).written == 1
    assert target.fields("mean", "revision") == ("25", "1")
    assert not {"max", "stddev"} & target.read().keys()


def test_a_corrected_window_gets_the_rate_that_one_reading_has_not(target: Corrected) -> None:
    names = ["delta", "rate"]
    view, other = target.settings.views
    views = (view.model_copy(update={"statistics": with_always(names)}), other)
    target.settings = target.settings.model_copy(update={"views": views})
    sink = replace(target.correction, settings=target.settings)
    target.publish(windows([("device_1m", "d1", T0, [20.0])], names))
    for values, rate in (([20.0], None), ([20.0, 24.0], "4")):
        sink.write(target.windows(values, statistics=names))
        assert target.read().get("rate") == rate


def test_a_final_window_gets_more_readings_and_says_so(target: Corrected) -> None:
    target.publish(window([20.0]))
    key = target.key(WINDOW)
    target.client.pexpire(key, 77_000)
    before, length = target.read(), len(target.feed())
    assert target.correction.write(target.windows([20.0, 30.0])) == Written(written=1)
    after = target.read()
    assert (after["count"], after["mean"], after["closed_by"], after["revision"]) == ("2", "25", "watermark", "1")
    assert all(after[name] == before[name] for name in ("epoch", "batch", "closed_by", "start", "end"))
    assert target.left_ms(WINDOW) <= 77_000
    [(_, entry)] = target.feed()[length:]
    assert (entry["key"], entry["revision"], entry["kind"]) == (key, "1", "window")
    assert target.violations() == []

    # Again, and with less: nothing.
    assert target.correction.write(target.windows([20.0, 30.0])) == Written(same=1)
    assert target.correction.write(target.windows([20.0])) == Written(poorer=1)
    assert target.read() == after
    assert len(target.feed()) == length + 1


def test_a_window_that_nobody_had_is_made_with_what_is_left_of_its_time(target: Corrected) -> None:
    target.publish(window([20.0]))
    assert target.correction.write(target.windows([1.0], "d9")) == Written(written=1)
    fields = target.read(window_name("d9"))
    assert (fields["revision"], fields["closed_by"]) == ("0", "watermark")
    assert (fields["epoch"], fields["batch"]) == ("1", "5")
    # An hour after its end, which is nine minutes ago; and max_ahead.
    assert 50 * MINUTE < target.left_ms(window_name("d9")) <= 51 * MINUTE + 10_000
    assert target.scores("keys:device_1m") == {"d1": T0, "d9": T0}
    assert target.violations() == []


def test_what_is_open_or_closed_by_silence_is_left_to_the_service(target: Corrected) -> None:
    target.publish(window([20.0]), changes([session()], [device()]), passed=micro_batch(5, watermark_ms=T0))
    before = target.read(), target.read(f"session:d1:{T0}")
    with pytest.raises(SinkError, match=r"windows of correction [0-9]+: 1 are open"):
        target.correction.write(target.windows([20.0, 30.0]))
    with pytest.raises(SinkError, match=r"sessions of correction [0-9]+: 1 are open"):
        target.correction.write(target.sessions(closed(count=2)))
    assert (target.read(), target.read(f"session:d1:{T0}")) == before
    target.sink(5, watermark_ms=T0).run("idle", watermark=str(T0 + MINUTE))
    assert target.read()["closed_by"] == "idle"
    with pytest.raises(SinkError, match="1 are open"):
        target.correction.write(target.windows([20.0, 30.0]))
    assert target.read()["count"] == "1"


def test_sessions_grow_join_and_are_made(target: Corrected) -> None:
    later = T0 + MINUTE
    target.publish(changes([closed(), closed(later)], [device()]))
    grown = closed(last=later, count=3)
    gone = session(start=later, state="merged", reason="merged", merged_into=T0)
    never = session("d7", start=later, state="merged", reason="merged", merged_into=T0)
    wrote = target.correction.write(target.sessions(grown, gone, never, session("d8", state="closed", reason="gap")))
    assert wrote == Written(written=3, same=1)
    assert target.fields("count", "revision", of=f"session:d1:{T0}") == ("3", "1")
    merged = target.read(f"session:d1:{later}")
    assert (merged["state"], merged["merged_into"], merged["closed_by"]) == ("merged", str(T0), "")
    assert target.read(f"session:d7:{later}") == {}
    assert target.violations() == []
    assert target.correction.write(target.sessions(grown, gone)) == Written(same=2)
    # The reason alone is news, too; and what was part of another may be one of its own again.
    assert target.correction.write(target.sessions({**grown, "reason": "max_duration"}, closed(later))) == Written(
        written=2
    )
    assert "merged_into" not in target.read(f"session:d1:{later}")
    starts = session_starts(target.settings, ["d1", "d7", "nobody"])
    assert {name: sorted(times) for name, times in starts.items()} == {"d1": [T0, later]}


def test_the_sessions_of_many_devices_are_read_in_a_few_round_trips(target: Corrected) -> None:
    names = [f"d{number}" for number in range(200)]
    target.publish(changes([closed(device=name) for name in names], [device()]))
    before = int(target.client.info("stats")["total_reads_processed"])
    assert session_starts(target.settings, names) == {name: [T0] for name in names}
    assert int(target.client.info("stats")["total_reads_processed"]) - before < 50


def test_a_session_and_a_device_of_as_many_measures_as_may_be_are_written_and_corrected(target: Corrected) -> None:
    names = [f"m{number}" for number in range(MOST_MEASURES)]
    values = {f"{name}.{part}": 1.0 for name in names for part in ("count", "sum", "min", "max", "value", "at")}
    row = {**closed(**values), "status": "offline", "last_seen": T0, "session": None}
    sessions = pa.Table.from_pylist([row], schema=session_schema(names))
    devices = pa.Table.from_pylist(
        [{**row, **dict.fromkeys([f"{m}.status" for m in names], "quiet")}],
        schema=status_schema(names, by_measure=True),
    )
    target.publish(outputs.row(CHANGES, codec.pack_changes(Changes(sessions, devices))))
    assert target.read(f"session:d1:{T0}")["m949.max"] == target.read("device:d1")["m949"] == "1"
    larger = pa.Table.from_pylist([{**row, "m949.max": 2.0}], schema=session_schema(names))
    rows = session_rows(larger, target.keys, target.settings.sessions)
    assert target.correction.write([rows]) == Written(written=1)


def test_a_session_with_more_fields_than_lua_unpacks_is_written_compared_and_corrected(target: Corrected) -> None:
    target.publish(window([20.0]))
    (rows,) = target.sessions(closed())

    def write(last: bytes) -> Written:
        values = {f"m{number}.{name}": [b"1"] for number in range(MOST_MEASURES) for name in ORDERED}
        fields = {**rows.fields, **values, f"m{MOST_MEASURES - 1}.{ORDERED[-1]}": [last]}
        return target.correction.write([replace(rows, fields=fields)])

    assert [write(last) for last in (b"1", b"1", b"2")] == [Written(written=1), Written(same=1), Written(written=1)]
    found = target.read(f"session:d1:{T0}")
    assert (found["m0.increase"], found[f"m949.{ORDERED[-1]}"], found["revision"]) == ("1", "2", "1")


def test_only_the_newest_run_writes_and_only_to_a_redis_that_is_whole(target: Corrected) -> None:
    target.publish(window([20.0]))
    before = target.read()
    assert progress(target.settings).watermark_ms == PASSED.watermark_ms
    more = target.windows([20.0, 30.0])
    target.client.set(target.key("republish"), "lost 1")
    with pytest.raises(SinkError, match="values are being republished"):
        target.correction.write(more)
    with pytest.raises(SinkError, match="values are being republished"):
        progress(target.settings)
    target.client.delete(target.key("republish"))
    target.client.hset(target.key("progress"), "batch", 4)
    with pytest.raises(SinkError, match="Redis has lost data"):
        target.correction.write(more)
    target.client.hset(target.key("progress"), "batch", 6)
    newer = Fence(target.settings.redis)
    # The clock of another host may be behind: what runs leave for the outlets is taken in the order of their numbers.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clock, "now_ms", lambda: target.fence.began_ms - 3_600_000)
        newer = Fence(target.settings.redis)
    assert newer.began_ms > target.fence.began_ms
    # A number of an older version is random, and no time of 2109.
    target.client.set(target.key("correction"), (1 << 62) - 5)
    newer = Fence(target.settings.redis)
    assert abs(newer.began_ms - clock.now_ms()) < 3_600_000
    with pytest.raises(FencedError, match="another correction or replay has begun"):
        target.correction.write(more)
    assert target.read() == before
    assert replace(target.correction, policy=WritePolicy.correct(newer.number)).write(more).written == 1
    target.client.delete(target.key("progress"))
    with pytest.raises(SinkError, match="there is no progress"):
        progress(target.settings)


def test_a_correction_writes_to_no_other_run_of_redis_than_the_one_it_began_with(tmp_path: Path) -> None:
    with Redis(tmp_path, appendonly=True, settings={"appendfsync": "always"}) as part:
        target = Corrected(part, "tidemark")
        target.publish(window([20.0]))
        assert target.correction.write(target.windows([20.0, 30.0])).written == 1
        target.correction.confirm()
        part.kill()
        part.start()
        for write in (lambda: target.correction.write(target.windows([20.0, 30.0, 40.0])), target.correction.confirm):
            with pytest.raises(SinkError, match="restarted or failed over"):
                write()
        assert target.read()["count"] == "2"


def test_who_republishes_corrects_under_its_own_mark_alone(target: Corrected) -> None:
    target.publish(window([20.0]))
    target.client.set(target.key("republish"), "lost 17 1")
    for mark in ("", "lost 18 1"):
        with pytest.raises(SinkError, match="values are being republished"):
            target.marked({0: mark}).write(target.windows([20.0, 30.0]))
    assert target.marked({0: "lost 17 1"}).write(target.windows([20.0, 30.0])).written == 1
    target.client.delete(target.key("republish"))
    with pytest.raises(SinkError, match="values are being republished"):
        target.marked({0: "lost 17 1"}).write(target.windows([20.0, 30.0, 40.0]))


def test_a_window_without_a_reading_is_corrected_by_what_is_carried_into_it_and_by_a_reading(target: Corrected) -> None:
    statistics = ["mean", "last_value", "increase"]
    view = View(name="device_1m", by=("device",), window="1 m", statistics=statistics, carry_for="1 m", fill="last")

    def rows(table: pa.Table) -> list[Rows]:
        return as_of_watermark(window_rows(table, target.keys, [view], PASSED.watermark_ms), PASSED.watermark_ms, 0)[:1]

    target.publish(window([20.0], key="d2"))
    assert target.correction.write(rows(filled_table(statistics, 5.0))) == Written(written=1), (
        "a late reading has made it"
    )
    assert target.correction.write(rows(filled_table(statistics, 5.0))) == Written(same=1)
    assert target.correction.write(rows(filled_table(statistics, 7.0))) == Written(written=1)
    assert target.fields("count", "last_value", "revision") == ("0", "7", "1")
    there = rows(window_table([("device_1m", "d1", T0, [9.0])], statistics))
    assert target.correction.write(there) == Written(written=1)
    assert target.fields("count", "mean", "revision") == ("1", "9", "2")
    assert target.correction.write(rows(filled_table(statistics, 7.0))) == Written(poorer=1)
    assert not target.violations()


def test_a_window_with_as_many_readings_of_other_values_is_replaced_and_rounding_is_no_difference(
    target: Corrected,
) -> None:
    target.publish(window([20.0, 0.1]))
    assert target.correction.write(target.windows([20.0, 60.0])) == Written(written=1)
    assert target.fields("max", "revision") == ("60", "1")
    key = target.keys.window("device_1m", "temperature", "d1", T0)
    target.client.hset(key, mapping={"sum": "80.000000001", "stddev": "20.1"})
    assert target.correction.write(target.windows([20.0, 60.0])) == Written(same=1)
    target.client.hset(key, "last_value", "61")
    target.client.hset(key, "sum", "80.001")
    assert target.correction.write(target.windows([20.0, 60.0])) == Written(written=1)
