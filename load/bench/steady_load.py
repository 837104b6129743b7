"""A generator at a constant rate, in a process of its own."""

import sys

from load.servers.child_process import Child, spawn
from load.testbed import ROOT, TOPIC, Testbed


def steady_load(
    testbed: Testbed, devices: int, rate: float, seed: int, seconds: float | None = None, *, name: str = "generator"
) -> Child:
    """Start to send readings; without `seconds` until the process is ended. `name` is that of its log."""
    command = [sys.executable, "-m", "load.fleet.generator", "--bootstrap", testbed.broker.bootstrap, "--topic", TOPIC]
    command += ["--rate", str(rate), "--devices", str(devices), "--seed", str(seed), "--outsiders", "off"]
    command += [] if seconds is None else ["--for", f"{seconds}s"]
    return spawn(command, cwd=ROOT, log=testbed.folder / f"{name}.log")
