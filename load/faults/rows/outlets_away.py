"""outlets: a topic, a table and files keep what is final, while the driver dies, the database is away and a disk is full.

Each outlet is compared with the oracle at the end: nothing may be missing, there twice, or different.
"""

from collections.abc import Callable
from pathlib import Path

import psycopg

from load.faults.by_hand import fill_disk, small_disk
from load.faults.row import row
from load.faults.rows.driver_killed import crash_points
from load.faults.run import STARTS_S, Figures, Run
from load.servers.postgres import Postgres
from load.testbed import by_label

POINTS = ("finals_stored", "half_delivered", "outlets_written", "after_publish_before_commit")
CELLS = tuple((name, "kill") for name in POINTS)
NTH = 2
"""Finals come every ten seconds: a point fires at the second batch that has some."""
KILLS, MEAN_S = 6, 15.0
AWAY_S = 25.0
DISK = "4m"
DIFFERENCES = ("missing", "duplicates", "differences")


@row(
    "outlets",
    "three outlets keep what is final through ten kills, two outages of a database and a full disk",
    rate=500,
    devices=300,
)
def outlets_away(run: Run) -> Figures:
    """Short: two crash points, one kill, one outage, and the full disk."""
    database = run.part(Postgres(run.folder / "postgres"))
    with small_disk(run, _disk(run), DISK) as has_disk:
        add_outlets(run, database, _disk(run) / "files")
        cells = run.nemesis.shuffled(CELLS)[: 2 if run.short else None]
        crash_points(run, NTH, NTH, cells)
        kills = run.times(KILLS, short=1)
        for pause in run.nemesis.pauses(kills, MEAN_S):
            run.run_on(pause)
            run.kill_driver(run.nemesis.pick((0, 1)))
        run.recover()
        _away(run, database, "killed")
        if not run.short:
            _away(run, database, "hung")
        if has_disk:
            _full(run)
        run.drain()
        outlets_caught_up(run)
        written = sum(_by_outlet(run, "rows_total").values())
        run.stop()
        verdict = run.compare()
    found = {name: verdict.kinds[f"outlet.{name}"] for name in DIFFERENCES}
    compared = {name: count for name, count in verdict.compared.items() if name.startswith("outlet ")}
    if len(compared) < 4 or not all(compared.values()):
        run.violation("observed", f"the oracle compared {compared}")
    return {"kills": len(cells) + kills, "has_disk": has_disk, "rows_since_last_kill": written, **found, **compared}


def add_outlets(run: Run, database: Postgres, files: Path) -> None:
    """Give the service that is not started yet a topic, two tables, and files in the folder `files` as outlets."""
    common = {"retry_for": "2 s"}
    login = {"url": database.jdbc_url, "user": database.user, "password": database.password, "timeout": "3 s"}
    run.testbed.settings["outlets"] = [
        {"name": "topic", "kind": "kafka", "topic": "finals", "format": "json", **common},
        {"name": "history", "kind": "jdbc", "table": "windows", **login, **common},
        {"name": "sessions", "kind": "jdbc", "table": "sessions", "sessions": True, **login, **common},
        {"name": "states", "kind": "kafka", "topic": "states", "format": "json", "states": True, **common},
        {"name": "files", "kind": "parquet", "path": str(files), "compact_after": 10, **common},
    ]
    run.testbed.write_settings()


def _away(run: Run, database: Postgres, how: str) -> None:
    """The database is gone, or does not answer; batches go on, and the outlets catch up when it is back."""
    with run.fault(f"database {how}"):
        undo = _take_away(database, how)
        run.wait(lambda: _by_outlet(run, "behind").get("history"), AWAY_S * 4, "the outlet to fall behind")
        batch = run.observer.progress[1]
        run.run_on(AWAY_S)
        if run.observer.progress[1] <= batch:
            run.violation("outlets", f"no batch was published while the database was {how}")
        undo()
    outlets_caught_up(run)
    run.recover()


def _take_away(database: Postgres, how: str) -> Callable[[], object]:
    """Kill the database, or lock the tables, so that no statement on them ends. Returns what undoes it."""
    if how == "killed":
        database.kill()
        return database.start
    locked = psycopg.connect(database.dsn)
    locked.execute("lock table windows, sessions in access exclusive mode")
    return locked.close


def _full(run: Run) -> None:
    """The disk of the files is full, and has room again."""
    with run.fault("disk of the files full"):
        ballast = fill_disk(_disk(run))
        run.wait(lambda: _by_outlet(run, "behind").get("files"), AWAY_S * 4, "the files to fall behind")
        run.run_on(AWAY_S / 2)
        ballast.unlink()
    outlets_caught_up(run)
    run.recover()


def outlets_caught_up(run: Run) -> None:
    """Wait until no outlet has batches to write."""

    def are_level() -> bool:
        pending = _by_outlet(run, "pending_batches")
        return bool(pending) and not any(pending.values())

    run.wait(are_level, STARTS_S, "the outlets")


def _by_outlet(run: Run, name: str) -> dict[str, float]:
    return by_label(run.testbed.metrics(), f"tidemark_outlet_{name}")


def _disk(run: Run) -> Path:
    return run.folder / "disk"
