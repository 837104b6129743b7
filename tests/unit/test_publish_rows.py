"""What publish puts on the wire: names of keys, text of numbers, columns, calls."""

import math
from typing import Any

import hypothesis
import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark import cloudpickle
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from service import clock
from service.aggregation import task_counters
from service.errors import FencedError, SinkError
from service.pipeline.batch_publisher import Sink
from service.pipeline.batch_publisher import _Output as Output
from service.pipeline.outcome import LATENCY_BOUNDS_MS, Outcome, latency_counts
from service.publication.rows import Rows, Stamp, as_of_watermark, device_rows, session_rows, window_rows
from service.redis import client as redis_client
from service.redis.key_columns import decimal, texts
from service.redis.keys import Keys
from service.redis.link import Budget, EpochLostError, Place, raise_refusal
from service.reference.attributes import Index
from service.rejects import delivery
from service.settings import Sessions, View
from state.calendar import local_times
from state.windows import empty
from tests.outputs import T0, changes, device, micro_batch, session, settings, stats, window, window_table, windows

KEYS = Keys("tidemark")
STAMP = Stamp("3", "17", str(T0), 1000, 60_000)
VIEWS = [View(name="device_1m", window="1 m", retain="1 h"), View(name="all_1m", window="1 m", retain="2 h")]


def read(*batches: pa.RecordBatch) -> Output:
    into = Output()
    for batch in batches:
        for row in batch.to_pylist():
            into.take(row["kind"], row["payload"])
    return into


def latency(now_ms: int, *batches: pa.RecordBatch) -> tuple[int, tuple[int, ...]]:
    return latency_counts(task_counters.total(read(*batches).tallies), now_ms)


def row(of: Rows, index: int = 0) -> dict[str, bytes]:
    """Fields that a row sets."""
    return {name: value for name, column in of.fields.items() if (value := column[index]) is not None}


@hypothesis.settings(deadline=None)  # the first use of Arrow's cast takes a second
@hypothesis.given(st.floats(allow_nan=False))
def test_a_double_reads_back_from_its_text_as_the_same_double(value: float) -> None:
    [text] = texts(decimal(np.array([value])))
    assert text is not None
    assert math.copysign(1, float(text)) == math.copysign(1, value)
    assert float(text) == value


def test_integers_are_decimal_and_null_stays_null() -> None:
    assert texts(decimal(pa.array([0, -5, 2**53 + 1, None], pa.int64()))) == [b"0", b"-5", b"9007199254740993", None]


def test_a_windows_key_is_named_by_view_measure_key_and_start() -> None:
    rows = window_rows(read(window([20.0], "site|7:a")).changes().windows, KEYS, VIEWS, T0)
    assert rows.keys == [f"tidemark:window:device_1m:temperature:site|7:a:{T0}".encode()]
    assert rows.keys == [KEYS.window("device_1m", "temperature", "site|7:a", T0).encode()]


def test_text_that_is_not_utf8_is_published_as_it_is() -> None:
    key = pa.array([b"d\xff\x00"]).cast(pa.binary())
    raw = pa.StringArray.from_buffers(1, *key.buffers()[1:])
    table = window_table([("device_1m", "d1", T0, [20.0])])
    position = table.schema.get_field_index("key")
    named = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), raw)
    table = table.set_column(position, table.schema.field("key"), named)
    assert window_rows(table, KEYS, VIEWS, T0).keys == [b"tidemark:window:device_1m:temperature:d\xff\x00:%d" % T0]


def test_a_window_has_the_fields_of_the_contract_and_its_views_expiry() -> None:
    table = read(windows([("device_1m", "d1", T0, [1.0, 2.0, 6.0]), ("all_1m", "all", T0, [5.0])])).changes().windows
    of = window_rows(table, KEYS, VIEWS, T0)
    assert of.ttl == [3_600_000 + 58_000, 7_200_000 + 60_000], "from the last reading to the end, and then for retain"
    assert window_rows(table, KEYS, VIEWS, T0, ahead_ms=10_000).ttl == [ttl + 10_000 for ttl in of.ttl]
    assert {name: float(text) for name, text in row(of).items()} == {
        "count": 3,
        "sum": 9,
        "mean": 3,
        "min": 1,
        "max": 6,
        "stddev": pytest.approx(math.sqrt(14 / 3)),
        "first": T0,
        "last": T0 + 2000,
        "start": T0,
        "end": T0 + 60_000,
    }


@pytest.mark.parametrize("values", [[-15.31], [0.1, 0.1, 0.1], [1e140, 1e140]])
def test_equal_readings_do_not_deviate(values: list[float]) -> None:
    rows = window_rows(read(window(values)).changes().windows, KEYS, VIEWS, T0)
    assert rows.fields["stddev"] == [b"0"]


def test_a_window_of_a_calendar_has_its_start_on_the_zone_s_clock_and_is_kept_until_retain_after_its_end() -> None:
    table = read(windows([("day", "d1", T0, [1.0, 2.0]), ("all_1m", "all", T0, [5.0])])).changes().windows
    day = View(name="day", window="1 d", time_zone="Asia/Kathmandu", retain="2 h")
    of = window_rows(table, KEYS, [day, *VIEWS], T0)
    assert of.fields["local_start"] == [day.calendar.local(np.array([T0]))[0].encode(), None]
    assert of.shared["partly"] is True
    assert of.shared["views"]["day"][0] == day.longest_ms + 2 * 3_600_000
    assert "local_start" not in window_rows(table.slice(1), KEYS, [day, *VIEWS], T0).fields


def test_a_window_of_a_key_with_a_time_zone_has_its_start_on_the_clock_of_that_zone() -> None:
    keys = ("d1|Asia/Kathmandu", "d2|(none)", "d1|Europe/Rome")
    table = read(windows([("zoned", key, T0, [1.0]) for key in keys])).changes().windows
    view = View(name="zoned", by=("device", "zone"), window="1 d", time_zone={"column": "zone"})
    of = window_rows(table, KEYS, [view], T0)
    zones = ("Asia/Kathmandu", "UTC", "Europe/Rome")
    assert of.fields["local_start"] == [local_times(np.array([T0]), zone)[0].encode() for zone in zones]
    assert of.shared["views"]["zoned"][0] == 2 * 31 * 3_600_000, "no window of any zone is longer"


def test_a_views_keys_are_kept_for_a_window_and_its_expiry() -> None:
    table = read(window([1.0])).changes().windows
    assert window_rows(table, KEYS, VIEWS, T0).shared["views"]["device_1m"] == (3_660_000, str(T0 - 3_660_000))
    assert window_rows(table, KEYS, VIEWS, 5).shared["views"]["device_1m"] == (3_660_000, "")


def test_no_rows_are_none_as_of_any_watermark() -> None:
    nothing = window_rows(empty(), KEYS, VIEWS, 5)
    assert [len(each) for each in as_of_watermark(nothing, 5, 0)] == [0, 0]


def test_a_session_has_means_of_the_measures_it_has() -> None:
    batch = changes([session(last=T0 + 5000, count=4, **{"temperature.count": 4, "temperature.sum": 82.0})])
    sessions = read(batch).changes().sessions
    of = session_rows(sessions, KEYS, Sessions(retain="1 s"))
    assert of.keys == [f"tidemark:session:d1:{T0}".encode()]
    assert row(of) == {
        "start": b"%d" % T0,
        "last": b"%d" % (T0 + 5000),
        "count": b"4",
        "duration": b"5000",
        "state": b"open",
        "reason": b"",
        "closed_by": b"",
        "temperature.count": b"4",
        "temperature.mean": b"20.5",
        "temperature.min": b"20",
        "temperature.max": b"20",
        "humidity.count": b"0",
    }


def test_a_device_carries_the_attributes_that_the_reference_has() -> None:
    attributes = Index(pa.table({"device": ["d2", "d1"], "site": ["hamburg", "bremen"], "type": [None, "t1"]}))
    devices = read(changes(devices=[device("d1"), device("d2"), device("d3", session=None)])).changes().devices
    of = device_rows(devices, KEYS, 1000, "v7", attributes)
    assert of.fields["ref.site"] == [b"bremen", b"hamburg", None]
    assert of.fields["ref.type"] == [b"t1", None, None]
    assert row(of, 2) == {
        "status": b"online",
        "last_seen": b"%d" % T0,
        "session": b"",
        "reference": b"v7",
        "temperature": b"20",
        "temperature.at": b"%d" % T0,
    }


def test_calls_hold_at_most_a_chunk_of_rows_and_are_made_when_asked_for() -> None:
    table = read(windows([("device_1m", f"d{i}", T0, [1.0]) for i in range(5)])).changes().windows
    of = window_rows(table, KEYS, VIEWS, T0)
    calls = [msgpack.unpackb(packed) for step, packed in of.calls(STAMP, 2) if step == "write"]
    assert [len(call["keys"]) for call in calls] == [2, 2, 1]
    assert [call["epoch"] + "/" + call["batch"] for call in calls] == ["3/17"] * 3
    assert calls[2]["columns"][calls[2]["fields"].index("count")] == ["1"]
    assert calls[2]["columns"][calls[2]["fields"].index("end")] == [str(T0 + 60_000)]
    assert all("again" not in call for call in calls)


def test_a_sink_and_its_outcome_can_travel() -> None:
    sink = Sink(settings("redis://127.0.0.1:1"), micro_batch(5), pa.table({"device": ["d"], "site": ["s"]}))
    assert cloudpickle.loads(cloudpickle.dumps(sink)) == sink
    latency = tuple(range(len(LATENCY_BOUNDS_MS) + 1))
    lists = {"latency": latency, "event_times": ((7, 9),), "times": ((0, 5, 7), (3, 8, 9)), "topics": ((1, 4),)}
    outcome = Outcome(rejects=1, windows=2, sessions=3, written=4, bytes=6, **lists)
    assert cloudpickle.loads(cloudpickle.dumps(outcome)) == outcome
    assert outcome + Outcome() == Outcome() + outcome == outcome
    assert (outcome + outcome).topics == ((1, 4), (1, 4))
    assert (outcome + outcome).latency[3] == 6
    assert (outcome + outcome).event_times == ((7, 9),)
    other = Outcome(times=((3, 2, 8), (4, 1, 1)))
    assert (outcome + other).times == (other + outcome).times == ((0, 5, 7), (3, 2, 9), (4, 1, 1))


def test_latency_is_counted_per_reading_in_its_bucket() -> None:
    now_ms = clock.now_ms()
    total, counts = latency(now_ms, stats((now_ms - 15, 2), (now_ms - 16, 3)), stats((now_ms - 100_004, 4)))
    assert total == 20 + 33 + 4 * 99_999
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 3, 4, 9)


def test_a_broker_ahead_of_this_clock_counts_as_no_latency() -> None:
    total, counts = latency(1000, stats((5000, 1)))
    assert (total, counts[0]) == (0, 1)


def test_kinds_are_told_apart() -> None:
    mixed = read(window([1.0]), stats((1, 1)), changes([session()], [device()]))
    assert mixed.changes().windows["view"].to_pylist() == ["device_1m"]
    assert (mixed.changes().sessions.num_rows, mixed.changes().devices.num_rows) == (1, 1)
    assert len(mixed.tallies) == 1
    assert not read().changes()


def test_reject_headers_parse_back() -> None:
    place = {"topic": "readings", "partition": 3, "offset": 7, "broker_ms": T0}
    who = {"epoch": 3, "batch": 17}
    headers = delivery.headers({"reason": "out_of_range", "detail": "t = 61", **place}, micro_batch(17, epoch=3))
    assert delivery.parse(headers) == {"reason": "out_of_range", "detail": "t = 61", **place, **who}
    times = {"event_ms": T0 - 9, "watermark_ms": T0 - 5}
    own: list[tuple[str, bytes | None]] = [("tidemark.event_ms", b"7"), ("tidemark.watermark_ms", b"8")]
    for reason, given in (("behind", times), ("late", {"event_ms": -1}), ("undecodable", {})):
        headers = delivery.headers({"reason": reason, "detail": None, **place, **given}, micro_batch(17, epoch=3))
        assert delivery.split([*own, *headers]) == (own, {"reason": reason, "detail": "", **place, **who, **given})


def test_a_header_of_a_device_is_not_taken_for_a_time_of_a_reject_of_an_earlier_version() -> None:
    place = {"topic": "readings", "partition": 3, "offset": 7, "broker_ms": T0}
    headers = delivery.headers({"reason": "late", "detail": "event time 1 ms", **place}, micro_batch(17, epoch=3))
    own: list[tuple[str, bytes | None]] = [("tidemark.event_ms", b"no number")]
    assert delivery.split([*own, *headers]) == (own, delivery.parse(headers))


def fail(budget: Budget, error: Exception, *, succeed_between: bool = False) -> None:
    for _ in range(1000):
        budget.failed(error)
        if succeed_between:
            budget.succeeded()


PLACE = Place("127.0.0.1:6379/0", "batch 17")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (AuthenticationError("invalid username-password pair"), "password_file"),
        (NoPermissionError("this user has no permissions"), "ACL"),
        (ResponseError("WRONGTYPE Operation against a key"), "prefix"),
        (ResponseError("unknown command 'EVALSHA'"), "6.2"),
    ],
)
def test_what_no_retry_can_mend_fails_at_once(error: Exception, remedy: str) -> None:
    budget = Budget(60_000, PLACE)
    with pytest.raises(SinkError, match=r"127.0.0.1:6379/0, batch 17") as caught:
        budget.failed(error)
    assert remedy in caught.value.remedy
    assert budget.retries == 0


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (RedisConnectionError("Connection refused"), "reached"),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'", status_code="OOM"), "maxmemory"),
        (ResponseError("Error running script: @user_script:7: -OOM command not allowed"), "maxmemory"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), "log"),
    ],
)
def test_what_may_pass_is_tried_again_until_the_budget_is_used_up(error: Exception, remedy: str) -> None:
    budget = Budget(60, PLACE)
    with pytest.raises(SinkError, match=r"given up after \d+ retries in \d.\d s") as caught:
        fail(budget, error)
    assert remedy in caught.value.remedy
    assert 0 < budget.retries < 20


def test_the_budget_counts_failures_in_all_not_in_a_row() -> None:
    budget = Budget(100, PLACE)
    with pytest.raises(SinkError):
        fail(budget, RedisConnectionError("gone"), succeed_between=True)
    assert 0 < budget.retries < 50


def test_the_scripts_refusals_have_errors_of_their_own() -> None:
    with pytest.raises(FencedError, match="the epoch is 5"):
        raise_refusal(ResponseError("FENCED the epoch is 5"), PLACE)
    with pytest.raises(EpochLostError, match="lost data"):
        raise_refusal(ResponseError("EPOCHLOST there is no epoch"), PLACE)
    raise_refusal(ResponseError("else"), PLACE)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://user:secret@host:7000/2", "host:7000/2"),
        ("rediss://:secret@host", "host:6379/0"),
        ("unix:///run/redis.sock", "/run/redis.sock"),
    ],
)
def test_an_address_is_shown_without_its_secret(url: str, text: str) -> None:
    assert redis_client.address(settings(url).redis) == text


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://user:secret@[::1]:7000/2", {"host": "::1", "port": 7000, "db": 2, "username": "user"}),
        ("unix:///run/redis.sock", {"path": "/run/redis.sock"}),
        ("unix://user:secret@/run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2, "username": "user"}),
    ],
)
def test_a_client_connects_where_the_url_says(url: str, expected: dict[str, Any]) -> None:
    given = settings(url).redis
    options = redis_client.client(given, Keys(given.prefix)).connection_pool.connection_kwargs
    assert {name: options.get(name) for name in expected} == expected
    assert options.get("password") == ("secret" if "@" in url else None)
