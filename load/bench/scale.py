"""What large rates need, computed from a report of the benchmark, and checked by runs on this machine.

    python -m load.bench.scale BENCH.json [--rate 1e6 1e7 6e7] [--interval 10s] [--batch 5s] [--json FILE]
    python -m load.bench.scale --check [--readings 2000000] [--json FILE]

The costs of a reading are CPU times, so they hold on a busy machine too. They are those of the larger fleet (`large`): its
devices have few readings in a batch, as in every large fleet. A core and a Redis are planned to be busy for BUSY of the time.
docs/scale.md explains the rules and has the tables.

`--check` reads the same topic with one and with two task slots, and writes the same rows to one and to three primaries.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load.bench import rows as bench_rows
from load.bench.__main__ import FOLDER, LARGE, SPAN_MS, catch_up, prepare
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.options import seconds_of
from load.report import machine, reported
from load.servers.kafka import CREATE_TIME
from load.testbed import VIEWS, Testbed
from service.errors import SetupError

RATES = (1e6, 1e7, 6e7)
BUSY = 0.6
"""The share of the time that a core is planned to be busy: the rest is for catching up and for a lost machine."""
SHARDS_OF_A_PRIMARY = 4
MOST_PRIMARIES = 1_000
"""Nodes of a Redis Cluster that its documentation advises at most; redis.shards allows 1,024 shards."""
BUCKET_S = 0.005
"""What one more bucket costs a batch (docs/decisions/0025-buckets-by-cores.md), taken for what a task costs the driver."""
DRIVER_SHARE = 0.2
"""The share of a batch that the driver may spend on scheduling tasks and on progress of shards."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a reading costs: CPU in us, bytes. `rows` are rows of a reading whose device has no other one in the batch."""

    service_us: float
    row_us: float
    kafka_us: float
    rows: float
    kafka_bytes: float
    row_bytes: float
    state_bytes: float
    partition_rate: float
    shard_s: float

    @staticmethod
    def of(report: Mapping[str, Any]) -> "Costs":
        """Return the costs in a report. Raises SetupError for a report without them."""
        try:
            run = report["runs"][len(report["runs"]) // 2]
            busy, steady = run["large"]["catch_up"]["per_reading"], run["large"]["steady"]["per_reading"]
            rows, cores = run["rows"], report["machine"]["cores"]
            written = 3 * bench_rows.DEVICES
            return Costs(
                service_us=busy["service"],
                row_us=busy["redis"] / busy["rows"],
                kafka_us=busy["kafka"],
                rows=steady["rows"],
                kafka_bytes=busy["kafka_bytes"],
                row_bytes=busy["redis_bytes"] / busy["rows"],
                state_bytes=run["state"]["bytes_per_row"],
                partition_rate=run["floor"]["per_second"] / cores,
                shard_s=max(0.0, rows["shards_us"] - rows["one_us"]) * written / 1e6 / (bench_rows.SHARDS - 1),
            )
        except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
            what = f"The report lacks {error}"
            raise SetupError(what, remedy="Make one with this version: make bench JSON=bench.json") from error


@dataclass(frozen=True, slots=True)
class Load:
    """Readings a second in all, and the seconds between two readings of a device; `batch_s` is the length of a batch."""

    rate: float
    interval_s: float
    batch_s: float

    @property
    def distinct(self) -> float:
        """Devices with readings in a batch, for each of its readings."""
        return min(1.0, self.interval_s / self.batch_s)


def needs(costs: Costs, load: Load) -> dict[str, float]:
    """Return what a load needs: cores, primaries, partitions, Gbit/s, GB."""
    rows = load.rate * costs.rows * load.distinct
    cores = math.ceil(load.rate * costs.service_us / 1e6 / BUSY)
    primaries = math.ceil(rows * costs.row_us / 1e6 / BUSY)
    return {
        "devices": load.rate * load.interval_s,
        "cores": cores,
        "partitions": max(cores, math.ceil(load.rate / costs.partition_rate / BUSY)),
        "kafka_cores": math.ceil(load.rate * costs.kafka_us / 1e6 / BUSY),
        "rows_per_second": round(rows),
        "primaries": primaries,
        "shards": primaries if primaries == 1 else SHARDS_OF_A_PRIMARY * primaries,
        "kafka_gbit": round(load.rate * costs.kafka_bytes * 8 / 1e9, 2),
        "redis_gbit": round(rows * costs.row_bytes * 8 / 1e9, 2),
        # A device has a row of its own, one of its session, and one for each of about three open windows.
        "state_gb": round(load.rate * load.interval_s * 5 * costs.state_bytes / 1e9, 1),
    }


def walls(costs: Costs, load: Load) -> dict[str, float]:
    """Return the rate at which one pipeline meets each of its limits, the lowest first."""
    rows_us = costs.rows * load.distinct * costs.row_us
    of_shards = BUSY * 1e6 / rows_us / SHARDS_OF_A_PRIMARY
    limits = {
        "one Redis": BUSY * 1e6 / rows_us,
        "the nodes of a Redis Cluster": MOST_PRIMARIES * BUSY * 1e6 / rows_us,
        "tasks that one driver starts in a batch": DRIVER_SHARE
        * load.batch_s
        / (2 * BUCKET_S)
        * BUSY
        * 1e6
        / costs.service_us,
    }
    if costs.shard_s:
        limits["shards that one driver finishes in a batch"] = DRIVER_SHARE * load.batch_s / costs.shard_s * of_shards
    return dict(sorted(((name, round(rate)) for name, rate in limits.items()), key=lambda each: each[1]))


def table(costs: Costs, loads: Sequence[Load]) -> str:
    """Return the needs as a table in Markdown."""
    columns = [needs(costs, load) for load in loads]
    lines = ["| | " + " | ".join(f"{load.rate / 1e6:g} M/s" for load in loads) + " |"]
    lines.append("| --- |" + " ---: |" * len(loads))
    cells = {name: " | ".join(f"{column[name]:,.0f}" for column in columns) for name in columns[0]}
    return "\n".join([*lines, *(f"| {name.replace('_', ' ')} | {row} |" for name, row in cells.items())])


def checks(readings: int, seed: int) -> dict[str, Any]:
    """Return the same costs from runs with one and two task slots, and with one and three primaries."""
    slots = {}
    for number in (1, 2):
        fleet = Fleet(seed, FleetSettings(devices=LARGE, rate=readings / (SPAN_MS / 1000), shares={}))
        options: dict[str, Any] = {"views": VIEWS, "topic_config": CREATE_TIME, "master": f"local[{number}]"}
        with Testbed(FOLDER / "scale", fleet, **options) as testbed:
            made = catch_up(testbed, prepare(testbed, readings))
        slots[f"slots_{number}"] = {"per_second": made.per_second, **made.per_reading}
    folder = FOLDER / "scale-redis"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cluster = bench_rows.measure_cluster(folder)
    return {"machine": machine(), **slots, "primaries": cluster | bench_rows.cluster_ratios(cluster)}


def main(argv: Sequence[str] | None = None) -> int:
    """Compute or check, print, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m load.bench.scale", description="What large rates need.")
    parser.add_argument("bench", type=Path, nargs="?", metavar="BENCH.json")
    parser.add_argument("--rate", type=float, nargs="+", default=RATES, help="readings a second")
    parser.add_argument("--interval", type=seconds_of, default=10.0, help="between two readings of a device")
    parser.add_argument("--batch", type=seconds_of, default=5.0, help="length of a batch")
    parser.add_argument("--check", action="store_true", help="measure on this machine")
    parser.add_argument("--readings", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.check:
        return reported(lambda: checks(args.readings, args.seed), args.json)
    if args.bench is None:
        parser.error("name a report of make bench, or --check")
    return reported(lambda: _computed(args), args.json)


def _computed(args: argparse.Namespace) -> dict[str, Any]:
    costs = Costs.of(json.loads(args.bench.read_text(encoding="utf-8")))
    loads = [Load(rate, args.interval, args.batch) for rate in args.rate]
    print(table(costs, loads))
    return {
        "costs": {name: round(getattr(costs, name), 3) for name in Costs.__slots__},
        "needs": {f"{load.rate:.0f}": needs(costs, load) for load in loads},
        "walls": walls(costs, loads[0]),
    }


if __name__ == "__main__":
    sys.exit(main())
