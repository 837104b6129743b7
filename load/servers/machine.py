"""The machine that parts run on: its Java, the jars, and what it lacks for them."""

import shutil
import subprocess
from pathlib import Path

from service.errors import SetupError
from service.spark import jars, java
from service.spark.places import ROOT

_FREE_BYTES = 2 << 30


def check_machine(folder: Path = ROOT) -> None:
    """Raise one SetupError naming everything this machine lacks for the parts and Spark; `folder` needs disk space."""
    problems: list[str] = []
    try:
        program = java.supported()
        modules = subprocess.run([program, "--list-modules"], capture_output=True, text=True, check=False).stdout
        if "jdk.incubator.vector" not in modules:
            problems.append("Java lacks the module jdk.incubator.vector: install a full JDK 17, not a cut-down one")
    except SetupError as problem:
        problems.append(f"{problem.what}: {problem.remedy}")
    for group in jars.GROUPS:
        try:
            jars.complete(group)
        except SetupError as problem:
            problems.append(f"{problem.what}: {problem.remedy}")
    free = shutil.disk_usage(folder).free
    if free < _FREE_BYTES:
        problems.append(f"{free >> 20} MiB free in {folder}, {_FREE_BYTES >> 20} are needed: make room")
    if problems:
        raise SetupError("This machine is not ready: " + "; ".join(problems))
