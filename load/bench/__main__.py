"""The benchmark: catch-up rate, steady latency, peak memory, and references for both, with everything real on one machine.

    python -m load.bench [--json FILE] [--readings 8000000] [--steady 60s] [--runs 1] [--only PART]

catch_up  the service, started on a prepared topic: records over the time from the start of its first batch to the end of its
          last one, so the JVM's warming up is in it; four views of which one slides 10 minutes by 1, sessions on, Redis real
floor     the same records fetched and decoded by the same reader, and thrown away: what no service on this engine can beat
bare      a micro-batch of this engine at 10,000 readings a second: Kafka, one native stateful count, nothing written
steady    the service at the same rate, after a warm-up: from the broker's time for a reading to Redis having acknowledged the
          values that include it
state     what the steady run's state takes, and what was written of it for each byte of rows that changed
rows      what a row costs Redis and the service, against plain HSET and PEXPIRE, and on a cluster (load/bench/rows.py)
statistics  what a window with one, six, twelve and all statistics costs, and its bytes (load/bench/statistics.py)
formats   what a reading costs as Avro, JSON, in gzip'd arrays of JSON, and as Protobuf (load/bench/formats.py)
distinct  steady with removal of duplicates, by device and event time; what it costs a reading, and its bytes of state
          (load/bench/distinct.py)
large     catch-up and steady with 100,000 devices, where the others have 10,000
huge      catch-up of a million devices (`--huge` readings), and the service's memory by process; steady where each of them
          reports once a minute, and open values wait 5 s: the lag at the begin and at the end
executors  catch-up on a standalone cluster, by executors of one core and primaries of Redis (load/bench/executors.py)
ratios    batch_to_bare, plan_to_bare, catch_up_to_floor, row_to_hset, row_redis_to_hset_redis, the same of keys that are new
          (new_row_to_new_hset, new_row_redis_to_new_hset_redis), redis_cluster_publish; of the
          large fleet over the other: steady_100k_to_10k (p50), catch_up_100k_to_10k, catch_up_1m_to_10k; and of the large one
          rows_per_reading, close_to_median (the longest batch, which is one that closes windows, over the median)

The figures of a shared, small machine say little alone: compare ratios within one run. Every run is printed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from load.bench import RATE
from load.bench import distinct as bench_distinct
from load.bench import executors as bench_executors
from load.bench import formats as bench_formats
from load.bench import rows as bench_rows
from load.bench import statistics as bench_statistics
from load.bench.cpu import PARTS as CPU_PARTS
from load.bench.cpu import Cpu, role
from load.bench.references import BARE_S, reference
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.fleet.options import seconds_of
from load.report import machine, options, reported
from load.servers.kafka import CREATE_TIME
from load.servers.server_process import Repeated
from load.testbed import ROOT, TOPIC, VIEWS, Testbed, percentile
from service.errors import TidemarkError

FOLDER = ROOT / ".build" / "bench"
SPAN_MS = 20 * 60_000
START_MS = 1_790_000_000_000
SMALL, LARGE, HUGE = 10_000, 100_000, 1_000_000
"""Devices."""
HUGE_RATE, HUGE_UPDATE_EVERY, HUGE_GAP = HUGE / 60, "5 s", "5 m"
"""Each of a million devices once a minute. A shorter gap would end a session with each reading."""
_TOTAL, _LAG = "tidemark_batch_seconds", "tidemark_lag_records{"
PARTS = ("bare", "large", "huge", "rows", "statistics", "formats", "distinct", "executors", "state", "ratios")
"""Of the report, those that have no median of their own."""


@dataclass
class Batch:
    """One batch of the catch-up."""

    batch: int
    records: int
    seconds: float


@dataclass
class CatchUp:
    """One run of the catch-up.

    `phases` are seconds by name, over all batches, `memory_mb` is the peak by process, `per_reading` is for load/bench/scale.py.
    """

    per_second: float
    seconds: float
    readings: int
    batches: list[Batch]
    phases: dict[str, float]
    peak_memory_mb: float
    memory_mb: dict[str, int]
    per_reading: dict[str, float]


@dataclass
class Steady:
    """One run at a constant rate."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    rate: float
    seconds: float
    batches: int
    batch_mean_ms: float
    phases_ms: dict[str, float]
    peak_memory_mb: float
    rows_per_reading: float
    longest_to_median: float
    per_reading: dict[str, float]
    lag: dict[str, int]
    """Records: the medians of the first and the last tenth of the time, and the most."""


class Lag(Repeated):
    """How many records the service is behind."""

    def __init__(self, testbed: Testbed) -> None:
        super().__init__(2.0, self.look)
        self._testbed = testbed
        self._records: list[float] = []

    def look(self) -> None:
        """Read the lag of all partitions, if the service answers."""
        if metrics := self._testbed.metrics():
            self._records.append(sum(value for name, value in metrics.items() if name.startswith(_LAG)))

    def summary(self) -> dict[str, int]:
        """The medians of the first and the last tenth, and the most."""
        seen, tenth = self._records, max(1, len(self._records) // 10)
        parts = {"begin": median(seen[:tenth]), "end": median(seen[-tenth:]), "most": max(seen)}
        return {name: round(value) for name, value in parts.items()}


class Batches(Repeated):
    """How long batches take: the mean of those between two looks."""

    def __init__(self, testbed: Testbed) -> None:
        super().__init__(0.25, self.look)
        self._testbed = testbed
        self._seconds: list[float] = []
        self._last: tuple[float, float] | None = None

    def look(self) -> None:
        """Read the time and the number of all batches so far, from one answer."""
        if not (metrics := self._testbed.metrics()):
            return
        total_s, count = (metrics.get(f'{_TOTAL}_{name}{{phase="total"}}', 0.0) for name in ("sum", "count"))
        if self._last is not None and count > self._last[1]:
            self._seconds.append((total_s - self._last[0]) / (count - self._last[1]))
        self._last = total_s, count

    def longest_to_median(self) -> float:
        """The longest batch over the median one; 0 without any."""
        durations = sorted(self._seconds)
        return round(durations[-1] / durations[len(durations) // 2], 2) if durations else 0.0


class Memory(Repeated):
    """The largest resident memory of a process and its children. Pages that forked workers share count once."""

    def __init__(self, pid: int) -> None:
        super().__init__(0.5, self.look)
        self._pid = pid
        self._peak: list[tuple[str, int]] = []

    def look(self) -> None:
        """Add up what they have now."""
        now = []
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # it has ended, or nobody has waited for it yet
                    now.append((role(each), each.memory_full_info().pss))
        self._peak = max(self._peak, now, key=_bytes)

    def peak_mb(self) -> float:
        """In MB."""
        return round(_bytes(self._peak) / 1e6)

    def by_role(self) -> dict[str, int]:
        """MB of the JVM, the driver's Python and the Python workers at the peak, and the number of workers."""
        sizes = {role: sum(size for each, size in self._peak if each == role) for role in ("jvm", "driver", "workers")}
        count = sum(role == "workers" for role, _ in self._peak)
        return {**{role: round(size / 1e6) for role, size in sizes.items()}, "processes_of_workers": count}


def _bytes(processes: Sequence[tuple[str, int]]) -> int:
    return sum(size for _, size in processes)


def prepare(testbed: Testbed, readings: int) -> dict[int, int]:
    """Fill the topic with simulated readings; returns the end offsets."""
    fleet = testbed.fleet
    generator = Generator(testbed.broker.bootstrap, TOPIC, fleet, simulate_ms=START_MS)
    summary = generator.send(readings)
    if not summary.is_whole:
        raise TidemarkError(f"The topic could not be prepared: {summary.to_json()}")
    print(f"prepared {summary.sent:,} records at {summary.rate:,.0f}/s", flush=True)
    return {partition: end for partition, (_, end) in summary.offsets.items()}


def catch_up(testbed: Testbed, ends: Mapping[int, int]) -> CatchUp:
    """Start the service on the prepared topic and wait until all of it is published."""
    total = sum(ends.values())
    testbed.start_service()
    memory = Memory(testbed.service_tree)
    memory.start()
    running_s = testbed.wait(
        lambda: testbed.metrics().get("tidemark_batch_running_seconds", 0.0), 240, "the first batch"
    )
    began = last = time.time() - running_s
    cpu = Cpu(testbed)
    batches: list[Batch] = []
    seen = 0
    while seen < total:
        metrics = testbed.metrics()
        records = int(metrics.get("tidemark_records_total", 0))
        if records > seen:
            ended = metrics["tidemark_last_batch_timestamp_seconds"]
            batches.append(Batch(int(metrics["tidemark_batch"]), records - seen, round(ended - last, 3)))
            seen, last = records, ended
            print(f"  batch {batches[-1].batch}: {batches[-1].records:,} in {batches[-1].seconds:.2f} s", flush=True)
        _ = testbed.service_pid
        time.sleep(0.5)  # twenty looks a second took a third of a core, and a fifth of the driver's
    seconds = last - began
    after = testbed.wait_metrics()
    per_reading = _per_reading(after, total) | cpu.us_per_reading(total)
    memory.close()
    testbed.stop_service()
    rate = round(total / seconds, 0)
    peak = memory.peak_mb(), memory.by_role()
    return CatchUp(rate, round(seconds, 2), total, batches, _phases(after), *peak, per_reading)


def steady(
    devices: int,
    seconds: float,
    warm_up: float,
    seed: int,
    *,
    is_reference: bool,
    rate: float = RATE,
    views: Sequence[Mapping[str, Any]] = VIEWS,
    sections: Mapping[str, Any] | None = None,
    outlet: str = "",
) -> tuple[Steady, dict[str, float], dict[str, float]]:
    """The service at a constant rate, on a topic with the broker's own time; the state after it.

    With `is_reference` the bare batch before it. With `outlet` "kafka" all windows that close go to a topic.
    """
    fleet = Fleet(seed, FleetSettings(devices=devices, rate=rate, shares={}))
    stage = Testbed(FOLDER / "steady", fleet, views=views, sections=sections)
    if outlet:
        stage.settings["outlets"] = [{"name": "finals", "kind": outlet, "topic": "finals", "format": "json"}]
    with stage as testbed:
        bare = {}
        if is_reference:
            load = testbed.start_generator(RATE, "--for", f"{BARE_S + 30}s")
            bare = reference(testbed, "bare")
            testbed.end_generator(load)
        testbed.start_service()
        testbed.wait(lambda: testbed.metrics().get("tidemark_query_running"), 120, "the query to start")
        memory = Memory(testbed.service_pid)
        memory.start()
        generator = testbed.start_generator(rate, "--for", f"{warm_up + seconds + 5}s")
        time.sleep(warm_up)
        before, began, cpu = testbed.wait_metrics(), time.monotonic(), Cpu(testbed)
        durations, lag = Batches(testbed), Lag(testbed)
        durations.start()
        lag.start()
        time.sleep(seconds)
        after, seconds = testbed.wait_metrics(), time.monotonic() - began
        used = cpu.us_per_reading(after["tidemark_records_total"] - before.get("tidemark_records_total", 0.0))
        durations.close()
        lag.close()
        testbed.end_generator(generator)
        memory.close()
        testbed.stop_service()
    delta = {key: value - before.get(key, 0.0) for key, value in after.items()}
    batches = int(delta["tidemark_batch"])
    phases = _phases(delta)
    figures = Steady(
        p50_ms=round(percentile(delta, 0.5), 1),
        p95_ms=round(percentile(delta, 0.95), 1),
        p99_ms=round(percentile(delta, 0.99), 1),
        rate=round(delta["tidemark_records_total"] / seconds),
        seconds=round(seconds, 1),
        batches=batches,
        batch_mean_ms=round(seconds / max(batches, 1) * 1000, 1),
        phases_ms={name: round(value / max(batches, 1) * 1000, 1) for name, value in phases.items()},
        peak_memory_mb=memory.peak_mb(),
        rows_per_reading=round(
            delta.get('tidemark_redis_writes_total{outcome="written"}', 0.0)
            / max(1.0, delta["tidemark_records_total"]),
            2,
        ),
        longest_to_median=durations.longest_to_median(),
        per_reading=_per_reading(delta, delta["tidemark_records_total"]) | used,
        lag=lag.summary(),
    )
    return figures, bare, _state(after, delta)


def _per_reading(metrics: Mapping[str, float], readings: float) -> dict[str, float]:
    """Rows written and bytes, for each reading."""
    totals = {
        "rows": metrics.get('tidemark_redis_writes_total{outcome="written"}', 0.0),
        "kafka_bytes": metrics.get("tidemark_record_bytes_total", 0.0),
        "redis_bytes": metrics.get("tidemark_redis_bytes_total", 0.0),
    }
    return {name: round(total / max(1.0, readings), 2) for name, total in totals.items()}


def _state(after: Mapping[str, float], delta: Mapping[str, float]) -> dict[str, float]:
    """Bytes of the state by row, and bytes written for each byte of rows that changed."""
    rows = {kind: after.get(f'tidemark_state_rows{{kind="{kind}"}}', 0.0) for kind in ("devices", "windows")}
    changed = delta.get("tidemark_state_changed_bytes_total", 0.0)
    return {
        **rows,
        "bytes": after.get("tidemark_state_bytes", 0.0),
        "bytes_per_row": round(after.get("tidemark_state_bytes", 0.0) / max(1.0, sum(rows.values())), 1),
        "changelog_to_changes": round(delta.get("tidemark_state_written_bytes_total", 0.0) / max(1.0, changed), 2),
    }


def _phases(metrics: Mapping[str, float]) -> dict[str, float]:
    name = "tidemark_batch_seconds_sum{"
    return {key.split('"')[1]: round(value, 3) for key, value in metrics.items() if key.startswith(name)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON."""
    parser = options("make bench", "Catch-up rate, floor, latency, cost of a row, memory.")
    parser.add_argument("--readings", type=int, default=8_000_000)
    parser.add_argument("--huge", type=int, default=6_000_000, metavar="READINGS", help="of a million devices")
    parser.add_argument("--steady", type=seconds_of, default=60.0, metavar="60s")
    parser.add_argument("--warm-up", type=seconds_of, default=120.0, metavar="2m")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a third of the readings and of the time: ten minutes")
    parser.add_argument("--only", choices=("catch_up", "rows", "formats", "steady", "huge", "distinct", "executors"))
    parser.add_argument("--outlet", choices=("kafka",), default="", help="of `steady`: closed windows go there")
    args = parser.parse_args(argv)
    if args.quick:
        args.readings, args.huge = args.readings // 3, args.huge // 3
        args.steady, args.warm_up = args.steady / 3, args.warm_up / 3
    return reported(lambda: run(args), args.json)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All parts of the benchmark, in turn. At the top of the report are the medians of `catch_up`, `floor` and `steady`, and all
    else of the run in the middle: compare figures within one of `runs`.
    """
    runs: list[dict[str, Any]] = []
    for number in range(args.runs):
        entry: dict[str, Any] = {}
        if args.only in {None, "rows"}:
            entry |= _rows()
        if args.only in {None, "formats"}:
            entry |= _formats()
        if args.only in {None, "catch_up"}:
            entry |= _catch_up(args, SMALL)
            entry["large"] = _catch_up(args, LARGE, is_reference=False)
            entry["huge"] = _catch_up(args, HUGE, is_reference=False, readings=args.huge)
        if args.only in {None, "steady"}:
            entry |= _steady(args, SMALL)
            entry["large"] = entry.get("large", {}) | _steady(args, LARGE, is_reference=False)
        if args.only in {None, "huge"}:
            entry["huge"] = entry.get("huge", {}) | _steady_of_minutes(args)
        if args.only in {None, "distinct"}:
            entry["distinct"] = _distinct(args, entry)
        if args.only in {None, "executors"}:
            entry["executors"] = _executors(args)
        entry["ratios"] = _ratios(entry)
        print(f"run {number}: {entry['ratios']}", flush=True)
        runs.append(entry)
    report: dict[str, Any] = {"machine": machine(), "readings": args.readings, "devices": [SMALL, LARGE], "runs": runs}
    for part, figure in (("catch_up", "per_second"), ("floor", "per_second"), ("steady", "p99_ms")):
        results = sorted((each[part] for each in runs if part in each), key=lambda result: result[figure])
        report |= {part: results[len(results) // 2]} if results else {}
    parts = [part for each in runs for part in (each, each.get("large", {}), each.get("huge", {}))]
    peaks = [part[name]["peak_memory_mb"] for part in parts for name in ("catch_up", "steady") if name in part]
    report["peak_memory_mb"] = max(peaks, default=0.0)
    return report | {part: runs[len(runs) // 2].get(part, {}) for part in PARTS}


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for one part, which is removed after it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        yield Path(folder)


def _rows() -> dict[str, Any]:
    with _scratch() as folder:
        figures = bench_rows.measure(folder) | bench_rows.measure_new(folder) | bench_rows.measure_cluster(folder)
        statistics = bench_statistics.measure(folder)
    print(f"rows: {figures}", flush=True)
    print(f"statistics: {statistics}", flush=True)
    return {"rows": figures, "statistics": statistics}


def _formats() -> dict[str, Any]:
    with _scratch() as folder:
        figures = bench_formats.measure(folder)
    print(f"formats: {figures}", flush=True)
    return {"formats": figures}


def _catch_up(
    args: argparse.Namespace, devices: int, *, is_reference: bool = True, readings: int | None = None
) -> dict[str, Any]:
    """The catch-up of a fleet, and with `is_reference` the rates of the floor."""
    readings = readings or args.readings
    rate = readings / (SPAN_MS / 1000)
    fleet = Fleet(args.seed, FleetSettings(devices=devices, rate=rate, shares={}))
    with Testbed(FOLDER / "catch_up", fleet, views=VIEWS, topic_config=CREATE_TIME) as testbed:
        figures = catch_up(testbed, prepare(testbed, readings))
        floors = reference(testbed, "floor") if is_reference else []
    memory = f"{figures.peak_memory_mb:,.0f} MB {figures.memory_mb}"
    print(f"{devices:,} devices: {figures.per_second:,.0f}/s, {memory}, floor {floors}", flush=True)
    floor = {"floor": {"per_second": max(floors), "passes": floors}} if floors else {}
    return {"catch_up": asdict(figures), **floor}


def _steady(args: argparse.Namespace, devices: int, *, is_reference: bool = True) -> dict[str, Any]:
    figures, bare, state = steady(
        devices, args.steady, args.warm_up, args.seed, is_reference=is_reference, outlet=args.outlet
    )
    print(f"{devices:,} devices: {figures}", flush=True)
    return {"steady": asdict(figures), "bare": bare, "state": state}


def _steady_of_minutes(args: argparse.Namespace) -> dict[str, Any]:
    figures, _, state = steady(
        HUGE,
        10 * args.steady,
        args.warm_up,
        args.seed,
        is_reference=False,
        rate=HUGE_RATE,
        views=[{**view, "update_every": HUGE_UPDATE_EVERY} for view in VIEWS],
        sections={"sessions": {"gap": HUGE_GAP, "update_every": HUGE_UPDATE_EVERY}},
    )
    print(f"{HUGE:,} devices, each once a minute: {figures}", flush=True)
    return {"steady": asdict(figures), "state": state}


def _distinct(args: argparse.Namespace, entry: Mapping[str, Any]) -> dict[str, float]:
    """Measure the cost of removing duplicates for a reading, and the ratio of the service's mean batch with and without it."""
    with _scratch() as folder:
        figures = bench_distinct.measure(folder)
    plain = entry["steady"]["batch_mean_ms"] if "steady" in entry else _batch_mean_ms(args, distinct=False)
    figures["batch_to_plain"] = round(_batch_mean_ms(args, distinct=True) / plain, 3)
    print(f"distinct: {figures}", flush=True)
    return figures


def _batch_mean_ms(args: argparse.Namespace, *, distinct: bool) -> float:
    sections = {"admission": {"distinct": ["device", "event_time"]}} if distinct else {}
    figures, _, _ = steady(SMALL, args.steady, args.warm_up, args.seed, is_reference=False, sections=sections)
    print(f"duplicates {'removed' if distinct else 'counted'}: {figures}", flush=True)
    return figures.batch_mean_ms


def _executors(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The catch-up of half of the readings on each stage: rate, and CPU of a reading by part."""
    readings = args.readings // 2
    fleet = Fleet(args.seed, FleetSettings(devices=SMALL, rate=readings / (SPAN_MS / 1000), shares={}))
    figures = []
    for executors, primaries in bench_executors.STAGES:
        with bench_executors.stage(FOLDER / "executors", fleet, executors, primaries) as testbed:
            measured = catch_up(testbed, prepare(testbed, readings))
        used = {part: measured.per_reading[part] for part in CPU_PARTS}
        figures.append(
            {
                "executors": executors,
                "primaries": primaries,
                "per_second": measured.per_second,
                "warm_per_second": bench_executors.warm_rate(
                    [(each.records, each.seconds) for each in measured.batches]
                ),
                "cpu_us": used,
                "busy_cores": round(sum(used.values()) * measured.per_second / 1e6, 2),
                "peak_memory_mb": measured.peak_memory_mb,
            }
        )
        print(f"executors: {figures[-1]}", flush=True)
    return figures


def _ratios(entry: Mapping[str, Any]) -> dict[str, float]:
    ratios, large = {}, entry.get("large", {})
    if "steady" in entry:
        ratios["batch_to_bare"] = entry["steady"]["batch_mean_ms"] / entry["bare"]["batch_ms"]
        ratios["plan_to_bare"] = entry["steady"]["phases_ms"].get("planning", 0.0) / entry["bare"]["planning_ms"]
        ratios["steady_100k_to_10k"] = large["steady"]["p50_ms"] / entry["steady"]["p50_ms"]
        ratios["rows_per_reading"] = large["steady"]["rows_per_reading"]
        ratios["close_to_median"] = large["steady"]["longest_to_median"]
    if "catch_up" in entry:
        ratios["catch_up_to_floor"] = entry["catch_up"]["per_second"] / entry["floor"]["per_second"]
        ratios["catch_up_100k_to_10k"] = large["catch_up"]["per_second"] / entry["catch_up"]["per_second"]
        ratios["catch_up_1m_to_10k"] = entry["huge"]["catch_up"]["per_second"] / entry["catch_up"]["per_second"]
    if "executors" in entry:
        ratios |= bench_executors.ratios(entry["executors"])
    if "rows" in entry:
        ratios |= bench_rows.ratios(entry["rows"]) | bench_rows.cluster_ratios(entry["rows"])
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


if __name__ == "__main__":
    sys.exit(main())
