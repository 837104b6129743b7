"""How values are written, and what the metrics say."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from tidemark_client import AsyncClient, Change, Device, View, Window, Written, calendars
from tidemark_client.calendars import Calendar
from tidemark_dashboard import statistics
from tidemark_dashboard.feed import REST_S, Feed
from tidemark_dashboard.fleet import STATUSES, Counts, Filter, Fleet, Order, Standing
from tidemark_dashboard.health import Health
from tidemark_dashboard.keys import FORGET_MS, Keys, KeysOfViews
from tidemark_dashboard.metrics import Samples
from tidemark_dashboard.pages.views import _closed
from tidemark_dashboard.texts import count, duration, moment, number, percent, points, seconds, shown


def test_numbers_have_two_decimals_and_commas() -> None:
    assert [number(each) for each in (0.0, 21.5, -1234.567, 0.001, 1e12, None)] == [
        "0.00",
        "21.50",
        "\u22121,234.57",
        "1.000e-3",
        "1.000e12",
        "\u2013",
    ]
    assert count(1234567.0) == "1,234,567"


def test_lengths_of_time_have_their_two_largest_units() -> None:
    given = (0, 350, 1_000, 59_999, 90_000, 3_600_000, 4_800_000, 90_061_000, -61_000, float("inf"), None)
    assert [duration(each) for each in given] == [
        "0 ms",
        "350 ms",
        "1 s",
        "1 min",
        "1 min 30 s",
        "1 h",
        "1 h 20 min",
        "1 d 1 h",
        "\u22121 min 1 s",
        "unlimited",
        "\u2013",
    ]
    assert [seconds(each) for each in (0.012, 1.25, 300.0)] == ["12 ms", "1.2 s", "5 min"]


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert "9007199254740991000 ms" in moment(9_007_199_254_740_991_000)
    assert "never" in moment(0)
    assert 'title="2023-11-14 22:13:20 UTC"' in moment(1_700_000_000_000)


def test_characters_that_cannot_be_seen_are_written_as_escapes() -> None:
    assert shown("a\x1b[2J\u202eb\n") == "a\\x1b[2J\\u{202e}b\\x0a"
    assert shown("J\u00e4ger \u65e5") == "J\u00e4ger \u65e5"


def test_a_sparkline_is_interrupted_where_there_is_no_value() -> None:
    assert points([1.0, None, 3.0, 2.0]).count("M") == 2
    assert points([]) == ""
    assert points([None]) == ""
    assert "nan" not in points([5.0, 5.0])


def test_samples_are_found_by_name_and_label() -> None:
    samples = Samples('# TYPE a gauge\na{b="x",c="1"} 2\na{b="x",c="2"} 3\na{b="y",c="1"} NaN\n')
    assert samples.by("a", "b") == {"x": 5.0}
    assert samples.value("a", b="x", c="1") == 2.0
    assert samples.value("a", b="y", c="1") is None
    assert not Samples("")


def fleet_of(standings: dict[str, Standing], measures: tuple[str, ...] = ("temperature",)) -> Fleet:
    """An index with these devices, which reads nothing."""
    fleet = Fleet(AsyncClient.from_url("redis://127.0.0.1:1/0"), asyncio.Event(), lambda: None)
    fleet.measures = measures
    for each, standing in standings.items():
        fleet._replace(None, standing, each)
        fleet._is_sorted = False
    return fleet


def test_the_newest_closed_day_is_not_looked_for_day_by_day() -> None:
    calendar = Calendar(1, 0, "Asia/Kathmandu")
    view = View("day", (), ("t",), 86_400_000, 900_000, 86_400_000, calendar=calendar)
    today = calendar.start(1_700_000_000_000)
    yesterday = calendar.start(today - 1)
    assert [_closed(view, today, until) for until in (today - 1, today, view.end(today), view.end(today) + 1)] == [
        calendar.start(yesterday - 1),
        yesterday,
        today,
        today,
    ]
    calendars._begin.cache_clear()
    assert _closed(view, today, 0) < 0, "Redis has lost its progress"
    assert calendars._begin.cache_info().misses < 10


def test_facts_that_no_device_has_any_more_take_no_memory() -> None:
    fleet = fleet_of({})
    for batch in range(5_000):
        facts = {"serviced": str(batch // 2)}
        for name in ("a", "b"):
            written = Written(1, batch, 1)
            fleet._put(name, Device(name, "online", 500, None, "r", facts, {}, None, skewed=False, written=written))
    assert len(fleet._facts) < 1_000
    assert fleet._devices["a"].facts is fleet._devices["b"].facts, "equal facts are one object"


def test_a_column_that_the_reference_has_no_more_is_no_choice() -> None:
    fleet = fleet_of({"a": Standing("online", False, "r", (("site", "leeds"),))})
    fleet._replace(fleet._devices["a"], Standing("online", False, "s", (("room", "b7"),)), "a")
    assert fleet.columns == ["room"]


FLEET = {
    "us-1": Standing("online", False, "r", (("site", "leeds"), ("model", "A")), 500, (21.5,)),
    "US-2": Standing("quiet", True, "r", (("site", "leeds"), ("model", "B")), 100, (-3.0,)),
    "us-3": Standing("offline", False, "r", (("site", "cork"), ("model", "A")), 300, (None,)),
    "eu-1": Standing("online", False, "r", (("site", "cork"), ("model", "A")), 400, (40.25,)),
    "eu-2": Standing("quiet", False, "", (), 0, ()),
}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Filter(), ["US-2", "eu-1", "eu-2", "us-1", "us-3"]),
        (Filter("s-"), ["US-2", "us-1", "us-3"]),
        (Filter("S-"), ["US-2"]),
        (Filter(status="quiet"), ["US-2", "eu-2"]),
        (Filter(status="skewed"), ["US-2"]),
        (Filter(facts=(("site", "leeds"),)), ["US-2", "us-1"]),
        (Filter("1", "online", (("model", "A"), ("site", "cork"))), ["eu-1"]),
        (Filter(facts=(("site", "cork"), ("model", "B"))), []),
    ],
)
def test_a_filter_lists_devices_by_a_part_of_the_id_a_status_and_several_facts(
    chosen: Filter, expected: list[str]
) -> None:
    assert fleet_of(FLEET).survey(chosen, "site").ids == expected


def test_the_numbers_beside_the_choices_are_of_the_devices_that_a_click_would_list() -> None:
    fleet = fleet_of(FLEET)
    for chosen in (Filter(facts=(("model", "A"),)), Filter("us", "quiet"), Filter("", "online", (("site", "cork"),))):
        survey = fleet.survey(chosen, "site")
        for status in STATUSES:
            clicked = replace(chosen, status=status)
            assert getattr(survey.counts, status) == len(fleet.survey(clicked, "site").ids), (chosen, status)
        for value in ("leeds", "cork"):
            others = tuple(pair for pair in chosen.facts if pair[0] != "site")
            clicked = replace(chosen, facts=(*others, ("site", value)))
            counts = survey.groups.get(value, Counts())
            assert counts.all == len(fleet.survey(clicked, "site").ids), (chosen, value)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", ["US-2", "eu-1", "eu-2", "us-1", "us-3"]),
        ("-id", ["us-3", "us-1", "eu-2", "eu-1", "US-2"]),
        ("last_seen", ["US-2", "us-3", "eu-1", "us-1", "eu-2"]),  # eu-2 has never sent a reading
        ("-last_seen", ["us-1", "eu-1", "us-3", "US-2", "eu-2"]),
        ("-m.temperature", ["eu-1", "us-1", "US-2", "eu-2", "us-3"]),  # without a value: the last, by id
        ("m.temperature", ["US-2", "us-1", "eu-1", "eu-2", "us-3"]),
        ("ref.site", ["eu-1", "us-3", "US-2", "us-1", "eu-2"]),
        ("status", ["eu-1", "us-1", "US-2", "eu-2", "us-3"]),
        ("m.nothing", ["US-2", "eu-1", "eu-2", "us-1", "us-3"]),
    ],
)
def test_devices_are_sorted_by_any_column_and_those_without_a_value_are_the_last(
    order: str, expected: list[str]
) -> None:
    fleet = fleet_of(FLEET)
    pages = [fleet.page(fleet.ids(), Order.of(order), first, 2) for first in (0, 2, 4)]
    assert [each for page in pages for each in page] == expected


def test_a_device_that_the_feed_has_named_is_not_the_one_that_was_silent_longest() -> None:
    fleet = fleet_of(FLEET)
    fleet.touch("US-2")
    assert fleet.page(fleet.ids(), Order("last_seen"), 0, 5) == ["us-3", "eu-1", "us-1", "US-2", "eu-2"]


def test_devices_that_are_new_are_read_before_those_that_have_changed() -> None:
    fleet = fleet_of(FLEET)
    for each in ("US-2", "new", "eu-1"):
        fleet.touch(each)
    assert list(fleet._stale) == ["new", "US-2", "eu-1"]


def test_a_page_s_answer_about_a_device_may_be_newer_than_one_on_its_way() -> None:
    fleet = fleet_of(FLEET)
    fleet.touch("US-2")
    fleet.note("US-2", None)
    assert fleet.waiting == 1, "it is read again"


def test_a_hundred_thousand_devices_are_filtered_and_sorted_in_under_a_second() -> None:
    sites, models = [f"site-{number}" for number in range(60)], ["A", "B", "C"]
    facts = [(("site", site), ("model", model)) for site in sites for model in models]
    fleet = fleet_of(
        {
            f"pump-{number:06d}": Standing(
                "online", False, "r", facts[number % 180], number * 7919 % 100_003, (number / 7,)
            )
            for number in range(100_000)
        }
    )
    fleet.ids()
    took = []
    for chosen, order in (
        (Filter(), Order("last_seen")),
        (Filter("99"), Order("m.temperature", is_descending=True)),
        (Filter("1", "online", (("model", "A"), ("site", "site-0"))), Order("last_seen")),
    ):
        began = time.process_time()
        ids = fleet.survey(chosen, "site").ids
        assert fleet.page(ids, order, 0, 50)
        took.append(time.process_time() - began)
    assert max(took) < 1.0, took


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1994 / 2000, "99.7 %"),
        (99_999 / 100_000, "99.9 %"),
        (1.0, "100 %"),
        (0.0, "0 %"),
        (1 / 100_000, "below 0.1 %"),
        (0.0123, "1.2 %"),
        (0.5, "50 %"),
        (0.9, "90 %"),
        (0.29, "29 %"),
        (0.296, "29 %"),
    ],
)
def test_only_all_is_a_hundred_percent_and_only_none_is_zero(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("statistic", "title", "unit"),
    [
        ("mean", "Mean", "W"),
        ("p99", "p99", "W"),
        ("stddev", "Standard deviation", "W"),
        ("count", "Readings", ""),
        ("first", "First reading", ""),
        ("rate", "Rate", "W/s"),
        ("increase_rate", "Rate of increase", "W/s"),
        ("integral", "Integral", "W\u00b7s"),
        ("longest_gap", "Longest gap", "s"),
        ("coverage", "Coverage", ""),
        ("resets", "Resets", ""),
    ],
)
def test_a_statistic_has_a_name_and_a_unit(statistic: str, title: str, unit: str) -> None:
    view = View("meter", ("device",), ("power",), 1, 1, 1)
    assert (statistics.title(statistic), statistics.unit(statistic, "W", view)) == (title, unit)
    assert statistics.unit(statistic, "W", dataclasses.replace(view, per_ms=3_600_000)) == unit.replace(
        "W/s", "W/h"
    ).replace("W\u00b7s", "W\u00b7h")


def test_every_statistic_of_the_client_is_a_field_of_a_window() -> None:
    known = {each.name for each in dataclasses.fields(Window)}
    assert known >= {*statistics.NAMES, *statistics.TIMES, *statistics.WHOLE, *statistics.BANDED}
    assert known >= {*statistics.RATES, *statistics.INTEGRALS}


def test_keys_are_paged_in_their_order_both_ways() -> None:
    keys = Keys()
    assert [keys.touch(each, start) for start, each in enumerate("dbacb")] == [True, True, True, True, False]
    page, total, earlier, later = keys.page("", 2)
    assert ([key for key, _ in page], total, earlier, later) == (["a", "b"], 4, False, True)
    page, _, earlier, later = keys.page("", 2, after="b")
    assert ([key for key, _ in page], earlier, later) == (["c", "d"], True, False)
    assert [key for key, _ in keys.page("", 2, before="c")[0]] == ["a", "b"]
    keys.forget(before=FORGET_MS)
    assert len(keys) == 0


def test_keys_that_have_expired_are_looked_for_once_in_a_minute_of_event_time() -> None:
    keys = Keys()
    for start, each in ((0, "old"), (FORGET_MS + 1, "newer"), (FORGET_MS + 3, "newest")):
        keys.touch(each, start)
    sizes = []
    for before in (FORGET_MS, FORGET_MS + 2, 2 * FORGET_MS):
        keys.forget(before)
        sizes.append(len(keys))
    assert sizes == [2, 2, 0]


@pytest.mark.parametrize(
    ("shards", "entries", "is_full"),
    [(1, 1, False), (1, 99, False), (1, 100, True), (3, 98, False), (3, 99, True), (200, 150, False), (200, 200, True)],
)
def test_the_feed_is_asked_some_times_a_second_unless_an_answer_is_full(
    shards: int, entries: int, is_full: bool
) -> None:
    class Reader:
        reads = 0

        async def end_of_feed(self) -> str:
            return ",".join(["0-0"] * shards)

        async def changes(self, after: str, block_s: float) -> list[Change]:
            self.reads += 1
            if self.reads > 4:
                raise EOFError
            return [Change(after, "device", (), 1, 1)] * entries

    wanted = asyncio.Event()
    wanted.set()
    feed = Feed(cast("AsyncClient", Reader()), Health(), wanted, lambda _: None, lambda: None)
    began = time.monotonic()
    with pytest.raises(EOFError):
        asyncio.run(feed.run())
    assert (time.monotonic() - began < 4 * REST_S) == is_full


def test_two_requests_for_the_keys_of_a_view_read_them_once() -> None:
    reads = []

    class Reader:
        async def key_pages(self, view: str) -> AsyncIterator[list[tuple[str, int]]]:
            reads.append(view)
            await asyncio.sleep(0)
            yield [("leeds", 5)]

    async def read() -> list[int]:
        of_views = KeysOfViews(cast("AsyncClient", Reader()))
        return [len(each) for each in await asyncio.gather(*(of_views.of(view, 0) for _ in range(3)))]

    view = View("site", ("site",), ("t",), 60_000, 60_000, 86_400_000)
    assert (asyncio.run(read()), reads) == ([1, 1, 1], ["site"])
