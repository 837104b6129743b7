"""An upgrade and a rollback under load: the previous release, this version, the previous release again, on one checkpoint.

    python -m load.bench.upgrade [--json FILE] [--rate 1000] [--devices 500] [--seconds 20]

The load goes on while one version is stopped and the other one started. This version also changes the number of buckets, because
the release must read such a checkpoint. The command is killed in the middle, and the release finishes it at its start.
When the release has read everything, all values are compared with the oracle. The release must refuse a setting that it does not
have, by name, and leave the checkpoint as it is. Then this version changes the length of a view; the release and this version go
on with that. All values are compared once more. `mismatches` is the sum of both comparisons.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load.demo import SECTIONS, VIEWS
from load.fleet.fleet import Fleet, FleetSettings
from load.instance import Instance
from load.judge.compare import compare
from load.releases import PREVIOUS, RELEASES, extract
from load.report import machine, options, reported
from load.servers.child_process import Child
from load.servers.server_process import PATIENCE, until
from load.testbed import POLL_S, ROOT, TOPIC, Testbed, to_toml
from schemas import contract
from service import settings
from service.errors import SettingsError, SetupError
from service.kafka.offsets import edges_now

FOLDER = ROOT / ".build" / "upgrade"
STARTS_S = 180.0
BUCKETS = 3
CHANGED = "all"
"""The view that gets another length, and so a version."""
NEW = {"final_after": "5 s"}
"""A setting of views that the release does not have."""


@dataclass
class Upgrade:
    """A run. `stages` are the instances that ran, with the batches that each has published."""

    testbed: Testbed
    tree: Path
    seconds: float
    stages: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    compared: list[Mapping[str, int]] = field(default_factory=list)
    _loads: list[Child] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.testbed.folder / "checkpoint"

    def instance(self, tree: Path, config: Path | None = None) -> Instance:
        name = f"{len(self.stages) + len(self.refused)}-{'this' if tree == ROOT else 'previous'}"
        return Instance(self.testbed, name, self.checkpoint, config, tree)

    def runs(self, tree: Path, config: Path | None = None, *, until_end: bool = False) -> None:
        """A version runs for a while under load, or without load until all is published, and is stopped in order."""
        instance, before = self.instance(tree, config), self._batch()
        instance.start()
        try:
            self._wait(instance, lambda: self._batch() > before, "a batch")
            if until_end:
                # Before the load ends: the watermark must pass the windows that the versions begin with.
                self._wait(instance, self._views_are_complete, "the versions of views to be complete")
                self._unload()
                edges = edges_now(settings.load(self.testbed.config).kafka)[TOPIC]
                ends = {str(partition): end for partition, (_, end) in edges.items()}
                self._wait(instance, lambda: self._offsets() == ends, f"progress to be {ends}")
            else:
                since = time.monotonic()
                self._wait(instance, lambda: time.monotonic() - since > self.seconds, "time to pass")
            status = instance.stop()
        finally:
            instance.kill()
        if status:
            raise SetupError(f"{instance.name} ended with status {status}: {instance.last_words()}")
        batches = self._batch() - before
        version = "this" if tree == ROOT else PREVIOUS
        self.stages.append({"version": version, "batches": batches, "views": config.stem if config else "views"})
        print(f"{version}: {batches} batches", flush=True)

    def refuses(self, what: str, config: Path | None, status: int, words: Sequence[str]) -> None:
        """The release must end with this status and these words, and leave the checkpoint as it is."""
        instance, before = self.instance(self.tree, config), self._files()
        instance.start()
        try:
            deadline = time.monotonic() + STARTS_S * PATIENCE
            while instance.is_running and time.monotonic() < deadline:
                time.sleep(POLL_S)
            log, ended_with = instance.log.read_text(errors="replace"), instance.status
            error = log[log.rfind("tidemark: ") :].strip()
        finally:
            instance.kill()
        if ended_with != status or not all(word in error for word in words) or self._files() != before:
            raise SetupError(f"The release does not refuse {what}: status {ended_with}, {error}")
        self.refused[what] = error
        print(f"refused: {' '.join(error.split())}", flush=True)

    def load(self, rate: float) -> None:
        self._loads.append(self.testbed.start_generator(rate, log=f"generator-{len(self.stages)}"))

    def killed(self, point: str, *arguments: str) -> None:
        """Run a command of this version, which is killed at a crash point."""
        command = self.testbed.command(*arguments)
        environ = {**os.environ, "TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": f"{point}:1:kill"}
        done = subprocess.run(command, cwd=ROOT, env=environ, check=False, capture_output=True, text=True)
        if done.returncode != -signal.SIGKILL:
            what = f"tidemark {' '.join(arguments)} ended with status {done.returncode}: {done.stderr[-500:]}"
            raise SetupError(what)
        print(f"{' '.join(arguments)}: killed at {point}", flush=True)

    def judge(self, config: Path) -> int:
        """The number of differences to the oracle, all keys that break the contract included."""
        verdict = compare(config)
        with self.testbed.redis_client() as client:
            broken = contract.check(client, "tidemark")
        for line in [*verdict.examples, *broken][:20]:
            print(f"  {line}", flush=True)
        print(f"compared: {verdict.compared}, mismatches: {verdict.mismatches}", flush=True)
        self.compared.append(verdict.compared)
        return verdict.mismatches + len(broken)

    def config(self, name: str, views: Sequence[Mapping[str, Any]]) -> Path:
        """A file of the testbed's settings with other views."""
        path = self.testbed.folder / f"{name}.toml"
        path.write_text(to_toml({**self.testbed.settings, "views": list(views)}), encoding="utf-8")
        return path

    def close(self) -> None:
        for child in self._loads:
            child.kill()

    def _unload(self) -> None:
        for child in self._loads:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            child.wait(90)
        self._loads.clear()

    def _wait(self, instance: Instance, condition: Callable[[], object], what: str) -> None:
        within_s, of = (STARTS_S + self.seconds) * PATIENCE, f"{what} of {instance.name}"
        until(condition, within_s, of, instance.last_words, goes_on=lambda: instance.is_running, every_s=POLL_S)

    def _batch(self) -> int:
        return int(self.testbed.progress().get("batch", -1))

    def _views_are_complete(self) -> bool:
        with self.testbed.redis_client() as client:
            text: Any = client.get("tidemark:meta")
        return not any(view.get("next") for view in json.loads(text)["views"])

    def _offsets(self) -> Any:
        return self.testbed.progress().get("offsets", {}).get(TOPIC)

    def _files(self) -> dict[str, int]:
        return {
            str(path): path.stat().st_mtime_ns
            for path in self.checkpoint.rglob("*")
            if path.is_file() and path.name.lstrip(".").partition(".")[0] != "starts"
        }


def upgrade(rate: float, devices: int, seconds: float, seed: int) -> Mapping[str, Any]:
    """Run it; the report."""
    tree = extract(PREVIOUS, FOLDER / "previous")
    fleet = Fleet(seed, FleetSettings(devices=devices, rate=rate))
    began = time.monotonic()
    with Testbed(FOLDER / "testbed", fleet, views=VIEWS, sections=SECTIONS) as testbed:
        run = Upgrade(testbed, tree, seconds)
        try:
            run.load(rate)
            run.runs(tree)
            run.runs(ROOT)
            run.killed("reshape_half", "checkpoint", "reshape", "--buckets", str(BUCKETS))
            run.runs(tree, until_end=True)
            mismatches = run.judge(testbed.config)
            settled = run.config("settled", [{**view, **NEW} if view["name"] == CHANGED else view for view in VIEWS])
            run.refuses("a setting that it does not have", settled, SettingsError.status, [*NEW, "unknown key"])
            longer = [{**view, "window": "20 s"} if view["name"] == CHANGED else view for view in VIEWS]
            changed = run.config("changed", longer)
            run.load(rate)
            run.runs(ROOT, changed)
            run.runs(tree, changed)
            run.runs(ROOT, changed, until_end=True)
            mismatches += run.judge(changed)
        finally:
            run.close()
    return {
        "previous": {"version": PREVIOUS, "commit": RELEASES[PREVIOUS]},
        "mismatches": mismatches,
        "compared": run.compared,
        "refused": run.refused,
        "stages": run.stages,
        "rate": rate,
        "devices": devices,
        "seconds": round(time.monotonic() - began),
        "machine": machine(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options("python -m load.bench.upgrade", (__doc__ or "").split("\n")[0])
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--devices", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0, help="that each version runs under load")
    args = parser.parse_args(arguments)
    return reported(
        lambda: upgrade(args.rate, args.devices, args.seconds, args.seed),
        args.json,
        lambda report: report["mismatches"] == 0,
    )


if __name__ == "__main__":
    sys.exit(main())
