"""A year of meters: local days and months by the stream and by a backfill, against SQL over the raw readings.

Counters report by the hour, up to two hours late and out of order, over both changes of clock, and begin again at 0 at times.
There are days and months of four zones by device, in one view by the zone of each device, and days of the sites. DuckDB computes
the same from the raw readings, with time zones of its own; it shares no code with the service.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from load.fleet.fleet import Fleet, FleetSettings
from load.judge import published
from load.parity.hour import FOLDER, RATE, backfill
from load.servers.kafka import CREATE_TIME
from load.testbed import PARTITIONS, TOPIC, Testbed

HOUR_MS = 3_600_000
START_MS = int(datetime(2025, 9, 20, tzinfo=UTC).timestamp() * 1000)
HOURS = 24 * 366
"""As long as a window may be kept: both changes of clock, eleven whole months, and one that is open."""
ZONES = {
    "rome": "Europe/Rome",
    "kathmandu": "Asia/Kathmandu",
    "york": "America/New_York",
    "howe": "Australia/Lord_Howe",
}
SITES = 3
STATISTICS = ("count", "sum", "min", "max", "increase", "resets", "longest_gap", "time_weighted_mean")
_BROKEN = 1e-3
"""The share of hours in which a meter begins again at 0."""
_WITHIN_S = 600.0
_SHOWN = 5


class Reading(NamedTuple):
    device: str
    site: str
    event_ms: int
    broker_ms: int
    energy: float

    @property
    def zone(self) -> str:
        """The time zone of its meter."""
        return [*ZONES.values()][int(self.device[1:]) % len(ZONES)]


def readings(seed: int, meters: int) -> Iterator[Reading]:
    """Yield the readings of a fleet in the order of their broker times."""
    chance, each = random.Random(seed), list[Reading]()
    for number in range(meters):
        energy = 0.0
        for hour in range(HOURS):
            energy = 0.0 if chance.random() < _BROKEN else energy + chance.choice((0.0, 0.25, 0.5, 1.75))
            event_ms = START_MS + hour * HOUR_MS + chance.randrange(HOUR_MS)
            each.append(
                Reading(
                    f"m{number:03d}", f"s{number % SITES}", event_ms, event_ms + chance.randrange(2 * HOUR_MS), energy
                )
            )
    return iter(sorted(each, key=lambda reading: (reading.broker_ms, reading.device)))


def views() -> list[Mapping[str, Any]]:
    """The views of the service."""
    made: list[dict[str, Any]] = [
        {"name": f"{unit}_{name}", "by": ["device"], "window": f"1 {short}", "time_zone": zone}
        for name, zone in ZONES.items()
        for unit, short in (("day", "d"), ("month", "mo"))
    ]
    made += [
        {"name": f"site_{name}", "by": ["plant"], "window": "1 d", "time_zone": zone} for name, zone in ZONES.items()
    ]
    made += [
        {"name": f"{unit}_own", "by": ["device", "zone"], "window": f"1 {short}", "time_zone": {"column": "zone"}}
        for unit, short in (("day", "d"), ("month", "mo"))
    ]
    return [{**view, "statistics": list(STATISTICS), "retain": "366 d"} for view in made]


def report(seed: int, meters: int) -> dict[str, Any]:
    """Return the report: for the stream and for the backfill what is missing, there twice, and different; and the sums."""
    sent = list(readings(seed, meters))
    right = expected(sent)
    sections = {
        "input": {
            "format": "json",
            "device_id": "meter",
            "event_time": "at",
            "event_time_unit": "ms",
            "measures": {"energy": "energy"},
            "columns": {
                "plant": {"path": "plant", "max_values": SITES},
                "zone": {"path": "zone", "max_values": len(ZONES)},
            },
        },
        "admission": {"max_delay": "3 h"},
        "sessions": {"gap": "2 h", "max_duration": "1 d"},
        "service": {"fill_rate": RATE},
    }
    fleet = Fleet(seed, FleetSettings(devices=meters))
    with Testbed(FOLDER / "year", fleet, views=views(), sections=sections, topic_config=CREATE_TIME) as testbed:
        del testbed.settings["reference"]
        testbed.write_settings()
        ends = _send(testbed, sent)
        testbed.start_service()
        testbed.wait_published(ends, _WITHIN_S)
        testbed.stop_service()
        rounds = {"stream": _compared(testbed, right)}
        watermark_ms = int(testbed.progress()["watermark"])
        with testbed.redis_client() as client:
            closed = [
                key
                for key, value in published.hashes(client, "tidemark", ("window",))
                if int(value["end"]) <= watermark_ms
            ]
            for key in closed:
                client.delete(key)
        says = backfill(testbed, START_MS - 366 * 24 * HOUR_MS, watermark_ms)
        rounds["backfill"] = {**_compared(testbed, right), "removed": len(closed), "says": says}
    nothing = int(not right) + int(not closed)
    sums = {
        name: sum(each[name] for each in rounds.values()) + nothing for name in ("missing", "duplicates", "differences")
    }
    return {"readings": len(sent), "compared": len(right), **rounds, **sums}


def _send(testbed: Testbed, sent: list[Reading]) -> dict[int, int]:
    producer = Producer({"bootstrap.servers": testbed.broker.bootstrap, "linger.ms": 20})
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for each in sent:
        partition = int(each.device[1:]) % PARTITIONS
        of = {"plant": each.site, "zone": each.zone}
        value = json.dumps({"meter": each.device, "at": each.event_ms, "energy": each.energy, **of})
        producer.produce(TOPIC, value.encode(), partition=partition, timestamp=each.broker_ms)
        producer.poll(0)
        ends[partition] += 1
    assert not producer.flush(_WITHIN_S)  # noqa: S101
    return {partition: end for partition, end in ends.items() if end}


_SQL = """
with local as (
    select *, date_trunc('{unit}', (epoch_ms(ms) at time zone 'UTC') at time zone '{zone}') as day from raw where {where}
), placed as (
    select {by} as key, device, ms, energy,
        epoch_ms(day at time zone '{zone}') as start_ms,
        epoch_ms((day + interval 1 {unit}) at time zone '{zone}') as end_ms
    from local
), steps as (
    select *, energy - lag(energy) over w as step, ms - lag(ms) over w as gap, coalesce(lead(ms) over w, end_ms) - ms as held
    from placed window w as (partition by key, start_ms, device order by ms)
)
select key, start_ms, count(*), sum(energy), min(energy), max(energy),
    sum(case when step >= 0 then step when step < 0 then energy else 0 end),
    count(*) filter (step < 0), coalesce(max(gap), 0) / 1000, sum(energy * held) / sum(held)
from steps group by key, start_ms
"""


def expected(sent: list[Reading]) -> dict[str, dict[str, float]]:
    """Return the windows of all views by key in Redis, computed by DuckDB from the raw readings."""
    raw = pa.table(
        {
            "device": [each.device for each in sent],
            "site": [each.site for each in sent],
            "zone": [each.zone for each in sent],
            "ms": pa.array([each.event_ms for each in sent], pa.int64()),
            "energy": np.array([each.energy for each in sent]),
        }
    )
    found: dict[str, dict[str, float]] = {}
    with duckdb.connect() as database:
        database.register("raw", raw)
        for view in views():
            unit = "month" if view["name"].startswith("month") else "day"
            by = "site" if view["name"].startswith("site") else "device"
            queries = [{"zone": view["time_zone"], "by": by, "where": "true"}]
            if "zone" in view["by"]:
                queries = [
                    {"zone": zone, "by": "device || '|' || zone", "where": f"zone = '{zone}'"}
                    for zone in ZONES.values()
                ]
            for query in queries:
                for key, start, *numbers in database.sql(_SQL.format(unit=unit, **query)).fetchall():
                    place = f"tidemark:window:{view['name']}:energy:{key}:{start}"
                    found[place] = dict(zip(STATISTICS, map(float, numbers), strict=True))
    return found


def _compared(testbed: Testbed, right: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    with testbed.redis_client() as client:
        actual = dict(published.hashes(client, "tidemark", ("window",)))
    different = [
        f"{key}: {name} is {actual[key].get(name)} instead of {value}"
        for key, fields in right.items()
        if key in actual
        for name, value in fields.items()
        if name not in actual[key] or not math.isclose(float(actual[key][name]), value, rel_tol=1e-9, abs_tol=1e-9)
    ]
    missing = sorted(right.keys() - actual.keys())
    others = sorted(actual.keys() - right.keys())
    counts = {"missing": len(missing), "duplicates": 0, "differences": len(different) + len(others)}
    print(counts, flush=True)
    return {**counts, "examples": [*missing[:_SHOWN], *others[:_SHOWN], *different[:_SHOWN]]}
