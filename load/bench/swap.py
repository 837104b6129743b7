"""The swap: a reference of a million devices is replaced under load; the longest batch around that against the median.

    python -m load.bench.swap [--rows 1000000] [--rate 5000] [--devices 10000] [--reject] [--json FILE]

A batch lasts from the end of the one before to its own end, so whatever holds up the stream is in it: reading and validating
the new snapshot beside it, the swap itself, the first look-ups in the new file. The minute around the swap is compared with
the minute before the database changed. `--reject`: unknown devices are rejected, so admission asks the reference, too.
Exit status 0 when no batch is more than a second longer than the median.
"""

import argparse
import contextlib
import itertools
import json
import sqlite3
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from load.bench import RATE
from load.fleet.fleet import REFERENCE_TABLE, Fleet, FleetSettings, reference_rows
from load.fleet.options import seconds_of
from load.report import machine, reported
from load.testbed import ROOT, Testbed
from service.clock import now_ms
from service.errors import TidemarkError

FOLDER = ROOT / ".build" / "swap"
ROWS = 1_000_000
AROUND_S = 30.0
REFRESH_S = 20.0
PAUSE_S = 1.0


def write_reference(path: Path, fleet: Fleet, rows: int, model: str) -> None:
    """The fleet's devices and as many others as make `rows`; all of them are of the given model. Replaced in one step."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    known = [(device, kind, site, model, installed) for device, kind, site, _, installed in reference_rows(fleet)]
    spare = ((f"spare-{n:07d}", "spare", f"site-{n % 1000}", model, "2026-01-01") for n in range(rows - len(known)))
    with contextlib.closing(sqlite3.connect(fresh)) as database, database:
        database.execute("pragma synchronous = off")
        database.execute(REFERENCE_TABLE)
        database.executemany("insert into devices values (?, ?, ?, ?, ?)", known)
        database.executemany("insert into devices values (?, ?, ?, ?, ?)", spare)
    fresh.replace(path)


class Batches:
    """The ends of batches, collected from /status, which remembers the last fifty."""

    def __init__(self, testbed: Testbed) -> None:
        self._stage = testbed
        self._ended_ms: dict[int, int] = {}
        self.reference: dict[str, Any] = {}

    def look(self) -> None:
        """Once every few seconds at least."""
        status, text = self._stage.get("/status")
        if status == 200:
            document = json.loads(text)
            self.reference = document["reference"] or {}
            self._ended_ms |= {each["batch"]: each["finished_ms"] for each in document["batches"]}

    def watch(self, seconds: float) -> None:
        """Look on for a while."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(0.5)

    def between(self, from_ms: int, to_ms: int) -> list[float]:
        """How long each batch lasted that ended in that time, in seconds."""
        batches = sorted(self._ended_ms)
        pairs = [(self._ended_ms[a], self._ended_ms[b]) for a, b in itertools.pairwise(batches) if b == a + 1]
        return [(end - begin) / 1000 for begin, end in pairs if from_ms <= end < to_ms]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    fleet = Fleet(args.seed, FleetSettings(devices=args.devices, rate=args.rate, shares={}))
    reference = {"refresh": f"{REFRESH_S} s", "timeout": "60 s"}
    sections: dict[str, Mapping[str, Any]] = {"sessions": {"buckets": 4}, "reference": reference}
    if args.reject:
        sections["admission"] = {"unknown_device": "reject"}
    with Testbed(FOLDER, fleet, sections=sections) as testbed:
        database = FOLDER / "reference.db"
        write_reference(database, fleet, args.rows, "first")
        testbed.start_service()
        testbed.wait(lambda: testbed.metrics().get("tidemark_query_running"), 180, "the query to start")
        generator = testbed.start_generator(args.rate, "--outsiders", "off", "--for", "10m")
        batches = Batches(testbed)
        batches.watch(args.warm_up)
        before_ms = now_ms()
        batches.watch(2 * AROUND_S)
        version, changed_ms = batches.reference["version"], now_ms()
        write_reference(database, fleet, args.rows, "second")
        while batches.reference["version"] == version:
            batches.watch(0.5)
            _ = testbed.service_pid
            if now_ms() - changed_ms > 120_000:
                message = f"No swap within two minutes; the last lines of {testbed.log}:\n{testbed.log_tail()}"
                raise TidemarkError(message)
        swapped_ms = now_ms()
        batches.watch(AROUND_S)
        samples = testbed.metrics()
        generator.terminate()
        generator.wait(60)
        testbed.stop_service()
        control = batches.between(before_ms, changed_ms)
        around = batches.between(swapped_ms - int(AROUND_S * 1000), swapped_ms + int(AROUND_S * 1000))
        stored = sorted((FOLDER / "checkpoint" / "reference").glob("*.arrow"))
        return {
            "rows": args.rows,
            "rate": args.rate,
            "devices": args.devices,
            "reject": args.reject,
            "swap": _figures(around),
            "control": _figures(control),
            "ratio": round(max(around) / statistics.median(around), 2),
            "ratio_of_control": round(max(control) / statistics.median(control), 2),
            "longest_pause_s": round(max(around) - statistics.median(around), 3),
            "changed_to_swapped_s": round((swapped_ms - changed_ms) / 1000, 1),
            "snapshot_mb": round(max(each.stat().st_size for each in stored) / 1e6, 1),
            "failures": sum(v for name, v in samples.items() if name.startswith("tidemark_reference_failures")),
            "machine": machine(),
        }


def _figures(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "batches": len(seconds),
        "median_s": round(statistics.median(seconds), 3),
        "longest_s": round(max(seconds), 3),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """0 when nothing paused, 1 when something did, an error's own status when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="make swap", description="A large reference replaced under load.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--warm-up", type=seconds_of, default=60.0, metavar="1m")
    parser.add_argument("--reject", action="store_true", help="unknown devices are rejected: admission asks, too")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    return reported(lambda: measure(args), args.json, lambda report: report["longest_pause_s"] <= PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
