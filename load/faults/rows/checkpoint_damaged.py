"""F9: the checkpoint is damaged, its disk is full, or all of it is gone.

The service is killed, a file is damaged, and the service is started: it must refuse with the file's name and the way on,
or go on correctly, which the oracle judges in the end. A refusal is followed by what its message asks for.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from load.faults.by_hand import Refusal, fill_disk, small_disk, start_damaged
from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from service.errors import SetupError
from service.spark.files import Local
from service.spark.internals import commit_log, state_files

CHECKPOINT_STATUS, SETUP_STATUS = 8, 10
PAGE = "docs/operator/procedures.md"
"""Where a refusal must send its reader."""
DISK = "512m"
SOME_BATCHES = 3
"""Between two damages; the lag has to be back after the last of them."""

Damage = Callable[[Run, Path], None]


@row("F9", "the checkpoint is damaged", rate=400, devices=400)
def checkpoint_damaged(run: Run) -> Figures:
    """Short: a truncated offset file, and all of it gone."""
    outcomes: dict[str, str] = {}
    with small_disk(run, _folder(run), DISK) as is_small:
        run.begin()
        outcomes["offset file truncated"] = _damaged(run, "offset file truncated", _newest_offsets, _truncate)
        if not run.short:
            outcomes["offset file, a bit flipped"] = _damaged(run, "a bit of offsets", _newest_offsets, _flip)
            outcomes["changelog, a bit flipped"] = _damaged(run, "a bit of state", _needed_changelog, _flip)
            outcomes["changelog deleted"] = _damaged(run, "changelog deleted", _needed_changelog, _delete)
            outcomes["disk full"] = _full(run) if is_small else "not tried: to mount a small disk needs root"
        outcomes["all deleted"] = _all_deleted(run)
        run.drain()
        run.stop()
        run.compare()
    return {"outcomes": outcomes}


def _folder(run: Run) -> Path:
    return run.testbed.folder / "checkpoint"


def _damaged(run: Run, name: str, choose: Callable[[Run], Path], damage: Damage) -> str:
    """Kill, damage a file, start; a refusal is answered by putting the file back."""
    run.testbed.kill_service()
    file = choose(run)
    shown = str(file.relative_to(_folder(run)))
    content = file.read_bytes()
    with run.fault(name, restarts=True, file=shown):
        damage(run, file)
        refusal = start_damaged(run)
        if refusal is not None:
            _judge(run, name, refusal, CHECKPOINT_STATUS, shown)
            file.write_bytes(content)
            run.start()
    run.steady(SOME_BATCHES)
    return f"{shown}: {'went on' if refusal is None else refusal}"


def _judge(run: Run, name: str, refusal: Refusal, status: int, *words: str) -> None:
    missing = [each for each in (*words, PAGE) if each not in refusal.text]
    if refusal.status != status or missing:
        run.violation("refusal", f"{name}: status {refusal.status} (not {status}?), it lacks {missing}: {refusal.text}")


def _newest_offsets(run: Run) -> Path:
    return max((_folder(run) / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))


def _needed_changelog(run: Run) -> Path:
    """One that the next batch needs: what the last committed batch left of a store's state."""
    mine = Local(_folder(run))
    committed = commit_log.numbers(mine)[-1]
    attempts = commit_log.attempts(mine, committed)
    files = [state_files.changelog(store, committed, attempt) for store, attempt in attempts.items()]
    return run.nemesis.pick([_folder(run) / name for name in files])


def _truncate(_run: Run, file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _flip(run: Run, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[int(run.nemesis.between(0, len(content)))] ^= 1 << int(run.nemesis.between(0, 8))
    file.write_bytes(content)


def _delete(_run: Run, file: Path) -> None:
    file.unlink()


def _full(run: Run) -> str:
    """Fill the disk under a service that runs; when it has ended, make room and start it."""
    outcome = "went on when there was room"
    with run.fault("disk full", restarts=True):
        ballast = fill_disk(_folder(run))
        with contextlib.suppress(SetupError):
            run.until(lambda: run.testbed.exit_status is not None, STARTS_S, "the service to end")
        if run.testbed.exit_status is not None:
            refusal = Refusal.of(run)
            outcome = str(refusal)
            _judge(run, "disk full", refusal, SETUP_STATUS)
        ballast.unlink()
        run.start_again()
    run.steady(SOME_BATCHES)
    return outcome


def _all_deleted(run: Run) -> str:
    """The service reads the topic again from its beginning, as the runbook's rebuild does."""
    run.testbed.kill_service()
    run.note("rebuild")
    with run.fault("checkpoint deleted", restarts=True):
        for path in _folder(run).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        refusal = start_damaged(run)
        if refusal is not None:
            run.violation("refusal", f"checkpoint deleted: all of the topic is there, and the service said {refusal}")
            return str(refusal)
    run.recover()
    return "read the topic again from its beginning"
