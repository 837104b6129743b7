"""How long the service is away after kill -9 of its driver, on a standalone cluster that starts it again.

    python -m load.bench.restart [--json FILE] [--kills 10] [--devices 10000] [--million 1000000] [--executors 5]

From the kill to the first batch under a new epoch in Redis, while readings flow: the median over `--kills` with `--devices`
devices, and one kill with `--million` devices in the state, each of which has an open session. The service is submitted as
docs/operator/supervise.md advises for one host: the driver does its tasks itself. `--executors` kills follow of one that has
executors.
Every run is written with its steps, in seconds after the kill: `jvm` and `python` are processes that started, `epoch` the new
term, `executor` a process, `query` the stream that runs.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.report import machine, options, reported
from load.servers.spark_cluster import TASKS_IN_DRIVER
from load.testbed import ROOT, TOPIC, VIEWS, Testbed
from service.errors import SetupError

FOLDER = ROOT / ".build" / "restart"
RATE = 1_000.0
SETTLE_S = 5.0
"""Between a first batch and the next kill."""
FILL_S = 600.0
AWAY_S = 180.0
STEADY_S = 20.0
POLL_S = 0.1
ASK_S = 0.5
LONG_SESSIONS = {"gap": "2 h", "max_duration": "1 d"}
"""With so many devices at RATE, each reports every six minutes to every hour and a half: no session closes by itself."""


@dataclass(frozen=True)
class Restart:
    """One kill: seconds from it to the first new batch, and to the steps on the way."""

    seconds: float
    steps: Mapping[str, float]
    batch: int


def restart(testbed: Testbed) -> Restart:
    """Kill the driver and wait for the first batch of the next one.

    Who waits must not take the cores from what starts: nothing is asked whose answer is known, metrics least often.
    """
    before = int(testbed.progress()["epoch"])
    old = _processes(testbed)
    killed = time.time()
    testbed.kill_driver()
    steps: dict[str, float] = {}
    last_scrape_s = 0.0
    while int((progress := testbed.progress())["epoch"]) == before:
        now = time.time()
        if now - killed > AWAY_S:
            what = f"No new batch within {AWAY_S:.0f} s; the last lines of {testbed.log}:\n{testbed.log_tail()}"
            raise SetupError(what)
        if not steps.keys() >= old.keys():
            for name, process in _processes(testbed).items():
                if process not in old.values():
                    steps.setdefault(name, round(_started(process) - killed, 2))
        if "epoch" not in steps:
            with testbed.redis.client() as client:
                if int(client.get("tidemark:epoch") or 0) > before:
                    steps["epoch"] = round(now - killed, 2)
        elif "query" not in steps and now - last_scrape_s > ASK_S:
            last_scrape_s = now
            if testbed.metrics().get("tidemark_query_running"):
                steps["query"] = round(now - killed, 2)
        time.sleep(POLL_S)
    return Restart(round(time.time() - killed, 2), steps, int(progress["batch"]))


def _started(process: psutil.Process) -> float:
    """When, as `time.time()`: psutil's own answer rests on a boot time in whole seconds."""
    since_boot = process.create_time() - psutil.boot_time()
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def _processes(testbed: Testbed) -> dict[str, psutil.Process]:
    processes = dict(zip(("jvm", "python"), testbed.cluster.driver_processes(), strict=False))
    for executor in testbed.cluster.executor_pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            processes["executor"] = psutil.Process(executor)
    return processes


def _stage(fleet: Fleet, sections: Mapping[str, Mapping[str, Any]], submit_options: Sequence[str]) -> Testbed:
    """Its broker is there for the readings alone: it need not take the cores' time for compiling itself."""
    testbed = Testbed(FOLDER, fleet, views=VIEWS, sections=sections, supervised=True, submit_options=submit_options)
    testbed.broker.jvm_options = ["-XX:TieredStopAtLevel=1"]
    return testbed


def in_a_row(devices: int, kills: int, seed: int, submit_options: Sequence[str] = TASKS_IN_DRIVER) -> list[Restart]:
    """`kills` in a row under a steady load of `devices`."""
    fleet = Fleet(seed, FleetSettings(devices=devices, rate=RATE, shares={}))
    with _stage(fleet, {}, submit_options) as testbed:
        testbed.start_service()
        load = testbed.start_generator(RATE)
        try:
            testbed.wait_ready()
            runs = []
            for number in range(kills):
                time.sleep(SETTLE_S)
                runs.append(restart(testbed))
                print(f"kill {number + 1}: {runs[-1].seconds} s {dict(runs[-1].steps)}", flush=True)
            testbed.stop_service()
        finally:
            load.kill()
            load.wait()
    return runs


def million(devices: int, seed: int, buckets: int) -> tuple[Restart, dict[str, float]]:
    """One kill with `devices` in the state, all with an open session, when what filled it has been worked off: the windows
    that it opened are final. Also what filling took, and how long a batch with load takes then.
    """
    fleet = Fleet(seed, FleetSettings(devices=devices, rate=RATE, shares={}))
    with _stage(fleet, {"sessions": {**LONG_SESSIONS, "buckets": buckets}}, TASKS_IN_DRIVER) as testbed:
        generator = Generator(testbed.broker.bootstrap, TOPIC, fleet)
        sent = generator.once()
        began = time.time()
        testbed.start_service()
        known = 'tidemark_published_total{kind="devices"}'
        testbed.wait(lambda: testbed.metrics().get(known, 0) >= devices, FILL_S, f"{devices:,} devices to be published")
        figures = {"devices": float(sent.sent), "fill_s": round(time.time() - began, 1)}
        print(f"filled: {figures}", flush=True)
        with testbed.redis.client() as client:
            ends: Any = client.get("tidemark:ends")
        ends_ms = int(ends)
        load = testbed.start_generator(RATE)
        try:
            testbed.wait(lambda: int(testbed.progress().get("final", 0)) >= ends_ms, FILL_S, "all windows to be final")
            time.sleep(STEADY_S)
            before = testbed.metrics()
            time.sleep(STEADY_S)
            batches = testbed.metrics()["tidemark_batch"] - before["tidemark_batch"]
            figures["batch_s"] = round(STEADY_S / max(batches, 1), 2)
            run = restart(testbed)
            print(f"kill with {devices:,} devices: {run.seconds} s {dict(run.steps)}, {figures}", flush=True)
            testbed.stop_service()
        finally:
            load.kill()
            load.wait()
    return run, figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON."""
    parser = options("make restart", "How long a restart takes.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--million", type=int, default=1_000_000, help="devices in the state of the last kill; 0: none")
    parser.add_argument("--buckets", type=int, default=2, help="sessions.buckets of that one")
    parser.add_argument("--executors", type=int, default=5, help="kills of a service whose tasks executors do; 0: none")
    args = parser.parse_args(argv)
    return reported(lambda: measure(args), args.json)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The kills in a row, then the one with many devices."""
    report: dict[str, Any] = {"machine": machine(), "kills": args.kills, "devices": args.devices, "seed": args.seed}
    if args.kills:
        runs = in_a_row(args.devices, args.kills, args.seed)
        report["median_s"] = statistics.median(run.seconds for run in runs)
        report["runs"] = [asdict(run) for run in runs]
    if args.million:
        run, figures = million(args.million, args.seed, args.buckets)
        report["million_devices_s"] = run.seconds
        report["million"] = {**figures, **asdict(run)}
    if args.executors:
        runs = in_a_row(args.devices, args.executors, args.seed, submit_options=())
        report["executors"] = {"median_s": statistics.median(run.seconds for run in runs), "runs": [*map(asdict, runs)]}
    return report


if __name__ == "__main__":
    sys.exit(main())
