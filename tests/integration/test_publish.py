"""Publishing into a real Redis and a real broker: the fence, values that never go back, repeats, failures between."""

import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.server_process import until
from service import clock
from service.commands.devices import skewed, skewed_table
from service.errors import FencedError, SinkError, SinkRefusedError, SourceError
from service.micro_batch import MicroBatch
from service.pipeline import batch_publisher
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.publication.early import Early
from service.publication.policy import WritePolicy
from service.redis.link import EpochLostError
from service.reference.attributes import Index
from service.rejects import delivery
from service.row_schemas import CHANGES
from service.settings import Settings, View
from state import blobs, codec, trails
from state.columns import array
from state.rules import ENDLESS_MS
from tests.integration.redis_target import WINDOW, Target, window_name
from tests.outputs import (
    MINUTE,
    T0,
    changed,
    changes,
    device,
    filled_table,
    micro_batch,
    reject,
    row,
    session,
    stats,
    window,
    window_table,
    windows,
)
from tests.topics import read

pytestmark = pytest.mark.integration

Publish = Callable[..., Outcome]
KEPT_MS = MINUTE + 3_600_000 + 10_000
"""Of a window with a reading at its start: its length, `retain` and `max_ahead`."""


def test_a_batch_is_published_as_the_contract_says(target: Target) -> None:
    attributes = Index(pa.table({"device": ["d1"], "site": ["hamburg"]}))
    rows = [
        windows([("device_1m", "d1", T0, [20.0, 22.5]), ("all_1m", "all", T0, [20.0, 22.5, -1e-7])]),
        changes(
            [session(), session("d2", state="merged", reason="merged", merged_into=T0 - 5)],
            [device(), device("d2", status="offline", session=None)],
        ),
        stats((clock.now_ms(), 5)),
    ]
    sink = Sink(target.settings, MicroBatch(1, 4, T0, {}, {"readings": {0: 12}}, "v7"), attributes)
    outcome = sink.write(rows)
    sink.progress()
    assert (outcome.windows, outcome.sessions, outcome.devices, outcome.written) == (2, 2, 2, 6)
    assert (sum(outcome.latency), outcome.retries) == (5, 0)
    assert outcome.bytes > 500
    assert float(target.read()["mean"]) == 21.25
    known = target.read("device:d1")
    assert (known["reference"], known["ref.site"], known["session"]) == ("v7", "hamburg", str(T0))
    assert "ref.site" not in target.read("device:d2")
    progress = target.read("progress")
    assert json.loads(progress["offsets"]) == {"readings": {"0": 12}}
    assert (progress["epoch"], progress["batch"], progress["reference"]) == ("1", "4", "v7")
    assert int(progress["watermark"]) == T0
    views = {view["name"]: view for view in json.loads(target.client.get(target.key("meta")))["views"]}
    assert (views["device_1m"]["by"], views["device_1m"]["window_ms"]) == (["device"], MINUTE)


def test_a_batch_of_any_size_has_few_rows_as_text_at_a_time(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_publisher, "ROWS_AT_ONCE", 3)
    made: list[int] = []
    for name in ("window_rows", "session_rows", "device_rows"):
        of_table = getattr(batch_publisher, name)
        monkeypatch.setattr(batch_publisher, name, _counting(of_table, made))
    names = [f"d{number}" for number in range(10)]
    rows = [
        windows([("device_1m", name, T0, [20.0]) for name in names]),
        changes([session(name) for name in names], [device(name) for name in names]),
    ]
    outcome = target.write(1, *rows)
    assert made == [3, 3, 3, 1] * 3
    assert (outcome.windows, outcome.sessions, outcome.devices, outcome.written) == (10, 10, 10, 30)
    assert (outcome.opened, outcome.new_devices) == (10, 10)
    again = target.write(1, *rows)
    assert (again.written, again.unchanged) == (0, 30)


def _counting(of_table: Callable[..., Any], made: list[int]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        rows = of_table(*arguments)
        made.append(len(rows))
        return rows

    return counted


def test_the_contract_check_sees_what_is_wrong(target: Target) -> None:
    target.write(1, window([20.0]), changes([session()], [device()]))
    target.is_broken_on_purpose = True
    target.client.hset(target.key(WINDOW), mapping={"mean": "99", "colour": "red"})
    target.client.hset(target.key("device:d1"), "session", "")
    target.client.hdel(target.key(f"session:d1:{T0}"), "duration")
    target.client.persist(target.key("keys:device_1m"))
    target.client.set(target.key("stray"), "1")
    target.client.set(target.key("meta"), '{"contract": 1}')
    target.client.xadd(target.key("changes"), {"kind": "window", "keys": "[]", "batch": "1", "epoch": "1"})
    parts = (
        "colour",
        "status = online with session = ''",
        '"duration" is a required property',
        "never expires",
        "stray: is no key",
        "keys: [] has less than 1 item",
        "meta: contract: 3 was expected",
    )
    violations = target.violations()
    for part in parts:
        assert any(part in violation for violation in violations), (part, violations)
    target.client.hdel(target.key(WINDOW), "colour")
    violations = target.violations()
    assert any("min <= mean <= max" in violation for violation in violations)


def test_the_contract_check_sees_what_is_wrong_in_progress(target: Target) -> None:
    target.sink(1, watermark_ms=T0).progress()
    for fields, what in (
        ({"idle": T0 + 1}, '"idle_epoch" is a required property'),
        ({"final": T0 - 1}, "is behind the watermark"),
        ({"offsets": '{"readings": {"0": -1}}'}, "offsets: readings.0: -1 is less than the minimum of 0"),
        ({"offsets": "{"}, "offsets = '{' is not JSON"),
        ({"watermark": f"{T0}\n"}, "does not match"),
    ):
        target.client.hset(target.key("progress"), mapping=fields)
        violations = target.violations()
        assert any(what in violation for violation in violations), (what, violations)
        target.client.delete(target.key("progress"))
        target.sink(1, watermark_ms=T0).progress()


# P5: one writer.


def test_a_stale_epoch_is_refused_even_for_keys_that_nobody_has_written(target: Target) -> None:
    target.begin_term(2)
    sink, began = target.sink(9), time.monotonic()
    for step in (lambda: sink.write([window([20.0], "untouched")]), sink.count_skewed, sink.progress):
        with pytest.raises(FencedError, match="the epoch is 2"):
            step()
    assert time.monotonic() - began < 1.5, "a refusal by the fence is not tried again, for the 2 s of retry_for"
    assert set(target.client.scan_iter(f"{target.prefix}:*")) == {target.key("epoch")}


@pytest.mark.parametrize("epoch", [None, 3])
def test_a_redis_that_lost_its_epoch_refuses_with_an_error_of_its_own(target: Target, epoch: int | None) -> None:
    target.client.delete(target.key("epoch"))
    if epoch is not None:
        target.client.set(target.key("epoch"), epoch)
    with pytest.raises(EpochLostError, match="lost data") as caught:
        target.write(1, window([20.0]), epoch=4)
    assert isinstance(caught.value, SinkError)
    assert target.read() == {}


# P2: a value never goes back.


def test_an_older_batch_is_refused(target: Target) -> None:
    target.write(5, window([1.0, 2.0]), changes([session(count=2)], [device(last_seen=T0 + 9)]))
    outcome = target.write(4, window([1.0, 2.0, 3.0]), changes([session(count=3)], [device(last_seen=T0 + 10)]))
    assert (outcome.written, outcome.refused_old) == (0, 3)
    assert target.read()["count"] == target.read(f"session:d1:{T0}")["count"] == "2"
    assert target.read("device:d1")["last_seen"] == str(T0 + 9)


def test_a_window_that_grew_equals_one_written_at_once(target: Target) -> None:
    target.write(1, window([20.0]))
    target.write(2, window([20.0, 30.0, -5.0]), window([20.0, 30.0, -5.0], "at once"))
    grown, at_once = target.read(), target.read(window_name("at once"))
    assert grown["last"] == str(T0 + 2000)
    assert {**grown, "updated": ""} == {**at_once, "updated": ""}


def test_the_same_batch_again_changes_nothing_and_is_not_announced(target: Target) -> None:
    rows = [window([1.0]), changes([session()], [device()])]
    assert target.write(5, *rows).written == 3
    before, announced = target.read(), target.feed()
    again = target.write(5, *rows)
    assert (again.written, again.unchanged, again.refused_old) == (0, 3, 0)
    assert target.read() == before
    assert target.feed() == announced


def test_a_replay_by_a_new_writer_gives_the_same_values_under_its_epoch(target: Target) -> None:
    target.write(5, window([1.0]))
    before = target.read()
    target.begin_term(2)
    assert target.write(5, window([1.0]), epoch=2).written == 1
    own = {"epoch", "batch", "updated"}
    assert {k: v for k, v in target.read().items() if k not in own} == {k: v for k, v in before.items() if k not in own}
    assert target.read()["epoch"] == "2"


def test_a_writer_that_reads_the_topic_from_its_beginning_takes_no_value_back(target: Target) -> None:
    target.write(90, window([1.0, 2.0, 3.0]), changes(devices=[device(last_seen=T0 + 60)]))
    target.begin_term(2)
    early = target.write(0, window([1.0]), changes(devices=[device(last_seen=T0 + 10)]), epoch=2)
    assert (early.written, early.refused_old) == (0, 2)
    assert (target.read()["count"], target.read("device:d1")["last_seen"]) == ("3", str(T0 + 60))
    level = target.write(1, window([1.0, 2.0, 3.0]), changes(devices=[device(last_seen=T0 + 60)]), epoch=2)
    assert level.written == 2
    assert target.read()["epoch"] == "2"


def test_a_session_that_a_writer_who_reads_the_topic_again_never_had_is_gone(target: Target) -> None:
    """Its first batch holds more readings than those of old, so that the session begins earlier at once."""
    old = session(start=T0), session("d2", state="closed", reason="gap"), session("d3")
    target.write(90, changes(old, [device(), device("d2"), device("d3")]))
    target.begin_term(2)
    new = session(start=T0 - 9, last=T0, count=2), session("d2", T0 + 50), session("d3")
    target.write(
        0, changes(new, [device(session=T0 - 9), device("d2", T0 + 50, session=T0 + 50), device("d3")]), epoch=2
    )
    assert target.names("session") == {f"d1:{T0 - 9}", f"d2:{T0}", f"d2:{T0 + 50}", f"d3:{T0}"}
    assert target.key(f"session:d1:{T0}") in [entry["key"] for _, entry in target.feed()[-9:]]
    assert str(T0) not in target.client.zrange(target.key("sessions:d1"), 0, -1)


def test_of_the_windows_of_a_key_that_come_together_the_newest_is_its_score(target: Target) -> None:
    starts = {"a": [2, 0, 1], "b": [0], "a:1": [*range(150)]}
    rows = [("device_1m", name, T0 + MINUTE * number, [1.0]) for name in starts for number in starts[name]]
    target.write(1, windows([*rows, ("device_1m", "b", T0 + 3 * MINUTE, [1.0])]))
    assert target.scores("keys:device_1m") == {"a": T0 + 2 * MINUTE, "b": T0 + 3 * MINUTE, "a:1": T0 + 149 * MINUTE}


def test_the_feed_loses_entries_that_are_too_old(redis_server: Redis, prefix: str) -> None:
    target = Target(redis_server, prefix, feed_retain="1 h")
    entry = {"kind": "window", "keys": '["old"]', "batch": "1", "epoch": "1"}
    hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    for at_ms in (hour_ago_ms - 60_000, hour_ago_ms + 60_000):
        for number in range(200):
            target.client.xadd(target.key("changes"), entry, id=f"{at_ms}-{number}")
    target.write(1, window([1.0]))
    ids = [entry_id for entry_id, _ in target.client.xrange(target.key("changes"))]
    # Redis removes whole nodes of 100 entries.
    assert 201 <= len(ids) <= 301
    assert sum(int(entry_id.partition("-")[0]) > hour_ago_ms for entry_id in ids) == 201


def test_a_reader_that_has_read_all_loses_nothing_by_a_silence(redis_server: Redis, prefix: str) -> None:
    target = Target(redis_server, prefix, feed_retain="1 h")
    long_ago_ms = time.time_ns() // 1_000_000 - 100 * 3_600_000
    for number in range(100):  # a whole node, which Redis can remove
        last = target.client.xadd(target.key("changes"), {"kind": "window", "keys": "[]"}, id=f"{long_ago_ms}-{number}")
    target.write(1, window([1.0]))
    target.write(2, window([1.0, 2.0]))
    oldest, *_, newest = [entry_id for entry_id, _ in target.client.xrange(target.key("changes"))]
    assert oldest <= last < newest, "an oldest entry that is newer says that entries were lost"


def test_a_write_walks_through_the_feed_only_where_entries_are_too_old(redis_server: Redis, prefix: str) -> None:
    target = Target(redis_server, prefix, feed_retain="1 h")
    target.client.config_resetstat()
    for batch in range(3):
        target.write(batch, window([1.0] * (batch + 1)))
    # Redis begins XREVRANGE from an id that is older than all others at the newest one.
    assert "cmdstat_xrevrange" not in target.client.info("commandstats")


def test_a_devices_sessions_are_listed_until_they_expire(target: Target) -> None:
    name = "a:b-1"

    def listed() -> list[str]:
        return [*target.scores(f"sessions:{name}")]

    starts = [T0 + 1_000_000 * number for number in range(5)]
    for number, start in enumerate(starts):
        target.write(number, changes([session(name, start, last=start)]))
    assert listed() == [str(start) for start in starts]
    for start in starts[:3]:
        target.client.delete(target.key(f"session:{name}:{start}"))
    target.client.pexpire(target.key(f"sessions:{name}"), 90_000)
    target.write(6, changes([session(name, T0 + 9_000_000, last=T0 + 9_000_000)]))
    assert listed() == [str(start) for start in (*starts[2:], T0 + 9_000_000)], "two of those that have expired are out"
    kept_ms = target.settings.sessions.retain_ms + target.settings.sessions.max_duration_ms
    assert kept_ms - 60_000 < target.left_ms(f"sessions:{name}") <= kept_ms
    target.is_broken_on_purpose = True
    target.client.delete(target.key(f"sessions:{name}"))
    assert any("list of its device's" in violation for violation in target.violations())


def test_a_session_that_is_closed_renews_its_list_and_enters_one_that_is_gone(target: Target) -> None:
    kept_ms = target.settings.sessions.retain_ms + target.settings.sessions.max_duration_ms
    target.write(1, changes([session("d1"), session("d2")]))
    target.client.pexpire(target.key("sessions:d1"), 90_000)
    target.client.delete(target.key("sessions:d2"))
    ended = [session(name, state="closed", reason="gap") for name in ("d1", "d2")]
    target.write(2, changes(ended))
    for name in ("d1", "d2"):
        assert [*target.scores(f"sessions:{name}")] == [str(T0)]
        assert kept_ms - 60_000 < target.left_ms(f"sessions:{name}") <= kept_ms


def test_sessions_that_come_together_are_listed_by_device(target: Target) -> None:
    numbers = {"a": 130, "a:1": 3, "a:-5": 1, "[a*": 2, "1": 3}
    expired = [T0 + number for number in range(4)]
    for batch, start in enumerate(expired):
        target.write(batch, changes([session("1", start, last=start)]))
        target.client.delete(target.key(f"session:1:{start}"))
    starts = {name: [T0 + MINUTE * (1 + number) for number in range(count)] for name, count in numbers.items()}
    target.write(9, changes([session(name, start, last=start) for name in numbers for start in starts[name]]))
    for name in numbers:
        listed = [*target.scores(f"sessions:{name}")]
        assert listed == [str(start) for start in starts[name]], name


def test_a_session_of_this_epoch_is_not_dropped(target: Target) -> None:
    target.write(1, changes([session()], [device()]))
    target.write(2, changes([], [device(session=T0 + 50)]))
    assert target.read(f"session:d1:{T0}")["state"] == "open"


def test_a_final_window_does_not_change(target: Target) -> None:
    target.write(1, windows([("device_1m", "d1", T0, [1.0]), ("device_1m", "d1", T0 + MINUTE, [1.0])]))
    target.sink(1, watermark_ms=T0 + MINUTE - 1).progress()
    assert target.read()["closed_by"] == ""
    target.sink(2, watermark_ms=T0 + MINUTE).progress()
    assert target.read()["closed_by"] == "watermark"
    assert target.read(window_name(start=T0 + MINUTE))["closed_by"] == ""
    assert target.announced() == ["window", "window", "progress", "progress"]
    same = target.write(3, window([1.0]))
    other = target.write(4, window([1.0, 2.0]))
    assert (same.unchanged, same.refused_final) == (1, 0)
    assert (other.unchanged, other.refused_final) == (0, 1)
    assert target.fields("count", "batch") == ("1", "1")


def test_a_writer_that_reads_the_topic_again_asks_for_lacking_windows_at_its_end(target: Target) -> None:
    target.sink(1, watermark_ms=T0 + MINUTE).progress()
    target.client.set(target.key("rebuild"), f"1 {T0 + MINUTE} 1")
    assert target.write(2, window([1.0])).refused_old == 1
    assert target.client.get(target.key("republish")) is None


def test_what_is_final_stays_so_while_a_writer_reads_the_topic_again(target: Target) -> None:
    target.write(1, window([1.0, 2.0]))
    target.sink(1, watermark_ms=T0 + MINUTE).progress()
    target.begin_term(2)
    again = target.write(0, window([1.0]), epoch=2)
    assert (again.written, again.refused_final) == (0, 1)
    target.sink(0, epoch=2, watermark_ms=T0 - MINUTE).progress()
    assert (target.read("progress")["watermark"], target.read()["closed_by"]) == (str(T0 - MINUTE), "watermark")


def test_a_part_of_a_window_that_was_final_is_not_shown(target: Target) -> None:
    """A writer that reads the topic again has only a part of it at first; a republish writes it when it is whole."""
    target.sink(1, watermark_ms=T0 + MINUTE).progress()
    part = target.write(2, windows([("device_1m", "d1", T0, [1.0]), ("device_1m", "d1", T0 + MINUTE, [1.0])]))
    assert (part.written, part.refused_old, target.read()) == (1, 1, {})
    assert target.client.get(target.key("republish")).startswith("asked "), "it is lacking"
    # A republish by a writer that is behind has only a part of it, too.
    republish = WritePolicy.republish()
    part = target.write(2, window([1.0]), policy=republish, watermark_ms=T0)
    assert (part.written, target.read()) == (0, {})
    whole = target.write(2, window([1.0, 2.0]), policy=republish, watermark_ms=T0 + MINUTE)
    assert (whole.written, *target.fields("count", "closed_by")) == (1, "2", "watermark")


def test_a_closed_session_does_not_change_and_an_open_one_may_shed_fields(target: Target) -> None:
    name = f"session:d1:{T0}"
    target.write(1, changes([session(**{"humidity.count": 1, "humidity.sum": 5.0, "humidity.min": 5.0})]))
    assert "humidity.min" in target.read(name)
    target.write(2, changes([session(count=2)]))
    assert "humidity.min" not in target.read(name)
    assert target.write(3, changes([session(count=2, state="closed", reason="gap")])).written == 1
    outcome = target.write(4, changes([session(count=3)]))
    assert (outcome.written, outcome.refused_final) == (0, 1)
    assert target.fields("state", "count", of=name) == ("closed", "2")


# Skew: a device whose readings are early again and again is marked.


def early(target: Target, batch: int, name: str, count: int, at_ms: int = T0, ahead_ms: int = 86_400_000) -> None:
    """Early readings of a device in a batch, one a millisecond up to `at_ms`."""
    early_readings = Early()
    for number in range(count):
        times = {"event_ms": at_ms - number + ahead_ms, "broker_ms": at_ms - number}
        early_readings.take({"device": name, "reason": "early", **times})
    for arguments in early_readings.calls(0, target.settings):
        target.sink(batch).run("early", **arguments)


def test_a_device_with_repeated_early_readings_is_marked_and_listed(target: Target) -> None:
    target.write(1, changes([session()], [device("fast")]))
    early(target, 1, "fast", 4)
    assert (target.read("device:fast")["early"], target.sink(1).count_skewed()) == ("4", 0)
    early(target, 2, "fast", 2, T0 + 1000)
    fields = target.read("device:fast")
    assert (fields["early"], fields["early.ahead"]) == ("6", "86400000")
    assert (fields["skewed"], fields["status"]) == ("1", "online")
    assert target.sink(2).count_skewed() == 1
    assert target.sink(2).skewed() == {"fast": T0 + 1000}
    early(target, 2, "fast", 2, T0 + 1000)
    assert target.read("device:fast")["early"] == "6", "a batch that is repeated counts once"
    [listed] = skewed(target.settings.redis)
    assert (listed["device"], listed["early"], listed["early.ahead"]) == ("fast", 6, 86_400_000)
    assert any("fast" in line for line in skewed_table([listed]))


def test_the_mark_stays_until_readings_were_admitted_for_long_enough_since(target: Target) -> None:
    calm_ms = target.settings.admission.skewed_for_ms
    target.write(1, changes(devices=[device("fast", last_seen=T0)]))
    early(target, 1, "fast", 5)
    assert target.read("device:fast")["skewed"] == "1"
    target.write(2, changes(devices=[device("fast", last_seen=T0 + calm_ms)]))
    assert (target.read("device:fast")["skewed"], target.sink(2).count_skewed()) == ("1", 1)
    target.write(3, changes(devices=[device("fast", last_seen=T0 + calm_ms + 1)]))
    assert ("skewed" in target.read("device:fast"), "early" in target.read("device:fast")) == (False, False)
    assert target.sink(3).count_skewed() == 0


def test_early_readings_far_apart_are_not_repeated_ones(target: Target) -> None:
    calm_ms = target.settings.admission.skewed_for_ms
    for batch in range(6):
        early(target, batch, "odd", 1, T0 + batch * (calm_ms + 1))
    fields = target.read("device:odd")
    assert (fields["early"], "skewed" in fields, fields["last_seen"], fields["status"]) == ("1", False, "0", "offline")


def test_a_device_that_only_early_readings_name_is_forgotten_soon_unless_it_is_skewed(target: Target) -> None:
    soon_ms, long_ms = target.settings.admission.skewed_for_ms, target.settings.sessions.retain_ms
    assert soon_ms < long_ms - 60_000

    def left_ms(name: str) -> int:
        return target.left_ms(f"device:{name}")

    early(target, 1, "invented", 4)
    assert 0 < left_ms("invented") <= soon_ms
    early(target, 2, "invented", 1, T0 + 1)
    assert (target.read("device:invented")["skewed"], left_ms("invented") > soon_ms) == ("1", True)
    early(target, 3, "invented", 1, T0 + 2 * soon_ms)
    assert (target.read("device:invented")["early"], left_ms("invented") > soon_ms) == ("1", True), "the mark stays"
    target.write(4, changes(devices=[device("known")]))
    early(target, 4, "known", 1)
    assert left_ms("known") > soon_ms


# Silence: what it has closed is final until a reading comes after all.


def idle(target: Target, line_ms: int, batch: int = 2) -> None:
    target.sink(batch, watermark_ms=line_ms).run("idle", watermark=str(line_ms))


def test_what_silence_has_closed_is_closed_and_says_so(target: Target) -> None:
    target.write(1, windows([("device_1m", "d1", T0, [1.0]), ("device_1m", "d1", T0 + MINUTE, [1.0])]))
    target.sink(1).progress()
    idle(target, T0 + MINUTE - 1, 1)
    assert target.read()["closed_by"] == ""
    idle(target, T0 + MINUTE, 1)
    assert target.fields("closed_by", "revision") == ("idle", "0")
    assert target.read(window_name(start=T0 + MINUTE))["closed_by"] == ""
    progress = target.read("progress")
    assert (progress["idle"], progress["idle_epoch"], progress["idle_batch"]) == (str(T0 + MINUTE), "1", "1")
    target.sink(2).progress()
    assert target.read()["closed_by"] == "idle", "input goes on, and nothing of it is for this window"
    target.sink(3, watermark_ms=T0 + MINUTE).progress()
    assert not {"idle", "idle_epoch", "idle_batch"} & target.read("progress").keys()
    assert target.read()["closed_by"] == "watermark"


def test_a_reading_after_a_window_is_settled_is_a_revision_and_no_settings_open_the_window(target: Target) -> None:
    def final_after(after_ms: int | None) -> None:
        views = tuple(view.model_copy(update={"final_after_ms": after_ms}) for view in target.settings.views)
        target.settings = target.settings.model_copy(update={"views": views})

    final_after(10_000)
    lead = target.settings.leads["device_1m"]
    target.write(0, window([20.0]))
    target.sink(0, watermark_ms=T0 + MINUTE - lead).progress()
    assert json.loads(target.read("progress")["settled"])["device_1m"] == T0 + MINUTE
    assert target.fields("closed_by", "revision") == ("settled", "0")
    target.write(1, window([20.0, 21.0]))
    assert (target.read()["count"], target.read()["closed_by"], target.read()["revision"]) == ("2", "settled", "1")
    for after_ms in (30_000, None):
        final_after(after_ms)
        target.sink(1, watermark_ms=T0 + MINUTE - lead).progress()
        assert target.read()["closed_by"] == "settled"
    # Since max_delay has become longer, the watermark is 20 s ahead: no window is settled 20 s before its time.
    final_after(10_000)
    sink = target.sink(1, watermark_ms=T0 + MINUTE - lead)
    behind_ms = target.settings.admission.watermark_delay_ms - 20_000
    of_batch = replace(sink.micro_batch, watermark_ms=T0 + MINUTE - 1, newest_ms=T0 + MINUTE - 1 + behind_ms)
    replace(sink, micro_batch=of_batch).progress()
    assert json.loads(target.read("progress")["settled"])["device_1m"] == T0 + MINUTE - 1 + lead - 20_000
    target.sink(2, watermark_ms=T0 + MINUTE).progress()
    final_after(None)
    target.sink(2, watermark_ms=T0 + MINUTE + lead).progress()
    assert (target.read()["closed_by"], "settled" in target.read("progress")) == ("watermark", False)
    assert target.write(3, window([20.0, 21.0, 22.0])).refused_final == 1


def test_the_feed_says_that_silence_has_closed_windows_as_long_as_there_may_be_any(target: Target) -> None:
    target.write(1, window([1.0]))
    target.sink(1).progress()
    for seconds in range(0, 120, 10):
        idle(target, T0 + 1_000 * seconds, 1)
    # The batch's, then seven up to the window's end at 60 s.
    assert target.announced() == ["window", "progress"] + ["progress"] * 7
    target.write(2, window([1.0, 2.0]))
    target.sink(2).progress()
    assert target.read()["closed_by"] == ""
    length = len(target.feed())
    for _ in range(2):
        idle(target, T0 + 300_000, 2)
    assert target.read()["closed_by"] == "idle"
    assert [entry["kind"] for _, entry in target.feed()[length:]] == ["progress"], "it is closed again"


def test_a_reading_after_a_silence_corrects_the_window_and_its_revision_grows(target: Target) -> None:
    target.write(1, window([1.0]))
    target.sink(1).progress()
    idle(target, T0 + MINUTE, 1)
    again = target.write(2, window([1.0]))
    assert (again.written, again.unchanged, target.read()["closed_by"]) == (0, 1, "idle"), "it says the same"
    feed = len(target.feed())
    assert target.write(3, window([1.0, 2.0])).written == 1
    fields = target.read()
    assert (fields["count"], fields["closed_by"], fields["revision"]) == ("2", "", "1")
    assert len(target.feed()) == feed + 1
    assert target.write(4, window([1.0])).refused_old == 1, "a value does not go back"
    target.write(4, window([1.0, 2.0]))
    assert target.read()["revision"] == "1", "open again, it changes without a revision"
    idle(target, T0 + MINUTE, 4)
    target.write(5, window([1.0, 2.0, 3.0]))
    assert target.read()["revision"] == "2"
    target.sink(6, watermark_ms=T0 + MINUTE).progress()
    fields = target.read()
    assert (fields["count"], fields["closed_by"], fields["revision"]) == ("3", "watermark", "2")
    assert target.write(7, window([1.0, 2.0, 3.0, 4.0])).refused_final == 1


def carrying(before: float) -> pa.RecordBatch:
    """A window with one reading of 5.0, and with a reading 10 s before its start."""
    table = window_table([("device_1m", "d1", T0, [5.0])], ["increase"])
    one, start = np.ones(1, np.int64), np.array([T0])
    earlier = trails.fold(np.array([before]), start - 10_000, np.zeros(1, np.intp), one)
    both = [trails.held(each, start, 60_000) for each in (blobs.of_column(array(table["trail"])), earlier)]
    number = table.schema.get_field_index("trail")
    return changed(
        table.set_column(number, table.schema.field(number), pa.array(blobs.pair(trails.reduce, *both), blobs.TYPE))
    )


def test_a_window_whose_carried_reading_changes_is_written_with_the_same_count(target: Target) -> None:
    view = View(name="device_1m", by=("device",), window="1 m", statistics=["increase"], carry_for="1 m")
    target.settings = target.settings.model_copy(update={"views": (view,)})
    target.write(1, carrying(1.0))
    target.sink(1).progress()
    assert target.fields("count", "increase") == ("1", "4")
    target.write(2, carrying(2.0))
    assert target.fields("increase", "revision") == ("3", "0")
    target.sink(2).progress()
    idle(target, T0 + MINUTE, 2)
    again = target.write(3, carrying(2.0))
    assert (again.written, again.unchanged, target.read()["closed_by"]) == (0, 1, "idle"), "it says the same"
    assert target.write(4, carrying(3.0)).written == 1
    fields = target.read()
    assert (fields["count"], fields["increase"], fields["closed_by"], fields["revision"]) == ("1", "2", "", "1")


def test_a_window_without_a_reading_is_revised_by_what_is_carried_and_by_a_late_reading(target: Target) -> None:
    statistics = ["mean", "last_value", "increase", "time_weighted_mean"]
    view = View(name="device_1m", by=("device",), window="1 m", statistics=statistics, carry_for="1 m", fill="last")
    target.settings = target.settings.model_copy(update={"views": (view,)})
    there = window_table([("device_1m", "d1", T0, [9.0])], statistics)

    def filled(value: float) -> pa.RecordBatch:
        return changed(filled_table(statistics, value))

    target.write(1, filled(5.0))
    target.sink(1).progress()
    shown = {name: target.read().get(name) for name in ("count", "last", "last_value", "mean", "increase")}
    assert shown == {"count": "0", "last": str(T0 - 10_000), "last_value": "5", "mean": None, "increase": "0"}
    assert not target.violations()
    idle(target, T0 + MINUTE, 1)
    assert target.write(1, filled(5.0)).unchanged == 1
    assert target.write(2, filled(7.0)).written == 1
    assert target.fields("last_value", "revision") == ("7", "1")
    target.sink(2).progress()
    idle(target, T0 + MINUTE, 2)
    assert target.write(3, changed(there)).written == 1
    assert target.fields("count", "mean", "revision") == ("1", "9", "2")
    assert target.write(4, filled(7.0)).refused_old == 1, "a window with readings is richer"


def test_what_a_silence_has_closed_up_to_does_not_go_back(target: Target) -> None:
    """The clock may be set back."""
    target.write(1, window([1.0]))
    target.sink(1).progress()
    idle(target, T0 + MINUTE, 1)
    idle(target, T0 + 1, 1)
    assert target.read()["closed_by"] == "idle"


def test_silence_changes_the_status_of_a_measure_alone_and_a_term_without_them_removes_it(target: Target) -> None:
    def said(**statuses: str) -> pa.RecordBatch:
        step = codec.unpack_changes(changes([], [device()])["payload"][0].as_py())
        table = step.devices
        for measure, status in statuses.items():
            table = table.append_column(f"{measure}.status", pa.array([status], pa.string()))
        return row(CHANGES, codec.pack_changes(replace(step, devices=table)))

    idle = WritePolicy.idle()
    target.write(1, said(temperature="online"))
    assert target.read("device:d1")["temperature.status"] == "online"
    assert target.write(1, said(temperature="offline"), policy=idle).written == 1
    assert target.read("device:d1")["temperature.status"] == "offline"
    assert target.write(1, said(temperature="offline"), policy=idle).unchanged == 1
    target.write(2, said())
    assert "temperature.status" not in target.read("device:d1")


def test_the_watermark_closes_a_session_that_silence_had_closed_once(target: Target) -> None:
    name = f"session:d1:{T0}"
    ended = changes([session(count=2, state="closed", reason="gap")])
    assert target.write(1, ended, policy=WritePolicy.idle()).closed == 1
    outcome = target.write(2, ended)
    assert (outcome.written, outcome.closed) == (1, 0)
    assert target.fields("closed_by", "revision", of=name) == ("watermark", "0")
    assert target.write(3, changes([session(count=3)])).refused_final == 1


def in_chunks(given: Settings, rows: int) -> Settings:
    """So many rows a call."""
    return given.model_copy(update={"redis": given.redis.model_copy(update={"chunk": rows})})


def test_a_session_is_opened_once_and_closed_once(target: Target) -> None:
    """Also among windows and devices, in several calls, and when a batch is repeated."""
    target.settings = in_chunks(target.settings, 2)
    many = [f"d{n}" for n in range(5)]
    parts = [
        windows([("device_1m", name, T0, [20.0]) for name in many]),
        changes([session(name) for name in many], [device("d0")]),
    ]
    outcome = target.write(1, *parts)
    assert (outcome.opened, outcome.closed) == (5, 0)
    outcome = target.write(1, *parts)
    assert (outcome.opened, outcome.closed) == (0, 0)
    ended = [session(name, count=2, state="closed", reason="gap") for name in many[:3]]
    outcome = target.write(2, changes([*ended, session("new")]))
    assert (outcome.opened, outcome.closed) == (1, 3)


def test_progress_never_goes_back(target: Target) -> None:
    target.sink(5).progress()
    target.sink(5).progress()
    target.sink(6).progress()
    with pytest.raises(FencedError, match="batch 6 of epoch 1 is there already"):
        target.sink(5).progress()
    assert target.read("progress")["batch"] == "6"
    target.begin_term(2)
    target.sink(6, epoch=2).progress()
    assert target.fields("epoch", "batch", of="progress") == ("2", "6")


# P3: no torn value.


# Rows that are written without a look at what is stored: tests/integration/test_settled.py says when.


def settled(target: Target, batch: int, *rows: pa.RecordBatch, of: Target | None = None) -> Outcome:
    """Publish a batch after its predecessor, with what all devices are in; `of` gets the same with every row looked at."""
    outcome = Outcome()
    for each, settled_ms in ((of, None), (target, 0)):
        if each is not None:
            made = micro_batch(batch, watermark_ms=T0)
            index = Index(pa.table({"device": ["d1", "d2"], "site": ["leeds", None if batch % 3 else "york"]}))
            policy = WritePolicy.stream((1, batch - 1) if batch else None, settled_ms)
            sink = Sink(each.settings, made, index.only(["site"]), policy=policy)
            outcome = sink.write(rows)
            sink.progress()
    return outcome


def test_rows_that_are_not_compared_leave_the_same(target: Target, redis_server: Redis, prefix: str) -> None:
    other = Target(redis_server, f"{prefix}-other")
    chance = random.Random(3)

    def fields(owner: Target) -> dict[str, Any]:
        keys = [key for kind in ("window", "session", "device") for key in owner.client.keys(owner.key(f"{kind}:*"))]
        values = {key.removeprefix(owner.prefix): owner.client.hgetall(key) for key in keys}
        return {name: {n: text for n, text in value.items() if n != "updated"} for name, value in values.items()}

    def a_session(batch: int, number: int) -> dict[str, Any]:
        humidity = {"humidity.count": 1, "humidity.sum": 5.0, "humidity.min": 5.0, "humidity.max": 5.0}
        merged = {"state": "merged", "reason": "merged", "merged_into": T0 - 1}
        form = chance.choice([{}, {}, humidity, merged])
        return session(f"d{number}", T0, count=batch + 1, last=T0 + batch, **form)

    def a_device(batch: int, number: int) -> dict[str, Any]:
        humidity = {"humidity.value": 1.5, "humidity.at": T0} if chance.random() < 0.5 else {}
        return device(f"d{number}", T0 + 20_000 * batch, **humidity)

    for batch in range(40):
        ahead = chance.choice([0, 0, 2, 3])
        for owner in (target, other) if ahead else ():
            early(owner, batch, "d1", ahead, T0 + 20_000 * batch)
        numbers = chance.sample(range(1, 4), chance.randint(1, 3))
        table = windows([("device_1m", f"d{number}", T0, [20.0] * (batch + 1)) for number in numbers])
        rows = changes(
            [a_session(batch, number) for number in numbers], [a_device(batch, number) for number in numbers]
        )
        settled(target, batch, table, rows, of=other)
        assert fields(target) == fields(other), batch
        assert target.client.zrange(target.key("skewed"), 0, -1) == other.client.zrange(other.key("skewed"), 0, -1)
    assert target.client.get(target.key("ends")) == other.client.get(other.key("ends")) == str(T0 + MINUTE)
    other.client.close()


def test_a_task_of_an_older_batch_is_looked_at_and_refused(target: Target) -> None:
    for batch in range(3):
        settled(target, batch, window([20.0] * (batch + 1)))
    late = Sink(target.settings, micro_batch(1, watermark_ms=T0), policy=WritePolicy.stream((1, 0), 0))
    assert late.write([window([20.0, 20.0])]).refused_old == 1
    assert target.read()["count"] == "3"


def test_a_closed_value_and_a_device_of_an_earlier_term_are_looked_at(target: Target) -> None:
    """The state may have open what is closed in Redis: silence has closed it, or its gap has grown since."""
    names = ["idle", "final"]
    rows = changes([session(name, count=2) for name in names], [device("d1", session=T0 + 5_000)])
    starts = T0, T0 - MINUTE  # the second is final
    settled(target, 0, windows([("device_1m", "d1", start, [1.0]) for start in starts[:1]]), rows)
    target.write(0, window([1.0], "d1", T0 - MINUTE), policy=WritePolicy.republish(), watermark_ms=T0)
    idle(target, T0 + MINUTE, 0)
    for name, closed_by in (("idle", "idle"), ("final", "watermark")):
        target.client.hset(
            target.key(f"session:{name}:{T0}"), mapping={"state": "closed", "reason": "gap", "closed_by": closed_by}
        )
    # Under an earlier epoch, a session that the device has no more.
    target.client.hset(target.key("device:d1"), "epoch", "0")
    target.write(0, changes([session("d1", T0 + 5_000)]))
    target.client.hset(target.key(f"session:d1:{T0 + 5_000}"), "epoch", "0")
    more = changes([session(name, count=3) for name in names], [device("d1", session=T0)])
    outcome = settled(target, 1, windows([("device_1m", "d1", start, [1.0, 2.0]) for start in starts]), more)
    assert (outcome.written, outcome.refused_final) == (3, 2)
    window_of, session_of = target.read(), target.read(f"session:idle:{T0}")
    assert (window_of["count"], window_of["closed_by"], window_of["revision"]) == ("2", "", "1")
    assert (session_of["count"], session_of["state"], session_of["revision"]) == ("3", "open", "1")
    assert target.read(window_name(start=T0 - MINUTE))["count"] == "1"
    assert target.read(f"session:final:{T0}")["state"] == "closed"
    assert target.read(f"session:d1:{T0 + 5_000}") == {}


def with_statistics(given: Settings, **statistics: list[str]) -> Settings:
    """The settings with other statistics of some views."""
    document = given.model_dump()["views"]
    views = [
        View(
            **{name: each[name] for name in ("name", "by")},
            window=each["window_ms"],
            retain=each["retain_ms"],
            statistics=statistics.get(each["name"], each["statistics"]),
        )
        for each in document
    ]
    return given.model_copy(update={"views": tuple(views)})


def test_a_window_has_the_statistics_of_its_view_and_no_others(target: Target) -> None:
    target.settings = with_statistics(target.settings, device_1m=["mean"])
    few = windows([("device_1m", "d1", T0, [1.0, 2.0])], ["mean", "max"])
    sink = target.sink(1)
    sink.write([few, windows([("all_1m", "all", T0, [1.0, 2.0])])])
    sink.progress()
    fields = target.read().keys() - {"start", "end", "epoch", "batch", "updated", "revision", "final", "closed_by"}
    assert fields == {"count", "mean", "last"}
    assert target.read(f"window:all_1m:temperature:all:{T0}")["max"] == "2"
    views = {view["name"]: view for view in json.loads(target.client.get(target.key("meta")))["views"]}
    assert views["device_1m"]["statistics"] == ["count", "mean", "last"]


def test_a_statistic_that_a_view_has_no_more_goes_with_the_next_reading_of_a_window(target: Target) -> None:
    """Else readers would see one that lacks the newest readings."""
    target.write(1, window([1.0]), window([5.0], "d2"))
    target.begin_term(2)
    target.settings = with_statistics(target.settings, device_1m=["mean"])
    target.write(2, windows([("device_1m", "d1", T0, [1.0, 3.0])], ["mean"]), epoch=2)
    now = target.read()
    assert (now["mean"], now["count"], now["revision"]) == ("2", "2", "0")
    assert not {"sum", "max", "stddev"} & now.keys()
    assert target.read(window_name("d2"))["max"] == "5"


def test_new_and_closed_rows_are_counted_without_a_look(target: Target) -> None:
    settled(target, 0)
    first = settled(target, 1, window([20.0]), changes([session()], [device()]))
    assert (first.written, first.opened, first.new_devices, first.closed) == (3, 1, 1, 0)
    second = settled(
        target, 2, window([20.0, 21.0]), changes([session(count=2, state="closed", reason="gap")], [device()])
    )
    assert (second.written, second.opened, second.new_devices, second.closed) == (3, 0, 0, 1)
    assert (target.read()["revision"], target.read(f"session:d1:{T0}")["revision"]) == ("0", "0")
    assert 0 < target.left_ms(WINDOW) <= KEPT_MS


def test_no_reader_sees_a_torn_value(redis_server: Redis, target: Target) -> None:
    target.is_broken_on_purpose = True  # the readings go on after the window's end
    stop = threading.Event()
    torn: list[dict[str, str]] = []
    seen: list[int] = []

    def read() -> None:
        with redis_server.client() as client:
            while not stop.is_set():
                fields: dict[str, str] = client.hgetall(target.key(WINDOW))
                if fields:
                    seen.append(int(fields["count"]))
                    if abs(float(fields["mean"]) * seen[-1] - float(fields["sum"])) > 1e-6:
                        torn.append(fields)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for batch in itertools.count(1):
        target.write(batch, window([float(i * batch) for i in range(batch)]))
        if batch >= 200 and len(set(seen)) > 20:
            break
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []


# Expiry, keys, feed.


def test_every_write_renews_the_expiry(target: Target) -> None:
    kept_ms = {WINDOW: KEPT_MS, f"session:d1:{T0}": 10_800_000, "device:d1": 10_800_000}
    rows = [window([1.0]), changes([session()], [device()])]
    for batch in (1, 2, 2):
        target.write(batch, *rows)
        for name, ttl_ms in kept_ms.items():
            assert ttl_ms - 60_000 < target.left_ms(name) <= ttl_ms, name
            target.client.pexpire(target.key(name), 90_000)


def test_a_views_keys_are_kept_by_their_newest_window_and_pruned(target: Target) -> None:
    name = "keys:device_1m"
    target.write(1, windows([("device_1m", key, T0, [1.0, 2.0]) for key in ("old", "d:1")]))
    assert target.scores(name) == {"d:1": T0, "old": T0}
    target.client.pexpire(target.key(name), 90_000)
    target.write(2, window([1.0], "d:1", T0 - MINUTE))
    assert target.scores(name)["d:1"] == T0, "a late window does not make its key older"
    assert KEPT_MS - 60_000 < target.left_ms(name) <= KEPT_MS, "a new window renews the expiry"
    later = T0 + KEPT_MS
    target.write(3, window([1.0], "d:1", later), watermark_ms=later)
    assert target.scores(name) == {"d:1": later}


def test_a_republish_enters_keys_of_windows_that_are_there(target: Target) -> None:
    target.write(1, window([1.0]))
    target.client.delete(target.key("keys:device_1m"))
    assert target.write(1, window([1.0]), policy=WritePolicy.republish()).unchanged == 1
    assert [*target.scores("keys:device_1m")] == ["d1"]


def test_the_feed_names_what_was_written_and_can_be_resumed(target: Target) -> None:
    target.write(1, window([1.0]))
    [(last, fields)] = target.feed()
    assert fields == {"kind": "window", "key": target.key(WINDOW), "batch": "1", "epoch": "1"}
    target.write(0, window([1.0, 2.0]))
    target.write(2, window([1.0, 2.0]), changes([session()], [device()]))
    assert [(f["kind"], f["key"]) for _, f in target.feed(last)] == [
        ("window", target.key(WINDOW)),
        ("session", target.key(f"session:d1:{T0}")),
        ("device", target.key("device:d1")),
    ]


def test_an_entry_of_the_feed_names_up_to_a_hundred_keys_each_of_them_once(target: Target) -> None:
    target.write(1, windows([("device_1m", f"d{i}", T0, [1.0]) for i in range(250)]))
    entries = target.client.xrange(target.key("changes"))
    assert [len(json.loads(entry["keys"])) for _, entry in entries] == [100, 100, 50]
    assert len({entry["key"] for _, entry in target.feed()}) == 250
    assert {*target.scores("keys:device_1m")} == {f"d{i}" for i in range(250)}


def test_a_call_that_fails_halfway_has_announced_and_listed_what_it_wrote(target: Target) -> None:
    rows = windows([("device_1m", f"d{i}", T0, [1.0]) for i in range(3)])
    names = [target.key(f"window:device_1m:temperature:d{i}:{T0}") for i in range(3)]
    target.client.set(names[1], "mine")
    with pytest.raises(SinkError, match="WRONGTYPE"):
        target.write(1, rows)
    target.client.delete(names[1])
    outcome = target.write(1, rows)
    assert (outcome.written, outcome.unchanged) == (2, 1)
    assert {entry["key"] for _, entry in target.feed()} == set(names)
    assert [*target.scores("keys:device_1m")] == ["d0", "d1", "d2"]


@pytest.mark.parametrize("name", ["changes", "keys:device_1m", "keys:all_1m"])
def test_windows_are_listed_after_somebody_elses_set_or_feed_is_gone(target: Target, name: str) -> None:
    rows = windows([*(("device_1m", f"d{i}", T0, [1.0]) for i in range(150)), ("all_1m", "all", T0, [1.0])])
    target.client.set(target.key(name), "mine")
    with pytest.raises(SinkError, match="WRONGTYPE"):
        target.write(1, rows)
    target.client.delete(target.key(name))
    target.write(1, rows)
    assert target.client.zcard(target.key("keys:device_1m")) == 150
    assert [*target.scores("keys:all_1m")] == ["all"]
    assert len({entry["key"] for _, entry in target.feed()}) == 151


def test_the_feed_is_capped(redis_server: Redis, prefix: str) -> None:
    target = Target(redis_server, prefix, feed_length=100, chunk=1)
    for batch in range(1, 4):
        target.write(batch, windows([("device_1m", f"d{i}", T0, [1.0] * batch) for i in range(300)]))
    assert 100 <= target.client.xlen(target.key("changes")) < 300


def test_anything_a_device_may_be_called_is_published(target: Target) -> None:
    names = ["a:b", "x" * 300, " ", "%7C|", "ü\n", "tidemark:epoch", "{tag}", "*"]
    target.write(
        1,
        windows([("device_1m", name, T0, [1.0]) for name in names]),
        changes([session(name) for name in names], [device(name) for name in names]),
    )
    for name in names:
        assert target.read(f"device:{name}")["status"] == "online"


# Failures.


def test_a_script_that_redis_forgot_is_loaded_again(redis_server: Redis, target: Target) -> None:
    target.write(1, window([1.0]))
    redis_server.client().script_flush()
    outcome = target.write(2, *[window([1.0, 2.0], f"d{i}") for i in range(5)])
    assert (outcome.written, outcome.retries) == (5, 1)


def has_unread(port: int) -> bool:
    """Whether a server on this port has got bytes that it has not read."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        each[1].endswith(f":{port:04X}") and each[3] == "01" and not each[4].endswith(":00000000") for each in sockets
    )


def test_a_redis_killed_and_restarted_during_a_publish_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with Redis(tmp_path, appendonly=True, settings={"appendfsync": "always"}) as part:
        target = Target(part, "tidemark", chunk=50, retry_for="60 s")
        rows = [windows([("device_1m", f"d{i}", T0, [1.0] * 3) for i in range(n, n + 500)]) for n in (0, 500, 1000)]
        outcomes: list[Outcome] = []
        written, are_killed = threading.Semaphore(0), threading.Event()

        def publish() -> None:
            """Write batches until Redis has been killed twice, and one more."""
            is_last = False
            while not is_last:
                is_last = are_killed.is_set()
                outcomes.append(target.write(len(outcomes) + 1, *rows))
                written.release()

        writer = threading.Thread(target=publish)
        writer.start()
        for _ in range(2):
            for _ in range(2):
                assert written.acquire(timeout=60)
            part.pause()
            until(lambda: has_unread(part.port), 60, "a call that Redis has got and not read")
            part.kill()
            part.start()
        are_killed.set()
        writer.join()
        assert sum(o.retries for o in outcomes) > 0
        assert [outcome.written + outcome.unchanged for outcome in outcomes] == [1_500] * len(outcomes)
        client: Any = part.client()
        batches = [client.hget(f"tidemark:window:device_1m:temperature:d{i}:{T0}", "batch") for i in range(1_500)]
        assert batches == [str(len(outcomes))] * 1_500
        assert target.violations() == []


def test_a_batch_is_not_finished_on_a_redis_that_was_restarted_during_it(tmp_path: Path) -> None:
    with Redis(tmp_path, appendonly=True, settings={"appendfsync": "always"}) as part:
        target = Target(part, "tidemark", retry_for="60 s")
        sink = target.sink(1)
        servers = sink.servers()
        sink.write([window([1.0])])
        part.kill()
        part.start()
        with pytest.raises(SinkError, match="restarted or failed over") as caught:
            sink.progress(servers)
        assert not isinstance(caught.value, SinkRefusedError)
        assert target.read("progress") == {}
        again = target.sink(1)
        servers = again.servers()
        assert again.write([window([1.0])]).unchanged == 1
        again.progress(servers)
        assert target.read("progress")["batch"] == "1"


def test_a_redis_that_stays_away_fails_the_batch_by_name(tmp_path: Path) -> None:
    with Redis(tmp_path) as part:
        target = Target(part, "tidemark", retry_for="300 ms")
        target.write(1, window([1.0]))
        part.kill()
        with pytest.raises(SinkError, match=rf"{part.address}/0, values of batch 2, epoch 1.*retries") as caught:
            target.write(2, window([1.0]))
        assert "Check that Redis runs" in caught.value.remedy
        part.start()
        target.client.set("tidemark:epoch", 1)
        assert target.write(2, window([1.0])).written == 1


def test_a_redis_that_hangs_is_asked_again(tmp_path: Path) -> None:
    with Redis(tmp_path) as part:
        target = Target(part, "tidemark", timeout="200 ms", retry_for="60 s")
        target.write(1, window([1.0]))
        part.pause()
        waker = threading.Timer(0.5, part.resume)
        waker.start()
        outcome = target.write(2, window([1.0, 2.0]))
        waker.join()
        assert outcome.retries > 0
        assert target.read()["count"] == "2"


def test_a_redis_that_refuses_writes_says_what_to_do(tmp_path: Path) -> None:
    with Redis(tmp_path) as part:
        target = Target(part, "tidemark", retry_for="200 ms")
        client = target.client

        def refused(code: str, remedy: str) -> None:
            with pytest.raises(SinkError, match=code) as caught:
                target.write(1, window([1.0]))
            assert remedy in caught.value.remedy

        client.config_set("maxmemory", "1")
        refused("OOM", "maxmemory")
        client.config_set("maxmemory", "0")
        client.replicaof("127.0.0.1", 1)
        refused("READONLY", "replica")
        client.replicaof("NO", "ONE")
        client.set(target.key(WINDOW), "of another program")
        refused("WRONGTYPE", "prefix")
        client.delete(target.key(WINDOW))
        assert target.write(1, window([1.0])).written == 1


# Rejects.


def with_rejects(redis_server: Redis, broker: Broker, prefix: str, *, there: bool = True) -> Target:
    """An input topic of ten records, and its rejects topic if that is to be `there`."""
    broker.create_topic(prefix, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(10):
        producer.produce(prefix, b"value %d" % number)
    assert producer.flush(30) == 0
    if there:
        broker.create_topic(f"{prefix}.rejects", 1)
    target = Target(redis_server, prefix, bootstrap=broker.bootstrap)
    kafka = target.settings.kafka.model_copy(update={"topics": (prefix,)})
    target.settings = target.settings.model_copy(update={"kafka": kafka})
    return target


def test_rejects_are_copied_and_say_who_rejected_them(redis_server: Redis, broker_server: Broker, prefix: str) -> None:
    target = with_rejects(redis_server, broker_server, prefix)
    outcome = target.write(8, reject(7, prefix), window([1.0]), reject(8, prefix), epoch=1)
    assert (outcome.rejects, outcome.written) == (2, 1)
    for message, offset in zip(read(broker_server, f"{prefix}.rejects", 2), (7, 8), strict=True):
        assert message.value() == b"value %d" % offset
        record = delivery.parse(message.headers())
        assert (record["topic"], record["partition"], record["offset"]) == (prefix, 0, offset)
        assert (record["reason"], record["epoch"], record["batch"]) == ("late", 1, 8)


def test_a_fenced_writer_sends_no_reject(redis_server: Redis, broker_server: Broker, prefix: str) -> None:
    target = with_rejects(redis_server, broker_server, prefix)
    target.begin_term(2)
    with pytest.raises(FencedError, match="the epoch is 2"):
        target.write(4, reject(1, prefix), epoch=1)
    target.write(5, reject(2, prefix), epoch=2)
    (sent,) = read(broker_server, f"{prefix}.rejects", 1)
    record = delivery.parse(sent.headers())
    assert (record["offset"], record["epoch"], record["batch"]) == (2, 2, 5)


def test_nothing_is_written_to_redis_before_every_reject_is_delivered(
    redis_server: Redis, broker_server: Broker, prefix: str
) -> None:
    target = with_rejects(redis_server, broker_server, prefix, there=False)
    with pytest.raises(SourceError, match="batch 3 of epoch 1: 1 rejects were not delivered"):
        target.write(3, window([1.0]), reject(1, prefix))
    assert target.read() == {}


def test_rejects_go_out_again_when_the_broker_is_back(redis_server: Redis, tmp_path: Path, prefix: str) -> None:
    with Broker(tmp_path) as broker:
        target = with_rejects(redis_server, broker, prefix)
        target.write(1, reject(1, prefix))
        broker.kill()
        back = threading.Thread(target=broker.start)
        back.start()
        assert target.write(2, reject(2, prefix), window([1.0])).written == 1
        back.join()
        offsets = {delivery.parse(m.headers())["offset"] for m in read(broker, f"{prefix}.rejects", 2)}
        assert offsets == {1, 2}


def total(values: list[float], key: str = "d1") -> pa.RecordBatch:
    """The value of a view without windows."""
    table = window_table([("total", key, 0, values)])
    at = table.schema.get_field_index("end")
    return changed(table.set_column(at, table.schema.field(at), pa.array([ENDLESS_MS])))


@pytest.fixture
def endless(target: Target) -> Target:
    views = (*target.settings.views, View(name="total", by=("device",), window="none"))
    target.settings = target.settings.model_copy(update={"views": views})
    return target


def begun(target: Target, batch: int, from_ms: int, epoch: int = 1, **of: Any) -> Sink:
    pair = {("total", "temperature"): from_ms}
    return replace(target.sink(batch, epoch=epoch, **of), begun=pair)


TOTAL = "window:total:temperature:d1:0"


def test_a_count_without_windows_falls_only_when_it_begins_later(endless: Target) -> None:
    assert begun(endless, 1, 0).write([total([1.0, 2.0, 3.0]), window([1.0])]).written == 2
    assert begun(endless, 2, 0).write([total([1.0, 2.0])]).refused_old == 1
    endless.client.set(endless.key("rebuild"), f"{T0} {T0} 1")
    assert begun(endless, 3, 9).write([total([1.0, 2.0])]).refused_old == 1, "the topic is read again"
    endless.client.delete(endless.key("rebuild"))
    assert begun(endless, 3, 9).write([total([1.0, 2.0])]).written == 1
    stored = endless.read(TOTAL)
    assert (stored["count"], stored["complete_from"], stored["closed_by"]) == ("2", "9", "")
    assert endless.left_ms(TOTAL) == endless.left_ms("keys:total") == -1
    assert endless.left_ms(WINDOW) > 0
    assert int(endless.client.get(endless.key("ends"))) == T0 + MINUTE


def test_a_view_without_windows_is_final_at_no_watermark_and_written_again_as_it_was(endless: Target) -> None:
    sink = begun(endless, 1, 0, watermark_ms=T0 + 10 * MINUTE)
    sink.write([total([1.0])])
    sink.progress()
    sink.run("idle", watermark=str(T0 + 20 * MINUTE))
    assert endless.read(TOTAL)["closed_by"] == ""
    assert begun(endless, 2, 0).write([total([1.0, 2.0])]).written == 1
    assert endless.read(TOTAL)["revision"] == "0"
    before = endless.read(TOTAL)
    endless.client.delete(endless.key(TOTAL), endless.key("keys:total"))
    again = replace(begun(endless, 2, 0, watermark_ms=T0 + 10 * MINUTE), policy=WritePolicy.republish())
    assert again.write([total([1.0, 2.0])]).written == 1
    assert {**endless.read(TOTAL), "updated": ""} == {**before, "updated": ""}
    assert endless.scores("keys:total") == {"d1": 0.0}
    assert endless.left_ms(TOTAL) == -1


def test_a_value_without_windows_loses_the_statistics_that_its_view_has_lost_terms_ago(endless: Target) -> None:
    begun(endless, 1, 0, watermark_ms=T0).write([total([1.0])])
    begun(endless, 1, 0, watermark_ms=T0).progress()
    endless.begin_term(2)
    *views, view = endless.settings.views
    views.append(view.model_copy(update={"statistics": ("count", "last")}))
    endless.settings = endless.settings.model_copy(update={"views": tuple(views)})
    sink = begun(endless, 2, 0, epoch=2, watermark_ms=T0 + MINUTE)
    assert replace(sink, policy=WritePolicy.stream((1, 1), T0)).write([total([1.0, 2.0])]).written == 1
    assert "mean" not in endless.read(TOTAL)


def test_the_values_of_a_view_that_is_over_are_removed_and_announced(endless: Target) -> None:
    sink = replace(begun(endless, 1, 0), settings=in_chunks(endless.settings, 10))
    keys = [f"d{number}" for number in range(25)]
    sink.write([total([1.0], key) for key in keys] + [window([1.0])])
    after = endless.feed()[-1][0]
    sink.drop("total", ["humidity"], whole=False)
    assert endless.read("window:total:temperature:d24:0")
    sink.drop("total", ["temperature", "humidity"], whole=True)
    assert not [key for key in endless.client.scan_iter(endless.key("*")) if "total" in key]
    assert endless.read()["count"] == "1"
    gone = {entry["key"] for _, entry in endless.feed(after)}
    assert gone == {endless.key(f"window:total:temperature:{key}:0") for key in keys}
