"""A part of the benchmark in a process of its own, with a JVM of its own."""

import json
import os
import sys
from pathlib import Path

from load.bench.references import REPORT
from load.servers.child_process import spawn
from load.testbed import ROOT
from service.errors import TidemarkError


def figures_of(module: str, folder: Path) -> dict[str, float]:
    """Run a module with a folder as its argument, and return the figures that it reports. Raises TidemarkError."""
    log = folder / f"{module}.log"
    environ = {**os.environ, "SPARK_LOCAL_DIRS": str(folder)}
    status = spawn([sys.executable, "-m", module, str(folder)], cwd=ROOT, log=log, environ=environ).wait(600)
    lines = [line for line in log.read_text().splitlines() if line.startswith(REPORT)]
    if status or not lines:
        message = f"{module} could not be measured (status {status}); see {log}"
        raise TidemarkError(message)
    figures: dict[str, float] = json.loads(lines[-1].removeprefix(REPORT))
    return figures
