"""Days, weeks, months and years of a zone, against values computed by hand, and against plain zoneinfo."""

from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from load.judge import calendars
from state import calendar
from state.calendar import Calendar
from state.rules import DAY_MS, EVENT_MS_LIMIT, MONTH_MS
from tidemark_client import calendars as client_calendars

HOUR_MS = 3_600_000
WEEK_MS, YEAR_MS = 7 * DAY_MS, 12 * MONTH_MS
ZONES = (resources.files("tzdata") / "zones").read_text(encoding="utf-8").split()


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def window(length_ms: int, zone: str, at: str, offset_ms: int = 0) -> tuple[str, str]:
    made = Calendar.of(length_ms, zone, offset_ms)
    start = made.starts(np.array([ms(at)]))
    return tuple(
        datetime.fromtimestamp(each / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ") for each in (start[0], made.ends(start)[0])
    )


@pytest.mark.parametrize(
    ("length_ms", "zone", "offset_ms", "at", "start", "end"),
    [
        # Clocks go forward: a day of 23 hours. Back: one of 25.
        (DAY_MS, "Europe/Rome", 0, "2026-03-29T21:59:59Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
        (DAY_MS, "Europe/Rome", 0, "2026-10-25T22:59:59Z", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
        (DAY_MS, "America/New_York", 0, "2026-03-08T05:00:00Z", "2026-03-08T05:00Z", "2026-03-09T04:00Z"),
        (DAY_MS, "America/New_York", 0, "2026-11-01T12:00:00Z", "2026-11-01T04:00Z", "2026-11-02T05:00Z"),
        # A quarter of an hour, half an hour of summer time, two hours of it.
        (DAY_MS, "Asia/Kathmandu", 0, "2026-01-01T18:15:00Z", "2026-01-01T18:15Z", "2026-01-02T18:15Z"),
        (DAY_MS, "Australia/Lord_Howe", 0, "2026-04-04T20:00:00Z", "2026-04-04T13:00Z", "2026-04-05T13:30Z"),
        (DAY_MS, "Australia/Lord_Howe", 0, "2026-10-04T00:00:00Z", "2026-10-03T13:30Z", "2026-10-04T13:00Z"),
        (DAY_MS, "Antarctica/Troll", 0, "2026-03-29T12:00:00Z", "2026-03-29T00:00Z", "2026-03-29T22:00Z"),
        # Midnight that the clock skips (timescaledb#7059), shows twice, or shows an hour before the day is over.
        (DAY_MS, "Asia/Amman", 0, "2021-03-25T22:00:00Z", "2021-03-25T22:00Z", "2021-03-26T21:00Z"),
        (DAY_MS, "Asia/Beirut", 0, "2026-03-28T21:59:59Z", "2026-03-27T22:00Z", "2026-03-28T22:00Z"),
        (DAY_MS, "America/Havana", 0, "2018-11-04T05:30:00Z", "2018-11-04T04:00Z", "2018-11-05T05:00Z"),
        (DAY_MS, "America/Sao_Paulo", 0, "2018-02-18T02:30:00Z", "2018-02-17T02:00Z", "2018-02-18T03:00Z"),
        # Samoa had no 30 December 2011: the 29th ends where the 31st begins.
        (DAY_MS, "Pacific/Apia", 0, "2011-12-30T09:59:59Z", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        (DAY_MS, "Pacific/Apia", 0, "2011-12-30T10:00:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        # Shifts and billing days, on the clock: not six hours behind midnight.
        (DAY_MS, "Europe/Rome", 6 * HOUR_MS, "2026-03-29T03:59:59Z", "2026-03-28T05:00Z", "2026-03-29T04:00Z"),
        (
            DAY_MS,
            "Europe/Rome",
            2 * HOUR_MS + 1_800_000,
            "2026-03-29T01:00:00Z",
            "2026-03-29T01:00Z",
            "2026-03-30T00:30Z",
        ),
        # Weeks begin on Monday, also over a new year and without a zone.
        (WEEK_MS, "Europe/Rome", 0, "2027-01-01T00:00:00Z", "2026-12-27T23:00Z", "2027-01-03T23:00Z"),
        (WEEK_MS, "UTC", 6 * DAY_MS, "2027-01-01T00:00:00Z", "2026-12-27T00:00Z", "2027-01-03T00:00Z"),
        (WEEK_MS, "Europe/Rome", 0, "2026-03-25T00:00:00Z", "2026-03-22T23:00Z", "2026-03-29T22:00Z"),
        # Months, with a leap day, both changes of clocks, a new year (flux#5523), and from the 15th at six.
        (MONTH_MS, "Europe/Rome", 0, "2028-02-29T22:59:59Z", "2028-01-31T23:00Z", "2028-02-29T23:00Z"),
        (MONTH_MS, "Europe/Rome", 0, "2026-03-15T00:00:00Z", "2026-02-28T23:00Z", "2026-03-31T22:00Z"),
        (MONTH_MS, "Europe/Rome", 0, "2026-10-15T00:00:00Z", "2026-09-30T22:00Z", "2026-10-31T23:00Z"),
        (MONTH_MS, "UTC", 14 * DAY_MS + 6 * HOUR_MS, "2027-01-15T05:59:59Z", "2026-12-15T06:00Z", "2027-01-15T06:00Z"),
        (3 * MONTH_MS, "Asia/Kathmandu", 0, "2026-05-01T00:00:00Z", "2026-03-31T18:15Z", "2026-06-30T18:15Z"),
        (YEAR_MS, "America/New_York", 0, "2028-12-31T23:00:00Z", "2028-01-01T05:00Z", "2029-01-01T05:00Z"),
        (YEAR_MS, "Europe/London", 3 * MONTH_MS, "2027-03-31T22:59:59Z", "2026-03-31T23:00Z", "2027-03-31T23:00Z"),
    ],
)
def test_a_window_begins_and_ends_as_the_zone_s_clock_says(
    length_ms: int, zone: str, offset_ms: int, at: str, start: str, end: str
) -> None:
    assert window(length_ms, zone, at, offset_ms) == (start, end)


def plain(length_ms: int, zone: str, offset_ms: int) -> calendars.Calendar:
    months, days = (length_ms // MONTH_MS, 0) if length_ms % DAY_MS else (0, length_ms // DAY_MS)
    shift = offset_ms // MONTH_MS if offset_ms % DAY_MS and offset_ms % MONTH_MS == 0 else 0
    hours = 0 if shift else offset_ms / HOUR_MS
    return calendars.Calendar(months or days, "mo" if months else "d", zone, hours, shift)


@pytest.mark.parametrize(
    "zone", ["Europe/Rome", "America/St_Johns", "Africa/Monrovia", "Pacific/Apia", "America/Havana"]
)
@pytest.mark.parametrize("length_ms", [DAY_MS, WEEK_MS, MONTH_MS, YEAR_MS])
def test_the_windows_of_a_zone_are_those_of_plain_zoneinfo(zone: str, length_ms: int) -> None:
    made, other = Calendar.of(length_ms, zone), plain(length_ms, zone, 0)
    start = int(made.starts(np.array([ms("1970-01-01T00:00:00Z")]))[0])
    while start < ms("2012-06-01T00:00:00Z"):
        end = int(made.ends(np.array([start]))[0])
        assert other.span(start) == other.span(end - 1) == (start, end)
        start = end


OFFSETS = st.one_of(st.just(0), st.integers(0, 47).map(lambda half_hours: half_hours * HOUR_MS // 2))


@given(
    st.sampled_from(ZONES),
    st.sampled_from([DAY_MS, 2 * DAY_MS, WEEK_MS, 2 * WEEK_MS, MONTH_MS, 3 * MONTH_MS, YEAR_MS]),
    OFFSETS,
    st.lists(st.integers(0, EVENT_MS_LIMIT - 1), min_size=1, max_size=20),
)
@example("America/St_Johns", DAY_MS, 0, [ms("2010-11-07T02:30:30Z"), ms("2010-11-07T03:00:00Z")])
@example("Africa/Casablanca", DAY_MS, 5 * HOUR_MS // 2, [ms("2026-02-15T02:00:00Z")])
@example("Africa/Monrovia", MONTH_MS, 0, [0, ms("1972-01-07T00:44:29Z")])
def test_each_time_is_in_the_window_in_which_plain_zoneinfo_has_it(
    zone: str, length_ms: int, offset_ms: int, times: list[int]
) -> None:
    made, other = Calendar.of(length_ms, zone, offset_ms), plain(length_ms, zone, offset_ms)
    start = made.starts(np.array(times))
    end = made.ends(start)
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == [other.span(each) for each in times]
    reader = client_calendars.Calendar(**asdict(made))
    assert [(reader.start(each), reader.end(each)) for each in times] == [other.span(each) for each in times]
    assert [reader.local(each) for each in start.tolist()] == made.local(start)
    assert reader.text == made.text
    assert made.are_windows(start, end).all()
    assert not made.are_windows(start + 1, end).any()
    assert (end - start <= made.longest_ms).all()
    assert not (start % made.step_ms).any()


def test_windows_follow_each_other_from_before_the_first_admitted_time_to_behind_the_last() -> None:
    edges = np.array([0, EVENT_MS_LIMIT - 1])
    for length_ms in (DAY_MS, WEEK_MS, 366 * DAY_MS, MONTH_MS, 5 * MONTH_MS, YEAR_MS):
        for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"):
            for offset_ms in (0, 23 * HOUR_MS):
                made = Calendar.of(length_ms, zone, offset_ms)
                start = made.starts(edges)
                assert (start <= edges).all()
                assert (made.ends(start) > edges).all()
                assert (made.ends(start) - start <= made.longest_ms).all()


@pytest.mark.parametrize(
    ("length_ms", "zone", "offset_ms", "problem"),
    [
        (
            HOUR_MS,
            "Europe/Rome",
            0,
            "a window of a time zone is of whole days, weeks, months or years, such as '1 d', '1 w'",
        ),
        (DAY_MS, "Europe/Roma", 0, "'Europe/Roma' is no time zone of tzdata"),
        (DAY_MS, "../zones", 0, "'../zones' is no time zone of tzdata"),
        (DAY_MS, "zone.tab", 0, "'zone.tab' is no time zone of tzdata"),
        (DAY_MS, "", 0, "'' is no time zone of tzdata"),
        (DAY_MS, "UTC", DAY_MS, "offset: must be less than 1 d"),
        (MONTH_MS, "UTC", 28 * DAY_MS, "offset: must be less than 28 d"),
        (MONTH_MS, "UTC", MONTH_MS, "offset: must be less than 28 d"),
        (YEAR_MS, "UTC", YEAR_MS, "offset: must be less than 12 mo, or 28 d"),
    ],
)
def test_what_is_no_calendar_is_refused_with_the_reason(
    length_ms: int, zone: str, offset_ms: int, problem: str
) -> None:
    with pytest.raises(ValueError, match="^" + problem.replace(".", r"\.")):
        Calendar.of(length_ms, zone, offset_ms)


def test_a_time_is_shown_on_the_zone_s_clock() -> None:
    made = Calendar.of(DAY_MS, "Europe/Rome")
    times = np.array([ms("2026-03-28T23:00:00Z"), ms("2026-03-29T22:00:00Z"), ms("2026-03-28T23:00:00Z")])
    assert made.local(times) == ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", "2026-03-29T00:00:00+01:00"]
    assert Calendar.of(DAY_MS, "Africa/Monrovia").local(np.array([2_670_000])) == ["1970-01-01T00:00:00-00:44:30"]
    assert [Calendar.of(each, "UTC").text for each in (DAY_MS, 2 * WEEK_MS, MONTH_MS, YEAR_MS)] == [
        "1 d of UTC",
        "2 w of UTC",
        "1 mo of UTC",
        "1 y of UTC",
    ]


def test_the_rules_of_two_zones_tell_the_months_in_which_windows_begin_otherwise() -> None:
    rome, berlin, london = (Calendar.of(DAY_MS, f"Europe/{name}") for name in ("Rome", "Berlin", "London"))
    months = calendar.other_months(rome.rules, berlin.rules)
    assert max(months) < 11 * 12  # Germany had no summer time before 1980
    assert calendar.other_months(rome.rules, london.rules)[-1] == 139 * 12 + 4  # May 2109, the last one
    assert calendar.other_months(rome.rules, rome.rules) == []
    assert calendar.VERSION.startswith("20")
