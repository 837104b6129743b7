"""Two pipelines in one process against two processes: memory, CPU for each reading, and latency.

    python -m load.bench.pipelines [--rate 2000] [--devices 1000] [--steady 60s] [--json FILE]

Both pipelines read the same topic, with the views of the testbed, and publish to the same Redis under prefixes of their own.
Memory is what the services themselves export: of a page that processes share, each counts its part. `together_to_apart` is the
ratio.
"""

import argparse
import copy
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from load.bench.cpu import seconds_of_tree
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.options import seconds_of
from load.instance import Instance
from load.report import machine, reported
from load.servers.child_process import spawn
from load.testbed import PARTITIONS, ROOT, TOPIC, Testbed, percentile, to_toml

FOLDER = ROOT / ".build" / "pipelines"
WARM_UP_S = 60.0
PROCESSES = ("driver_jvm", "driver_python", "python_workers")
NAMES = ("tidemark", "second")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run both forms, one after the other, on testbeds of their own."""
    together, apart = (_measured(args, is_together=each) for each in (True, False))
    return {
        "rate": args.rate,
        "devices": args.devices,
        "together": together,
        "apart": apart,
        "together_to_apart": {
            name: round(together[name] / apart[name], 2) for name in ("memory_mb", "cpu_us_per_reading")
        },
        "machine": machine(),
    }


def _measured(args: argparse.Namespace, *, is_together: bool) -> dict[str, Any]:
    fleet = Fleet(args.seed, FleetSettings(devices=args.devices, rate=args.rate, shares={}))
    with Testbed(FOLDER, fleet, sections={"sessions": {"buckets": 2}}, master="local[2]") as testbed:
        settings = copy.deepcopy(testbed.settings)
        checkpoint = testbed.folder / "second-checkpoint"
        settings["service"] |= {"checkpoint": str(checkpoint)}
        settings["kafka"] |= {"group": "second", "rejects": "{topic}.second"}
        settings["redis"] |= {"prefix": "second"}
        config = testbed.folder / "second.toml"
        config.write_text(to_toml(settings), encoding="utf-8")
        testbed.broker.create_topic(f"{TOPIC}.second", PARTITIONS)
        other = None if is_together else Instance(testbed, "second", checkpoint, config)
        if is_together:
            testbed.add_pipeline(config)
        testbed.start_service()
        if other is not None:
            other.start()
        generator = _generator(testbed, args)
        try:
            testbed.wait(lambda: all(_running(testbed, other)), 240, "both queries to start")
            _go_on(testbed, args.warm_up)
            pids = [testbed.service_pid, *([other.pid] if other is not None else [])]
            before, cpu = _samples(testbed, other), sum(map(seconds_of_tree, pids))
            _go_on(testbed, args.steady)
            after, cpu = _samples(testbed, other), sum(map(seconds_of_tree, pids)) - cpu
        finally:
            generator.terminate()
            generator.wait(60)
            if other is not None:
                other.kill()
        processes = after[:1] if is_together else after
        memory = {
            each: round(sum(_of(one, f'process_memory_bytes{{process="{each}"}}') for one in processes) / 2**20)
            for each in PROCESSES
        }
        grown = [
            {name: value - a.get(name, 0.0) for name, value in b.items()} for a, b in zip(before, after, strict=True)
        ]
        readings = sum(_of(each, "readings_admitted_total") for each in grown)
        return {
            "memory_mb": sum(memory.values()),
            "memory_by_process_mb": memory,
            "python_workers": round(sum(_of(one, "python_workers") for one in processes)),
            "cpu_us_per_reading": round(cpu / max(1.0, readings) * 1e6, 1),
            "batch_ms": [round(1000 * _of(each, _SUM) / max(1.0, _of(each, _COUNT))) for each in grown],
            "p50_ms": [round(percentile(each, 0.5)) for each in grown],
            "p99_ms": [round(percentile(each, 0.99)) for each in grown],
        }


_SUM, _COUNT = (f'batch_seconds_{each}{{phase="total"}}' for each in ("sum", "count"))


def _generator(testbed: Testbed, args: argparse.Namespace) -> Any:
    command = [sys.executable, "-m", "load.fleet.generator", "--bootstrap", testbed.broker.bootstrap, "--topic", TOPIC]
    command += ["--rate", str(args.rate), "--devices", str(args.devices), "--seed", str(args.seed)]
    log = testbed.folder / "generator.log"
    return spawn([*command, "--outsiders", "off", "--for", "20m"], cwd=ROOT, log=log, environ=dict(os.environ))


def _samples(testbed: Testbed, other: Instance | None) -> list[Mapping[str, float]]:
    """The metrics of each pipeline."""
    if other is not None:
        return [testbed.metrics(), other.metrics()]
    return [testbed.metrics(pipeline=name) for name in NAMES]


def _running(testbed: Testbed, other: Instance | None) -> list[float]:
    return [_of(each, "query_running") for each in _samples(testbed, other)]


def _of(samples: Mapping[str, float], name: str) -> float:
    return samples.get(f"tidemark_{name}", 0.0)


def _go_on(testbed: Testbed, seconds: float) -> None:
    until = time.monotonic() + seconds
    testbed.wait(lambda: time.monotonic() >= until, seconds + 1, "time to pass")


def main(argv: Sequence[str] | None = None) -> int:
    """0 when both were measured, an error's own status otherwise."""
    parser = argparse.ArgumentParser(prog="load.bench.pipelines", description="Two pipelines in one process or in two.")
    parser.add_argument("--rate", type=float, default=2_000.0)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--warm-up", type=seconds_of, default=WARM_UP_S, metavar="1m")
    parser.add_argument("--steady", type=seconds_of, default=60.0, metavar="1m")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    return reported(lambda: measure(args), args.json)


if __name__ == "__main__":
    sys.exit(main())
