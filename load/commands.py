"""Time the commands of an operator beside a running service, against their goals.

    python -m load.commands [--devices 2000] [--seed 7] [--json FILE]         # make commands

A command is a process of its own. `cold_s` is its first run, `warm_s` the median of the next ones, `ratio` of that to `python -c
pass` between the same runs, `cpu_s` the CPU of all processes of the warm run, of which a JVM ends after the command: both change
less with what else the machine does. `over` counts the commands whose warm run is longer than its goal. Exit status 0 if none is,
and each has ended with its status.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.report import machine, options, reported
from load.servers.kafka import LOG_APPEND_TIME
from load.testbed import ROOT, TOPIC, VIEWS, Testbed
from service.errors import SetupError

FOLDER = ROOT / ".build" / "commands"
RUNS = 3
"""Warm runs of each command."""
_READINGS = 20_000
_WITHIN_S = 300.0
_CHILD_SUBREAPER = 36
"""Linux's PR_SET_CHILD_SUBREAPER: orphans of a command become children of this process."""


@dataclass(frozen=True)
class Command:
    """The words of a command without --config, the seconds that it may take, and the status that it ends with."""

    words: Sequence[str]
    goal_s: float
    status: int = 0
    has_settings: bool = True

    @property
    def name(self) -> str:
        return " ".join(self.words)


BESIDE = (
    Command(("--help",), 0.5, has_settings=False),
    Command(("--version",), 0.5, has_settings=False),
    Command(("status",), 0.5),
    Command(("views", "list"), 1.0),
    Command(("checkpoint", "show"), 0.5),
    Command(("devices", "-n", "20"), 2.0),
    Command(("sql", "select status, count(*) from devices group by status"), 2.0),
    Command(("rejects", "list", "--since", "1h"), 5.0),
    Command(("rejects", "replay", "--since", "1h", "--dry-run"), 5.0),
    Command(("check",), 5.0),
    Command(("try", "-n", "500"), 5.0),
)
"""While the service runs."""
AFTER = (Command(("status",), 0.5, status=1),)
"""When it has stopped."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = options("make commands", "The times of an operator's commands.")
    parser.add_argument("--devices", type=int, default=2_000)
    args = parser.parse_args(argv)
    return reported(lambda: report(args), args.json, lambda made: not made["over"] and not made["wrong_status"])


def report(args: argparse.Namespace) -> dict[str, Any]:
    fleet = Fleet(args.seed, FleetSettings(devices=args.devices, rate=_READINGS / 10))
    with Testbed(FOLDER, fleet, views=VIEWS, topic_config=LOG_APPEND_TIME) as testbed:
        generator = Generator(testbed.broker.bootstrap, TOPIC, testbed.fleet)
        ends = {partition: end for partition, (_, end) in generator.send(_READINGS).offsets.items()}
        testbed.start_service()
        testbed.wait_published(ends, _WITHIN_S)
        rows = [timed(each, testbed.config) for each in BESIDE]
        testbed.stop_service()
        rows += [{**timed(each, testbed.config), "beside": "a stopped service"} for each in AFTER]
    return {
        "machine": machine(),
        "commands": rows,
        "over": sum(row["warm_s"] > row["goal_s"] for row in rows),
        "wrong_status": [row["command"] for row in rows if row["status"] != row["expected_status"]],
    }


def timed(command: Command, config: Path) -> dict[str, Any]:
    """Run a command, print its times and return them with its status: of all runs, the first that is wrong."""
    words = [sys.executable, "-m", "service.cli", *command.words]
    words += ["--config", str(config)] if command.has_settings else []
    cold_s, _, status = _run(words)
    warm, empty, used, statuses = [], [], [], [status]
    for _ in range(RUNS):
        empty.append(_run([sys.executable, "-c", "pass"])[0])
        seconds, cpu_s, status = _run(words)
        warm.append(seconds)
        used.append(cpu_s)
        statuses.append(status)
    warm_s, empty_s, cpu_s = map(statistics.median, (warm, empty, used))
    times = f"{cold_s:6.2f} s cold {warm_s:6.2f} s warm, {cpu_s:5.2f} s of CPU"
    shown = f"{times}, goal {command.goal_s:.1f} s, {warm_s / empty_s:6.1f} x python"
    print(f"{shown}: tidemark {command.name}", flush=True)
    return {
        "command": command.name,
        "cold_s": round(cold_s, 3),
        "warm_s": round(warm_s, 3),
        "cpu_s": round(cpu_s, 3),
        "goal_s": command.goal_s,
        "ratio": round(warm_s / empty_s, 1),
        "status": next((each for each in statuses if each != command.status), command.status),
        "expected_status": command.status,
    }


def _run(words: Sequence[str]) -> tuple[float, float, int]:
    """Return the seconds of a command, the CPU of all of its processes, and its status."""
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1)
    others = psutil.Process().children()
    began_s, before = time.monotonic(), os.times()
    quiet = subprocess.DEVNULL
    try:
        ended = subprocess.run(words, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet, timeout=_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as problem:
        raise SetupError(f"{' '.join(words)} had not ended after {_WITHIN_S:.0f} s and was killed") from problem
    seconds = time.monotonic() - began_s
    for left in psutil.Process().children():
        if left not in others:  # the JVM, an orphan
            os.waitpid(left.pid, 0)
    after = os.times()
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, used_s, ended.returncode


if __name__ == "__main__":
    sys.exit(main())
