"""Reports of the load programs: describe the machine, print the result or the error, keep the report in a file."""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from load.servers.machine import check_machine
from load.testbed import ROOT
from service.errors import TidemarkError

_CPU = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    lines = _CPU.read_text().splitlines() if _CPU.exists() else []
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "cpu": next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor()
        ),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }


def options(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all measurements have."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seed", type=int, default=7, help="of the fleet")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the report")
    return parser


def print_error(error: TidemarkError) -> int:
    """Print why there is no result; return the exit status."""
    print(f"tidemark: {error.code}: {error}", file=sys.stderr)
    return error.status


def stopped() -> int:
    """Print that there is no result; return the exit status."""
    print("stopped; nothing was judged", file=sys.stderr)
    return 130


def judged(find: Callable[[], Iterable[str]], well: str) -> int:
    """Print the problems that are found, `well` without any; return the exit status, an error's own if it ends the search."""
    try:
        problems = list(find())
    except TidemarkError as error:
        return print_error(error)
    print("\n".join(problems) or well)
    return 1 if problems else 0


def reported(
    measure: Callable[[], Mapping[str, Any]],
    file: Path | None,
    passes: Callable[[Mapping[str, Any]], bool] = lambda _report: True,
) -> int:
    """Measure, print the report as JSON and keep it in `file`. SIGTERM ends it in order, as Ctrl-C does.

    The exit status: 0, 1 when the report does not pass, an error's own when nothing could be measured, 130 when it was stopped.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check_machine(folder=ROOT)
        report = measure()
    except TidemarkError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return stopped()
    text = json.dumps(report, indent=2)
    if file:
        file.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if passes(report) else 1
