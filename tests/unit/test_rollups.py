"""Roll-ups: `from` of a view changes what it costs, not what its closed windows hold."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import hypothesis
import jsonschema_rs
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from load.judge.statistics import tolerance
from service.aggregation import sessions
from service.checkpoint import view_versions
from service.checkpoint.view_versions import Filled
from service.commands import reshape
from service.daemon.idle_closer import IdleCloser
from service.pipeline.term import Term
from service.publication.meta import meta, require_views
from service.settings import View, parse
from service.spark.files import Local
from state import codec, reader, rollups, waiting, windows
from state.bucket import advance
from state.layout import empty_state
from state.rollups import Rollup
from state.statistics import DEFAULT, STATISTICS
from state.waiting import Pace
from state.window_columns import columns_of
from tests.examples import examples
from tests.unit.test_settings import document, problems
from tests.unit.test_view_statistics import BASE_MS, RULES, folded, published

ALL = tuple(STATISTICS)
MOST_MS = 180_000


def chain(by=("device",), names=ALL):
    """A view of 10 s, and 30 s and 60 s of the one before it."""
    lengths = {"one": 10_000, "two": 30_000, "three": 60_000}
    return [View(name=name, by=by, window=ms, statistics=names) for name, ms in lengths.items()]


def rules_of(of):
    found = [
        Rollup(view.name, source.name, ("t",), columns_of(view.statistics), view.window_ms)
        for source, view in itertools.pairwise(of)
    ]
    return replace(RULES, rollups=rollups.levels(found), update_every={view.name: 0 for view in of})


def assert_alike(actual, expected):
    """The same windows with the same numbers, but for the rounding of sums that are added in another order."""
    assert actual.keys() == expected.keys()
    for place, fields in expected.items():
        mine = actual[place]
        assert mine.keys() == fields.keys(), place
        scale = max(abs(fields["min"]), abs(fields["max"])) * 60_000 if "min" in fields else 1e6
        for name, value in fields.items():
            close = math.isclose(mine[name], value, rel_tol=max(1e-9, tolerance(name, 1.0)), abs_tol=1e-9 * scale)
            assert close, (place, name, mine[name], value)


some = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, MOST_MS - 1), st.integers(-9, 9).map(float) | st.floats(-1e3, 1e3)),
    min_size=1,
    max_size=120,
)


@examples(60)
@pytest.mark.parametrize("by", [("device",), ()])
@hypothesis.given(some, st.integers(0, 30_000), st.sampled_from([waiting.AT_ONCE, Pace(1_000, 0)]), st.randoms())
def test_closed_windows_are_those_of_views_without_from_for_any_cuts_order_and_watermark(
    by, readings, delay_ms, pace, rng
):
    of = chain(by)
    plain, rolled = replace(rules_of(of), rollups=()), rules_of(of)
    arrival = sorted(readings, key=lambda each: each[1] + rng.randint(0, delay_ms))
    states, closed, there, at, watermark = [empty_state(plain), empty_state(rolled)], [{}, {}], [{}, {}], 0, 0
    while at < len(arrival) or watermark < MOST_MS:
        size = rng.randint(1, 40)
        batch, at = arrival[at : at + size], at + size
        watermark = max(watermark, min([ms for _, ms, _ in arrival[at:]], default=MOST_MS))
        for number, (kept, views) in enumerate(((plain, of), (rolled, of[:1]))):
            parts = [part for task in (batch[::2], batch[1::2]) if task for part in folded(task, views)]
            state, changes, leaving = advance(states[number], parts, [], BASE_MS + watermark, kept, pace)
            states[number] = codec.decode(codec.encode(state))
            now = published(leaving, of) if leaving.num_rows else {}
            assert not closed[number].keys() & now.keys(), "a window is closed once"
            closed[number] |= now
            there[number] |= published(changes.windows, of) if changes.windows.num_rows else {}
            assert all(there[number][place] == fields for place, fields in now.items()), "it was published as it is"
    assert_alike(closed[1], closed[0])
    assert not states[1].windows.num_rows


@examples(40)
@hypothesis.given(some, st.integers(0, MOST_MS))
def test_an_open_window_has_the_readings_up_to_the_last_closed_window_and_silence_those_of_all(readings, watermark):
    of = chain()
    plain, rolled = replace(rules_of(of), rollups=()), rules_of(of)
    state, *_ = advance(empty_state(rolled), folded(readings, of[:1]), [], BASE_MS + watermark, rolled)
    whole, *_ = advance(empty_state(plain), folded(readings, of), [], BASE_MS + watermark, plain)
    silent = windows.for_silence(state.windows, {}, rolled.rollups)
    assert_alike(
        published(silent, of) if silent.num_rows else {}, published(whole.windows, of) if whole.windows.num_rows else {}
    )
    before = {
        view.name: [each for each in readings if each[1] < watermark - watermark % source.window_ms]
        for source, view in itertools.pairwise(of)
    }
    for view in of[1:]:
        mine = windows.compact(state.windows.filter(windows.pc.equal(state.windows["view"], view.name)))
        those = folded(before[view.name], [view]) if before[view.name] else []
        expected = windows.advance(windows.empty(), those, BASE_MS + watermark).open
        assert_alike(published(mine, of) if mine.num_rows else {}, published(expected, of) if expected.num_rows else {})


def test_the_last_minute_and_the_windows_it_lies_in_are_closed_in_one_step():
    of = chain(names=("count",))
    rules = rules_of(of)
    step = windows.advance(
        windows.empty(), folded([("a", 59_000, 1.0), ("a", 1_000, 2.0)], of[:1]), BASE_MS + 60_000, levels=rules.rollups
    )
    assert {place: fields["count"] for place, fields in published(step.closed, of).items()} == {
        ("one", "a", 0): 1,
        ("one", "a", 50_000): 1,
        ("two", "a", 0): 1,
        ("two", "a", 30_000): 1,
        ("three", "a", 0): 2,
    }
    assert not step.open.num_rows


def test_a_roll_up_keeps_the_columns_of_its_statistics_only():
    of = [
        View(name="one", by=("device",), window=10_000, statistics=ALL),
        View(name="two", by=("device",), window=60_000),
    ]
    rules = rules_of(of)
    step = windows.advance(windows.empty(), folded([("a", 0, 1.0)], of[:1]), BASE_MS + 10_000, levels=rules.rollups)
    [row] = step.open.to_pylist()
    lacking = {name for name, value in row.items() if value is None}
    assert row["view"] == "two"
    assert lacking == set(columns_of(ALL)) - set(columns_of(of[1].statistics))


def test_a_roll_up_has_its_own_measures_of_those_of_its_source():
    settings = parse(document(views=[HOUR, {**MINUTE, "measures": ["temperature", "humidity"]}]))
    [part] = folded([("a", 0, 1.0)], [View(name="minute", by=("device",), window=60_000)])
    parts = [_of_measure(part, name) for name in ("temperature", "humidity")]
    step = windows.advance(windows.empty(), parts, BASE_MS + 60_000, levels=sessions.rules(settings).rollups)
    assert [(row["view"], row["measure"]) for row in step.open.to_pylist()] == [("hour", "temperature")]
    assert step.closed.num_rows == 2


def _of_measure(part, name):
    at = part.column_names.index("measure")
    return part.set_column(at, part.schema.field(at), pa.array([name] * part.num_rows).dictionary_encode())


def test_without_roll_ups_a_step_does_nothing_for_them(monkeypatch):
    monkeypatch.setattr(rollups, "parts", None)
    of = chain()
    step = windows.advance(windows.empty(), folded([("a", 0, 1.0)], of), BASE_MS + 60_000)
    assert step.closed.num_rows == 3
    assert windows.for_silence(step.open, {}).num_rows == 0


CONTRACT = json.loads((Path(__file__).parents[2] / "schemas" / "redis.json").read_text())
MINUTE = {"name": "minute", "window": "1 m", "measures": ["temperature"]}
HOUR = {"name": "hour", "window": "1 h", "measures": ["temperature"], "from": "minute"}


@pytest.mark.parametrize(
    ("source", "view", "problem"),
    [
        ({}, {"from": "second"}, "from: 'second' is no view; there are minute"),
        ({}, {"from": "hour"}, "from: 'hour' is computed from 'hour' in turn"),
        ({"from": "hour"}, {}, "from: 'minute' is computed from 'hour' in turn"),
        ({"window": "none"}, {}, "from: 'minute' has no windows. Take a view whose windows follow each other"),
        ({"window": "2 m", "slide": "1 m"}, {}, "from: 'minute' has windows that slide, which have readings in common"),
        ({"window": "7 m"}, {}, "from: a window of 7 m may lie in two windows of 1 h"),
        ({"window": "2 h"}, {}, "from: a window of 2 h may lie in two windows of 1 h"),
        ({"window": "1 w"}, {"window": "1 mo"}, "from: a window of 1 w of UTC may lie in two windows of 1 mo of UTC"),
        (
            {"window": "1 d", "time_zone": "Europe/Rome"},
            {"window": "1 mo", "time_zone": "Europe/Athens"},
            "from: a window of 1 d of Europe/Rome may lie in two windows of 1 mo of Europe/Athens",
        ),
        ({}, {"by": ["device"]}, "from: by is ['device'], that of 'minute' is not set. Give both the same"),
        ({"where": "temperature > 0"}, {}, "from: where is not set, that of 'minute' is 'temperature > 0'"),
        (
            {},
            {"by": ["device", "zone"], "window": "1 d", "time_zone": {"column": "zone"}},
            "from: 'hour' has windows in the time zone of each key",
        ),
        ({}, {"measures": ["temperature", "humidity"]}, "from: 'minute' lacks the measures humidity"),
        ({}, {"statistics": ["p95", "max"]}, "from: 'minute' does not keep what p95 need. Add them to its statistics"),
        (
            {"statistics": ["integral"], "carry_for": "2 m"},
            {"statistics": ["integral"]},
            "from: 'minute' has carry_for, and integral of its windows have what is carried over their start",
        ),
        ({}, {"slide": "10 m"}, "from: is given beside slide: a window of another view is in one of its windows only"),
        ({}, {"final_after": "1 s"}, "from: is given beside final_after: its windows have all readings when"),
        ({}, {"window": "none"}, "from: a view without windows counts late readings, which closed windows do not have"),
    ],
)
def test_what_no_roll_up_can_be_computed_from_is_refused(source, view, problem):
    given = problems(views=[{**MINUTE, **source}, {**HOUR, **view}])
    assert any(problem in line for line in given), given


@pytest.mark.parametrize(
    ("source", "view"),
    [
        ({"window": "15 m"}, {"window": "1 d", "time_zone": "Asia/Kathmandu"}),
        ({"window": "30 m"}, {"window": "1 d", "time_zone": "Australia/Lord_Howe"}),
        ({"window": "1 d", "time_zone": "Europe/Rome"}, {"window": "1 mo", "time_zone": "Europe/Rome"}),
        ({"window": "1 d", "time_zone": "Europe/Rome"}, {"window": "1 w", "time_zone": "Europe/Rome"}),
        ({"window": "1 mo"}, {"window": "1 y", "offset": "3 mo"}),
        ({"window": "1 w"}, {"window": "2 w"}),
        ({"statistics": ["median"], "final_after": "1 s", "retain": "1 m"}, {"statistics": ["p99"], "sketches": True}),
        ({"statistics": ["stddev", "integral"], "carry_for": "2 m"}, {"statistics": ["mean"], "per": "s"}),
    ],
)
def test_what_a_roll_up_can_be_computed_from_is_taken(source, view):
    parsed = parse(document(views=[{**HOUR, **view}, {**MINUTE, **source}]))
    assert parsed.rollups == {"hour"}
    assert [each.name for each in parsed.folded_views] == ["minute"]
    [[rolled]] = sessions.rules(parsed).rollups
    assert (rolled.view, rolled.source) == ("hour", "minute")


NEW_MS = 1_000_000


def changed(before, *views):
    settings = parse(document(views=list(views)))
    return view_versions.changed(before, settings, NEW_MS)


def reading(versions):
    return [(view.name, view.reads, view.is_next) for view in versions.views]


def begun(*views):
    return view_versions.begun(parse(document(views=list(views))))


def done(versions, *names):
    return view_versions.filled(
        versions, {view.name: Filled(view.incomplete) for view in versions.views if view.name in names}
    )


def test_another_from_is_another_version_and_a_new_source_gives_one_to_both():
    first = begun(HOUR, MINUTE)
    assert reading(first) == [("hour", "minute", False), ("minute", None, False)]
    assert changed(first, HOUR, MINUTE) is first
    plain = changed(first, {**HOUR, "from": "other"}, MINUTE, {**MINUTE, "name": "other"})
    assert reading(plain)[:2] == [("hour", "minute", False), ("hour@2", "other", True)]
    hour, minute = {**HOUR, "where": "temperature > 0"}, {**MINUTE, "where": "temperature > 0"}
    both = changed(first, hour, minute)
    names = [("hour", "minute", False), ("hour@2", "minute@2", True), ("minute", None, False), ("minute@2", None, True)]
    assert reading(both) == names
    assert reading(done(both, "minute@2")) == names, "the former roll-up still reads the former source"
    assert reading(done(both, "hour@2", "minute@2")) == [("hour@2", "minute@2", False), ("minute@2", None, False)]
    assert reading(done(both, "hour@2")) == [("hour@2", "minute@2", False), *names[2:]]
    assert reading(changed(both, HOUR, MINUTE)) == [("hour", "minute", False), ("minute", None, False)]


def test_meta_has_the_view_that_each_version_reads():
    before, hour = parse(document(views=[HOUR, MINUTE])), {**HOUR, "where": "temperature > 0"}
    wanted = parse(document(views=[hour, {**MINUTE, "where": "temperature > 0"}]))
    text = json.loads(meta(view_versions.applied(wanted, view_versions.changed(begun(HOUR, MINUTE), wanted, NEW_MS))))
    assert {view["name"]: view.get("from") for view in text["views"]} == {
        "hour": "minute",
        "hour@2": "minute@2",
        "minute": None,
        "minute@2": None,
    }
    assert not list(jsonschema_rs.Draft202012Validator(CONTRACT["json"]["meta"]).iter_errors(text))
    require_views(parse(document(views=[{**HOUR, "from": None}, MINUTE])), meta(before))  # closed windows are the same


def test_a_former_roll_up_whose_source_is_gone_or_lacks_a_measure_serves_no_longer():
    first = begun(HOUR, MINUTE)
    alone = changed(first, {name: value for name, value in HOUR.items() if name != "from"})
    assert reading(alone) == [("hour@2", None, False)]
    both = begun({**HOUR, "measures": ["temperature", "humidity"]}, {**MINUTE, "measures": ["temperature", "humidity"]})
    less = changed(
        both, {**HOUR, "statistics": ["sum", "rate", "mean"], "per": "h"}, {**MINUTE, "statistics": [*DEFAULT, "rate"]}
    )
    assert reading(less) == [("hour@2", "minute", False), ("minute", None, False)]


@pytest.mark.parametrize(("outlets", "kept"), [(None, ["hour"]), (object(), ["hour", "minute"])])
def test_silence_keeps_the_windows_that_somebody_lacks_in_memory(monkeypatch, outlets, kept):
    settings = parse(document(views=[HOUR, MINUTE]))
    [part] = folded([("a", 0, 1.0)], [View(name="minute", by=("device",), window=60_000)])
    state = replace(empty_state(RULES), windows=_of_measure(part, "temperature"))
    closer = IdleCloser(Term(None, settings, epoch=1, outlets=outlets))
    monkeypatch.setattr(reader, "states", lambda *_: iter([(0, state), (1, empty_state(RULES))]))
    tables = closer._tables(3)
    assert tables.due(BASE_MS) == []
    assert [sorted(each["view"].to_pylist()) for each in closer._windows] == [kept, []]


def test_versions_with_roll_ups_are_read_as_they_are_written(tmp_path):
    log, first = view_versions.Log(Local(tmp_path)), begun(HOUR, MINUTE)
    log.write(0, first)
    assert view_versions.Log(Local(tmp_path)).at(0) == first
    assert json.loads((tmp_path / "views" / "0").read_text())["views"][0]["from"] == "minute"


def test_keys_of_a_roll_up_stay_in_the_bucket_of_the_view_that_is_folded():
    parts = folded([("a", 0, 1.0)], chain(by=(), names=("count",)))
    table = windows.concat(parts)
    roots = {"one": "one", "two": "one", "three": "one"}
    for buckets in (2, 7, 64):
        assert len(set(reshape._of_windows(table, {}, roots, buckets).tolist())) == 1


def test_roll_ups_of_roll_ups_come_behind_them_in_any_order_of_the_settings():
    of = {"day": "hour", "hour": "minute", "week": "day", "other": "minute"}
    found = rollups.levels([Rollup(view, source, (), (), 1) for view, source in of.items()])
    assert [sorted(each.view for each in level) for level in found] == [["hour", "other"], ["day"], ["week"]]
