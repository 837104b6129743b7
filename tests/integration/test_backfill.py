"""`tidemark backfill`: values that are computed again from Kafka are those that the stream had published."""

import gzip
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from load.servers.kafka import LOG_APPEND_TIME
from load.servers.schema_registry import Registry
from load.testbed import to_toml
from service import failpoint, settings
from service.cli import main
from service.errors import FencedError, SettingsError
from service.failpoint import InjectedError, Plan, Point
from service.micro_batch import MicroBatch
from service.outlets import recomputed
from service.outlets.outbox import Outbox, views_of
from service.recompute import archive, backfill, engine
from service.recompute.archive import Place
from service.rejects.fence import Fence
from service.spark.files import Local
from tests.integration.world import Parts, World
from tests.stream.messages import ENV, FILE, READING_CLASS, framed, text
from tests.stream.records import BASE_MS, SCHEMA, Record, make_settings, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

END_S = 600
OF_THE_WRITER = {"epoch", "batch", "updated", "revision"}


def minutes(first: int, last: int) -> list[Record]:
    """Readings of five devices: four are silent in every fourth minute, and the last one never."""
    seconds = range(60 * first, 60 * last, 10)
    return [
        reading(f"d{number}", second + number / 7, 20 + number + second % 70 / 7)
        for second in seconds
        for number in range(5)
        if number == 4 or (second // 60 + number) % 4
    ]


class Past(World):
    """A world whose outlets can begin again in other folders."""

    def outlets(self, name: str) -> None:
        paths = [str(self.folder / f"{name}-{each.name}") for each in self.settings.outlets]
        outlets = tuple(
            each.model_copy(update={"path": path}) for each, path in zip(self.settings.outlets, paths, strict=True)
        )
        self.settings = self.settings.model_copy(update={"outlets": outlets})

    def rows(self, name: str, until_ms: int) -> dict[str, list[dict[str, Any]]]:
        """What outlets of this name have that begins before a time, without what says who wrote it."""
        found = {}
        for each in self.settings.outlets:
            path = self.folder / f"{name}-{each.name}"
            rows = (
                ds.dataset(path, format="parquet", partitioning="hive").to_table().to_pylist() if path.exists() else []
            )
            chosen = [row for row in rows if row["start"].timestamp() * 1000 < until_ms]
            plain = [{key: row[key] for key in row if key not in OF_THE_WRITER} for row in chosen]
            found[each.name] = sorted(plain, key=str)
        return found

    def final(self) -> dict[str, dict[str, str]]:
        """Closed windows and sessions in Redis."""
        watermark_ms = int(self.redis.hget(self.key("progress"), "watermark"))
        return {
            name: value
            for name, value in self.hashes().items()
            if (name.startswith("window:") and int(value["end"]) <= watermark_ms) or value.get("state") == "closed"
        }

    def kafka(self) -> DataFrame:
        """All records of the topic."""
        read = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        return read.option("subscribe", self.topic).load().drop("headers", "timestampType")

    def backfill(self, until_s: int = END_S, *views: str, **more: Any) -> backfill.Report:
        # The first window of `all` begins a minute before the first reading.
        span = BASE_MS - 120_000, BASE_MS + until_s * 1000
        return backfill.backfill(self.settings, span, views, print, spark=self.spark, **more)


def arrays(first: int, last: int) -> list[Record]:
    """The readings of `minutes` as records of an input with arrays, with some to reject."""
    records = []
    every = minutes(first, last)
    for at in range(0, len(every), 4):
        some = [json.dumps(_fields(each)) for each in every[at : at + 4]]
        text = ", ".join([*some, "5"] if at % 3 else some).encode()
        value = gzip.compress(b"[" + text + b"]") if at % 8 else b"[" + text + b"]"
        records.append(Record(value, every[min(at + 3, len(every) - 1)].at, b"gateway"))
    packed, empty = gzip.compress(json.dumps(_fields(every[0])).encode()), b"[]"
    return [*records, Record(packed, every[0].at), Record(empty, every[0].at), Record(b"[{}", every[0].at)]


def messages(first: int, last: int) -> list[Record]:
    """The readings of `minutes` as Protobuf, with one to reject."""
    records = []
    for each in minutes(first, last):
        fields = _fields(each)
        made = READING_CLASS(device_id=fields["device_id"])
        made.event_time.FromMilliseconds(fields["event_time"])
        made.temperature.value = fields["temperature"]
        records.append(Record(framed(made.SerializeToString(), 2), each.at))
    return [*records, Record(framed(b"\xff" * 9, 2), BASE_MS + first * 60_000)]


def _fields(record: Record) -> dict[str, Any]:
    assert record.value is not None
    read: Any = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), SCHEMA, None)
    event_ms = int(read["event_time"].timestamp() * 1000)
    return {"device_id": read["device_id"], "event_time": event_ms, "temperature": read["temperature"]}


@pytest.fixture
def world(request: pytest.FixtureRequest, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Past]:
    """With a parameter: sections of the settings."""
    monkeypatch.setattr("service.outlets.publication.LOOK_S", 0.0)
    outlets = [
        {"name": "windows", "kind": "parquet", "path": str(parts.folder / "stream-windows")},
        {"name": "sessions", "kind": "parquet", "path": str(parts.folder / "stream-sessions"), "sessions": True},
    ]
    made = Past(
        *parts, outlets=outlets, sessions={"max_duration": "2 m"}, redis={"chunk": 50}, **getattr(request, "param", {})
    )
    yield made
    made.redis.close()
    failpoint._plan = None


def _plain(value: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in value.items() if name not in OF_THE_WRITER}


def assert_same(right: Any, actual: Any) -> None:
    """Rows or values by key are equal, but for sums that were added in another order."""
    assert len(right) == len(actual)
    pairs = [(right[key], actual[key]) for key in right] if isinstance(right, dict) else zip(right, actual, strict=True)
    for one, other in pairs:
        assert one.keys() == other.keys()
        for name, value in one.items():
            is_sum = name.endswith(("sum", "mean", "stddev"))
            assert other[name] == value or (is_sum and math.isclose(float(value), float(other[name]), rel_tol=1e-9))


def _fails_at(point: str, nth: int) -> None:
    failpoint._plan = Plan((Point(point, nth, "raise"),), None)


def test_a_backfill_equals_the_stream_in_redis_and_outlets_and_leaves_richer_values(
    world: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.term(*minutes(0, 5), reading("d1", 100.0, at=299))
    world.term(*minutes(5, 10))
    stream, before = world.rows("stream", BASE_MS + END_S * 1000), world.final()
    assert min(len(rows) for rows in stream.values()) > 10
    # From now on the broker sets the times, so that there are parts; those of the records ascend already.
    world.broker.configure_topic(world.topic, LOG_APPEND_TIME)

    kept = [name for name in before if name.startswith("window:device:temperature:d2:")]
    richer, poorer = f"{world.prefix}:{kept[0]}", f"{world.prefix}:{kept[1]}"
    for name in before:
        if name not in kept:
            world.redis.delete(f"{world.prefix}:{name}")
    world.redis.hset(richer, "count", 999)
    world.redis.hset(poorer, "count", 1)
    untouched = {name: value for name, value in world.hashes().items() if name not in before}
    world.outlets("again")

    # Cut off three times: in the first part, between two parts, and when the entries are noted and not yet in place.
    monkeypatch.setattr(
        "service.recompute.sources.PART_S", 160 / 1_000_000
    )  # two parts of windows, and two of sessions
    for point in (("half_backfilled", 1), ("half_backfilled", 2), ("backfill_noted", 1)):
        _fails_at(*point)
        with pytest.raises(InjectedError):
            world.backfill(rate=1_000_000)
    failpoint._plan = None
    done: list[tuple[int, int]] = []
    report = world.backfill(rate=1_000_000, watch=lambda *each: done.append(each))
    assert len(done) == 2  # the parts of sessions
    assert done[-1][0] == done[-1][1]
    assert not report.unrecoverable.total()
    assert report.rejected == {"late": 1}  # by whichever of the runs
    assert not list((world.folder / "checkpoint" / "backfill").glob("*"))

    assert world.redis.hget(richer, "count") == "999"
    assert world.redis.hget(poorer, "revision") == "1"
    after = world.final()
    assert {name: value for name, value in world.hashes().items() if name not in before} == untouched
    assert after.keys() == before.keys()
    for name, value in before.items():
        if f"{world.prefix}:{name}" != richer:
            assert _plain(after[name]) == _plain(value)
        assert world.redis.pttl(f"{world.prefix}:{name}") > 0

    # The service takes the entries, each once.
    outbox = Outbox(Local(world.folder / "checkpoint"))
    views = [outbox.read(f"outlets/{name}")[1] for name in recomputed.names(outbox)]
    assert views == [views_of(world.settings)] * len(views) != []
    world.limit(4)
    world.term(*minutes(11, 12))
    again = world.rows("again", BASE_MS + END_S * 1000)
    lacking = [row for row in stream["windows"] if row not in again["windows"]]
    assert [row["key"] for row in lacking] == ["d2"]  # the one of which Redis has more readings
    assert [row for row in again["windows"] if row in stream["windows"]] == again["windows"]
    assert again["sessions"] == stream["sessions"]

    # An outlet that is added begins with what becomes final from then on.
    world.outlets("third")
    world.limit(1_000)
    world.term(reading("d1", 730.0))
    assert world.rows("third", BASE_MS + END_S * 1000) == {"windows": [], "sessions": []}


@pytest.mark.thorough
def test_a_backfill_of_a_view_counts_rejects_and_writes_nothing_when_dry(
    world: Past, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.term(*minutes(0, 6), reading("d1", 100.0, at=340), reading("d1", 7_000.0, at=341))
    # In time for its broker's time, but behind the watermark: the stream has it in no value.
    world.term(reading("d1", 100.0, at=110))
    before = world.hashes()
    report = world.backfill(360, "device", dry=True)
    assert world.hashes() == before
    assert report.rejected == {"late": 1, "behind": 1, "early": 1}
    assert report.sessions == 0
    final = [name for name in world.final() if name.startswith("window:device:")]
    assert report.windows == len(final) > 10
    report = world.backfill(360, "device")
    assert (report.windows, report.written, report.same) == (len(final), 0, len(final))
    assert world.hashes() == before
    together = world.backfill(360)
    with monkeypatch.context() as patch:
        patch.setattr(backfill, "MOST_STEPS", 1)
        apart = world.backfill(360)
    assert (apart.windows, apart.sessions, apart.rejected) == (together.windows, together.sessions, together.rejected)
    assert (apart.written, world.hashes()) == (0, before)

    # What has expired in Redis is for the outlets only; another run ends this one.
    views = tuple(view.model_copy(update={"retain_ms": 1}) for view in world.settings.views)
    stored = "service.checkpoint.view_versions.stored"
    monkeypatch.setattr(stored, lambda settings, _files: settings.model_copy(update={"views": views}))
    report = world.backfill(360, "device")
    assert (report.windows, report.written, report.same) == (len(final), 0, 0)
    monkeypatch.setattr(engine, "closed_values", _fenced(world, engine.closed_values))
    with pytest.raises(FencedError):
        world.backfill(360, "device")
    with pytest.raises(SettingsError, match="no view with windows"):
        world.backfill(360, "nothing")
    assert main(["backfill", "--config", str(world.config), "--from", "1", "--to", "1"]) == 2
    assert "--from 1 is not before --to 1" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_backfill_from_an_archive_equals_the_stream_and_leaves_out_what_the_archive_lacks(world: Past) -> None:
    world.term(*minutes(0, 9), reading("d1", 100.0, at=541))
    stream, before = world.rows("stream", BASE_MS + 540_000), world.final()
    world.broker.configure_topic(world.topic, LOG_APPEND_TIME)
    records, folder = world.kafka(), world.folder
    records.union(records).write.parquet(str(folder / "twice"))
    for name in before:
        world.redis.delete(f"{world.prefix}:{name}")
    world.outlets("again")
    report = world.backfill(540, source=Place("parquet", str(folder / "twice")))
    assert not report.unrecoverable.total()
    assert report.rejected == {}
    world.limit(3)
    world.term(*minutes(10, 11))
    again = world.rows("again", BASE_MS + 540_000)
    for outlet, rows in stream.items():
        assert len(rows) > 10
        assert_same(rows, again[outlet])
    after = world.final()
    assert_same({name: _plain(each) for name, each in before.items()}, {name: _plain(after[name]) for name in before})

    # Half of the records, the later ones, as Avro and JSON: windows of which it lacks readings are left out.
    later = records.where(F.col("timestamp") >= F.timestamp_millis(F.lit(BASE_MS + 250_000)))
    later.write.format("avro").save(str(folder / "avro"))
    later.where("offset % 50 != 0").write.json(str(folder / "jsonl"))
    right = [
        name for name in before if name.startswith("window:device:") and int(before[name]["start"]) > BASE_MS + 255_000
    ]
    report = world.backfill(600, "device", source=Place("avro", str(folder / "avro")), dry=True)
    assert report.windows == len(right) > 10
    assert report.unrecoverable["windows"] > 0
    assert report.rejected == {"late": 1}
    assert not report.lacking
    report = world.backfill(10**14, "device", source=Place("jsonl", str(folder / "jsonl")), dry=True)
    assert report.windows == len(right)
    assert all(re.search(r"[1-9] offsets of world-.*\[[01]\]@", text) for text in report.lacking)
    assert len(report.lacking) == 2

    # The earlier half: what begins less than a window and the delay before its end is left out.
    earlier = records.where(F.col("timestamp") < F.timestamp_millis(F.lit(BASE_MS + 250_000)))
    earlier.write.parquet(str(folder / "earlier"))
    report = world.backfill(600, "device", source=Place("parquet", str(folder / "earlier")), dry=True)
    right = [
        name for name in before if name.startswith("window:device:") and int(before[name]["end"]) < BASE_MS + 225_000
    ]
    assert report.windows == len(right) > 5


def _equals_the_stream(world: Past, records: Callable[[int, int], list[Record]]) -> None:
    """What is computed again, from Kafka and from files, is what the stream has published; nothing of it is rejected anew."""
    world.term(*records(0, 5))
    world.term(*records(5, 10))
    stream, before = world.rows("stream", BASE_MS + END_S * 1000), world.final()
    assert min(len(rows) for rows in stream.values()) > 10
    assert len(before) > 30
    world.kafka().write.parquet(str(world.folder / "archive"))
    for source in (None, Place("parquet", str(world.folder / "archive"))):
        for name in before:
            world.redis.delete(f"{world.prefix}:{name}")
        report = world.backfill(source=source)
        assert report.written == len(before)
        assert not report.unrecoverable.total()
        assert report.rejected.keys() <= {"undecodable"}
        after = world.final()
        assert_same({name: _plain(each) for name, each in before.items()}, {n: _plain(v) for n, v in after.items()})


@pytest.mark.thorough
@pytest.mark.parametrize("world", [{"input": {"format": "json", "array": True}}], indirect=True)
def test_a_backfill_of_arrays_equals_the_stream(world: Past) -> None:
    _equals_the_stream(world, arrays)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as running:
        running.register("env", text(ENV), kind="PROTOBUF")
        yield running


@pytest.mark.thorough
def test_a_backfill_of_protobuf_equals_the_stream(world: Past, registry: Registry) -> None:
    references = [{"name": "env.proto", "subject": "env", "version": 1}]
    assert registry.register(f"{world.topic}-value", text(FILE), references, kind="PROTOBUF") == 2
    document = tomllib.loads(world.config.read_text())
    document["input"] = {"format": "protobuf", "measures": {"temperature": "temperature"}}
    world.config.write_text(to_toml({**document, "registry": {"url": registry.url}}))
    world.settings = settings.load(world.config)
    _equals_the_stream(world, messages)


def test_an_archive_may_have_thousands_of_partitions(spark: SparkSession, tmp_path: Path) -> None:
    path, count = str(tmp_path / "archive"), 2_000
    columns = [f"CAST(id % {count} AS int) AS partition", f"id DIV {count} AS offset", "CAST('x' AS binary) AS value"]
    spark.range(3 * count).selectExpr("'readings' AS topic", *columns, "now() AS timestamp").write.parquet(path)
    partitions = range(count)
    committed = MicroBatch(
        0, 1, 0, {"readings": dict.fromkeys(partitions, 1)}, {"readings": dict.fromkeys(partitions, 2)}
    )
    found = archive.frame(spark, make_settings(tmp_path), committed, Place("parquet", path))
    assert found.select("offset").distinct().collect() == [(1,)]
    assert found.count() == count


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("parquet", "nothing", "nothing"),
        ("parquet", "stream-windows", "the column topic is lacking"),
        ("parquet", "half", r"has no record of .*\[1\]"),
        ("jsonl", "lines", "2 records lack topic"),
    ],
)
def test_files_that_are_no_archive_of_the_topics_are_refused(world: Past, kind: str, name: str, problem: str) -> None:
    world.term(*minutes(0, 3))
    if name == "half":
        world.kafka().where("partition = 0").write.parquet(str(world.folder / name))
    if name == "lines":
        (world.folder / name).write_text('{"partition": 1, "offset": 2}\n{"topic": "world"}\n')
    with pytest.raises(SettingsError, match=problem):
        world.backfill(180, source=Place(kind, str(world.folder / name)))


def _fenced(world: Past, original: Any) -> Any:
    """Another run begins while this one computes."""

    def computed(*args: Any) -> Any:
        Fence(world.settings.redis).close()
        return original(*args)

    return computed
