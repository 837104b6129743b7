"""What large rates need, computed from a report of the benchmark.

    python -m load.bench.scale BENCH.json... [--rate 1e6 1e7 6e7] [--interval 10s] [--batch 5s] [--retain 1h] [--json FILE]

The costs of a reading are CPU times, which depend little on what else the machine does. They are those of the larger fleet
(`large`): its devices have few readings in a batch, as in every large fleet. Several reports of parts of the benchmark count
as one. A core and a Redis are planned to be busy for BUSY of the time. docs/scale.md explains the rules and has the tables.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load.bench import rows as bench_rows
from load.fleet.options import seconds_of
from load.report import reported
from service.errors import SetupError

RATES = (1e6, 1e7, 6e7)
BUSY = 0.6
"""The share of the time that a core is planned to be busy: the rest is for catching up and for a lost machine."""
SHARDS_OF_A_PRIMARY = 4
MOST_PRIMARIES = 1_000
"""Nodes of a Redis Cluster that its documentation advises at most; redis.shards allows 1,024 shards."""
BUCKET_S = 0.005
"""What one more bucket costs a batch (docs/decisions/0025-buckets-by-cores.md), taken for what a task costs the driver."""
_WINDOW_BYTES, _DEVICE_BYTES, _SESSION_BYTES = 400, 500, 700
"""What a row takes in Redis, with the server's own tables: docs/operator/sizing.md."""
DRIVER_SHARE = 0.2
"""The share of a batch that the driver may spend on scheduling tasks and on progress of shards."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of a reading: CPU in us, bytes. `rows` are the rows of a reading whose device has no other reading in the batch."""

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
            busy = run["large"]["catch_up"]["per_reading"]
            rows, cores = run["rows"], report["machine"]["cores"]
            written = 3 * bench_rows.DEVICES
            return Costs(
                service_us=busy["service"],
                row_us=busy["redis"] / busy["rows"],
                kafka_us=busy["kafka"],
                rows=run["large"]["steady"]["rows_per_reading"],
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
    """Readings a second in all, and the seconds between two readings of a device; `batch_s` is the length of a batch.

    A device has one view of one-minute windows, each of which stays for `retain_s`.
    """

    rate: float
    interval_s: float
    batch_s: float
    retain_s: float = 3600.0

    @property
    def distinct(self) -> float:
        """Devices with readings in a batch, for each of its readings."""
        return min(1.0, self.interval_s / self.batch_s)


def merged(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one report whose only run has the parts of the middle run of each."""
    run: dict[str, Any] = {}
    for report in reports:
        middle = report["runs"][len(report["runs"]) // 2]
        run = {**run, **middle, "large": {**run.get("large", {}), **middle.get("large", {})}}
    return {**reports[0], "runs": [run]}


def needs(costs: Costs, load: Load) -> dict[str, float]:
    """Return what a load needs: cores, primaries, partitions, Gbit/s, GB."""
    rows, devices = load.rate * costs.rows * load.distinct, load.rate * load.interval_s
    cores = math.ceil(load.rate * costs.service_us / 1e6 / BUSY)
    primaries = math.ceil(rows * costs.row_us / 1e6 / BUSY)
    return {
        "devices": devices,
        "cores": cores,
        "partitions": max(cores, math.ceil(load.rate / costs.partition_rate / BUSY)),
        "kafka_cores": math.ceil(load.rate * costs.kafka_us / 1e6 / BUSY),
        "rows_per_second": round(rows),
        "primaries": primaries,
        "shards": primaries if primaries == 1 else SHARDS_OF_A_PRIMARY * primaries,
        "kafka_gbit": round(load.rate * costs.kafka_bytes * 8 / 1e9, 2),
        "redis_gbit": round(rows * costs.row_bytes * 8 / 1e9, 2),
        "redis_gb": round(devices * (_DEVICE_BYTES + _SESSION_BYTES + load.retain_s / 60 * _WINDOW_BYTES) / 1e9),
        # A device has a row of its own, one of its session, and one for each of about three open windows.
        "state_gb": round(devices * 5 * costs.state_bytes / 1e9, 1),
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
    cells = {name: " | ".join(_cell(column[name]) for column in columns) for name in columns[0]}
    return "\n".join([*lines, *(f"| {name.replace('_', ' ')} | {row} |" for name, row in cells.items())])


def _cell(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compute, print, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m load.bench.scale", description="What large rates need.")
    parser.add_argument("bench", type=Path, nargs="+", metavar="BENCH.json", help="reports of make bench, merged")
    parser.add_argument("--rate", type=float, nargs="+", default=RATES, help="readings a second")
    parser.add_argument("--interval", type=seconds_of, default=10.0, help="between two readings of a device")
    parser.add_argument("--batch", type=seconds_of, default=5.0, help="length of a batch")
    parser.add_argument("--retain", type=seconds_of, default=3600.0, help="how long closed windows stay")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    return reported(lambda: _computed(args), args.json)


def _computed(args: argparse.Namespace) -> dict[str, Any]:
    costs = Costs.of(merged([json.loads(path.read_text(encoding="utf-8")) for path in args.bench]))
    loads = [Load(rate, args.interval, args.batch, args.retain) for rate in args.rate]
    print(table(costs, loads))
    return {
        "costs": {name: round(getattr(costs, name), 3) for name in Costs.__slots__},
        "needs": {f"{load.rate:.0f}": needs(costs, load) for load in loads},
        "walls": walls(costs, loads[0]),
    }


if __name__ == "__main__":
    sys.exit(main())
