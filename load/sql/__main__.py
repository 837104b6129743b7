"""Ask ten questions about a fleet of 100,000 devices, and compare the answers with the oracle's.

    python -m load.sql [--json FILE] [--devices 100000] [--readings 600000]          # make sql

The service reads three minutes of readings and is stopped. Then each question is a process, `tidemark sql --json`. The report has
for each its seconds, its rows and the number of rows that differ; `differences` is their sum. Exit status 0 if it is 0.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.judge.oracle import expected
from load.report import machine, reported
from load.servers.kafka import CREATE_TIME
from load.sql.questions import Question, questions
from load.testbed import ROOT, TOPIC, VIEWS, Testbed

FOLDER = ROOT / ".build" / "sql"
SPAN_S = 180
START_MS = 1_790_000_000_000
MINUTE_MS = (START_MS // 60_000 + 2) * 60_000
"""A full minute of the readings."""
_WITHIN_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, compare, report; return the exit status."""
    parser = argparse.ArgumentParser(prog="make sql", description="Ten questions in SQL about a large fleet.")
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--readings", type=int, default=600_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    return reported(lambda: report(args), args.json, lambda made: not made["differences"])


def report(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    settings = FleetSettings(devices=args.devices, rate=args.readings / SPAN_S, shares={})
    with Testbed(FOLDER, Fleet(args.seed, settings), views=VIEWS, topic_config=CREATE_TIME) as testbed:
        generator = Generator(testbed.broker.bootstrap, TOPIC, testbed.fleet, simulate_ms=START_MS)
        ends = {partition: end for partition, (_, end) in generator.send(args.readings).offsets.items()}
        testbed.start_service()
        testbed.wait_published(ends, _WITHIN_S)
        testbed.stop_service()
        reached = testbed.progress()
        is_silent = (reached.get("idle_epoch"), reached.get("idle_batch")) == (reached["epoch"], reached["batch"])
        right = expected(
            testbed.config,
            watermark_ms=int(reached["watermark"]),
            idle_ms=int(reached["idle"]) if is_silent else -1,
            ends={TOPIC: ends},
        )
        asked = {each.name: ask(testbed.config, each, list(each.answer(right))) for each in questions(right, MINUTE_MS)}
    return {
        "machine": machine(),
        "devices": len(right.devices),
        "windows": len(right.windows),
        "sessions": len(right.sessions),
        "questions": asked,
        "seconds": [each["seconds"] for each in asked.values()],
        "longest_s": max(each["seconds"] for each in asked.values()),
        "differences": sum(each["differences"] for each in asked.values()),
    }


def ask(config: Path, question: Question, right: Sequence[tuple[Any, ...]]) -> Mapping[str, Any]:
    """Ask one question in a process of its own; return its seconds, rows and differences."""
    command = [sys.executable, "-m", "service.cli", "sql", "--config", str(config), "--json", question.sql]
    began = time.monotonic()
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    seconds = round(time.monotonic() - began, 2)
    answer = [tuple(row.values()) for row in json.loads(ran.stdout)] if ran.returncode == 0 else []
    pairs = list(itertools.zip_longest(answer, right))
    different = [pair for pair in pairs if not _is_same(*pair)]
    print(
        f"{question.name}: {seconds} s, {len(answer)} rows, {len(different)} differences {ran.stderr.strip()}",
        flush=True,
    )
    return {
        "sql": question.sql,
        "seconds": seconds,
        "rows": len(answer),
        "differences": len(different),
        "examples": [repr(pair) for pair in different[:3]],
    }


def _is_same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(
        math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, float | int) else a == b
        for a, b in zip(one, other, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
