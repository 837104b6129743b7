"""This tree against another revision of the repository, in turns on one machine: CPU for a reading, by part.

    python -m load.bench.pace [--against REVISION] [--rounds 3] [--seconds 40s] [--devices 10000 100000] [--json FILE]

In each round each tree runs once for each fleet, at the benchmark's rate, with a checkpoint, a consumer group and a Redis prefix
of its own; the tree that begins alternates. Both read one topic, from its end. CPU for a reading is what a busy machine changes
least. It is counted behind a warm-up, for the JVM, the Python processes and Redis. The ratio of a part is the median over the
rounds of this tree over the other one. The status is 1 if a ratio is above LIMIT. The default revision is the newest release.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from load.bench import RATE
from load.bench.cpu import seconds_of_process, seconds_of_tree
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.options import seconds_of
from load.instance import Instance, tree
from load.releases import PREVIOUS, extract
from load.report import machine, options, reported
from load.testbed import ROOT, VIEWS, Testbed, to_toml
from service.errors import SetupError

FOLDER = ROOT / ".build" / "pace"
LIMIT = 1.05
"""A larger ratio of CPU for a reading is a loss that the status tells."""
STARTS_S = 180.0
_RECORDS = "tidemark_records_total"
THIS, OTHER = "this", "other"


@dataclass(frozen=True)
class Measured:
    """One run of a tree: us of CPU for a reading by part, the mean batch in ms, and MB of memory at the end."""

    us: Mapping[str, float]
    batch_ms: float
    memory_mb: int


def seconds_by_part(service: int, redis: Iterable[int]) -> dict[str, float]:
    """Return the CPU seconds so far of the service's JVM and Python processes, and of Redis."""
    parts = {"jvm": 0.0, "python": 0.0, "redis": sum(map(seconds_of_tree, redis))}
    for process in tree([service]):
        try:
            parts["jvm" if process.name() == "java" else "python"] += seconds_of_process(process)
        except psutil.NoSuchProcess:
            continue
    return parts


def measure(testbed: Testbed, source: Path, name: str, seconds: float) -> Measured:
    """Run a tree's service under load, and measure it behind a warm-up as long as the measurement."""
    document = {**testbed.settings, "redis": {**testbed.settings["redis"], "prefix": name}}
    document["kafka"] = {**document["kafka"], "starting": "latest", "group": name, "rejects": f"{{topic}}.{name}"}
    config = testbed.folder / f"{name}.toml"
    config.write_text(to_toml(document), encoding="utf-8")
    instance = Instance(testbed, name, testbed.folder / f"checkpoint-{name}", config, source)
    generator = None
    instance.start()
    try:
        testbed.wait(lambda: _alive(instance).get("tidemark_query_running"), STARTS_S, f"{name} to start")
        generator = testbed.start_generator(RATE, log=f"generator-{name}")
        testbed.wait(lambda: _alive(instance).get(_RECORDS, 0.0) > 0, STARTS_S, f"a batch of {name}")
        time.sleep(seconds)
        before, used = _alive(instance), seconds_by_part(instance.pid, testbed.redis_pids)
        time.sleep(seconds)
        after, now = _alive(instance), seconds_by_part(instance.pid, testbed.redis_pids)
        memory = sum(process.memory_full_info().pss for process in tree([instance.pid]))
    finally:
        instance.kill()
        if generator is not None:
            testbed.end_generator(generator, f"generator-{name}")
    readings = after[_RECORDS] - before[_RECORDS]
    batches = max(1.0, after["tidemark_batch"] - before["tidemark_batch"])
    us = {part: (now[part] - used[part]) / max(1.0, readings) * 1e6 for part in now}
    return Measured(us, seconds / batches * 1000, round(memory / 1e6))


def _alive(instance: Instance) -> Mapping[str, float]:
    if not instance.is_running:
        what = f"{instance.name} has ended: {instance.last_words()}"
        raise SetupError(what, remedy="Choose a revision that runs with these settings, jars and packages")
    return instance.metrics()


def compared(rounds: Sequence[Mapping[str, Measured]]) -> dict[str, dict[str, float]]:
    """Return by part the medians of both trees, and the median over the rounds of this one over the other."""
    figures: dict[str, dict[str, float]] = {}
    for part in rounds[0][THIS].us:
        pairs = [(each[THIS].us[part], each[OTHER].us[part]) for each in rounds]
        figures[part] = {
            THIS: round(median(this for this, _ in pairs), 1),
            OTHER: round(median(other for _, other in pairs), 1),
            "ratio": round(median(this / max(other, 1e-9) for this, other in pairs), 3),
        }
    for name in ("batch_ms", "memory_mb"):
        both = {which: median(getattr(each[which], name) for each in rounds) for which in (THIS, OTHER)}
        figures[name] = {**both, "ratio": round(both[THIS] / max(both[OTHER], 1e-9), 3)}
    return figures


def slower(report: Mapping[str, Any]) -> list[str]:
    """Return the parts whose CPU for a reading is above the limit, with their fleet."""
    return [
        f"{part} at {devices} devices: {figures[part]['ratio']}"
        for devices, figures in report["devices"].items()
        for part in ("jvm", "python", "redis")
        if figures[part]["ratio"] > LIMIT
    ]


def table(report: Mapping[str, Any]) -> str:
    """Return the figures as lines."""
    lines = [f"{'devices':>9} {'':10} {'this':>10} {report['against'][:10]:>10} {'ratio':>7}"]
    for devices, figures in report["devices"].items():
        for part, row in figures.items():
            lines.append(f"{devices:>9} {part:10} {row[THIS]:>10,.1f} {row[OTHER]:>10,.1f} {row['ratio']:>7.3f}")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all rounds of all fleets."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        other = extract(args.against, FOLDER / "tree")
    except subprocess.CalledProcessError as error:
        what = f"--against {args.against}: {error.stderr.decode().strip()}"
        raise SetupError(what, remedy="Give a release, or a revision that `git log` shows") from error
    report: dict[str, Any] = {"machine": machine(), "against": args.against, "devices": {}}
    for devices in args.devices:
        fleet = Fleet(args.seed, FleetSettings(devices=devices, rate=RATE, shares={}))
        rounds: list[dict[str, Measured]] = []
        with Testbed(FOLDER / "run", fleet, views=VIEWS) as testbed:
            for number in range(args.rounds):
                order = [(THIS, ROOT), (OTHER, other)][:: 1 if number % 2 == 0 else -1]
                rounds.append(
                    {name: measure(testbed, source, f"{name}{number}", args.seconds) for name, source in order}
                )
                print(f"{devices:,} devices, round {number}: {rounds[-1]}", flush=True)
        report["devices"][str(devices)] = compared(rounds)
    report["slower"] = slower(report)
    print(table(report), flush=True)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 if this tree takes more CPU than the limit allows."""
    parser = options("make pace", "This tree against another revision, in turns.")
    parser.add_argument("--against", default=PREVIOUS, metavar="REVISION")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=seconds_of, default=40.0, metavar="40s")
    parser.add_argument("--devices", type=int, nargs="+", default=[10_000, 100_000])
    args = parser.parse_args(argv)
    return reported(lambda: run(args), args.json, lambda report: not report["slower"])


if __name__ == "__main__":
    sys.exit(main())
