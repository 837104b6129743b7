"""rebuild: a new checkpoint is made beside the service under load, with kills; the service goes on from it, and back."""

import os
import sys
import time
from pathlib import Path

from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.servers.child_process import Child, spawn
from load.testbed import ROOT
from service.errors import SetupError

BESIDE = ("rebuild_begun", "rebuild_compared")
"""Crash points of the command while the service runs."""
BETWEEN = ("rebuild_leased", "rebuild_marked", "rebuild_switched")
"""Crash points while the service is stopped."""
STOP = "stop the service now"
RATE = 20_000
DONE_S = 240.0


class Command:
    """A run of `tidemark rebuild` beside the testbed's service."""

    def __init__(self, run: Run, name: str, *options: str, point: str = "") -> None:
        self.log = run.folder / f"rebuild-{name}.log"
        temporary = str(run.folder / "tmp")
        environ = {**os.environ, "TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary, "SPARK_LOCAL_IP": "127.0.0.1"}
        if point:
            environ |= {"TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": f"{point}:1:kill"}
        command = [sys.executable, "-m", "service.cli", "rebuild", "--config", str(run.testbed.config), *options]
        self._run = run
        self._child: Child = run.child(spawn(command, cwd=ROOT, log=self.log, environ=environ))

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def says(self, words: str) -> None:
        """Wait until it says the words; SetupError if it ends before."""

        def has_said() -> bool:
            if words in self.text:
                return True
            if self._child.poll() is not None:
                what = f"the rebuild ended with status {self._child.returncode} before {words!r}:\n{self.text[-2000:]}"
                raise SetupError(what)
            return False

        self._run.until(has_said, DONE_S, f"the rebuild to say {words!r}")

    def ends(self) -> int:
        """Wait for its end; the exit status, negative if it was killed."""
        self._run.until(lambda: self._child.poll() is not None, DONE_S, "the rebuild to end")
        return int(self._child.returncode)


@row(
    "rebuild",
    "a new checkpoint is made beside the service under load, with kills, and the service goes on from it",
    rate=1_000,
    devices=300,
)
def rebuilt(run: Run) -> Figures:
    """The command dies at each step, and the driver while it runs; with --times 2 also back, and a switch; short: two steps."""
    run.start()
    run.load()
    run.steady()
    beside, between = (BESIDE[-1:], BETWEEN[-1:]) if run.short else (BESIDE, BETWEEN)
    for point in beside:
        command = Command(run, point, "--switch", "--rate", str(RATE), point=point)
        if point == "rebuild_compared":
            run.run_on(run.nemesis.between(5.0, 20.0))
            run.kill_driver(run.nemesis.pick((0, 1)))
        _require_killed(run, point, command.ends())
    run.recover()
    pauses_s, switch_s = [_switch(run, point)[0] for point in between], None
    for _ in range(run.times(1, short=1) - 1):
        run.stop()
        with run.fault("back to the former checkpoint", restarts=True):
            _require_done(run, "--undo", Command(run, "undo", "--undo").ends())
            run.note("rebuild")
            run.note("republish")
            run.start()
        run.recover()
        pause_s, switch_s = _switch(run, "")
        pauses_s.append(pause_s)
    _require_done(run, "--forget", Command(run, "forget", "--forget").ends())
    left = [
        str(path)
        for path in (run.folder / "checkpoint.rebuild", run.folder / "checkpoint/rebuild.json")
        if path.exists()
    ]
    with run.testbed.redis_client() as client:
        left += list(client.scan_iter("tidemark.rebuild:*", count=1_000))
    if left:
        run.violation("forget", f"--forget leaves {left[:3]}")
    run.drain()
    run.stop()
    run.compare()
    return {"crash_points": len(beside) + len(between), "pauses_s": pauses_s, "switch_s": switch_s}


def _switch(run: Run, point: str) -> tuple[float, float]:
    """Switch, with a crash of the command at a point if one is given.

    Return how long nothing was published after the service's end, and how much of that the command took; in seconds.
    """
    name = point or "switch"
    command = Command(run, name, "--switch", "--rate", str(RATE), point=point)
    command.says(STOP)
    run.run_on(run.nemesis.between(0.0, 3.0))
    with run.fault(f"switch {name}", restarts=True):
        run.stop()
        began, epoch = time.monotonic(), run.observer.epoch
        if point in {"", "rebuild_switched"}:
            run.note("rebuild")
        if point != "rebuild_leased":
            run.note("republish")
        if point:
            _require_killed(run, point, command.ends())
            switch_s = time.monotonic() - began
            run.start(wait=False)
        else:
            run.start(wait=False)  # it waits for the lease
            _require_done(run, "--switch", command.ends())
            switch_s = time.monotonic() - began
        run.until(lambda: run.observer.progress[0] > epoch, STARTS_S, "the first batch after the switch")
        pause_s = round(time.monotonic() - began, 1)
    run.recover()
    is_switched = Path(run.folder / "checkpoint/rebuild.json").exists()
    if is_switched != (point in {"", "rebuild_switched"}):
        run.violation("switch", f"after {name} the service has the {'new' if is_switched else 'former'} checkpoint")
    return pause_s, round(switch_s, 1)


def _require_killed(run: Run, point: str, status: int) -> None:
    if status != -9:
        run.violation("observed", f"the rebuild was to be killed at {point}, and ended with status {status}")


def _require_done(run: Run, option: str, status: int) -> None:
    if status:
        run.violation("rebuild", f"tidemark rebuild {option} ended with status {status}")
