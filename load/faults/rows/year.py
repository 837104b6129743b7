"""year: what an hour does not bring: a newer Redis on the same data, a broker with other settings, a full disk, rotated logs.

Passwords and certificates are in the row `secrets`, what grows is in `soak` and `batches`, clocks that change are in
tests/transcripts/calendar.yaml.
"""

import contextlib
import os
import shutil
import time

from load.faults.by_hand import Refusal, small_disk, start_again
from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.servers.packages import newer_redis

DISK = "96m"
_BLOCK = bytes(1 << 16)
_SETUP = 10
LINE_S = 90.0
"""The service logs a line each minute."""


@row(
    "year",
    "a newer Redis, a broker with other settings, a full disk that gets room, rotated logs",
    rate=100,
    devices=200,
    testbed={"redis": {"appendonly": "yes"}},
)
def year(run: Run) -> Figures:
    """The same when short."""
    with small_disk(run, run.testbed.folder / "checkpoint", DISK) as has_disk:
        run.start()
        run.load()
        run.steady()
        figures: Figures = {"redis": _newer_redis(run), "broker": _other_broker(run)}
        figures["full disk"] = _full(run) if has_disk else "mounting is not allowed here"
        figures["log"] = {"copied and truncated": _truncated(run), "moved away": _moved(run)}
        run.drain()
        run.stop()
        run.compare()
    return figures


def _newer_redis(run: Run) -> Figures:
    """Redis stops in order, and a newer one takes its data; without a newer one the same, with other settings."""
    redis = run.testbed.redis
    with run.fault("Redis replaced"):
        former = _version(run)
        redis.stop()
        redis.program = newer_redis() or ""
        redis.settings["hz"] = "20"
        redis.start()
    began = time.monotonic()
    run.recover()
    return {"from": former, "to": _version(run), "seconds": round(time.monotonic() - began, 1)}


def _version(run: Run) -> str:
    with run.testbed.redis_client() as client:
        known = client.info("server")
    return str(known.get("valkey_version") or known["redis_version"])


def _other_broker(run: Run) -> float:
    """There is one version of Kafka among the jars: its data, with another heap and collector."""
    broker = run.testbed.broker
    with run.fault("broker replaced"):
        broker.stop()
        broker.jvm_options = ("-XX:+UseParallelGC", "-XX:-UseSerialGC")
        broker.start()
    began = time.monotonic()
    run.recover()
    return round(time.monotonic() - began, 1)


def _full(run: Run) -> Figures:
    """The checkpoint's disk is full: the service ends by name. With room again its supervisor starts it, and it goes on."""
    ballast = run.testbed.folder / "checkpoint" / "ballast"
    with run.fault("disk full", restarts=True):
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(_BLOCK):
                pass
        run.until(lambda: run.testbed.exit_status is not None, STARTS_S, "the service to end")
        refusal = Refusal.of(run)
        if refusal.status != _SETUP or "No space left" not in refusal.text:
            run.violation("year", f"on a full disk the service ended with {refusal}")
        ballast.unlink()
        run.start_again()
        starts = start_again(run)
    began = time.monotonic()
    run.recover()
    return {"said": str(refusal), "starts": starts + 1, "seconds": round(time.monotonic() - began, 1)}


def _truncated(run: Run) -> str:
    """As logrotate does with `copytruncate`: the process goes on at the begin of the file, without a hole of zeros."""
    log = run.testbed.log
    shutil.copyfile(log, log.with_name("service.log.2"))
    os.truncate(log, 0)
    run.wait(lambda: log.stat().st_size, LINE_S, "a line after the truncation")
    if b"\0" in log.read_bytes():
        run.violation("year", "the truncated log has a hole: it was not opened for appending")
    return "goes on in the file"


def _moved(run: Run) -> str:
    """As logrotate does without it: the process writes on into the moved file, also when that is removed."""
    log = run.testbed.log
    moved = log.rename(log.with_name("service.log.1"))
    log.touch()
    size = moved.stat().st_size
    run.wait(lambda: moved.stat().st_size > size, LINE_S, "a line in the moved file")
    batch = run.observer.progress[1]
    moved.unlink()
    run.steady()
    is_new = log.stat().st_size > 0
    return f"goes on in the {'new' if is_new else 'moved'} file; {run.observer.progress[1] - batch} batches after its removal"
