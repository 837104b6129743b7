"""The one pass on real Spark: what is read once, what is evicted, what closes, what a restart remembers."""

import re
from collections import defaultdict

import pytest
from pyspark.errors import StreamingQueryException

from service.admission import readings
from service.aggregation import task_counters
from state import reader
from tests.stream.records import BASE_MS, Record, avro, make_settings, reading
from tests.stream.script import Add, Check, Expect, Restart, run

pytestmark = pytest.mark.spark

VIEWS = [
    {"name": "device", "by": ["device"], "window": "1 m"},
    {"name": "sliding", "by": [], "window": "3 m", "slide": "1 m"},
]


def executed_plan(world):
    execution = world.query._jsq.streamingQuery() if hasattr(world.query._jsq, "streamingQuery") else world.query._jsq
    return execution.explainInternal(False)


def physical_plan(world):
    """The plan of the last batch, without what differs in each: numbers of columns and plans, ids, versions of the state."""
    plan = executed_plan(world)
    plan = plan[plan.index("Physical Plan") :] if "Physical Plan" in plan else plan
    return re.sub(r"#\d+L?|plan_id=\d+|[0-9a-f]{8}(-[0-9a-f]+){4}|state info .*? pandas", "", plan, flags=re.DOTALL)


def test_the_plan_is_one_scan_one_fold_one_shuffle_and_one_operator(spark, tmp_path):
    def check(world):
        plan = physical_plan(world)
        once = ("MapInArrow", "Exchange", "TransformWithState")
        assert plan.index("TransformWithState") < plan.index("Exchange") < plan.index("MapInArrow"), plan
        assert {name: len(re.findall(rf"\b{name}", plan)) for name in once} == dict.fromkeys(once, 1), plan
        for name in ("Union", "CollectMetrics", "ReusedExchange", "StateStore", "Aggregate"):
            assert name not in plan, plan
        with_data = [p for p in world.progress() if p.numInputRows]
        assert [p.numInputRows for p in with_data] == [3]
        assert [len(p.stateOperators) for p in with_data] == [1]
        assert with_data[0].observedMetrics == {}
        assert world.counted(task_counters.ADMITTED) == 2
        assert world.counted(task_counters.REJECTED, readings.REASONS.index("undecodable")) == 1

    run(
        spark,
        make_settings(tmp_path, views=VIEWS),
        tmp_path,
        [Add(reading("a", 0), reading("b", 1), Record(b"junk", BASE_MS)), Check(check)],
    )


def test_other_views_are_the_same_plan(spark, tmp_path):
    plans = []

    def keep(world):
        plans.append(physical_plan(world))

    more = [*VIEWS, {"name": "half", "by": ["device"], "window": "30 s", "slide": "10 s"}]
    run(
        spark,
        make_settings(tmp_path),
        tmp_path,
        [
            Add(reading("a", 0)),
            Check(keep),
            Restart(make_settings(tmp_path, views=more)),
            Add(reading("a", 1)),
            Check(keep),
        ],
    )
    assert plans[0] == plans[1]


def stored(world):
    """What the state of the last committed batch holds: starts of windows by (view, key), and devices with open sessions."""
    runs, devices, windows = reader.read(world.spark, world.settings.service.checkpoint)
    online = devices.num_rows - devices["session"].null_count
    sizes = [sum(column) for column in zip(*world.sizes.values(), strict=True)]
    assert sizes[:3] == [windows.num_rows, devices.num_rows, online]
    starts = defaultdict(list)
    for row in windows.to_pylist():
        starts[row["view"], row["key"]].append((row["start"] - BASE_MS) // 1000)
    return {name: sorted(seconds) for name, seconds in starts.items()}, sorted(set(runs["device"].to_pylist()))


def test_silent_buckets_are_closed_and_closed_windows_leave_the_state(spark, tmp_path):
    """A bucket that gets no more rows is moved on with the others, first its session and then its window."""

    def both(world):
        assert stored(world) == ({("device", "quiet"): [0], ("device", "loud"): [0]}, ["loud", "quiet"])
        _, devices, _ = reader.read(world.spark, world.settings.service.checkpoint)
        assert len(set(devices["bucket"].to_pylist())) == 2

    def no_session(world):  # the watermark is a millisecond before the window's end
        assert stored(world) == ({("device", "quiet"): [0], ("device", "loud"): [0, 60]}, ["loud"])

    def no_window(world):
        assert stored(world) == ({("device", "loud"): [60]}, ["loud"])

    closed = Expect(sessions={("quiet", 0): "closed", ("loud", 0): "open"}, devices={"quiet": ("offline", 20.0)})
    run(
        spark,
        make_settings(tmp_path),
        tmp_path,
        [
            Add(reading("quiet", 0), reading("loud", 0)),
            Expect(sessions={("quiet", 0): "open", ("loud", 0): "open"}),
            Check(both),
            # "quiet" sends nothing more.
            Add(*[reading("loud", s) for s in (20, 40, 60, 84.999)]),
            closed,
            Check(no_session),
            Add(reading("loud", 85)),
            closed,
            Check(no_window),
        ],
    )


def test_a_poisoned_batch_changes_nothing_but_the_rejects(spark, tmp_path):
    year_2099 = 4_070_908_800_000
    poison = [
        Record(None, BASE_MS),
        Record(b"", BASE_MS),
        Record(bytes(range(200, 256)), BASE_MS),
        Record(avro(device_id="x", event_time=BASE_MS, temperature=1.0).replace(b"\x02x", b"\x02\xff"), BASE_MS),
        Record(b"\0\0\0\0\1" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", BASE_MS),  # a string of 2^61 bytes
        Record(avro(device_id="a", event_time=BASE_MS, temperature=1.0)[:-5], BASE_MS),
        Record(b"\0\0\0\0\x09" + b"x" * 20, BASE_MS),
        Record(avro(device_id="", event_time=BASE_MS, temperature=1.0), BASE_MS),
        Record(avro(device_id="a", event_time=BASE_MS, temperature=float("nan")), BASE_MS),
        Record(avro(device_id="a", event_time=year_2099, temperature=1.0), BASE_MS),
        Record(avro(device_id="a", event_time=0, temperature=1.0), BASE_MS),
        Record(b"\0\0\0\0\1" + b"z" * 100_000, BASE_MS),
    ]
    windows = {("device", "temperature", "a", 0): (2, 15.0)}
    run(
        spark,
        make_settings(tmp_path),
        tmp_path,
        [
            Add(reading("a", 0, 10.0)),
            Add(*poison),
            Expect(
                windows={("device", "temperature", "a", 0): (1, 10.0)},
                sessions={("a", 0): "open"},
                rejects=[
                    *["undecodable"] * 6,
                    "unknown_schema",
                    "no_device",
                    "not_finite",
                    "early",
                    "late",
                    "oversized",
                ],
            ),
            # Had the reading from 2099 moved the watermark, this one would be late.
            Add(reading("a", 1, 20.0)),
            Expect(windows=windows),
        ],
    )


def test_a_reject_keeps_its_coordinates(spark, tmp_path):
    record = Record(b"\1nonsense", BASE_MS, key=b"k", headers=(("trace", b"\xff\0"),))

    def check(world):
        (reject,) = world.rejects
        assert (reject["topic"], reject["partition"], reject["offset"]) == ("readings", 0, record.offset)
        assert reject["broker_ms"] == BASE_MS

    run(spark, make_settings(tmp_path), tmp_path, [Add(record), Check(check)])


class AddAndCrash(Add):
    """The batch with these records fails once, after its values are computed and before anybody has seen them."""

    def do(self, world):
        def crash():
            world.crash_in_batch = None
            raise RuntimeError("crash before publish")

        world.crash_in_batch = crash
        with pytest.raises(StreamingQueryException, match="crash before publish"):
            super().do(world)
        world.query = None


def test_a_batch_that_fails_is_replayed_with_the_same_result(spark, tmp_path):
    run(
        spark,
        make_settings(tmp_path),
        tmp_path,
        [
            Add(reading("a", 0, 10.0)),
            AddAndCrash(reading("a", 1, 20.0)),
            Restart(),
            Expect(windows={("device", "temperature", "a", 0): (2, 15.0)}, sessions={("a", 0): "open"}),
        ],
    )
