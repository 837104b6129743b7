"""Outlets by the real pass: every final value leaves once, and is the value that readers of Redis see."""

import io
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka.schema_registry as confluent
import fastavro
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.postgres import Postgres
from load.servers.schema_registry import Registry
from service import clock, failpoint, settings
from service.commands import check_spark
from service.errors import FencedError, OutletError, OutletRefusedError, TidemarkError
from service.failpoint import InjectedError
from service.kafka import scan
from service.outlets import outlet, publication, recomputed, tables
from service.outlets.kafka import Kafka
from service.outlets.outbox import Outbox, views_of
from service.outlets.outlet import Entry, Position, RefusedRowsError
from service.outlets.parquet import newest
from service.outlets.tables import WINDOW_KEY
from service.recompute import backfill
from service.spark.files import Local
from state import codec
from tests.integration.test_correct import BASE, LATE, Correcting, minutes
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, SCHEMA, Record, make_settings, reading
from tests.unit.test_outlets import closed, entry_of, micro_batch

DEVICES = ("a", "b", "c")


def rounds(first: int, last: int) -> list[Record]:
    """A reading of each device every 20 seconds, from one second to another."""
    return [reading(device, second, 20.0 + second % 7) for second in range(first, last, 20) for device in DEVICES]


@pytest.fixture
def make_world(parts: Parts) -> Any:
    def make(*outlets: dict[str, Any], **sections: Any) -> World:
        return World(*parts, outlets=list(outlets), **sections)

    return make


@pytest.fixture
def make_correcting(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Correcting]:
    """Corrected values leave with the next batch."""
    monkeypatch.setattr("service.outlets.publication.LOOK_S", 0.0)

    def make(*outlets: dict[str, Any]) -> Correcting:
        return Correcting(*parts, outlets=list(outlets))

    return make


def rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a Parquet outlet, by pyarrow's reader of partitioned data sets."""
    return ds.dataset(path, format="parquet", partitioning="hive").to_table().to_pylist() if path.exists() else []


def windows_of_redis(world: World, watermark_ms: int) -> dict[tuple[str, str, str, int], tuple[int, float]]:
    """The windows that the watermark has closed, by their key: count and mean."""
    found = {}
    for name, value in world.hashes().items():
        if name.startswith("window:") and int(value["end"]) <= watermark_ms:
            view, measure, key, start = name.removeprefix("window:").split(":")
            found[view, measure, key, int(start)] = int(value["count"]), float(value["mean"])
    return found


def as_of_outlet(found: list[dict[str, Any]]) -> dict[tuple[str, str, str, int], tuple[int, float]]:
    return {
        (row["view"], row["measure"], row["key"], round(row["start"].timestamp() * 1000)): (row["count"], row["mean"])
        for row in found
    }


def watermark_ms(world: World) -> int:
    return int(world.redis.hget(world.key("progress"), "watermark"))


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as database:
        yield database


def database(postgres: Postgres, table: str, **more: Any) -> dict[str, Any]:
    login = {"user": postgres.user, "password": postgres.password}
    return {"name": table, "kind": "jdbc", "url": postgres.jdbc_url, "table": table, "timeout": "3 s", **login, **more}


def table_rows(postgres: Postgres, table: str) -> dict[tuple[str, str, str, int], tuple[int, float]]:
    columns = 'view, measure, key, (extract(epoch from start) * 1000)::bigint, "count", mean'
    found = postgres.execute(f"select {columns} from {table}")  # noqa: S608 - a name of the test's
    assert len(found) == len({row[:4] for row in found})
    return {row[:4]: row[4:] for row in found}


def test_a_batch_that_fails_after_any_step_leaves_nothing_twice(
    make_world: Callable[..., World],
    postgres: Postgres,
    broker_server: Broker,
    tmp_path: Path,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every kind of outlet has each closed value once, as Redis has it, and progress follows the outlets."""
    topics = {each: f"{each}-{prefix}" for each in ("windows", "sessions")}
    with Registry() as registry:
        world = make_world(
            {"name": "files", "kind": "parquet", "path": str(tmp_path / "windows")},
            {"name": "lives", "kind": "parquet", "path": str(tmp_path / "sessions"), "sessions": True},
            {"name": "events", "kind": "kafka", "topic": topics["windows"], "format": "json"},
            {"name": "ends", "kind": "kafka", "topic": topics["sessions"], "sessions": True},
            database(postgres, f"w_{prefix}", views=["device"]),
            registry={"url": registry.url},
            input={"reader_schema": 1},
        )
        assert registry.register(f"{world.topic}-value", SCHEMA) == 1
        world.term(*rounds(0, 120), *rounds(200, 260))
        for number, point in enumerate(("finals_stored", "outlets_written", "after_publish_before_commit"), 2):
            before = watermark_ms(world)
            fails = failpoint.Plan((failpoint.Point(point, 1, "raise"),), None)
            monkeypatch.setattr(failpoint, "_plan", fails)
            with pytest.raises(InjectedError):
                world.term(*rounds(200 * number, 200 * number + 100))
            if point == "outlets_written":
                assert (
                    watermark_ms(world)
                    == before
                    < max(row["end"].timestamp() * 1000 for row in rows(tmp_path / "windows"))
                )
        world.term()
        world.term(*rounds(1000, 1100))
        client = confluent.SchemaRegistryClient({"url": registry.url})
        schema = json.loads(client.get_latest_version(f"{topics['sessions']}-value").schema.schema_str)
        client.close()
    assert not [*(tmp_path / "checkpoint" / "outlets").glob("0*")]
    expected = windows_of_redis(world, watermark_ms(world))
    assert len(expected) > 20
    found = rows(tmp_path / "windows")
    assert len(found) == len(as_of_outlet(found))
    assert as_of_outlet(found) == expected
    assert min(row["start"].timestamp() * 1000 for row in found) == BASE_MS - 60_000
    assert ({row["closed_by"] for row in found}, {row["revision"] for row in found}) == ({"watermark"}, {0})
    events = topic_rows(broker_server, topics["windows"])
    values = {key: json.loads(value) for key, value in events}
    assert len(values) == len(events)
    assert {key: (value["count"], value["mean"]) for key, value in values.items()} == {
        ":".join(map(str, key)): value for key, value in expected.items()
    }
    assert table_rows(postgres, f"w_{prefix}") == {key: value for key, value in expected.items() if key[0] == "device"}

    closed = {
        name.removeprefix("session:"): int(value["count"])
        for name, value in world.hashes().items()
        if value.get("state") == "closed"
    }
    assert len(closed) > 10
    lives = rows(tmp_path / "sessions")
    assert len(lives) == len(closed)
    assert {f"{row['device']}:{round(row['start'].timestamp() * 1000)}": row["count"] for row in lives} == closed
    assert {row["temperature_count"] for row in lives} == {row["count"] for row in lives}
    ends = topic_rows(broker_server, topics["sessions"])
    assert len(ends) == len(closed)
    records = {key: fastavro.schemaless_reader(io.BytesIO(value[5:]), schema) for key, value in ends}
    assert {key: record["count"] for key, record in records.items()} == closed


@pytest.mark.thorough
def test_states_leave_once_each_from_the_one_before_and_the_last_is_that_of_redis(
    make_world: Callable[..., World],
    postgres: Postgres,
    broker_server: Broker,
    tmp_path: Path,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, table = f"states-{prefix}", f"s_{prefix}"
    world = make_world(
        {"name": "files", "kind": "parquet", "path": str(tmp_path / "states"), "states": True, "compact_after": 3},
        {"name": "alarms", "kind": "kafka", "topic": topic, "format": "json", "states": True},
        database(postgres, table, states=True),
        sessions={"gap": "30 s", "measure_status": True},
        admission={"max_delay": "10 s", "max_ahead": "5 s"},
    )
    world.term(*rounds(0, 60), reading("late", 10, 1.0))
    for number, point in enumerate(("finals_stored", "outlets_written", "after_publish_before_commit"), 1):
        fails = failpoint.Plan((failpoint.Point(point, 1, "raise"),), None)
        monkeypatch.setattr(failpoint, "_plan", fails)
        with pytest.raises(InjectedError):
            world.term(reading("a", 300 * number, 1.0))  # the others fall silent
        world.term(*rounds(300 * number + 150, 300 * number + 170))
    records = [json.loads(value) for _, value in topic_rows(broker_server, topic)]
    assert {key for key, _ in topic_rows(broker_server, topic)} >= {"a:status", "late:temperature.status"}
    chains: dict[tuple[str, str], list[tuple[str | None, str]]] = {}
    for each in sorted(records, key=lambda each: each["batch"]):
        chains.setdefault((each["device"], each["field"]), []).append((each.get("was"), each["status"]))
    for chain in chains.values():
        assert [was for was, _ in chain] == [None, *(status for _, status in chain[:-1])]
    assert len(chains["b", "status"]) > 4
    assert chains["late", "status"] == [(None, "online"), ("online", "offline")]
    for (device, field), chain in chains.items():
        assert world.hashes()[f"device:{device}"][field] == chain[-1][1]
    expected = sorted((each["device"], each["field"], each["at"], each["status"], each["why"]) for each in records)
    assert expected == sorted(
        (row["device"], row["field"], round(row["at"].timestamp() * 1000), row["status"], row["why"])
        for row in rows(tmp_path / "states")
    )
    columns = "device, field, (extract(epoch from at) * 1000)::bigint, status, why"
    assert expected == sorted(map(tuple, postgres.execute(f"select {columns} from {table}")))  # noqa: S608


@pytest.mark.thorough
@pytest.mark.parametrize("when_away", ["fall_behind", "wait"])
def test_a_database_that_is_away_gets_everything_when_it_is_back(
    make_world: Callable[..., World], tmp_path: Path, when_away: str
) -> None:
    with Postgres(tmp_path / "postgres") as postgres:
        table = "windows"
        outlet = database(postgres, table, when_away=when_away, retry_for="1 s", name="history")
        files = {"name": "files", "kind": "parquet", "path": str(tmp_path / "files")}
        world = make_world(outlet, files)
        world.term(*rounds(0, 200))
        before = table_rows(postgres, table)
        assert before
        postgres.stop()
        if when_away == "wait":
            with pytest.raises(OutletError, match=r"The outlet history (lacks 1 batches|at jdbc)"):
                world.term(*rounds(200, 400))
        else:
            world.term(*rounds(200, 400))
            world.term(*rounds(400, 500))
            found = as_of_outlet(rows(tmp_path / "files"))
            assert found == windows_of_redis(world, watermark_ms(world))
            assert [*(tmp_path / "checkpoint" / "outlets").glob("0*")]
        postgres.start()
        world.term(*rounds(500, 600))
        expected = windows_of_redis(world, watermark_ms(world))
        until_delivered(tmp_path, world)
        assert table_rows(postgres, table) == expected
        found_files = rows(tmp_path / "files")
        assert as_of_outlet(found_files) == expected
        assert len(found_files) == len(expected)


def until_delivered(tmp_path: Path, world: World) -> None:
    """Another term, until the outbox is empty."""
    for _ in range(20):
        if not [*(tmp_path / "checkpoint" / "outlets").glob("0*")]:
            return
        world.term()
    pytest.fail("the outbox is not empty")


def topic_rows(broker: Broker, topic: str) -> list[tuple[str, bytes]]:
    """The records of a topic that a reader of committed records gets."""
    kafka = settings.Kafka(bootstrap=broker.bootstrap, topics=(topic,))
    return [((m.key() or b"").decode(), m.value() or b"") for m in scan.messages(kafka, [topic])]


@pytest.mark.thorough
def test_outlets_have_corrected_values(make_correcting: Callable[..., Correcting], tmp_path: Path) -> None:
    world = make_correcting(
        {"name": "files", "kind": "parquet", "path": str(tmp_path / "windows")},
        {"name": "sessions", "kind": "parquet", "path": str(tmp_path / "sessions"), "sessions": True},
    )
    world.term(*BASE, *LATE)
    assert world.assert_right().compared["outlet files"] > 50
    began_ms = clock.now_ms()
    assert world.correct().corrected == len(LATE)
    outbox = Outbox(Local(world.folder / "checkpoint"))
    assert [outbox.read(f"outlets/{name}")[1] for name in recomputed.names(outbox)] == [views_of(world.settings)]
    world.limit(40)
    world.term(*minutes(20, 24))
    verdict = world.assert_right()
    assert min(verdict.compared[name] for name in ("outlet files", "outlet sessions")) > 5
    corrected = [row for row in rows(tmp_path / "windows") if row["revision"]]
    assert {row["key"] for row in corrected if row["view"] == "device"} == {"d0", "d1", "d2", "m", "n"}
    assert min(row["revision"] for row in corrected) > began_ms
    merged = {row["device"] for row in rows(tmp_path / "sessions") if row["closed_by"] == "merged"}
    assert merged == {"m", "p"}


@pytest.mark.thorough
@pytest.mark.silent("0.6")
@pytest.mark.parametrize("is_in_redis", [True, False])
def test_a_backfill_after_a_correction_reaches_the_outlets(
    make_correcting: Callable[..., Correcting], spark: SparkSession, tmp_path: Path, is_in_redis: bool
) -> None:
    """A reading was rejected by a limit that was wrong, and a late one was corrected: both belong to one window."""
    world = make_correcting({"name": "files", "kind": "parquet", "path": str(tmp_path / "windows")})

    def limit(**ranges: tuple[float, float]) -> None:
        admission = world.settings.admission.model_copy(update={"ranges": ranges})
        world.settings = world.settings.model_copy(update={"admission": admission})

    limit(temperature=(-100.0, 1000.0))
    world.term(*BASE, reading("d1", 127, 5_000.0), *LATE[:1])
    assert world.correct().corrected == 1
    world.limit(40)
    world.term(*minutes(20, 24))
    limit()
    if not is_in_redis:
        world.lose("window:device:temperature:d1:*")
    backfill.backfill(world.settings, (BASE_MS - 120_000, BASE_MS + 600_000), ["device"], print, spark=spark)
    assert world.window("d1", 125)["max"] == "5000"
    world.term(*minutes(24, 28))
    table = ds.dataset(tmp_path / "windows", format="parquet", partitioning="hive").to_table()
    start = datetime.fromtimestamp(BASE_MS / 1000 + 120, UTC)
    kept = [
        (row["count"], row["max"])
        for row in newest(table, WINDOW_KEY).to_pylist()
        if (row["view"], row["key"], row["start"]) == ("device", "d1", start)
    ]
    assert kept == [(int(world.window("d1", 125)["count"]), 5_000.0)]


def test_check_tries_every_outlet_and_names_the_one_that_is_away(
    make_world: Callable[..., World], postgres: Postgres, shared_spark: SparkSession, prefix: str
) -> None:
    gone = database(postgres, f"g_{prefix}", url="jdbc:postgresql://127.0.0.1:1/none", name="gone")
    wrong = database(postgres, f"x_{prefix}", password="wrong", name="wrong")  # noqa: S106
    topic = {"name": "events", "kind": "kafka", "topic": f"finals-{prefix}", "format": "json"}
    world = make_world(database(postgres, f"c_{prefix}"), gone, wrong, topic)
    found = {line.name: line for line in check_spark.outlets(world.settings)}
    assert [line.status for line in found.values()] == ["ok", "fail", "fail", "ok"]
    assert found[f"outlet c_{prefix}"].detail.endswith(f"the table c_{prefix} is to be created")
    assert "gone" in found["outlet gone"].detail
    assert 'password authentication failed for user "tidemark"' in found["outlet wrong"].detail
    assert "wrong" not in found["outlet wrong"].detail.replace("outlet wrong", "")
    assert f"finals-{prefix}" not in world.broker.admin.list_topics(timeout=5).topics
    assert not postgres.execute(f"select to_regclass('c_{prefix}') where to_regclass('c_{prefix}') is not null")


def test_an_outlet_that_refuses_ends_a_start(make_world: Callable[..., World], postgres: Postgres, prefix: str) -> None:
    world = make_world(database(postgres, f"x_{prefix}", password="wrong"))  # noqa: S106
    with pytest.raises(OutletRefusedError, match="password authentication failed"):
        world.term(*rounds(0, 100))


def test_a_table_that_cannot_have_all_columns_is_refused_by_check_and_at_the_start(
    spark: SparkSession, postgres: Postgres, tmp_path: Path, prefix: str
) -> None:
    def outlet_of(measures: int) -> Any:
        section = database(postgres, f"c_{prefix}", sessions=True)
        fields = {f"m{number}": "temperature" for number in range(measures)}
        of_measures = make_settings(tmp_path, input={"measures": fields}, outlets=[section])
        return publication.outlet(of_measures.outlets[0], of_measures, spark)

    for act in (lambda: outlet_of(398).check(), lambda: outlet_of(398).open(1)):
        with pytest.raises(OutletRefusedError, match=r"would have 1,604 columns, and PostgreSQL's limit is 1,600"):
            act()
    outlet_of(397).open(1)
    postgres.execute(f"alter table c_{prefix} drop column m0_mean")
    with pytest.raises(OutletRefusedError, match="1,601 columns"):
        outlet_of(397).open(2)


def test_columns_that_postgresql_cannot_tell_apart_are_refused_by_check(
    spark: SparkSession, postgres: Postgres, tmp_path: Path, prefix: str
) -> None:
    section = database(postgres, f"n_{prefix}", sessions=True)
    of_measures = make_settings(tmp_path, input={"measures": {"m" * 61: "temperature"}}, outlets=[section])
    made = publication.outlet(of_measures.outlets[0], of_measures, spark)
    with pytest.raises(OutletRefusedError, match=f"{'m' * 61}_mean and {'m' * 61}_min begin with the same 63 letters"):
        made.check()


def test_a_user_needs_a_schema_to_create_in_or_rights_to_the_rows_of_both_tables(
    make_world: Callable[..., World], postgres: Postgres, prefix: str
) -> None:
    user, schema = f"u_{prefix}", f"s_{prefix}"
    for sql in (
        f"create role {user} login password 'x'",
        f"create schema {schema}",
        f"create schema own_{schema} authorization {user}",
        f"grant usage on schema {schema} to {user}",
    ):
        postgres.execute(sql)
    sections = [
        {**database(postgres, table), "name": name, "user": user, "password": password}
        for name, table, user, password in (
            ("own", f"own_{schema}.w", user, "x"),
            ("granted", f"{schema}.w", user, "x"),
            ("owner", f"{schema}.w", postgres.user, postgres.password),
        )
    ]
    world = make_world(*sections)
    own, granted, owner = (publication.outlet(each, world.settings, world.spark) for each in world.settings.outlets)
    assert own.check().endswith(f"the table own_{schema}.w is to be created")
    with pytest.raises(
        OutletRefusedError, match=f"the table {schema}.w does not exist, and this user may not create it"
    ):
        granted.check()
    owner.open(1)
    postgres.execute(f"grant insert on all tables in schema {schema} to {user}")
    with pytest.raises(OutletRefusedError, match=f"this user may not write to the table {schema}.w"):
        granted.check()
    postgres.execute(f"grant select, update on {schema}.w to {user}")
    with pytest.raises(OutletRefusedError, match=f"this user may not write to the table {schema}.tidemark_outlets"):
        granted.check()
    postgres.execute(f"grant select, update on all tables in schema {schema} to {user}")
    assert granted.check().endswith(f"the table {schema}.w exists")
    assert granted.open(2) is None
    assert granted.write(entry_of(world.settings, Position.of(micro_batch(2, 1)), closed("a"))) > 0
    for made in (granted, owner):
        made.close()


def test_a_writer_of_an_older_epoch_cannot_write_to_a_table_or_a_topic(
    make_world: Callable[..., World], postgres: Postgres, prefix: str, broker_server: Broker
) -> None:
    table = database(postgres, f"w_{prefix}")
    topic = {"name": "events", "kind": "kafka", "topic": f"finals-{prefix}", "format": "json"}
    world = make_world(table, topic)
    for options in world.settings.outlets:
        older = publication.outlet(options, world.settings, world.spark)
        newer = publication.outlet(options, world.settings, world.spark)
        older.open(4)
        assert newer.open(5) is None
        entry = entry_of(world.settings, Position.of(micro_batch(4, 1)), closed("a"))
        with pytest.raises(TidemarkError, match=options.name):
            older.write(entry)
        with pytest.raises(FencedError):
            older.open(4)
        again = publication.outlet(options, world.settings, world.spark)
        assert again.open(6) is None
        assert again.write(replace(entry, position=entry.position.by(6))) > 0
        again.close()
        assert again.open(6) == entry.position.by(6)
        prefix_of_another = world.settings.redis.model_copy(update={"prefix": f"{prefix}-b"})
        another = publication.outlet(
            options, world.settings.model_copy(update={"redis": prefix_of_another}), world.spark
        )
        assert another.open(1) is None, "an outlet of another pipeline that has the same name"
        for each in (older, newer, again, another):
            each.close()
    assert len(topic_rows(broker_server, f"finals-{prefix}")) == 1
    assert len(table_rows(postgres, f"w_{prefix}")) == 1


def test_a_position_of_an_aborted_transaction_is_not_reached(
    broker_server: Broker, tmp_path: Path, prefix: str
) -> None:
    kafka = {"bootstrap": broker_server.bootstrap, "options": {"isolation.level": "read_uncommitted"}}
    events = {"name": "events", "kind": "kafka", "topic": f"finals-{prefix}", "format": "json"}
    given = make_settings(
        tmp_path, kafka=kafka, outlets=[events], redis={"url": "redis://127.0.0.1:1", "prefix": prefix}
    )
    to, position = Kafka(given.outlets[0], given), Position.of(micro_batch(1, 4))
    to.open(1)
    producer: Any = to._producer
    producer.begin_transaction()
    producer.produce(f"finals-{prefix}.position", position.to_json(), outlet.identity("events", given))
    producer.flush()
    to.close()
    assert to.open(2) is None
    to.close()


def test_hostile_keys_are_kept_by_a_table(make_world: Callable[..., World], postgres: Postgres, prefix: str) -> None:
    table = f"w_{prefix}"
    world = make_world(database(postgres, table))
    keys = [
        'q"u',
        "",
        "a,b",
        "\\.",
        "x\n\\.\ny",
        "\\N",
        "NULL",
        "o'c",
        "a|b",
        "日本",
        "x" * 256,
        "nul\0",
        "nul\ufffd",
        "\r\n",
    ]
    made = publication.outlet(world.settings.outlets[0], world.settings, world.spark)
    made.open(1)
    made.write(entry_of(world.settings, Position.of(micro_batch(1, 1)), closed(*keys)))
    made.close()
    found = {row[0] for row in postgres.execute(f"select key from {table}")}  # noqa: S608
    assert found == {key.replace("\0", "\ufffd") for key in keys}


@pytest.mark.thorough
def test_many_rows_are_visible_at_once(make_world: Callable[..., World], postgres: Postgres, prefix: str) -> None:
    world = make_world(database(postgres, f"w_{prefix}", timeout="2 s"))
    made = publication.outlet(world.settings.outlets[0], world.settings, world.spark)
    made.open(1)
    keys = [f"device-{number:06d}" for number in range(100_000)]
    made.write(entry_of(world.settings, Position.of(micro_batch(1, 1)), closed(*keys)))
    made.write(entry_of(world.settings, Position.of(micro_batch(1, 2, 10)), closed(*keys, count=3)))
    made.close()
    assert postgres.execute(f'select count(*), min("count") from w_{prefix}') == [(100_000, 3)]  # noqa: S608


def test_a_row_of_a_table_is_replaced_by_one_with_more_readings_and_never_by_one_with_fewer(
    make_world: Callable[..., World], postgres: Postgres, prefix: str
) -> None:
    """A backfill of what has expired in Redis has revision 0, and a corrected row a larger one."""
    world = make_world(database(postgres, f"w_{prefix}"))
    chosen = {view.name: view.shown for view in world.settings.views}
    made = publication.outlet(world.settings.outlets[0], world.settings, world.spark)
    made.open(1)
    for batch, (count, revision, expected) in enumerate(
        [(3, 1_790_000_000_000, 3), (2, 0, 3), (4, 0, 4), (3, 1_790_000_000_001, 4), (4, 1, 4)]
    ):
        finals = recomputed.with_revision(codec.unpack_changes(closed("a", count=count)).windows, revision)
        made.write(
            Entry(Position.of(micro_batch(1, batch, batch)), tables.windows(finals, chosen, 1, batch, "watermark"))
        )
        assert postgres.execute(f'select "count" from w_{prefix}') == [(expected,)]  # noqa: S608
    made.close()


@pytest.mark.silent("0.5")
def test_rows_that_a_table_refuses_are_set_aside_and_the_others_of_all_views_go_on(
    make_world: Callable[..., World], postgres: Postgres, prefix: str, tmp_path: Path
) -> None:
    table = f"w_{prefix}"
    world = make_world(database(postgres, table, retry_for="30 s"))
    world.term(*rounds(0, 200))
    constraint = "check (key <> 'b' or start < timestamptz '2026-09-21 14:16:00+00')"
    postgres.execute(f"alter table {table} add constraint no_b {constraint} not valid")
    world.term(*rounds(200, 300))
    world.term(*rounds(300, 400))
    expected = windows_of_redis(world, watermark_ms(world))
    found = table_rows(postgres, table)
    refused = {key for key in expected if key not in found}
    assert refused
    assert {key[2] for key in refused} == {"b"}
    assert {key: value for key, value in expected.items() if key not in refused} == found
    lines = [
        json.loads(line)
        for file in (tmp_path / "checkpoint" / "outlets").glob(f"refused-{table}-*")
        for line in file.read_text().splitlines()
    ]
    assert sorted((line["view"], line["key"], line["count"]) for line in lines) == sorted(
        (key[0], key[2], expected[key][0]) for key in refused
    )
    assert all("no_b" in line["refused"] for line in lines)
    outlets = world.open_outlets()
    assert outlets is not None
    assert outlets.progress()[table].refused == len(refused)
    outlets.close()


@pytest.mark.thorough
@pytest.mark.silent("0.5")
def test_a_key_of_no_index_is_refused(make_world: Callable[..., World], postgres: Postgres, prefix: str) -> None:
    world = make_world(database(postgres, f"w_{prefix}"))
    long = "".join(chr(0x4E00 + random.Random(seed).randrange(20_000)) for seed in range(2_000))
    keys = [f"k{number}" for number in range(3_000)]
    entry = entry_of(world.settings, Position.of(micro_batch(1, 1)), closed(*keys[:700], long, *keys[700:]))
    made = publication.outlet(world.settings.outlets[0], world.settings, world.spark)
    made.open(1)
    with pytest.raises(RefusedRowsError) as caught:
        made.write(entry)
    assert [*caught.value.messages] == [700]
    assert "index row size" in caught.value.messages[700]
    assert postgres.execute(f"select count(*) from w_{prefix}") == [(0,)]  # noqa: S608
    assert made.write(replace(entry, rows=entry.rows.filter(pc.not_equal(entry.rows["key"], long)))) > 0
    assert postgres.execute(f"select count(*) from w_{prefix}") == [(3_000,)]  # noqa: S608
    postgres.execute(f'alter table w_{prefix} add constraint none_at_all check ("count" > 2) not valid')
    again = entry_of(world.settings, Position.of(micro_batch(1, 2, 10)), closed(*keys))
    with pytest.raises(OutletError, match=r"more than 100 rows of a batch are refused: .*none_at_all"):
        made.write(again)
    made.close()


@pytest.mark.thorough
@pytest.mark.silent("0.6")
def test_tables_can_be_created_at_once(make_world: Callable[..., World], postgres: Postgres, prefix: str) -> None:
    schema = f"s_{prefix}"
    world = make_world(*(database(postgres, f"{schema}.w{number}", name=f"w{number}") for number in range(2)))
    for _ in range(15):
        postgres.execute(f"drop schema if exists {schema} cascade")
        postgres.execute(f"create schema {schema}")
        made = [publication.outlet(each, world.settings, world.spark) for each in world.settings.outlets]
        with ThreadPoolExecutor(len(made)) as pool:
            assert [*pool.map(lambda each: each.open(1), made)] == [None] * len(made)
        for each in made:
            each.close()
