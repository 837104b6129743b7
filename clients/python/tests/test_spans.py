"""What is asked of many keys or windows at once, and times as Python has them. The values are written by hand."""

import math
from datetime import datetime, timedelta, timezone
from time import process_time
from typing import Any

import pytest
from conftest import Server
from test_client import HOUR, MARCH_29, MINUTE, T0, calendar_meta, progress, service, silence, window  # noqa: F401

from tidemark_client import ArgumentError, ContractError, TooManyWindowsError, times, to_frame
from tidemark_client.values import View


def test_the_newest_window_of_each_key_comes_at_once(client: Any, server: Server) -> None:
    assert client.latest("site", "power") == {}
    for number, key in enumerate(("cork", "leeds")):
        window(server, f"site:power:{key}", T0 - MINUTE, mean=str(number))
        server.redis.zadd("tidemark:keys:site", {key: T0})
    window(server, "site:power:leeds", T0, mean="9")
    window(server, "site:temperature:cork", T0, mean="7")
    server.redis.zadd("tidemark:keys:site", {"gone": T0})
    found = client.latest("site", "power")
    assert {key: (each.start, each.mean) for key, each in found.items()} == {
        "cork": (T0 - MINUTE, 0.0),
        "leeds": (T0, 9.0),
    }, "cork has an older one of this measure, and gone has none"
    final = client.latest("site", "power", final=True, page=1)
    assert {key: each.start for key, each in final.items()} == {"cork": T0 - MINUTE, "leeds": T0 - MINUTE}


def test_a_key_without_the_measure_costs_as_many_reads_as_windows_were_asked_for(client: Any, server: Server) -> None:
    window(server, "site:power:leeds", T0 - 3 * MINUTE)
    window(server, "site:temperature:leeds", T0)
    assert client.latest("site", "power", back=3) == {}, "a day is retained, three windows are looked at"
    assert client.latest("site", "power", back=4)["leeds"].start == T0 - 3 * MINUTE
    progress(server, T0 - 2 * MINUTE)
    window(server, "site:power:cork", T0 + 40 * MINUTE)
    window(server, "site:power:cork", T0 - 3 * MINUTE)
    assert client.latest("site", "power")["cork"].start == T0 + 40 * MINUTE
    final = client.latest("site", "power", final=True, back=1)
    assert {key: each.start for key, each in final.items()} == {"leeds": T0 - 3 * MINUTE, "cork": T0 - 3 * MINUTE}, (
        "open windows are not counted"
    )
    progress(server, T0 - 4 * MINUTE, **silence(T0 + 50 * MINUTE))
    assert client.latest("site", "power", final=True, back=1)["cork"].start == T0 + 40 * MINUTE, "closed by silence"
    for back in (0, -1, 10_001, 1.5, True):
        with pytest.raises(ArgumentError, match="back = "):
            client.latest("site", "power", back=back)


def test_local_days_are_merged_over_both_changes_of_clocks(client: Any, server: Server) -> None:
    calendar_meta(server)
    # 23 hours, 24 hours; and in autumn 25 hours: 25 October 2026 begins at 22:00 UTC of the 24th.
    spring, autumn = MARCH_29, 1_792_879_200_000
    for start, hours, count, mean in ((spring, 23, 23, 2.0), (spring + 23 * HOUR, 24, 24, 4.0), (autumn, 25, 50, 1.0)):
        window(server, "day:power:d1", start, length=hours * HOUR, count=count, mean=str(mean), sum=str(count * mean))
    found = client.aggregate("day", "d1", since=spring, until=spring + 24 * HOUR)
    assert (found.windows, found.start, found.end, found.count) == (2, spring, spring + 47 * HOUR, 47)
    assert found.mean == pytest.approx((46 + 96) / 47, rel=1e-15)
    found = client.aggregate("day", "d1", since=spring)
    assert (found.windows, found.end, found.length) == (3, autumn + 25 * HOUR, timedelta(days=211))
    assert (found.count, found.mean) == (97, pytest.approx(192 / 97, rel=1e-15))


def test_a_time_outside_of_the_calendar_is_refused_before_anything_is_asked(client: Any, server: Server) -> None:
    calendar_meta(server)
    window(server, "day:power:d1", MARCH_29)
    first, last = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (1, 9999))
    for since in (-(10**17), 10**17, first, last.replace(month=12), timedelta.max, timedelta.min):
        with pytest.raises(ArgumentError, match="is not a time of the years 2 to 9998"):
            client.windows("day", "d1", since=since)
    began = process_time()
    with pytest.raises(TooManyWindowsError, match="more than 10000 windows"):
        client.windows("day", "d1", since=-62_100_000_000_000)
    assert process_time() - began < 5, "739,000 days are not counted one by one"


def test_windows_of_a_span_are_merged_to_the_statistics_of_their_readings(client: Any, server: Server) -> None:
    # 1, 3 | 5 | 2, 4, 9: mean 4, population variance (9+1+1+4+0+25)/6
    parts = [(1.0, 3.0), (5.0,), (2.0, 4.0, 9.0)]
    for number, values in enumerate(parts):
        mean = sum(values) / len(values)
        fields = {
            "sum": str(sum(values)),
            "mean": str(mean),
            "min": str(min(values)),
            "max": str(max(values)),
            "stddev": str(math.sqrt(sum((each - mean) ** 2 for each in values) / len(values))),
            "first_value": str(values[0]),
            "last_value": str(values[-1]),
        }
        window(server, "site:power:leeds", T0 + (number - 2) * MINUTE, count=len(values), **fields)
    server.redis.zadd("tidemark:keys:site", {"leeds": T0})
    found = client.aggregate("site", "leeds", since=T0 - 2 * MINUTE, measure="power")
    assert (found.count, found.sum, found.mean, found.min, found.max) == (6, 24.0, 4.0, 1.0, 9.0)
    assert found.stddev == pytest.approx(math.sqrt(40 / 6), rel=1e-12)
    assert (found.windows, found.start, found.end) == (3, T0 - 2 * MINUTE, T0 + MINUTE)
    assert (found.first_value, found.last_value, found.length) == (1.0, 9.0, timedelta(minutes=3))
    assert found.final is False
    earlier = client.aggregate("site", "leeds", since=T0 - 2 * MINUTE, until=T0, measure="power")
    assert (earlier.count, earlier.mean, earlier.final) == (3, 3.0, True)
    assert client.aggregate("site", "cork", since=T0 - MINUTE, until=T0, measure="power") is None
    later = f"tidemark:window:site:power:leeds:{T0 + MINUTE}"
    window(server, "site:power:leeds", T0 + MINUTE, count=0, last_value="9")
    server.redis.hdel(later, "sum", "mean", "min", "max", "stddev", "first")
    filled = client.aggregate("site", "leeds", since=T0 - 2 * MINUTE, measure="power")
    assert (filled.windows, filled.end, filled.last) == (4, T0 + 2 * MINUTE, found.last), "one without a reading"
    assert (filled.count, filled.mean, filled.max, filled.stddev) == (6, 4.0, 9.0, found.stddev)
    empty = client.aggregate("site", "leeds", since=T0 + MINUTE, measure="power")
    assert (empty.count, empty.mean, empty.stddev, empty.last_value) == (0, None, None, 9.0)
    server.redis.delete(later)
    server.redis.hdel(f"tidemark:window:site:power:leeds:{T0}", "sum", "stddev")
    found = client.aggregate("site", "leeds", since=T0 - 2 * MINUTE, measure="power")
    assert (found.sum, found.stddev) == (24.0, None), "a sum follows from a mean"
    server.redis.hdel(f"tidemark:window:site:power:leeds:{T0}", "mean", "max")
    found = client.aggregate("site", "leeds", since=T0 - 2 * MINUTE, measure="power")
    assert (found.count, found.sum, found.mean, found.max, found.min) == (6, None, None, None, 1.0)


@pytest.mark.parametrize(
    ("sums", "stddevs", "expected"),
    [
        (("1e308", "1.7e308"), ("0", "1e200"), (math.inf, math.inf)),
        (("inf", "-inf"), ("0", "0"), (math.nan, math.nan)),
    ],
)
def test_statistics_beyond_the_largest_number_are_those_of_the_service(
    client: Any, server: Server, sums: tuple[str, ...], stddevs: tuple[str, ...], expected: tuple[float, ...]
) -> None:
    for number, (total, stddev) in enumerate(zip(sums, stddevs)):
        window(server, "site:power:leeds", T0 + (number - 1) * MINUTE, sum=total, stddev=stddev)
    found = client.aggregate("site", "leeds", since=T0 - MINUTE, measure="power")
    assert (found.sum, found.stddev) == pytest.approx(expected, nan_ok=True)


def test_quantiles_of_a_span_follow_from_sketches_and_a_text_of_none_names_its_key(client: Any, server: Server) -> None:
    texts = "0 4611686018427387904:3", "46 65536:1"  # 2.0; and 2.0 of a coarser one
    for number, text in enumerate(texts):
        window(
            server,
            "site:power:leeds",
            T0 + (number - 1) * MINUTE,
            count=3 - 2 * number,
            min="2",
            max="2.5",
            sketch=text,
        )
    server.redis.zadd("tidemark:keys:site", {"leeds": T0})
    found = client.aggregate("site", "leeds", since=T0 - MINUTE, measure="power")
    assert (found.median, found.p99) == (pytest.approx(2, rel=0.01), pytest.approx(2, rel=0.01))
    for hostile in ("", "46", "46 65536", "9999999999999 1:1", "46 65536:1 x", "\0"):
        window(server, "site:power:leeds", T0, count=1, sketch=hostile)
        with pytest.raises(ContractError, match=f"tidemark:window:site:power:leeds:{T0}: field sketch is not what"):
            client.aggregate("site", "leeds", since=T0 - MINUTE, measure="power")
        assert client.window("site", "leeds", T0, "power").count == 1, "only quantiles need it"
    server.redis.hdel(f"tidemark:window:site:power:leeds:{T0}", "sketch")
    assert client.aggregate("site", "leeds", since=T0 - MINUTE, measure="power").median is None


def test_no_reading_of_a_sliding_view_counts_twice(client: Any, server: Server) -> None:
    for back in range(7):
        window(server, "fast:power:d7", T0 - back * MINUTE, length=3 * MINUTE, count=1)
    server.redis.zadd("tidemark:keys:fast", {"d7": T0})
    found = client.aggregate("fast", "d7", since=T0 - 4 * MINUTE)
    assert (found.windows, found.start, found.end) == (3, T0 - 6 * MINUTE, T0 + 3 * MINUTE)
    with pytest.raises(TooManyWindowsError):
        client.aggregate("fast", "d7", since=0)


def test_devices_are_chosen_by_status_and_attributes_and_come_in_an_order(client: Any, server: Server) -> None:
    for number in range(6):
        fields = {
            "status": "online" if number % 2 else "offline",
            "last_seen": str(T0 - number),
            "session": "",
            "reference": "abc",
            "ref.site": "leeds" if number < 4 else "cork",
            **({"power": str(float(number)), "power.at": str(T0)} if number != 3 else {}),
            "epoch": "2",
            "batch": "7",
            "updated": "1",
        }
        server.redis.hset(f"tidemark:device:d{number}", mapping=fields)

    def ids(**choice: Any) -> list[str]:
        return [each.id for each in client.devices(**choice)]

    assert sorted(ids(status="online")) == ["d1", "d3", "d5"]
    assert sorted(ids(where={"site": "leeds"}, status="online", page=1)) == ["d1", "d3"]
    assert ids(where={"colour": "red"}) == []
    assert ids(sort="id", limit=2) == ["d0", "d1"]
    assert ids(sort="last_seen", limit=2) == ["d5", "d4"], "who was silent longest"
    assert ids(sort="-power") == ["d5", "d4", "d2", "d1", "d0", "d3"], "who has none comes last"
    assert ids(sort="site", limit=3) == ["d4", "d5", "d0"]
    assert ids(sort="-site") == ["d0", "d1", "d2", "d3", "d4", "d5"], "those that are alike keep the order of their ids"
    server.redis.hset("tidemark:device:d1", "ref.power", "small")
    assert ids(sort="power") == ["d0", "d1", "d2", "d4", "d5", "d3"], "an attribute of the same name is no measure"
    assert len(ids(limit=4)) == 4
    assert ids(limit=0) == ids(sort="id", limit=0) == []
    for choice, part in (
        ({"status": "away"}, "one of online, quiet, offline, never"),
        ({"where": {"site": 5}}, "where['site']"),
        ({"limit": 1.5}, "limit = 1.5"),
        ({"limit": -1}, "limit = -1: give 0 or more"),
        ({"sort": 7}, "sort = 7"),
    ):
        with pytest.raises(ArgumentError) as caught:
            ids(**choice)
        assert part in str(caught.value)


def test_times_may_be_datetimes_and_spans_before_now(client: Any, server: Server) -> None:
    now = times.to_ms(datetime.now(timezone.utc)) // MINUTE * MINUTE
    for start in (now - 3 * MINUTE, now):
        window(server, "site:power:leeds", start)
    server.redis.zadd("tidemark:keys:site", {"leeds": now})
    at = times.to_datetime(now)
    zone = timezone(timedelta(hours=-7))
    assert client.window("site", "leeds", at.astimezone(zone), "power").start == now
    assert len(client.windows("site", "leeds", since=timedelta(minutes=10), measure="power")) == 2
    assert len(client.windows("site", "leeds", since=at, until=at + timedelta(hours=1), measure="power")) == 1
    assert client.aggregate("site", "leeds", since=timedelta(minutes=10), measure="power").windows == 2
    assert client.keys("site", since=timedelta(minutes=10)) == [("leeds", now)]
    assert client.keys("site", since=at + timedelta(minutes=1)) == []
    found = client.current("site", "leeds", "power")
    assert (found.start_time, found.end_time, found.length) == (at, at + timedelta(minutes=1), timedelta(minutes=1))
    assert found.start_time.isoformat().endswith("+00:00")
    view = client.views()["fast"]
    assert (view.window, view.slide, view.retain) == (timedelta(minutes=3), timedelta(minutes=1), timedelta(days=1))
    for wrong in (datetime(2026, 1, 1), "2026-01-01", 1.5, True):  # noqa: DTZ001
        with pytest.raises(ArgumentError, match="a datetime with a time zone"):
            client.windows("site", "leeds", since=wrong, measure="power")
    with pytest.raises(ArgumentError, match="start = "):
        client.window("site", "leeds", timedelta(minutes=1), "power")


def test_a_time_before_1970_and_parts_of_a_millisecond_are_rounded_down() -> None:
    for ms in (-1, 0, 1, 1_700_000_000_123):
        assert times.to_ms(times.to_datetime(ms)) == ms
    assert times.to_ms(times.to_datetime(5) + timedelta(microseconds=999)) == 5


def test_values_become_a_frame(client: Any, server: Server) -> None:
    pytest.importorskip("pandas")
    for start in (T0 - MINUTE, T0):
        window(server, "site:power:leeds", start)
    server.redis.zadd("tidemark:keys:site", {"leeds": T0})
    frame = to_frame(client.windows("site", "leeds", since=0 + T0 - MINUTE, measure="power"))
    assert list(frame["count"]) == [2, 2]
    assert frame["start"].iloc[0].isoformat() == "2023-11-14T22:13:00+00:00"
    assert "p99" not in frame, "a column without a value"
    assert to_frame([]).empty
    with pytest.raises(ArgumentError, match="give windows"):
        to_frame([View("v", (), (), 1, 1, 1)])  # type: ignore[list-item]


@pytest.mark.usefixtures("service")
def test_a_frame_of_devices_and_sessions_has_the_names_of_sql(client: Any, server: Server) -> None:
    pytest.importorskip("pandas")
    device = {
        "status": "online",
        "last_seen": "0",
        "session": "",
        "reference": "a",
        "ref.site": "leeds",
        "power": "2.5",
        "power.at": str(T0),
        "epoch": "2",
        "batch": "7",
        "updated": "1",
    }
    server.redis.hset("tidemark:device:d7", mapping={**device, "last": "4.5", "last.at": str(T0), "ref.x.at": "oak"})
    early = {"early": "3", "early.at": str(T0), "early.ahead": "5000", "early.until": str(T0 + MINUTE)}
    measures = {"id": "4.5", "id.at": str(T0), "power.status": "quiet"}
    server.redis.hset("tidemark:device:d8", mapping={**device, **early, **measures})
    session = {
        "start": str(T0),
        "last": str(T0 + 5_000),
        "count": "3",
        "duration": "5000",
        "state": "open",
        "reason": "",
        "closed_by": "",
        "revision": "0",
        "power.count": "3",
        "power.mean": "2.0",
        "epoch": "2",
        "batch": "7",
        "updated": "1",
    }
    server.redis.hset(f"tidemark:session:d7:{T0}", mapping=session)
    server.redis.zadd("tidemark:sessions:d7", {str(T0): T0})
    [row] = to_frame([client.device("d7")]).to_dict("records")
    assert (row["ref.site"], row["power"], row["power.at"].timestamp()) == ("leeds", 2.5, T0 / 1000)
    assert str(row["last_seen"]) == "NaT", "no reading was ever admitted"
    assert (row["last"], row["ref.x.at"]) == (4.5, "oak"), "names of times that are measures or columns"
    rows = to_frame([client.device("d7"), client.device("d8")]).to_dict("records")
    assert [row["device"] for row in rows] == ["d7", "d8"]
    assert rows[1]["id"] == 4.5, "a measure"
    assert (str(rows[0]["power.status"]) in {"nan", "None"}, rows[1]["power.status"]) == (True, "quiet")
    assert [rows[1][name].timestamp() for name in ("early.at", "early.until")] == [T0 / 1000, T0 / 1000 + 60]
    [row] = to_frame(client.sessions("d7")).to_dict("records")
    assert (row["power.mean"], row["duration"]) == (2.0, timedelta(seconds=5))
