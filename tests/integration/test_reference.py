"""Reference data from real databases, on real files, joined by a real running query."""

import logging
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from load.servers.postgres import Postgres
from service import clock
from service.errors import ReferenceDataError, SetupError
from service.reference import database, snapshots
from service.reference.current_snapshot import CurrentSnapshot
from service.reference.database import UnreadableError, fetch
from service.settings import Reference
from service.spark.internals import jvm

pytestmark = [
    pytest.mark.spark,
    # PySpark 4.1.1 leaves the sockets that its results come through to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]
QUERY = "select device_id, type, site, installed from devices"


class Devices:
    """A SQLite file with the demo's table, and settings that read it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "devices.db"
        self.suite = folder / "suite.json"
        self.suite.write_text(
            '{"expectations": [{"type": "expect_column_values_to_match_regex",'
            ' "kwargs": {"column": "site", "regex": "^[a-z]+$"}}]}',
            encoding="utf-8",
        )
        self.execute("create table devices (device_id text, type text, site text, installed date)")

    def execute(self, statement: str, rows: Sequence[Sequence[object]] = ((),)) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.executemany(statement, rows)
        connection.close()

    def hold(self, *rows: Sequence[object]) -> None:
        self.execute("delete from devices")
        self.execute("insert into devices values (?, ?, ?, ?)", rows)

    def settings(self, **changes: Any) -> Reference:
        base = {"url": f"jdbc:sqlite:{self.path}", "query": QUERY, "expectations": self.suite}
        return Reference(**{**base, **changes})


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    made = Devices(tmp_path)
    made.hold(("pump-2", "pump", "leeds", "2025-03-01"), ("meter-1", "meter", None, None))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint" / "reference"


def table(site: str, *ids: str) -> pa.Table:
    return pa.table({"device": list(ids), "site": [site] * len(ids)})


def sites(current_snapshot: CurrentSnapshot, *ids: str) -> list[str | None]:
    """The attribute `site` of these devices, as the tasks of a running query look it up."""
    return current_snapshot.attributes.of(pa.array(ids)).column("site").to_pylist()


# --- fetch ---


def test_every_column_comes_as_text_and_the_key_as_device(spark: SparkSession, devices: Devices) -> None:
    devices.execute("create table odd (serial integer, ratio real, born timestamp, label)")
    devices.execute("insert into odd values (?, ?, ?, ?)", [(7, 1.5, "2025-03-01 10:00", "x"), (8, None, None, "")])
    fetched = fetch(spark, devices.settings(query="select ratio, born, serial, label from odd;", key="serial"))
    assert fetched.schema.remove_metadata() == pa.schema(
        [(n, pa.string()) for n in ("device", "ratio", "born", "label")]
    )
    assert sorted(map(tuple, (row.values() for row in fetched.to_pylist()))) == [
        ("7", "1.5", "2025-03-01 10:00", "x"),
        ("8", None, None, ""),
    ]


@pytest.mark.parametrize(
    ("changes", "reason", "named"),
    [
        ({"query": "select * from absent"}, "refused", "no such table: absent"),
        ({"query": "select 1 fro x"}, "refused", 'near "x": syntax error'),
        ({"url": "jdbc:sqlite:/no/such/folder/x.db"}, "unreachable", "jdbc:sqlite:/no/such/folder/x.db"),
        (
            {"url": "jdbc:postgresql://no-such-host.invalid/fleet"},
            "unreachable",
            "from jdbc:postgresql://no-such-host.invalid/fleet: unknown host no-such-host.invalid",
        ),
        (
            {"url": "jdbc:mysql://host/db?user=me&password=hunter2"},
            "refused",
            "from jdbc:mysql://host/db: No suitable driver",
        ),
        ({"url": "jdbc:mysql://me:hunter2@host/db"}, "refused", "from jdbc:mysql://host/db: No suitable driver"),
    ],
)
def test_a_database_that_does_not_answer_is_quoted(
    spark: SparkSession, devices: Devices, changes: dict[str, str], reason: str, named: str
) -> None:
    with pytest.raises(UnreadableError) as caught:
        fetch(spark, devices.settings(**changes))
    assert named in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert caught.value.reason == reason


def test_a_wrong_path_makes_no_new_file(spark: SparkSession, devices: Devices, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="unable to open database file"):
        fetch(spark, devices.settings(url=f"jdbc:sqlite:{tmp_path}/other.db"))
    assert not (tmp_path / "other.db").exists()


def test_a_query_without_the_named_columns_is_refused(spark: SparkSession, devices: Devices) -> None:
    with pytest.raises(ReferenceDataError, match="key 'serial' is not among them; columns: 'floor' is not among them"):
        fetch(spark, devices.settings(key="serial", columns=("site", "floor")))


def test_a_password_file_that_is_missing_is_named(spark: SparkSession, devices: Devices, tmp_path: Path) -> None:
    with pytest.raises(ReferenceDataError, match=f"{tmp_path}/secret: the reference's password cannot be read"):
        fetch(spark, devices.settings(password_file=tmp_path / "secret"))


# --- store, latest, load ---


def test_a_snapshot_survives_a_restart_and_its_version_is_its_content(folder: Path) -> None:
    before = clock.now_ms()
    first = snapshots.store(folder, table("leeds", "b", "a"))
    again = snapshots.store(folder, table("leeds", "a", "b"))
    latest = snapshots.latest(folder)
    assert latest is not None
    assert latest.table.column("device").to_pylist() == ["a", "b"]
    assert (latest.version, latest.path) == (first.version, folder / f"{first.version}.arrow")
    assert again.version == first.version
    assert before <= first.read_ms <= latest.read_ms == again.read_ms <= clock.now_ms()
    assert latest.table.replace_schema_metadata(None).equals(table("leeds", "a", "b"))


def test_null_and_empty_are_different_content(folder: Path) -> None:
    null = pa.table({"device": ["a"], "site": pa.array([None], pa.string())})
    assert snapshots.store(folder, null).version != snapshots.store(folder, table("", "a")).version


def test_no_more_than_the_last_two_snapshots_and_the_one_in_use_are_kept(folder: Path) -> None:
    served = snapshots.store(folder, table("s0", "a"))
    CurrentSnapshot(folder, ["site"])
    for n in range(1, 5):
        snapshots.store(folder, table(f"s{n}", "a"))
    names = {path.stem for path in folder.glob("*.arrow")}
    assert len(names) == 3
    assert served.version in names
    assert list(folder.glob(".*.tmp")) == []


def test_a_folder_without_a_snapshot_has_no_latest(folder: Path) -> None:
    assert snapshots.latest(folder) is None


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(b"leeds")
    path.write_bytes(content[:at] + b"L" + content[at + 1 :])


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_snapshot_is_named_and_never_used(folder: Path, damage: Callable[[Path], object]) -> None:
    path = snapshots.store(folder, table("leeds", "a")).path
    damage(path)
    with pytest.raises(ReferenceDataError, match=f"{path}: the stored reference snapshot is damaged"):
        snapshots.latest(folder)
    snapshots.store(folder, table("leeds", "a"))
    assert snapshots.latest(folder) is not None


def test_a_damaged_pointer_is_named_and_does_not_refuse_good_data(folder: Path) -> None:
    snapshots.store(folder, table("leeds", "a"))
    (folder / "current").write_text("../../etc/passwd")
    with pytest.raises(ReferenceDataError, match=f"{folder}/current: .* damaged: it names no snapshot"):
        snapshots.latest(folder)
    assert snapshots.store(folder, table("leeds", "a")) == snapshots.latest(folder)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=f"{tmp_path}/file/reference/.* cannot be written"):
        snapshots.store(tmp_path / "file" / "reference", table("leeds", "a"))


def test_load_gives_what_the_database_has(spark: SparkSession, devices: Devices, folder: Path) -> None:
    snapshot = snapshots.load(spark, devices.settings(), folder)
    assert snapshot.table.column("device").to_pylist() == ["meter-1", "pump-2"]
    assert snapshot.table.column("installed").to_pylist() == [None, "2025-03-01"]
    assert snapshots.columns(snapshot, devices.settings()) == ("type", "site", "installed")
    assert snapshots.columns(snapshot, devices.settings(columns=("site",))) == ("site",)
    assert snapshots.latest(folder) == snapshot


def test_refused_data_leaves_the_last_good_snapshot(spark: SparkSession, devices: Devices, folder: Path) -> None:
    good = snapshots.load(spark, devices.settings(), folder)
    devices.hold(("a", "pump", "Leeds 1", None), ("a", "pump", "cork", None), (" ", "pump", "cork", None))
    with pytest.raises(ReferenceDataError) as caught:
        snapshots.load(spark, devices.settings(), folder)
    for part in (
        "3 faults",
        "'Leeds 1'",
        "must not be null or blank",
        "must be unique",
        "expect_column_values_to_match",
    ):
        assert part in str(caught.value)
    assert snapshots.latest(folder) == good
    kept, why = snapshots.load_or_keep(spark, devices.settings(), folder)
    assert kept == good
    assert database.reason_of(why) == database.INVALID


def test_a_table_that_has_lost_too_many_rows_is_refused(spark: SparkSession, devices: Devices, folder: Path) -> None:
    devices.hold(*[(f"d{n}", "pump", "leeds", None) for n in range(10)])
    snapshots.load(spark, devices.settings(), folder)
    devices.hold(*[(f"d{n}", "pump", "leeds", None) for n in range(8)])
    eight = snapshots.load(spark, devices.settings(), folder)  # a fifth may go
    devices.hold(*[(f"d{n}", "pump", "leeds", None) for n in range(4)])
    with pytest.raises(ReferenceDataError, match=r"4 rows, the last snapshot had 8, and max_shrink = 0.2 allows 7"):
        snapshots.load(spark, devices.settings(), folder)
    assert snapshots.latest(folder) == eight
    assert snapshots.load(spark, devices.settings(max_shrink=1.0), folder).table.num_rows == 4


def test_what_has_not_changed_is_not_held_against_the_expectations_again(
    spark: SparkSession, devices: Devices, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snapshots.load(spark, devices.settings(), folder)
    asked: list[int] = []
    monkeypatch.setattr(snapshots, "validate", lambda table, *_: asked.append(table.num_rows))
    again = snapshots.load(spark, devices.settings(), folder)
    assert asked == []
    assert again.version == first.version
    assert again.read_ms > first.read_ms  # it is as young as if it had been
    devices.suite.write_text(devices.suite.read_text().replace("a-z", "a-y"))
    snapshots.load(spark, devices.settings(), folder)
    assert asked == [2]  # other expectations
    devices.execute("insert into devices values ('x', 'pump', 'leeds', null)")
    snapshots.load(spark, devices.settings(), folder)
    assert asked == [2, 3]


def test_data_without_a_column_of_the_query_is_refused(spark: SparkSession, devices: Devices, folder: Path) -> None:
    good = snapshots.load(spark, devices.settings(), folder)
    narrow = devices.settings(query="select device_id, site from devices")
    with pytest.raises(ReferenceDataError, match="has no column 'type'; it has device, site"):
        snapshots.load(spark, narrow, folder, require=["type", "site"])
    assert snapshots.latest(folder) == good


def test_a_database_that_is_away_at_the_start_is_stood_in_for_aloud(
    spark: SparkSession, devices: Devices, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = devices.settings(url="jdbc:sqlite:/no/such/folder/x.db")
    with pytest.raises(UnreadableError):
        snapshots.load_or_keep(spark, away, folder)  # there is nothing to keep
    good = snapshots.load(spark, devices.settings(), folder)
    with pytest.raises(UnreadableError):
        snapshots.load(spark, away, folder)
    with caplog.at_level(logging.WARNING, logger="service.reference.snapshots"):
        kept, why = snapshots.load_or_keep(spark, away, folder)
    assert kept == good
    assert database.reason_of(why) == database.UNREACHABLE
    assert f"Going on with the last good snapshot {good.version}, read " in caplog.text
    assert "/no/such/folder/x.db" in caplog.text
    with pytest.raises(ReferenceDataError, match="has no column 'floor'"):
        snapshots.load_or_keep(spark, away, folder, require=["floor"])


def test_a_restart_within_refresh_asks_only_another_query(spark: SparkSession, devices: Devices, folder: Path) -> None:
    settings = devices.settings(max_shrink=1.0)
    good = snapshots.load(spark, settings, folder)
    devices.hold(("pump-3", "pump", "cork", None))
    minute = {"fresh_ms": 60_000}

    assert snapshots.load(spark, settings, folder, **minute, require=["site"]) == good
    assert snapshots.load(spark, settings, folder, fresh_ms=1).version != good.version  # it is older than that
    newer = snapshots.load(spark, settings, folder, **minute)
    devices.hold(("pump-4", "pump", "cork", None))
    renamed = devices.settings(query=QUERY.replace("installed", "installed as since"), max_shrink=1.0)
    assert snapshots.load(spark, renamed, folder, **minute).table.column_names[-1] == "since"
    assert snapshots.load(spark, settings, folder, **minute).version != newer.version
    devices.suite.write_text(devices.suite.read_text().replace("a-z", "A-Z"))
    with pytest.raises(ReferenceDataError, match="'cork'"):  # it was good by other expectations
        snapshots.load(spark, settings, folder, **minute)


# --- CurrentSnapshot ---


def test_a_holder_without_a_snapshot_says_so(folder: Path) -> None:
    with pytest.raises(ReferenceDataError, match="there is no reference snapshot"):
        CurrentSnapshot(folder, ["site"])


def test_a_swap_that_fails_leaves_the_former_snapshot(folder: Path) -> None:
    former = snapshots.store(folder, table("old", "a"))
    current_snapshot = CurrentSnapshot(folder, ["site"])
    with pytest.raises(ReferenceDataError, match="has no column 'site'"):
        current_snapshot.swap(snapshots.store(folder, pa.table({"device": ["a"]})))
    assert current_snapshot.snapshot == former
    assert sites(current_snapshot, "a", "b") == ["old", None]
    assert current_snapshot.swap(snapshots.store(folder, table("new", "a", "b")))
    assert sites(current_snapshot, "a", "b") == ["new", "new"]


def test_a_swap_to_the_same_content_reads_nothing(folder: Path) -> None:
    snapshots.store(folder, table("old", "a"))
    current_snapshot = CurrentSnapshot(folder, ["site"])
    assert sites(current_snapshot, "a") == ["old"]
    same = snapshots.store(folder, table("old", "a"))
    same.path.unlink()
    assert not current_snapshot.swap(same)
    assert current_snapshot.snapshot.read_ms == same.read_ms
    assert sites(current_snapshot, "a") == ["old"]


def test_after_a_restart_the_snapshot_held_before_can_be_resumed(folder: Path) -> None:
    snapshots.store(folder, table("old", "a"))
    former = CurrentSnapshot(folder, ["site"])
    former.before_batch()
    snapshots.store(folder, table("new", "a"))
    assert former.swap()  # at the end of a batch that is published, and not committed when the process dies
    snapshots.store(folder, table("newer", "a"))
    resumed = CurrentSnapshot(folder, ["site"], resume=True)
    assert sites(resumed, "a") == ["old"]
    assert resumed.swap()
    assert sites(resumed, "a") == ["newer"]


def test_a_query_that_starts_again_joins_with_what_its_last_batch_joined_with(folder: Path) -> None:
    snapshots.store(folder, table("old", "a"))
    current_snapshot = CurrentSnapshot(folder, ["site"])
    current_snapshot.before_batch()
    current_snapshot.swap(snapshots.store(folder, table("new", "a")))
    current_snapshot.rewind()
    assert sites(current_snapshot, "a") == ["old"]
    assert current_snapshot.swap()
    current_snapshot.before_batch()
    current_snapshot.rewind()
    assert sites(current_snapshot, "a") == ["new"]


def test_what_was_held_is_not_resumed_when_it_does_not_fit_or_is_damaged(folder: Path) -> None:
    old = snapshots.store(folder, table("old", "a"))
    former = CurrentSnapshot(folder, ["site"])
    former.before_batch()
    wide = pa.table({"device": ["a"], "site": ["new"], "floor": ["1"]})
    newest = snapshots.store(folder, wide)
    wider = CurrentSnapshot(folder, ["floor"], resume=True)
    assert wider.snapshot == newest
    old.path.unlink()
    (folder / "joined").write_text(old.version)
    again = CurrentSnapshot(folder, ["site"], resume=True)
    assert again.snapshot == newest


# --- PostgreSQL ---


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as database:
        database.execute(
            "create sequence reads;"
            "create table devices (device_id uuid primary key, type text, site varchar(20), active boolean,"
            " ratio numeric(6, 2), installed date, seen timestamptz, tags jsonb);"
            "insert into devices values"
            " ('6f7c36f0-0000-4000-8000-000000000001', 'pump', 'leeds', true, 1.50,"
            " '2025-03-01', '2025-03-01 12:00+02', '[1]'),"
            " ('6f7c36f0-0000-4000-8000-000000000002', 'meter', null, null, null, null, null, null)"
        )
        yield database


def asking(database: Postgres, **changes: Any) -> Reference:
    base = {"url": database.jdbc_url, "query": "select * from devices", "user": database.user}
    return Reference(**{**base, "password": database.password, **changes})


@pytest.mark.integration
def test_postgresql_s_types_come_as_text(spark: SparkSession, postgres: Postgres) -> None:
    fetched = fetch(spark, asking(postgres)).sort_by("device").to_pylist()
    assert fetched[0].pop("seen").startswith("2025-03-01 ")  # in the session's time zone
    assert fetched[0] == {
        "device": "6f7c36f0-0000-4000-8000-000000000001",
        "type": "pump",
        "site": "leeds",
        "active": "true",
        "ratio": "1.50",
        "installed": "2025-03-01",
        "tags": "[1]",
    }
    assert set(fetched[1].values()) == {"6f7c36f0-0000-4000-8000-000000000002", "meter", None}


@pytest.mark.integration
def test_the_database_runs_the_query_once_for_a_snapshot(spark: SparkSession, postgres: Postgres, folder: Path) -> None:
    settings = asking(postgres, query="select device_id, nextval('reads') as nth from devices")
    first = fetch(spark, settings)
    assert sorted(first.column("nth").to_pylist()) == ["1", "2"]
    snapshots.store(folder, first)
    current_snapshot = CurrentSnapshot(folder, ["nth"])
    for _ in range(3):
        assert (
            current_snapshot.attributes.of(first["device"].combine_chunks())["nth"].to_pylist()
            == first["nth"].to_pylist()
        )
    assert postgres.execute("select last_value from reads") == [(2,)]


@pytest.mark.integration
def test_a_wrong_password_is_the_database_s_to_tell_and_never_shown(spark: SparkSession, postgres: Postgres) -> None:
    wrong = postgres.password[::-1]
    with pytest.raises(UnreadableError) as caught:
        fetch(spark, asking(postgres, password=wrong))
    assert 'password authentication failed for user "tidemark"' in str(caught.value)
    assert postgres.jdbc_url in str(caught.value)
    assert caught.value.reason == database.REFUSED
    assert wrong not in "".join(traceback.format_exception(caught.value))


@pytest.mark.thorough
@pytest.mark.integration
def test_a_query_that_takes_too_long_is_given_up(spark: SparkSession, postgres: Postgres) -> None:
    before = clock.monotonic_s()
    with pytest.raises(UnreadableError, match="canceling statement due to user request") as caught:
        fetch(spark, asking(postgres, query="select 'a' as device_id, pg_sleep(60)::text as x", timeout="5 s"))
    assert clock.monotonic_s() - before < 50  # of the 60 it would take
    assert caught.value.reason == database.TIMEOUT


@pytest.mark.integration
def test_a_database_that_hangs_is_given_up_and_asked_again(spark: SparkSession, postgres: Postgres) -> None:
    settings = asking(postgres, timeout="1 s")
    postgres.pause()
    try:
        before = clock.monotonic_s()
        with pytest.raises(UnreadableError) as caught:
            fetch(spark, settings)
        assert clock.monotonic_s() - before < 10
        assert caught.value.reason == database.TIMEOUT
    finally:
        postgres.resume()
    wait([database._asking[jvm.session(spark).sessionUUID(), settings.url]], 30)  # what hangs is not joined by another
    assert fetch(spark, asking(postgres, timeout="20 s")).num_rows == 2


def test_a_driver_that_never_returns_is_waited_for_so_long_and_not_asked_twice(
    spark: SparkSession, devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(database, "_read", lambda *_: release.wait(60))
    settings = devices.settings(timeout="100 ms")
    for message in ("no complete answer within 0 s", "it has not answered the last time either"):
        with pytest.raises(UnreadableError, match=message) as caught:
            fetch(spark, settings)
        assert caught.value.reason == database.TIMEOUT
    other: SparkSession = spark.newSession()
    with pytest.raises(UnreadableError, match="no complete answer within 0 s"):
        fetch(other, settings)  # another query of the process asks for itself
    release.set()
    wait([database._asking[jvm.session(spark).sessionUUID(), settings.url]], 10)
    monkeypatch.undo()
    assert fetch(spark, devices.settings()).num_rows == 2


@pytest.mark.integration
def test_a_stopped_database_is_stood_in_for_and_a_running_query_does_not_notice(
    spark: SparkSession, postgres: Postgres, folder: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "suite.json"
    suite.write_text('{"expectations": []}', encoding="utf-8")
    settings = asking(postgres, expectations=suite, columns=("site",))
    good = snapshots.load(spark, settings, folder)
    current_snapshot = CurrentSnapshot(folder, snapshots.columns(good, settings))
    postgres.stop()
    try:
        with pytest.raises(
            UnreadableError, match=r"from jdbc:postgresql://127\.0\.0\.1:\d+/tidemark: Connection refused"
        ):
            snapshots.load(spark, settings, folder)
        assert snapshots.load_or_keep(spark, settings, folder)[0] == good
        assert sites(current_snapshot, *good.table["device"].to_pylist()) == good.table["site"].to_pylist()
    finally:
        postgres.start()
    assert snapshots.load(spark, settings, folder).version == good.version
