"""Windows against a plain recomputation, for generated readings, views and watermarks.

Most of it needs no Spark: the fold of a task is a function of columns, and so is what the operator makes of its parts. Two tests
go the whole way, from records to the checkpoint.
"""

import math
import random
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.judge import calendars
from load.transcripts.builders import KAFKA
from load.walks import admitted
from service.admission import readings
from service.pipeline import builder
from service.reference.attributes import Index
from service.row_schemas import PARTS
from state import codec, moments, reader, windows
from tests.examples import examples
from tests.stream.records import BASE_MS, Record, avro, make_settings, rows
from tests.stream.script import Add, Check, Restart, run

MEASURES = {"temperature": "temperature", "humidity": "humidity"}
_OFFSET = "20 h"
"""So that a day begins about at BASE_MS."""
VIEWS = [
    {"name": "tumbling", "by": ["device"], "window": "1 m"},
    {"name": "sliding", "by": ["device"], "window": "3 m", "slide": "30 s"},
    {"name": "odd", "by": ["device"], "window": "25 s", "slide": "5 s", "measures": ["humidity"]},
    {"name": "site", "by": ["site"], "window": "2 m", "slide": "1 m", "measures": ["temperature"]},
    {"name": "both", "by": ["site", "device"], "window": "90 s"},
    {"name": "all", "by": [], "window": "10 s"},
    {"name": "day", "by": ["device"], "window": "1 d", "time_zone": "Asia/Kathmandu", "offset": _OFFSET},
]
CHANGED = [
    {"name": "tumbling", "by": ["device"], "window": "2 m"},
    {"name": "sliding", "by": ["device"], "window": "3 m", "slide": "1 m"},
    {"name": "odd", "by": ["device"], "window": "25 s", "slide": "5 s"},
    {"name": "both", "by": ["site", "device"], "window": "30 s"},
    {"name": "all", "by": [], "window": "20 s", "slide": "10 s"},
]
"""The same views with other lengths, slides and measures."""
BUCKETS = 4
SITES = ("north", "a|b", "50%", None)
ADMITTED = admitted.schema(MEASURES)


def site_of(device):
    """An attribute of a device as the reference has it; some devices are not in there."""
    return None if device.endswith("2") else SITES[int(device.split("-")[0]) % len(SITES)]


def escaped(text):
    return "(none)" if text is None else text.replace("%", "%25").replace("|", "%7C")


KEYS = {
    "tumbling": lambda device: device,
    "sliding": lambda device: device,
    "odd": lambda device: device,
    "site": lambda device: site_of(device) or "(none)",
    "both": lambda device: f"{escaped(site_of(device))}|{escaped(device)}",
    "all": lambda _: "all",
    "day": lambda device: device,
}


def configure(folder, views, **sections):
    return make_settings(
        folder,
        views=views,
        input={"measures": MEASURES},
        reference={"url": "jdbc:sqlite:unused", "query": "unused", "columns": ["site"]},
        sessions={"buckets": BUCKETS},
        **sections,
    )


def known(devices):
    """Rows of the reference."""
    return [(device, site_of(device)) for device in sorted(devices) if not device.endswith("2")]


def events_of(given):
    """Readings (device, ms since the epoch, values by measure)."""
    return [(device, BASE_MS + ms, {"temperature": t, "humidity": h}) for device, ms, t, h in given]


def expected(events, configured):
    """(view, measure, key, start, end) -> [(ms, value)] of every window that holds anything, by the definition of a window."""
    contents = defaultdict(list)
    for device, ms, values in events:
        for view in configured.views:
            for measure in configured.view_measures(view):
                if values[measure] is None:
                    continue
                if view.time_zone is not None:
                    span = calendars.Calendar.of("1 d", view.time_zone, _OFFSET).span(ms)
                    contents[view.name, measure, KEYS[view.name](device), *span].append((ms, values[measure]))
                    continue
                start = ms // view.step_ms * view.step_ms
                while start > ms - view.window_ms:
                    window = view.name, measure, KEYS[view.name](device), start, start + view.window_ms
                    contents[window].append((ms, values[measure]))
                    start -= view.step_ms
    return contents


def assert_same(table, right):
    """Windows against the readings of each, by (view, measure, key, start, end)."""
    by_key = {tuple(row[name] for name in windows.KEY): row for row in finished(table)}
    assert len(by_key) == table.num_rows
    assert by_key.keys() == right.keys()
    for key, pairs in right.items():
        assert_window(by_key[key], pairs)


def finished(table):
    """Rows of windows, with the sum, mean and stddev that publish makes of the moments."""
    numbers = [table[name].to_numpy() for name in ("count", *moments.NAMES)]
    names = ("sum", "mean", "stddev")
    return [
        row | dict(zip(names, map(float, statistics), strict=True))
        for row, *statistics in zip(table.to_pylist(), *moments.finish(*numbers), strict=True)
    ]


def assert_window(row, pairs):
    times, values = zip(*pairs, strict=True)
    total, magnitude = math.fsum(values), math.fsum(map(abs, values))
    mean = total / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    assert row["count"] == len(pairs)
    assert (row["min"], row["max"]) == (min(values), max(values))
    assert (row["first"], row["last"]) == (min(times), max(times))
    assert row["start"] <= row["first"] <= row["last"] < row["end"]
    assert math.isclose(row["sum"], total, rel_tol=1e-12, abs_tol=1e-12 * magnitude)
    assert math.isclose(row["mean"], mean, rel_tol=1e-12, abs_tol=1e-12 * magnitude / len(values))
    assert math.isclose(row["stddev"], deviation, rel_tol=1e-6, abs_tol=1e-3)


def folded(events, fold):
    """What a task sends of these readings: bucket -> parts, as they come out of their payloads."""
    at = [
        {"bucket": zlib.crc32(device.encode()) % BUCKETS, "device": device, "event_ms": ms, "broker_ms": ms, **values}
        for device, ms, values in events
    ]
    table = pa.Table.from_pylist([{**row, "from_partition": 0, "offset": 0} for row in at], ADMITTED)
    return by_bucket(row for batch in fold(table.to_batches()) for row in batch.to_pylist())


def by_bucket(sent):
    tables = defaultdict(list)
    for row in sent:
        if row["kind"] == PARTS:
            tables[row["bucket"]].append(codec.unpack(b"W", row["payload"]))
            assert row["first"] == min(tables[row["bucket"]][-1]["first"].to_pylist())
    return tables


@dataclass
class Model:
    """The windows by their definition: a dictionary of lists."""

    open: dict = field(default_factory=dict)

    def step(self, events, configured, watermark_ms):
        """Returns the windows that changed and those that closed."""
        changed = {}
        for window, pairs in expected(events, configured).items():
            changed[window] = self.open[window] = self.open.get(window, []) + pairs
        closed = {window: pairs for window, pairs in self.open.items() if window[-1] <= watermark_ms}
        self.open = {window: pairs for window, pairs in self.open.items() if window not in closed}
        return changed, closed


@dataclass
class Buckets:
    """The states of all buckets."""

    open: list = field(default_factory=lambda: [windows.empty()] * BUCKETS)

    def step(self, tasks, watermark_ms):
        """`tasks` are what each of them has sent. Returns the windows that changed and those that closed."""
        steps = [
            windows.advance(open_windows, [table for parts in tasks for table in parts[bucket]], watermark_ms)
            for bucket, open_windows in enumerate(self.open)
        ]
        self.open = [each.open for each in steps]
        return windows.concat([each.changed for each in steps]), windows.concat([each.closed for each in steps])


numbers = st.none() | st.integers(-8_000, 8_000).map(lambda n: n / 8) | st.floats(-1e6, 1e6)
# Times about the edges of windows and panes, and anywhere.
times = st.integers(-5, 45).map(lambda n: n * 5_000) | st.integers(-30_000, 240_000)
offsets = st.sampled_from([0, 0, 0, -1, 1])
moved = st.builds(int.__add__, times, offsets)
DEVICES = ("0-0", "1-0", "1-1", "2-0", "3-0", "3-2")
"""Each with another site, but for 1-1."""
of_task = st.lists(st.tuples(st.sampled_from(DEVICES), moved, numbers, numbers), max_size=12)
batches = st.tuples(
    of_task,
    of_task,
    st.lists(st.sampled_from((*VIEWS, *CHANGED)), min_size=1, unique_by=lambda view: view["name"]),
    moved,
)
"""The readings of two tasks, the views of the batch and its watermark."""


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """Settings and fold by (name, window, slide) of their views."""
    folder = tmp_path_factory.mktemp("folds")
    names, sites = zip(*known(DEVICES), strict=True)
    attributes = Index(pa.table({"device": pa.array(names), "site": pa.array(sites, pa.string())}))

    @cache
    def of(numbers):
        configured = configure(folder, [(*VIEWS, *CHANGED)[number] for number in numbers])
        return configured, builder.folding(configured, attributes)

    return of


@examples(40)
@given(st.lists(batches, min_size=1, max_size=5))
def test_windows_are_those_of_a_plain_recomputation_while_views_change(folds, cases):
    model, buckets, watermark_ms = Model(), Buckets(), 0
    for first, second, views, ms in cases:
        configured, fold = folds(tuple((*VIEWS, *CHANGED).index(view) for view in views))
        # What is below the watermark of the step before is not admitted.
        tasks = [[event for event in events_of(task) if event[1] >= watermark_ms] for task in (first, second)]
        watermark_ms = max(watermark_ms, BASE_MS + ms)
        right_changed, right_closed = model.step([event for task in tasks for event in task], configured, watermark_ms)
        changed, closed = buckets.step([folded(task, fold) for task in tasks], watermark_ms)
        assert_same(changed, right_changed)
        assert_same(closed, right_closed)
        assert_same(windows.concat(buckets.open), model.open)


def test_a_reading_at_the_edge_is_in_the_window_that_it_starts(tmp_path):
    configured = configure(
        tmp_path,
        [
            {"name": "tumbling", "by": ["device"], "window": "1 m"},
            {"name": "sliding", "by": [], "window": "2 m", "slide": "1 m"},
        ],
    )
    events = [("a", BASE_MS + ms, {"temperature": float(ms)}) for ms in (-1, 0, 59_999, 60_000)]
    changed = Buckets().step([folded(events, builder.folding(configured, None))], 0)[0].to_pylist()
    assert sorted((row["view"], row["key"], (row["start"] - BASE_MS) // 1_000, row["count"]) for row in changed) == [
        ("sliding", "all", -120, 1),
        ("sliding", "all", -60, 3),
        ("sliding", "all", 0, 3),
        ("sliding", "all", 60, 1),
        ("tumbling", "a", -60, 1),
        ("tumbling", "a", 0, 2),
        ("tumbling", "a", 60, 1),
    ]


def test_readings_without_values_are_no_windows(tmp_path):
    fold = builder.folding(configure(tmp_path, VIEWS[:2]), None)
    assert folded([("a", BASE_MS, {})], fold) == {}
    assert folded([], fold) == {}


def record(device, ms, values):
    return Record(avro(device_id=device, event_time=ms, **values), ms)


def some_events(rng, cases, size):
    """Of three devices a case."""

    def number():
        return rng.choice((None, rng.gauss(20, 5), rng.gauss(1e6, 1), float(rng.randrange(-3, 3))))

    return events_of(
        (f"{case}-{rng.randrange(3)}", rng.randrange(-30_000, 240_000), number(), number())
        for case in range(cases)
        for _ in range(rng.randrange(size))
    )


@pytest.mark.spark
def test_windows_of_many_random_readings_are_those_of_a_plain_recomputation(spark, tmp_path):
    """From the record on, read by two tasks; with so many readings that no window of a view is empty."""
    rng = random.Random(5)
    events = some_events(rng, 20, 120)
    configured = configure(tmp_path, VIEWS)
    assert configured.pane_ms == 5_000
    reference = Index(
        spark.createDataFrame(known({device for device, *_ in events}), "device string, site string").toArrow()
    )
    records = [record(*event) for event in events]
    rng.shuffle(records)
    frame = spark.createDataFrame(rows([*records, Record(b"junk", BASE_MS)]), KAFKA).repartition(2)
    sent = builder.fold(readings.admit(frame, configured), configured, reference).toArrow().to_pylist()
    changed, closed = Buckets().step([by_bucket(sent)], 0)
    right = expected(events, configured)
    assert len(right) > 4_000
    assert_same(changed, right)
    assert closed.num_rows == 0


@pytest.mark.spark
def test_views_are_added_changed_and_removed_on_a_running_checkpoint(spark, tmp_path):
    """A window has the readings of the batches whose settings had its view with its length; nothing is late here."""
    rng = random.Random(7)
    settings_of_batches = [
        configure(tmp_path, views, admission={"max_delay": "1 h"})
        for views in ([*VIEWS[:2], VIEWS[5]], [CHANGED[0], VIEWS[3]], [*CHANGED[1:], VIEWS[0]])
    ]
    batches = [some_events(rng, 2, 30) for _ in settings_of_batches]
    reference = spark.createDataFrame(
        known({device for events in batches for device, *_ in events}), "device string, site string"
    )
    right = defaultdict(list)
    script = []
    for configured, events in zip(settings_of_batches, batches, strict=True):
        for window, pairs in expected(events, configured).items():
            right[window] += pairs
        script += [Restart(configured), Add(*[record(*event) for event in events])]

    def all_published(world):
        published = pa.Table.from_pylist(list(world.windows.values()), windows.SCHEMA)
        names = {tuple(row[name] for name in windows.KEY) for row in world.windows.values()}
        assert_same(published, {window: pairs for window, pairs in right.items() if window in names})
        # Windows of one view and start but another end have one name in Redis.
        assert world.windows.keys() == {(*window[:3], window[3] - BASE_MS) for window in right}
        assert not world.rejects

    def all_kept(world):
        _, _, kept = reader.read(world.spark, world.settings.service.checkpoint)
        assert_same(kept.drop_columns("bucket"), right)

    run(spark, settings_of_batches[0], tmp_path, [*script, Check(all_published), Check(all_kept)], reference)
