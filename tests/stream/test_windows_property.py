"""Windows against a plain recomputation, for generated readings and views, from record to aggregate, on real Spark.

A Spark run costs a second whatever it holds, so all generated cases share one: each has devices of its own, and views group
by device. The view over all devices then checks all cases at once.
"""

import math
import random
from collections import defaultdict
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from load.transcripts.builders import KAFKA
from service import pipeline
from service.admission import readings
from service.aggregation import moments, windows
from service.frames import MOMENTS, WINDOW
from service.reference.attributes import Index
from tests.stream.records import BASE_MS, Record, avro, make_settings, rows

pytestmark = pytest.mark.spark

MEASURES = {"temperature": "temperature", "humidity": "humidity"}
VIEWS = [
    {"name": "tumbling", "by": ["device"], "window": "1 m"},
    {"name": "sliding", "by": ["device"], "window": "3 m", "slide": "30 s"},
    {"name": "odd", "by": ["device"], "window": "25 s", "slide": "5 s", "measures": ["humidity"]},
    {"name": "site", "by": ["site"], "window": "2 m", "slide": "1 m", "measures": ["temperature"]},
    {"name": "both", "by": ["site", "device"], "window": "90 s"},
    {"name": "all", "by": [], "window": "10 s"},
]
SITES = ("north", "a|b", "50%", None)

numbers = st.none() | st.integers(-8_000, 8_000).map(lambda n: n / 8) | st.floats(-1e6, 1e6)
# Times about the edges of windows and panes, and anywhere.
times = st.integers(-5, 45).map(lambda n: n * 5_000) | st.integers(-30_000, 240_000)
offsets = st.sampled_from([0, 0, 0, -1, 1])
case = st.lists(
    st.tuples(st.integers(0, 2), st.builds(int.__add__, times, offsets), numbers, numbers), min_size=2, max_size=25
)


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
}


def expected(events, configured):
    """(view, measure, key, start) -> [(ms, value)] of every window that holds anything, by the definition of a window."""
    found = defaultdict(list)
    for device, ms, values in events:
        for view in configured.views:
            for measure in configured.view_measures(view):
                if values[measure] is None:
                    continue
                start = ms // view.step_ms * view.step_ms
                while start > ms - view.window_ms:
                    found[view.name, measure, KEYS[view.name](device), start].append((ms, values[measure]))
                    start -= view.step_ms
    return found


def assert_same(row, pairs, window_ms):
    """A row of windows.aggregate against the readings of its window."""
    values = [Fraction(value) for _, value in pairs]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert row["kind"] == WINDOW
    assert row["end"] - row["start"] == window_ms
    assert row["count"] == len(pairs)
    assert (row["min"], row["max"]) == (min(v for _, v in pairs), max(v for _, v in pairs))
    assert (row["first"], row["last"]) == (min(ms for ms, _ in pairs), max(ms for ms, _ in pairs))
    assert row["start"] <= row["first"] <= row["last"] < row["end"]
    arrays = [pa.array([row[name]]).to_numpy() for name in ("count", *MOMENTS)]
    total, found_mean, deviation = (float(array[0]) for array in moments.finish(*arrays))
    magnitude = float(sum(map(abs, values)))
    assert total == pytest.approx(float(sum(values)), rel=1e-12, abs=1e-12 * magnitude)
    assert found_mean == pytest.approx(float(mean), rel=1e-12, abs=1e-12 * magnitude / len(values))
    assert deviation == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-3)


def aggregate(spark, configured, records, reference=None):
    """Records through the service's own builders, in batch mode, read by two tasks."""
    frame = spark.createDataFrame(rows(records), KAFKA).repartition(2)
    attributes = None if reference is None else Index(reference.toArrow())
    folded = pipeline.fold(readings.admit(frame, configured), configured, attributes)
    return windows.aggregate(folded.where(f"kind = {WINDOW}"), configured).toArrow().to_pylist()


def record(device, ms, values):
    data = avro(device_id=device, event_time=BASE_MS + ms, **values)
    return Record(data, BASE_MS + ms)


def check(spark, folder, cases):
    configured = make_settings(
        folder,
        views=VIEWS,
        input={"measures": MEASURES},
        reference={"url": "jdbc:sqlite:unused", "query": "unused", "columns": ["site"]},
    )
    assert configured.pane_ms == 5_000
    events = [
        (f"{number}-{device}", ms, {"temperature": temperature, "humidity": humidity})
        for number, readings_of_case in enumerate(cases)
        for device, ms, temperature, humidity in readings_of_case
    ]
    known = sorted({device for device, _, _ in events if not device.endswith("2")})
    reference = spark.createDataFrame([(d, site_of(d)) for d in known], "device string, site string")
    records = [record(*event) for event in events]
    random.Random(0).shuffle(records)
    found = aggregate(spark, configured, records, reference)
    by_key = {(row["view"], row["measure"], row["key"], row["start"] - BASE_MS): row for row in found}
    assert len(by_key) == len(found)
    right = expected([(device, BASE_MS + ms, values) for device, ms, values in events], configured)
    right = {(view, measure, key, start - BASE_MS): pairs for (view, measure, key, start), pairs in right.items()}
    assert by_key.keys() == right.keys()
    lengths = {view.name: view.window_ms for view in configured.views}
    for key, pairs in right.items():
        assert_same(by_key[key], pairs, lengths[key[0]])
    return len(right)


@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking would run Spark hundreds of times
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large, HealthCheck.too_slow],
)
@given(st.lists(case, min_size=12, max_size=24))
def test_windows_of_generated_readings_are_those_of_a_plain_recomputation(spark, tmp_path, cases):
    check(spark, tmp_path, cases)


def test_windows_of_many_random_readings_are_those_of_a_plain_recomputation(spark, tmp_path):
    """The same with enough readings that no window of a view is empty."""
    rng = random.Random(5)

    def number():
        return rng.choice((None, rng.gauss(20, 5), rng.gauss(1e6, 1), float(rng.randrange(-3, 3))))

    cases = [
        [(rng.randrange(3), rng.randrange(-30_000, 240_000), number(), number()) for _ in range(rng.randrange(120))]
        for _ in range(20)
    ]
    assert check(spark, tmp_path, cases) > 4_000


def test_a_reading_at_the_edge_is_in_the_window_that_it_starts(spark, tmp_path):
    configured = make_settings(
        tmp_path,
        views=[
            {"name": "tumbling", "by": ["device"], "window": "1 m"},
            {"name": "sliding", "by": [], "window": "2 m", "slide": "1 m"},
        ],
    )
    found = aggregate(
        spark, configured, [record("a", ms, {"temperature": float(ms)}) for ms in (-1, 0, 59_999, 60_000)]
    )
    assert sorted((row["view"], row["key"], (row["start"] - BASE_MS) // 1_000, row["count"]) for row in found) == [
        ("sliding", "all", -120, 1),
        ("sliding", "all", -60, 3),
        ("sliding", "all", 0, 3),
        ("sliding", "all", 60, 1),
        ("tumbling", "a", -60, 1),
        ("tumbling", "a", 0, 2),
        ("tumbling", "a", 60, 1),
    ]


def test_no_readings_are_no_windows(spark, tmp_path):
    configured = make_settings(tmp_path)
    assert aggregate(spark, configured, []) == []
    assert aggregate(spark, configured, [record("a", 0, {}), Record(b"junk", BASE_MS)]) == []
