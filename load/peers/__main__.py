"""Tidemark beside Flink SQL, Flink DataStream and Kafka Streams: the same records, the same works, one after the other.

    python -m load.peers [--readings 3000000] [--devices 10000] [--only NAME ...] [--quick] [--json FILE]

A topic of two partitions has readings as JSON, twenty minutes of simulated time. Each engine reads them from the beginning and
writes to Redis, in one job: by device the one-minute windows of a measure (count, sum, mean, minimum, maximum, standard
deviation), and sessions. A watermark is ten seconds behind. Each has two tasks, 2 GB, and the consumer's options of Tidemark.

`per_second` and `<part>_us`, microseconds of CPU a record, are the slope between two points: the first one behind a third of the
records, and the last. A point of Tidemark is a batch in Redis. One of a peer is the end of a window, when PROBES windows that end
there have their right counts in Redis. The last tenth is read and not measured: a peer closes a window only when later readings
come. At the end all closed windows and sessions are compared with the oracle's. An engine with a wrong
value has no figures, and the status is 1. `ratios` are of Tidemark: its rate over another's, and its CPU over the other's.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from load.bench.cpu import seconds_of_tree
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.judge import oracle, shares
from load.judge.published import hashes
from load.peers.engines import CORES, PEERS, Peer, build
from load.peers.figures import GAP_MS, STATISTICS, Mark, Point, differences, marks, slope
from load.report import machine, options, reported
from load.servers.kafka import CREATE_TIME
from load.servers.server_process import PATIENCE
from load.testbed import ROOT, TOPIC, Testbed

FOLDER = ROOT / ".build" / "peers" / "run"
MINUTE_MS = 60_000
SPAN_MS = 20 * MINUTE_MS
MEASURED = 0.9
"""Of the span."""
STALLED_S = 120.0
POLL_S = 0.05
SETTLE_S = 30.0
TIDEMARK = "tidemark"
VIEW = {"name": "device", "by": ["device"], "window": "1 m", "retain": "1 d", "statistics": STATISTICS}
INPUT = {"format": "json", "device_id": "device_id", "event_time": "event_time", "event_time_unit": "ms"}
MEASURES = {"measures": {"temperature": "temperature"}}


class Comparison:
    """A topic with readings, what the oracle expects of them, and one engine after the other."""

    def __init__(self, testbed: Testbed, readings: int) -> None:
        self._testbed = testbed
        # Recent, as Kafka Streams keeps its changelogs for a day of the records' time.
        start_ms = (time.time_ns() // 1_000_000 - SPAN_MS) // MINUTE_MS * MINUTE_MS
        self._until_ms = start_ms + int(SPAN_MS * MEASURED) // MINUTE_MS * MINUTE_MS
        bootstrap = testbed.broker.bootstrap
        generator = Generator(bootstrap, TOPIC, testbed.fleet, value_format="json", simulate_ms=start_ms)
        ends = {partition: end for partition, (_, end) in generator.send(readings).offsets.items()}
        self._records = sum(ends.values())
        of: dict[str, Any] = {
            "settings_path": testbed.config,
            "bootstrap": bootstrap,
            "ends": {TOPIC: ends},
            "refused": {},
        }
        fill = partial(shares.fill, **of, processes=CORES)
        self._expected = oracle.expected(testbed.config, watermark_ms=self._until_ms, fill=fill)
        self._marks = marks(self._expected, self._until_ms)

    def tidemark(self) -> dict[str, Any]:
        """Run the service."""

        def reached() -> float:
            return float(sum(self._testbed.progress().get("offsets", {}).get(TOPIC, {}).values()))

        self._testbed.start_service()
        try:
            points = self._follow(reached, lambda: self._testbed.service_tree, self._records)
            return self._figures(TIDEMARK, points)
        finally:
            self._testbed.kill_service()

    def peer(self, name: str) -> dict[str, Any]:
        """Run a peer."""
        redis = self._testbed.redis
        with (
            Peer(name, self._testbed.folder, self._testbed.broker.bootstrap, redis.url) as peer,
            redis.client() as client,
        ):
            left, records = list(self._marks), 0.0

            def reached() -> float:
                nonlocal records
                while left and _has(client, name, left[0]):
                    records = left.pop(0).share * self._records
                return records

            points = self._follow(reached, lambda: peer.pid, self._marks[-1].share * self._records)
            return self._figures(name, points)

    def _follow(self, reached: Callable[[], float], pid: Callable[[], int], records: float) -> list[Point]:
        """Return a point for each look at which more records were in Redis than before, until all are or nothing new comes."""
        points: list[Point] = []
        seen, changed = 0.0, time.monotonic()
        while seen < records and time.monotonic() - changed < STALLED_S * PATIENCE:
            time.sleep(POLL_S)
            parts = {"engine": pid(), "redis": self._testbed.redis.pid, "kafka": self._testbed.broker.pid}
            if (now := reached()) > seen:
                seen, changed = now, time.monotonic()
                points.append(Point(seen, changed, {part: seconds_of_tree(each) for part, each in parts.items()}))
        return points

    def _figures(self, name: str, points: Sequence[Point]) -> dict[str, Any]:
        """Compare the values, and return the differences, and figures if there are none."""
        deadline = time.monotonic() + SETTLE_S * PATIENCE
        with self._testbed.redis.client() as client:
            while (
                wrong := differences(self._expected, _rows(client, name), self._until_ms)
            ) and time.monotonic() < deadline:
                time.sleep(1.0)
        figures = {} if wrong else slope(points, self._records) or {}
        return {"differences": len(wrong), "examples": wrong[:5], **figures}


def _has(client: Any, prefix: str, mark: Mark) -> bool:
    pipe = client.pipeline(transaction=False)
    for key in mark.probes:
        pipe.hget(f"{prefix}:{key}", "count")
    return bool(pipe.execute() == list(mark.probes.values()))


def _rows(client: Any, prefix: str) -> dict[str, dict[str, str]]:
    return {key.removeprefix(f"{prefix}:"): row for key, row in hashes(client, prefix, ("window", "session"))}


def ratios(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return Tidemark's rate and CPU over those of each peer that has figures."""
    ours = engines.get(TIDEMARK, {})
    return {
        f"{figure}_to_{name}": round(ours[figure] / theirs[figure], 2)
        for name, theirs in engines.items()
        for figure in ("per_second", "engine_us")
        if name != TIDEMARK and figure in theirs and figure in ours
    }


def run(args: argparse.Namespace, folder: Path = FOLDER) -> dict[str, Any]:
    """Return the report."""
    build()
    fleet = Fleet(args.seed, FleetSettings(devices=args.devices, rate=args.readings / (SPAN_MS / 1000), shares={}))
    gap = {"sessions": {"gap": f"{GAP_MS} ms"}}
    testbed = Testbed(folder, fleet, views=[VIEW], sections=gap, topic_config=CREATE_TIME, partitions=CORES)
    del testbed.settings["reference"]
    testbed.settings["input"] = {**INPUT, **MEASURES}
    engines: dict[str, dict[str, Any]] = {}
    with testbed, closing(testbed.redis_client()) as client:
        comparison = Comparison(testbed, args.readings)
        for name in args.only or (TIDEMARK, *PEERS):
            client.flushall()
            engines[name] = comparison.tidemark() if name == TIDEMARK else comparison.peer(name)
            print(f"{name}: {engines[name]}", flush=True)
    sizes = {"readings": args.readings, "devices": args.devices}
    return {"machine": machine(), **sizes, "engines": engines, "ratios": ratios(engines)}


def is_right(report: Mapping[str, Any]) -> bool:
    """Whether no engine has a wrong value."""
    return not any(engine["differences"] for engine in report["engines"].values())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return 1 if an engine's values are wrong."""
    parser = options("make peers", "Tidemark beside Flink and Kafka Streams.")
    parser.add_argument("--readings", type=int, default=3_000_000)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=(TIDEMARK, *PEERS))
    parser.add_argument("--quick", action="store_true", help="a tenth of the readings and of the devices")
    args = parser.parse_args(argv)
    if args.quick:
        args.readings, args.devices = args.readings // 10, args.devices // 10
    return reported(lambda: run(args), args.json, is_right)


if __name__ == "__main__":
    sys.exit(main())
