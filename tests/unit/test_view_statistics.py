"""The statistics of a view: chosen in the settings, changed at restarts, folded, merged, stored and published."""

import itertools
import json
import math
from dataclasses import replace

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from load.judge import calendars
from load.judge.statistics import ORDERED, Frame, plain, tolerance
from load.walks import admitted
from service.aggregation.partial_aggregation import Fold
from service.aggregation.screen import Screen
from service.outlets.outbox import Outbox, Scope
from service.outlets.outlet import Position
from service.outlets.silence import Silence
from service.publication.meta import meta
from service.publication.rows import window_rows
from service.recompute import engine
from service.redis.keys import Keys
from service.row_schemas import PARTS
from service.settings import View
from service.spark.files import Local
from state import codec, history, trail_groups, windows
from state.columns import ints
from state.delta import apply, diff
from state.finals import Finals
from state.history import Payload
from state.layout import empty_state, session_schema
from state.rules import MOST_READINGS, Rules
from state.statistics import DEFAULT, STATISTICS
from state.window_columns import columns_of
from tests.examples import examples
from tests.stream.records import make_settings
from tidemark_client import Meta

RULES = Rules(gap_ms=5_000, max_duration_ms=160_000, retain_ms=0, measures=("t",))
SCHEMA = admitted.schema(("t",))
BASE_MS = 1_790_000_040_000
KEYS = Keys("p")


def views(one=DEFAULT, two=DEFAULT):
    """Two views, by device and over all devices, with these statistics."""
    return (
        View(name="one", by=("device",), window=10_000, statistics=one),
        View(name="two", window=20_000, slide=10_000, statistics=two),
    )


def folded(readings, of, attributes=None):
    """The parts of windows of (device, ms after BASE_MS, value) that one task sends."""
    fold = Fold(Screen(("readings",), 1), RULES, [(view, ("t",)) for view in of], pane_ms=10_000, attributes=attributes)
    rows = [
        {"bucket": 0, "device": device, "event_ms": BASE_MS + ms, "broker_ms": BASE_MS + ms}
        | {"t": value, "from_partition": 0, "offset": number, "reject": None}
        for number, (device, ms, value) in enumerate(readings)
    ]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    found = [row for each in fold(iter([batch])) for row in each.to_pylist()]
    return [codec.unpack(b"W", row["payload"]) for row in found if row["kind"] == PARTS]


def advanced(readings, of, state=None, watermark_ms=0):
    """What one batch of these readings makes of the windows that are open, at first of none."""
    return windows.advance(windows.empty() if state is None else state, folded(readings, of), watermark_ms)


def text(table, of):
    """What publish writes, by key: the same text for the same windows."""
    rows = window_rows(table, KEYS, of, BASE_MS)
    return {key: {n: c[at] for n, c in rows.fields.items()} for at, key in enumerate(rows.keys)}


def replaced(state, open_windows):
    """A state with these windows; what changed is written as a delta, which is read again and gives the same."""
    after = type(state)(state.runs, state.devices, open_windows)
    delta = diff(state, after)
    if delta is not None:
        again = codec.decode_delta(codec.encode_delta(delta))
        assert apply(state, again).windows.to_pylist() == after.windows.to_pylist()
    return after


def published(table, of):
    """{(view, key, start): {field: number}} of what publish writes."""
    rows = window_rows(table, KEYS, of, BASE_MS)
    columns = {name: column for name, column in rows.fields.items() if name != "local_start"}
    fields = [{n: float(c[at]) for n, c in columns.items() if c[at] is not None} for at in range(len(rows))]
    named = [(each.pop("start") - BASE_MS, each.pop("end"), each) for each in fields]
    places = zip(table["view"].to_pylist(), table["key"].to_pylist(), named, strict=True)
    return {(view, key, start): each for view, key, (start, _, each) in places}


def plainly(readings, of, *, at=None):
    """The same of all readings; `at` has the fields that each window may have, by place."""
    groups = {}
    for device, ms, value in readings:
        for view in of:
            newest = ms - ms % view.step_ms
            for back in range(view.window_ms // view.step_ms):
                place = view.name, device if view.by else "all", newest - back * view.step_ms
                groups.setdefault(place, []).append((BASE_MS + ms, value, device))
    for device, ms, _ in readings:
        for view in (each for each in of if each.fill == "last"):
            for start in range(ms - ms % view.step_ms + view.step_ms, ms + view.carry_for_ms, view.step_ms):
                groups.setdefault((view.name, device if view.by else "all", start), [])
    by_name = {view.name: view for view in of}

    def value_of(name, place, group):
        start, view = BASE_MS + place[2], by_name[place[0]]
        carried = {}
        for device, ms, reading in readings:
            if (not view.by or device == place[1]) and 0 < place[2] - ms <= (view.carry_for_ms or 0):
                carried[device] = max(carried.get(device, (0, 0.0)), (BASE_MS + ms, reading))
        if not group and name not in ORDERED:
            latest = max(carried.values())
            return {"count": 0, "last": latest[0], "last_value": latest[1]}.get(name)
        return plain(name, group, Frame(start, start + view.window_ms, carried, view.carry_for_ms))

    return {
        place: {
            name: value
            for name in by_name[place[0]].statistics
            if (at is None or name in at[place]) and (value := value_of(name, place, group)) is not None
        }
        for place, group in groups.items()
    }


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for place, fields in expected.items():
        assert actual[place].keys() == fields.keys(), place
        for name, value in fields.items():
            assert math.isclose(actual[place][name], value, rel_tol=1e-9, abs_tol=1e-3 + tolerance(name, value)), (
                place,
                name,
            )


chosen = st.sets(st.sampled_from(list(STATISTICS))).map(tuple)
batches = st.lists(
    st.tuples(
        st.none() | st.tuples(chosen, chosen),  # the views' statistics from a restart on
        st.lists(
            st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40_000), st.floats(-1e3, 1e3)), min_size=1, max_size=8
        ),
    ),
    min_size=1,
    max_size=6,
)


@examples(150)
@hypothesis.given(batches)
def test_a_window_has_the_statistics_that_it_had_in_all_its_batches_and_those_are_right(schedule):
    of, state = views(), empty_state(RULES)
    readings, kept = [], {}
    for statistics, batch in schedule:
        of = of if statistics is None else views(*statistics)
        readings += batch
        state = codec.decode(codec.encode(replaced(state, advanced(batch, of, state.windows).open)))
        for place in plainly(batch, of):
            columns = set(columns_of({view.name: view.statistics for view in of}[place[0]]))
            kept[place] = kept.get(place, columns) & columns
        at = {place: [name for name, each in STATISTICS.items() if kept[place] >= set(each.columns)] for place in kept}
        assert_same(published(state.windows, of), plainly(readings, of, at=at))


exactly = tuple(name for name in STATISTICS if name not in {"sum", "mean", "stddev"})
readings_of_a_window = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 9),
        st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.0, -0.0, -0.0, 1e-300, 1e140])),
    ),
    min_size=1,
    max_size=80,
)


@examples(100)
@hypothesis.given(readings_of_a_window, st.randoms())
def test_a_recomputation_with_other_cuts_and_in_another_order_publishes_the_same_text(readings, rng):
    """Of all statistics but sums, means and deviations, which agree to 9 digits."""
    of = views(exactly, tuple(name for name in exactly if name not in ORDERED))

    shuffled, state = rng.sample(readings, len(readings)), None
    cuts = sorted({0, len(readings), *(rng.randint(0, len(readings)) for _ in range(rng.randint(0, 5)))})
    for low, high in itertools.pairwise(cuts):
        state = advanced(shuffled[low:high], of, state).open
    assert text(state, of) == text(advanced(readings, of).open, of)


in_time = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 59_999), st.floats(-1e3, 1e3)), min_size=1, max_size=100
)


@examples(60)
@pytest.mark.parametrize("by", [("device",), ()])
@hypothesis.given(in_time, st.integers(0, 9_000), st.none() | st.integers(1, 45_000), st.booleans(), st.randoms())
def test_statistics_of_order_are_the_same_text_in_any_order_within_the_delay(
    by, readings, delay_ms, carry_ms, slides, rng
):
    """In batches with a watermark each, which closes and folds; by deltas, as the state is stored."""
    carried = {} if carry_ms is None else {"carry_for": carry_ms}
    length = {"window": 20_000, "slide": 10_000} if slides else {"window": 10_000}
    of = [View(name="one", by=by, statistics=tuple(ORDERED), **length, **carried)]
    arrival = sorted(readings, key=lambda reading: reading[1] + rng.randint(0, delay_ms))
    cuts = sorted({0, len(readings), *(rng.randint(0, len(readings)) for _ in range(rng.randint(0, 8)))})

    state, shown = empty_state(RULES), {}
    for low, high in itertools.pairwise(cuts):
        oldest_to_come = min([ms for _, ms, _ in arrival[high:]], default=60_000)
        watermark_ms = BASE_MS + rng.choice([0, oldest_to_come, oldest_to_come])
        step = windows.advance(state.windows, folded(arrival[low:high], of), watermark_ms, (), MOST_READINGS)
        shown |= text(step.changed, of)
        state = replaced(state, step.open)
    whole = advanced(readings, of).changed
    assert shown == text(whole, of)
    assert_same(published(whole, of), plainly(readings, of))


def test_what_no_view_has_is_neither_folded_nor_kept_nor_written():
    of = views(["mean"], ["mean"])
    parts = folded([("a", 1, 1.0), ("a", 2, 2.0)], of)
    (names,) = {tuple(part.column_names) for part in parts}
    assert names == (*windows.KEY, "count", "sum_hi", "sum_lo", "last")
    table = windows.advance(windows.empty(), parts, 0).open
    assert table.column_names == list(names)
    assert set(window_rows(table, KEYS, of, 0).fields) == {"count", "mean", "last", "start", "end"}
    assert windows.concat(folded([("a", 1, 1.0)], views())).nbytes > windows.concat(parts).nbytes


def test_the_columns_of_a_state_follow_the_settings_and_then_stay():
    state = advanced([("a", 1, 1.0)], views()).open
    few = views(["mean"], ["mean"])
    state = advanced([("a", 30_001, 1.0)], few, state).open
    assert "sq_a" in state.column_names  # the windows that began before have it still
    closed = advanced([("a", 30_002, 1.0)], few, state, BASE_MS + 20_000)
    after = advanced([("a", 30_003, 1.0)], few, closed.open, BASE_MS + 20_000).open
    again = advanced([("a", 30_004, 1.0)], few, after, BASE_MS + 20_000).open
    assert "sq_a" not in after.column_names
    assert after.schema.equals(again.schema)


def test_a_state_of_other_statistics_is_version_3_and_unknown_columns_are_refused_by_name():
    state = empty_state(RULES)
    state = type(state)(state.runs, state.devices, advanced([("a", 1, 1.0)], views(["mean"], ["max"])).open)
    data = codec.encode(state)
    assert data[4] == 3
    assert codec.encode(empty_state(RULES))[4] == 2
    assert codec.decode(data).windows.to_pylist() == state.windows.to_pylist()
    newer = state.windows.append_column("kurtosis", pa.array(np.zeros(state.windows.num_rows)))
    with pytest.raises(codec.CodecError, match="its windows have kurtosis, which no statistic of this version has"):
        codec.decode(codec.encode(type(state)(state.runs, state.devices, newer)))


def test_an_unknown_statistic_is_refused_and_count_and_last_are_always_there():
    with pytest.raises(ValidationError, match="'avg': no such statistic; there are count, sum, mean"):
        View(name="v", window="1 m", statistics=["avg"])
    assert View(name="v", window="1 m", statistics=["max", "mean"]).statistics == ("count", "mean", "max", "last")
    assert View(name="v", window="1 m").statistics == DEFAULT


def carrying(**fields):
    """A view that carries readings over 25 s into windows of 10 s; by device, or over all devices."""
    fields = {"by": ("device",), "window": 10_000, "statistics": tuple(ORDERED), "carry_for": 25_000, **fields}
    return View(name="one", **fields)


FILLED = {"fill": "last", "statistics": [*STATISTICS]}


@examples(30)
@pytest.mark.parametrize("fill", [{}, FILLED])
@pytest.mark.parametrize("by", [("device",), ()])
@hypothesis.given(in_time, st.randoms())
def test_a_recomputation_in_the_order_of_time_carries_what_the_stream_carries(by, fill, readings, rng):
    of, cut = [carrying(by=by, **fill)], rng.randint(0, len(readings))
    rules = replace(RULES, fills={"one": 25_000} if fill else {})
    shuffled = rng.sample(readings, len(readings))
    tasks = [table for some in (shuffled[:cut], shuffled[cut:]) if some for table in folded(some, of)]
    payloads = sorted(
        (Payload(int(ints(part, "first").min()), parts=part) for part in tasks), key=lambda each: each.first_ms
    )
    closed = [each.windows for each in history.closed(payloads, BASE_MS + 90_000, 0, rules)]
    assert_same(published(windows.concat(closed), of), plainly(readings, of))
    assert sum(each.num_rows for each in closed) == len(plainly(readings, of))


CHANGES_MS = {
    "Europe/Rome": 1_792_890_000_000,  # 2026-10-25T01:00Z, an hour back
    "America/New_York": 1_805_007_600_000,  # 2027-03-14T07:00Z, an hour ahead
    "Australia/Lord_Howe": 1_791_041_400_000,  # 2026-10-03T15:30Z, half an hour ahead
    "Asia/Kathmandu": 1_792_890_000_000,
}
HOUR_MS = 3_600_000


@examples(60)
@hypothesis.given(
    st.sampled_from(sorted(CHANGES_MS)),
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(-60, 60), st.integers(0, 999), st.floats(-1e3, 1e3)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 80),
    st.randoms(),
)
def test_readings_are_carried_into_local_days_of_any_length_in_any_order(zone, drawn, carry_hours, rng):
    carry_ms, local = carry_hours * HOUR_MS, calendars.Calendar(1, "d", zone)
    of = [View(name="one", by=("device",), window="1 d", time_zone=zone, statistics=tuple(ORDERED), carry_for=carry_ms)]
    readings = [(d, CHANGES_MS[zone] - BASE_MS + hours * HOUR_MS + ms * 1_000, v) for d, hours, ms, v in drawn]
    shuffled, cut = rng.sample(readings, len(readings)), rng.randint(0, len(readings))
    tasks = [table for some in (shuffled[:cut], shuffled[cut:]) if some for table in folded(some, of)]
    expected = {}
    for device in {each[0] for each in readings}:
        own = [(BASE_MS + ms, v) for d, ms, v in readings if d == device]
        for start, end in {local.span(at) for at, _ in own}:
            group = [(at, v, device) for at, v in own if start <= at < end]
            carried = [(at, v) for at, v in own if start - carry_ms <= at < start]
            frame = Frame(start, end, {device: max(carried)} if carried else {}, carry_ms)
            values = {name: plain(name, group, frame) for name in of[0].statistics}
            expected["one", device, start - BASE_MS] = {name: v for name, v in values.items() if v is not None}
    rng.shuffle(tasks)
    assert_same(published(windows.advance(windows.empty(), tasks, 0).changed, of), expected)


@examples(30)
@pytest.mark.parametrize("fill", [{}, FILLED])
@pytest.mark.parametrize("by", [("device",), ()])
@hypothesis.given(in_time, st.randoms())
def test_a_correction_reaches_the_windows_that_a_late_reading_is_carried_into(by, fill, readings, rng):
    of = [carrying(by=by, window=20_000, slide=10_000, **fill)]
    late = rng.sample(readings, rng.randint(1, len(readings)))
    in_place = list(readings)
    for each in late:
        in_place.remove(each)
    targets = advanced(late, of, watermark_ms=engine.NEVER_MS).open
    base = windows.empty()
    if in_place:
        base = windows.advance(
            base, [windows.only(part, targets) for part in folded(in_place, of)], engine.NEVER_MS
        ).open
    expected, corrected = (
        plainly(readings, of),
        published(engine.with_late(base, targets, {"one": 25_000} if fill else {}), of),
    )
    assert_same(corrected, {place: expected[place] for place in corrected})
    before = plainly(in_place, of)
    assert {place for place, fields in expected.items() if fields != before.get(place)} <= corrected.keys()


def test_a_window_without_readings_is_kept_for_what_it_carries_and_never_shown():
    of = [carrying()]
    first = advanced([("a", 9_000, 5.0)], of, watermark_ms=BASE_MS)
    assert [row["start"] - BASE_MS for row in first.changed.to_pylist()] == [0]
    assert [row["start"] - BASE_MS for row in first.open.to_pylist()] == [0, 10_000, 20_000, 30_000]
    second = advanced([("a", 31_000, 8.0)], of, first.open, BASE_MS + 20_000)
    assert [row["start"] - BASE_MS for row in second.closed.to_pylist()] == [0]
    (shown,) = published(second.changed, of).values()
    assert (shown["count"], shown["increase"], shown["longest_gap"], shown["integral"]) == (1, 3, 22, 5 + 8 * 9)
    assert [row["count"] for row in second.open.to_pylist() if row["start"] == BASE_MS + 20_000] == [0]
    third = windows.advance(second.open, [], BASE_MS + 90_000)
    assert (third.open.num_rows, [row["start"] - BASE_MS for row in third.closed.to_pylist()]) == (0, [30_000])


def test_a_view_that_carries_nothing_has_no_row_for_it():
    (part,) = folded([("a", 9_000, 5.0)], [View(name="one", by=("device",), window=10_000, statistics=("increase",))])
    assert part.num_rows == 1


def test_a_window_is_whole_when_no_reading_that_is_carried_into_it_can_be_missing():
    (part,) = folded([("a", 9_000, 5.0)], [carrying()])
    assert engine.are_whole(part, BASE_MS + 5_000, {"one": 25_000}).tolist() == [False, False, False, True]
    assert engine.are_whole(part, BASE_MS + 5_000, {}).tolist() == [False, True, True, True]
    assert engine.are_whole(part, 0, {"one": 25_000}).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"statistics": ("mean",)}, "carry_for: of no statistic that follows the order of readings"),
        ({"carry_for": 601_000}, "carry_for 601 s is more than 60 times 10 s"),
        ({"carry_for": 0}, "carry_for"),
    ],
)
def test_carry_for_is_of_statistics_of_order_and_bounded(fields, message):
    with pytest.raises(ValidationError, match=message):
        carrying(**fields)
    assert carrying().identity != carrying(carry_for=20_000).identity
    days = {"window": "1 d", "time_zone": "Europe/Rome"}
    assert carrying(**days, carry_for="60 d").carry_for_ms == 60 * 24 * HOUR_MS
    with pytest.raises(ValidationError, match="carry_for 61 d is more than 60 times 1 d, the time between the starts"):
        carrying(**days, carry_for="61 d")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"per": "h", "statistics": ("mean", "increase")},
            "per: of no statistic that it changes; these are rate, increase_rate",
        ),
        ({"wraps_at": 100, "statistics": ("resets",)}, "wraps_at: of no statistic that it changes; these are increase"),
        (
            {"wraps_at": 65_535, "statistics": ("increase",)},
            "65535 is the largest value of such a counter. It begins again at 65536",
        ),
        ({"wraps_at": 99_999, "statistics": ("increase",)}, "It begins again at 100000: set that"),
        ({"wraps_at": 0, "statistics": ("increase",)}, "wraps_at"),
        ({"per": "week", "statistics": ("rate",)}, "per"),
    ],
)
def test_per_and_wraps_at_are_of_the_statistics_that_they_change(fields, message):
    with pytest.raises(ValidationError, match=message):
        View(name="meter", by=("device",), window=10_000, **fields)


def test_another_unit_is_another_version_and_readers_know_it(tmp_path):
    plain = View(name="meter", by=("device",), window=10_000, statistics=("increase", "integral"))
    others = [plain.model_copy(update=update) for update in ({"per": "h"}, {"wraps_at": 100.0})]
    assert len({each.identity for each in (plain, *others)}) == 3
    asked = {"per": "h", "wraps_at": 100, "statistics": ["increase", "integral"]}
    settings = make_settings(tmp_path, views=[{"name": "meter", "by": ["device"], "window": "10 s", **asked}])
    (view,) = json.loads(meta(settings))["views"]
    assert (view["per_ms"], view["wraps_at"]) == (3_600_000, 100)
    assert Meta.of(meta(settings), "tidemark:meta").view("meter").per_ms == 3_600_000


def test_a_group_has_the_sums_and_means_of_its_devices():
    of = [View(name="two", window=10_000, statistics=tuple(ORDERED))]
    # a: 10, 30 for 4 s and 4 s of the window; b: 5, 2 (a reset), 4 over 8 s, from its first reading on.
    readings = [("a", 2_000, 10.0), ("b", 2_000, 5.0), ("a", 6_000, 30.0), ("b", 4_000, 2.0), ("b", 8_000, 4.0)]
    whole = published(advanced(readings, of).changed, of)
    (shown,) = whole.values()
    state = None
    for each in readings[::-1]:
        state = advanced([each], of, state).open
    assert published(state, of) == whole
    assert shown["increase"] == (30 - 10) + (2 + 2)
    assert (shown["resets"], shown["changes"], shown["longest_gap"]) == (1, 3, 4)
    assert shown["increase_rate"] == pytest.approx(20 / 4 + 4 / 6)
    area = (10 * 4 + 30 * 4) + (5 * 2 + 2 * 4 + 4 * 2)
    assert (shown["integral"], shown["time_weighted_mean"]) == (area, area / 16)
    assert shown["coverage"] == (0.8 + 0.8) / 2
    line = 20 * 4 + (3.5 * 2 + 3 * 4)
    assert (shown["linear_integral"], shown["linear_mean"]) == (line, line / 10)


def test_a_lost_trail_loses_its_group_and_so_do_too_many_devices(monkeypatch):
    of = [View(name="two", window=10_000, statistics=("increase",))]
    readings = [(device, ms, float(ms)) for device in "abc" for ms in range(5)]
    for most, devices, is_lost in ((4, 3, True), (5, 3, False), (5, 2, True)):
        monkeypatch.setattr(trail_groups, "MOST_DEVICES", devices)
        step = windows.advance(windows.empty(), folded(readings, of), 0, (), most)
        again = windows.advance(step.open, folded([("d", 9, 1.0)], of) if is_lost else [], 0, (), most).open
        for table in (step.open, again):
            (shown,) = published(table, of).values()
            assert ("increase" not in shown) == is_lost
            assert windows.lost(table) == int(is_lost)


def test_each_view_has_its_own_unit_and_its_own_counter():
    fields = {"by": ("device",), "window": 10_000, "statistics": ("increase", "increase_rate", "rate", "integral")}
    of = [
        View(name="plain", **fields),
        View(name="hour", **fields, per="h"),
        View(name="wrapped", **fields, wraps_at=100),
    ]
    readings = [("a", 0, 36.0), ("a", 1_000, 90.0), ("a", 4_000, 18.0)]
    shown = {key[0]: value for key, value in published(advanced(readings, of).changed, of).items()}
    area = 36 + 90 * 3 + 18 * 6
    assert shown["plain"] | {"increase": 72, "increase_rate": 18, "rate": -4.5, "integral": area} == shown["plain"]
    assert (
        shown["wrapped"] | {"increase": 82, "increase_rate": 20.5, "rate": -4.5, "integral": area} == shown["wrapped"]
    )
    hour = {"increase": 72, "increase_rate": 18 * 3_600, "rate": -4.5 * 3_600, "integral": area / 3_600}
    assert shown["hour"] | hour == shown["hour"]


def test_a_window_that_silence_closed_leaves_again_when_what_it_carries_changes(tmp_path):
    of, asked = [carrying()], Finals(frozenset({"one"}))
    outbox = Outbox(Local(tmp_path))
    silence = Silence(outbox)
    before = advanced([("a", 2_000, 5.0), ("a", 31_000, 8.0), ("b", 31_000, 1.0)], of)
    nothing = session_schema(()).empty_table()
    entry = silence.close(Position(1, 3), asked.of(nothing, windows.for_silence(before.open, {})), Scope({}))
    assert entry is not None
    # Windows that only have what is carried into them do not leave.
    assert outbox.load(entry).windows.num_rows == 3
    after = advanced([("a", 9_000, 6.0)], of, before.open, BASE_MS + 90_000)
    left = silence.final(4, asked.of(nothing, after.closed), BASE_MS + 90_000).windows.to_pylist()
    assert sorted((row["key"], row["start"] - BASE_MS, row["count"], row["revision"]) for row in left) == [
        ("a", 0, 2, 1),
        ("a", 30_000, 1, 1),
    ]
