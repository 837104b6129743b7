"""year: what an hour does not bring: a newer Redis, broker and database with the same data, a full disk, rotated logs.

Passwords and certificates are in the row `secrets`, what grows is in `soak` and `batches`, clocks that change are in
tests/transcripts/calendar.yaml.
"""

import os
import shutil
import time

from load.faults.by_hand import Refusal, fill_disk, small_disk, start_again
from load.faults.row import row
from load.faults.rows.outlets_away import DIFFERENCES, add_outlets, outlets_caught_up
from load.faults.run import STARTS_S, Figures, Run
from load.fleet.postgres import write_reference_postgres
from load.servers.packages import newer_postgres, newer_redis
from load.servers.postgres import Postgres
from service.spark.jars import FORMER_BROKER

DISK = "96m"
_SETUP = 10
LINE_S = 90.0
"""The service logs a line each minute."""


@row(
    "year",
    "a newer Redis, broker and database, a full disk that gets room, rotated logs",
    rate=100,
    devices=200,
    testbed={"redis": {"appendonly": "yes"}, "broker": FORMER_BROKER},
)
def year(run: Run) -> Figures:
    """The same when short."""
    database = run.part(Postgres(run.folder / "postgres"))
    write_reference_postgres(database.dsn, run.testbed.fleet)
    login = {"url": database.jdbc_url, "user": database.user, "password": database.password, "refresh": "2 s"}
    run.testbed.settings["reference"] |= login
    add_outlets(run, database, run.folder / "files")
    with small_disk(run, run.testbed.folder / "checkpoint", DISK) as has_disk:
        run.begin()
        figures: Figures = {"redis": _newer_redis(run), "broker": _newer_broker(run)}
        figures["database"] = _newer_database(run, database)
        figures["full disk"] = _full(run) if has_disk else "mounting is not allowed here"
        figures["log"] = {"copied and truncated": _truncated(run), "moved away": _moved(run)}
        run.drain()
        outlets_caught_up(run)
        run.stop()
        verdict = run.compare()
    return {**figures, **{name: verdict.kinds[f"outlet.{name}"] for name in DIFFERENCES}}


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


def _newer_broker(run: Run) -> Figures:
    """The broker stops in order, and the next minor version goes on with its data, with another collector."""
    broker = run.testbed.broker
    former = broker.version
    with run.fault("broker replaced"):
        broker.stop()
        broker.group = "broker"
        broker.jvm_options = ("-XX:+UseParallelGC", "-XX:-UseSerialGC")
        broker.start()
    began = time.monotonic()
    run.recover()
    return {"from": former, "to": broker.version, "seconds": round(time.monotonic() - began, 1)}


def _newer_database(run: Run, database: Postgres) -> Figures:
    """The database of the reference and of two outlets moves to the next version; without a newer one it starts again."""
    former = database.version
    with run.fault("database replaced"):
        if newer := newer_postgres():
            database.upgrade(newer)
        else:
            database.stop()
            database.start()
    began = time.monotonic()
    outlets_caught_up(run)
    run.recover()
    return {"from": former, "to": database.version, "seconds": round(time.monotonic() - began, 1)}


def _full(run: Run) -> Figures:
    """The checkpoint's disk is full: the service ends by name. With room again its supervisor starts it, and it goes on."""
    with run.fault("disk full", restarts=True):
        ballast = fill_disk(run.testbed.folder / "checkpoint")
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
