"""F6: the reference's database is away, hangs, is slow, refuses, or says what must not be believed.

A real PostgreSQL, asked every two seconds; what it says of the types of devices limits ranges, gaps and intervals.
Whatever is wrong with it, no batch may fail or wait: the last good snapshot
serves on, its age grows, and the reason is counted by its name. The last fault outlasts `max_age`: then, and only then, the
service ends.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

import psycopg

from load.faults.by_hand import Refusal
from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.fleet.postgres import write_reference_postgres
from load.servers.postgres import Postgres

REFRESH_S = 2.0
FAULT_S = 6.0
"""How long each fault lasts: some refreshes."""
DOWN_AT_START_S = 4.0
MAX_AGE_S = 12
TYPES = (
    ("thermostat", None, "3 s", None, None),
    ("meter", "6 s", "2500", None, None),
    ("pump", "20 s", "5 s", -10, 50),
    ("freezer", None, None, None, -18.9),
    ("weather", "1 m", "2 s", None, None),
)
"""Type, session gap, expected interval, lowest and highest temperature; a fleet's silences last 16 s."""

_STATUS = 4

_REASONS = {
    "down": "unreachable",
    "hung": "timeout",
    "slow": "timeout",
    "wrong password": "refused",
    "bad rows": "invalid",
    "half the rows gone": "invalid",
}


@row("F6", "the reference's database is away", rate=1_000, devices=1_000)
def reference_away(run: Run) -> Figures:
    """Short: down at the first start, a wrong password, half the rows gone, down at a restart."""
    database = run.part(Postgres(run.folder / "postgres"))
    write_reference_postgres(database.dsn, run.testbed.fleet)
    database.execute(
        "create table types (type text primary key, gap text, every text, lowest numeric, highest numeric)"
    )
    database.execute("insert into types values (%s, %s, %s, %s, %s)", TYPES)
    run.testbed.settings["reference"] |= {
        "url": database.jdbc_url,
        "user": database.user,
        "password": database.password,
        "refresh": f"{REFRESH_S} s",
        "timeout": "1 s",
        "query": "select d.*, gap, every, lowest, highest from devices d join types using (type)",
        "session_gap": "gap",
        "expected_interval": "every",
        "ranges": {"temperature": ["lowest", "highest"]},
    }
    run.testbed.write_settings()
    failed = _down_at_first_start(run, database)
    run.load()
    run.steady()
    chosen = ("wrong password", "half the rows gone") if run.short else _REASONS
    troubles = {name: _trouble(run, database, name) for name in chosen}
    failed += run.restarts()
    restart = _down_at_restart(run, database)
    failed += run.restarts()
    too_old = {} if run.short else _too_old(run, database)
    if failed:
        run.violation("F6", f"{failed} batches failed")
    return {"failed_batches": failed, "troubles": troubles, "restart": restart, "too_old": too_old}


def _down_at_first_start(run: Run, database: Postgres) -> int:
    """Nothing is kept yet: the service waits for the database and says so."""
    database.kill()
    run.start(wait=False)
    run.until(lambda: "REFERENCE" in run.testbed.get("/readyz")[1], STARTS_S, "the service to miss the database")
    run.run_on(DOWN_AT_START_S)
    database.start()
    run.wait(lambda: run.testbed.metrics().get("tidemark_query_running"), STARTS_S, "the query to start")
    # Its attempts before there was a query are counted, too, and are no batches.
    return -run.restarts()


def _trouble(run: Run, database: Postgres, name: str) -> Figures:
    """One fault: what is counted meanwhile, and how the batches go on."""
    reason = f'tidemark_reference_failures_total{{reason="{_REASONS[name]}"}}'
    before, batch = run.testbed.metrics(), run.observer.progress[1]
    began, version = time.monotonic(), run.testbed.progress()["reference"]
    with run.fault(f"reference: {name}"), _happening(run, database, name):
        run.wait(lambda: run.testbed.metrics().get(reason, 0.0) > before.get(reason, 0.0), 30.0, f"a failure: {name}")
        run.run_on(FAULT_S, began)
        during, ready = run.testbed.metrics(), run.testbed.get("/readyz")
        batches = run.observer.progress[1] - batch
        seconds = time.monotonic() - began
    if ready[0] != 200 or "last good snapshot serves on" not in ready[1]:
        run.violation("F6", f"{name}: /readyz is {ready}")
    if not during["tidemark_reference_kept"] or during["tidemark_reference_age_seconds"] < FAULT_S / 2:
        run.violation(
            "F6", f"{name}: the age is {during['tidemark_reference_age_seconds']} s and nothing is said of it"
        )
    if batches < 1 or run.testbed.progress()["reference"] != version:
        run.violation(
            "F6", f"{name}: {batches} batches in {seconds:.1f} s, reference {run.testbed.progress()['reference']}"
        )
    run.wait(lambda: run.testbed.metrics().get("tidemark_reference_kept") == 0, 30.0, f"the reference after: {name}")
    run.recover()
    return {
        "failures": during[reason] - before.get(reason, 0.0),
        "age_s": round(during["tidemark_reference_age_seconds"], 1),
        "batches": batches,
        "seconds": round(seconds, 1),
    }


@contextlib.contextmanager
def _happening(run: Run, database: Postgres, name: str) -> Iterator[None]:
    """The fault, and what undoes it."""
    undo: Callable[[], object]
    with contextlib.ExitStack() as stack:
        if name == "down":
            database.kill()
            undo = database.start
        elif name == "hung":
            database.pause()
            undo = database.resume
        elif name == "slow":
            locked = stack.enter_context(psycopg.connect(database.dsn))
            locked.execute("lock table devices in access exclusive mode")
            undo = locked.rollback
        elif name == "wrong password":
            database.execute(f"alter user {database.user} password 'another'")
            undo = _with_password(database)
        elif name == "bad rows":
            database.execute("update devices set site = '?' || site where device_id like '%7'")
            undo = _whole(run, database)
        else:
            database.execute(
                "delete from devices where device_id like '%0' or right(device_id, 1) in ('2','4','6','8')"
            )
            undo = _whole(run, database)
        try:
            yield
        finally:
            undo()


def _with_password(database: Postgres) -> Callable[[], object]:
    """A connection from before the change takes it back."""
    own = psycopg.connect(database.dsn.replace(database.password, "another"), autocommit=True)

    def undo() -> None:
        own.execute(f"alter user {database.user} password '{database.password}'".encode())
        own.close()

    return undo


def _whole(run: Run, database: Postgres) -> Callable[[], object]:
    return lambda: write_reference_postgres(database.dsn, run.testbed.fleet)


def _down_at_restart(run: Run, database: Postgres) -> Figures:
    """Check that the snapshot in the checkpoint serves, and that the service reports it."""
    with run.fault("restart, reference: down", restarts=True):
        run.stop()
        database.kill()
        run.start()
    run.recover()
    readyz = run.testbed.get("/readyz")[1]
    if "last good snapshot serves on" not in readyz or "Going on with the last good snapshot" not in _log(run):
        run.violation("F6", f"the kept snapshot serves in silence: {readyz}")
    database.start()
    run.wait(lambda: run.testbed.metrics().get("tidemark_reference_kept") == 0, 30.0, "the reference after the restart")
    return {"said": readyz.strip()}


def _too_old(run: Run, database: Postgres) -> Figures:
    """Past `max_age` the service ends by name, and goes on when the database is back."""
    run.stop()
    run.start({"TIDEMARK_REFERENCE__MAX_AGE": f"{MAX_AGE_S} s"})
    with run.fault("reference: older than max_age", restarts=True):
        began = time.monotonic()
        database.kill()
        run.until(lambda: run.testbed.exit_status is not None, MAX_AGE_S + 30.0, "the service to end")
        seconds, refusal = round(time.monotonic() - began, 1), Refusal.of(run)
        if refusal.status != _STATUS or "REFERENCE_TOO_OLD" not in refusal.text:
            run.violation("F6", f"past max_age the service ended with {refusal}")
        database.start()
        run.start()
    run.recover()
    return {"max_age_s": MAX_AGE_S, "ended_after_s": seconds, "said": refusal.text}


def _log(run: Run) -> str:
    return run.testbed.log.read_text(errors="replace")
