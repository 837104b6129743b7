"""Views without measures on real Spark: readings are counted whatever they have."""

import json

import pytest

from service.aggregation import task_counters
from service.settings import EVENTS
from tests.stream.records import BASE_MS, Record, make_settings
from tests.stream.script import Add, Check, Expect, Restart, run

pytestmark = pytest.mark.spark

COUNTED = {"name": "events", "by": ["kind"], "window": "1 m", "measures": []}
INPUT = {"format": "json", "columns": {"kind": "kind"}}


def event(device, seconds, kind, **more):
    fields = {"device_id": device, "event_time": BASE_MS + seconds * 1000, "kind": kind, **more}
    return Record(json.dumps(fields).encode(), BASE_MS + seconds * 1000, device.encode())


def counts(world, **expected):
    seen = {
        key: row["count"]
        for (view, measure, key, _), row in world.windows.items()
        if (view, measure) == ("events", EVENTS)
    }
    assert seen == expected


def expect(**expected):
    return Check(lambda world: counts(world, **expected))


def test_an_input_without_measures_has_counts_sessions_and_devices(spark, tmp_path):
    settings = make_settings(
        tmp_path,
        input={**INPUT, "measures": {}},
        views=[COUNTED, {**COUNTED, "name": "door", "where": "kind = 'door'"}],
    )

    def check(world):
        assert world.devices["a"]["status"] == "online"
        assert {row["count"] for (view, *_), row in world.windows.items() if view == "door"} == {3}
        assert world.counted(task_counters.ADMITTED) == 4

    run(
        spark,
        settings,
        tmp_path,
        [
            Add(event("a", 0, "door"), event("a", 1, "alarm"), event("b", 2, "door")),
            expect(door=2, alarm=1),
            Restart(),
            Add(event("a", 3, "door")),
            expect(door=3, alarm=1),
            Check(check),
            Expect(sessions={("a", 0): "open", ("b", 2): "open"}),
        ],
    )
