"""Windows in the zone of each key, against the calendars of single zones and against the clocks of all zones."""

import numpy as np
import pyarrow as pa
import pytest

from service.aggregation import windows
from service.publication.covered import _grid
from service.settings import View
from state import calendar, keyed_calendar, zone_clocks
from state.calendar import Calendar
from state.keyed_calendar import EAST_MS, REGULAR_MS, SET_BACK_MS, WEST_MS, KeyedCalendar
from state.rules import DAY_MS, MONTH_MS
from state.zone_clocks import Clocks
from tidemark_client.calendars import Calendars

HOUR_MS = 3_600_000
MARCH_MS = 1_774_656_000_000
"""2026-03-28."""
ZONES = ("Europe/Rome", "Asia/Kathmandu", "Australia/Lord_Howe", "America/New_York", "(none)", "(other)")


def keyed(window_ms: int = DAY_MS, offset_ms: int = 0) -> KeyedCalendar:
    return KeyedCalendar(Calendar.of(window_ms, "UTC", offset_ms), "zone", 1)


@pytest.mark.parametrize(("window_ms", "offset_ms"), [(DAY_MS, 0), (7 * DAY_MS, 6 * HOUR_MS), (MONTH_MS, HOUR_MS)])
def test_each_key_has_the_windows_of_its_own_zone(window_ms: int, offset_ms: int) -> None:
    made, client = keyed(window_ms, offset_ms), Calendars(**keyed(window_ms, offset_ms).document["calendars"])
    times = np.repeat(MARCH_MS + np.arange(0, 20 * DAY_MS, 7 * HOUR_MS), len(ZONES))
    zones = np.tile(ZONES, len(times) // len(ZONES)).tolist()
    keys = pa.array([f"d%7C|{zone}" for zone in zones])
    starts = made.starts(times, keys)
    ends = made.ends(starts, keys.dictionary_encode())
    for at, zone, start, end in zip(times.tolist(), zones, starts.tolist(), ends.tolist(), strict=True):
        own = Calendar.of(window_ms, "UTC" if zone.startswith("(") else zone, offset_ms)
        assert [start, end] == [own.starts(np.array([at]))[0], own.ends(np.array([at]))[0]]
        assert (client.of(zone).start(at), client.of(zone).end(at)) == (start, end), "as readers find them"
    assert made.are_windows(starts, ends, keys).all()
    assert not made.are_windows(starts, ends + 1, keys).any()
    assert (made.latest_end(times) >= ends).all()
    assert (starts % made.step_ms == 0).all()
    assert (ends - starts <= made.longest_ms).all()


def test_no_times_have_no_windows() -> None:
    nothing = np.zeros(0, np.int64)
    for keys in (pa.array([], pa.string()), pa.array([], pa.string()).dictionary_encode(), pa.array(["a|UTC"])[:0]):
        assert [len(each) for each in (keyed().starts(nothing, keys), keyed().ends(nothing, keys))] == [0, 0]
        assert keyed_calendar.local_times(nothing, 1, keys) == []


def test_a_calendar_of_keys_is_named_for_people_and_read_from_what_it_publishes() -> None:
    made = keyed(MONTH_MS, 6 * HOUR_MS)
    assert f"{made.text}{made.text_of_offset}" == "1 mo of the zone in zone, 6 h later"
    assert KeyedCalendar.parse(made.document["calendars"], ("device", "zone")) == made
    assert Calendars(**made.document["calendars"]).text == made.text


def test_every_name_of_tzdata_is_a_zone_and_nothing_else_is() -> None:
    names = sorted(calendar.zone_names())
    assert len([calendar.zone(name) for name in names]) > 500
    others = pa.array([None, "", "Mars/Olympus", "europe/rome", " UTC", "zone.tab", "../zones"])
    assert not any(keyed_calendar.are_zones(others).to_pylist())
    assert all(keyed_calendar.are_zones(pa.array(names)).to_pylist())


@pytest.mark.parametrize("hours", [0, 1])
def test_no_zone_of_tzdata_is_beyond_what_holds_for_all_of_them(hours: int) -> None:
    """Their distance from UTC, how far they are set back, and since 1980 the interval of which all starts are multiples."""
    made = keyed(DAY_MS, hours * HOUR_MS)
    clock_ms, begins = calendar.clock(made.like)
    clocks = Clocks(clock_ms, begins)
    for name, file in {file: (name, file) for name, file in calendar.zone_files().items()}.values():
        offsets_ms, rules = clocks.offsets_ms(file), calendar.zone(name)
        assert -WEST_MS <= offsets_ms.min() <= offsets_ms.max() <= EAST_MS, name
        assert (np.maximum.accumulate(offsets_ms) - offsets_ms).max() <= SET_BACK_MS, name
        starts = (clock_ms - offsets_ms)[clock_ms > REGULAR_MS + DAY_MS]
        sets_forward = np.flatnonzero(np.diff(offsets_ms) > 0).tolist()
        if any(calendar._offset_ms(rules, begins[n].replace(fold=1)) > offsets_ms[n] for n in sets_forward):
            # Clocks skip the beginning: then the window begins when they are set.
            starts = np.array(Calendar.of(DAY_MS, name, hours * HOUR_MS).between(REGULAR_MS, 4_000_000_000_000))
        assert not (starts % made.step_ms).any(), name


CLOCKS = (
    *ZONES[:4],
    "Africa/Casablanca",
    "Africa/Monrovia",
    "America/Santiago",
    "Asia/Tokyo",
    "Etc/GMT+5",
    "Europe/Dublin",
)


@pytest.mark.parametrize("window_ms", [DAY_MS, MONTH_MS])
def test_clocks_are_read_from_files_as_zones_show_them(window_ms: int) -> None:
    clock_ms, times = calendar.clock(keyed(window_ms).like)
    clocks, files = Clocks(clock_ms, times), calendar.zone_files()
    for name in (*CLOCKS, "Pacific/Apia", "America/Havana", "Antarctica/Vostok", "UTC"):
        assert (clocks.offsets_ms(files[name]) == calendar._offsets_ms(calendar.zone(name), times)).all(), name
    first = files["Asia/Kolkata"].rindex((-3_645_237_208).to_bytes(8, signed=True))  # 1854
    of_zic = files["Asia/Kolkata"][:first] + (-(1 << 59)).to_bytes(8, signed=True) + files["Asia/Kolkata"][first + 8 :]
    assert (clocks.offsets_ms(of_zic) == clocks.offsets_ms(files["Asia/Kolkata"])).all(), (
        "a first time as zic -b fat has it"
    )


def test_another_tzdata_differs_in_the_months_in_which_a_zone_that_both_have_has_another_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every, times = calendar.zone_files(), calendar.clock(keyed().like)
    files = {name: every[name] for name in (*CLOCKS, "Asia/Colombo", "Africa/Abidjan", "UTC")}
    monkeypatch.setattr(calendar, "zone_files", lambda: files)
    before = zone_clocks.rules(*times)

    def differing(others: dict[str, bytes]) -> list[str]:
        monkeypatch.setattr(calendar, "zone_files", lambda: others)
        return [str(np.datetime64(month, "M")) for month in zone_clocks.other_months(*times, before)]

    assert differing(files) == []
    assert differing({"America/Coyhaique": every["America/Santiago"], **files}) == [], "a new zone has had no windows"
    assert differing({**files, "Africa/Abidjan": every["UTC"]}) == [], "another file, and the same clock since 1970"
    apart = differing({**files, "Asia/Kathmandu": every["Asia/Colombo"]})
    assert (apart[0], apart[-1], "1985-12" in apart) == ("1986-01", "2109-05", False)
    of_two = differing({**files, "Europe/Rome": every["Europe/Dublin"], "Europe/Dublin": every["Europe/Rome"]})
    assert "2026-11" in of_two, "by name: the same clocks of other zones"
    del (others := dict(files))["Asia/Tokyo"]
    assert len(differing(others)) == 139 * 12 + 5, "windows of a zone that is gone would be of UTC"


@pytest.mark.parametrize("by", [("device", "zone"), ("zone",)])
def test_a_zone_of_any_name_is_a_key_or_none_and_other_stays(by: tuple[str, ...]) -> None:
    odd = [None, "", " ", "../etc/passwd", "posix/Europe/Rome", "right/UTC", "Mars|%", "x" * 300, "Europe", "(none)"]
    broken = pa.array([b"\xffEurope/Rome"]).cast(pa.string(), safe=False)
    zones = pa.concat_arrays([broken, pa.array([*odd, "(other)", "Etc/GMT+5", "America/Argentina/Ushuaia"])])
    view = View(name="day", by=by, window="1 d", time_zone={"column": "zone"})
    units = windows.Units(np.zeros(len(zones), np.int64), {"zone": zones})
    groups = windows.groups(view, pa.array(["a"]), None, units)
    keys = groups.keys.take(pa.array(groups.of)).to_pylist()
    assert {key.split("|")[-1] for key in keys[:-3]} == {"(none)"}
    assert [key.split("|")[-1] for key in keys[-3:]] == ["(other)", "Etc/GMT+5", "America/Argentina/Ushuaia"]
    start = view.starts(np.full(len(keys), MARCH_MS), pa.array(keys))
    assert start.tolist() == [*[MARCH_MS] * (len(keys) - 2), MARCH_MS - 19 * HOUR_MS, MARCH_MS - 21 * HOUR_MS]


def test_a_final_window_covers_those_that_begin_and_end_with_it_only() -> None:
    """In October a day of Rome begins with one of Johannesburg, and ends an hour after it."""
    view = View(name="day", by=("device", "zone"), window="1 d", time_zone={"column": "zone"})
    keys = pa.array(["a|Africa/Johannesburg", "b|Europe/Rome", "c|Europe/Berlin", "d|Asia/Kathmandu"])
    start = view.starts(np.full(4, 1_792_887_000_000), keys)  # 2026-10-25
    end = view.ends(start, keys)
    assert (start[0], end[1] - end[0]) == (start[1], HOUR_MS)
    of_rome = _grid(view, [(int(start[1]), int(end[1]), "b|Europe/Rome")])
    assert of_rome.covers(start, end).tolist() == [False, True, True, False]
    older = _grid(view, [(int(start[1]), int(start[1]) + HOUR_MS, "b|Europe/Rome")])
    assert older.covers(start, end).all(), "of another length: all that share time with it"
