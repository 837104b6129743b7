"""service/spark/internals on the installed Spark, with a real query from Kafka: what an upgrade of Spark checks first."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.checkpoint import logs
from service.spark.files import Files, Local
from service.spark.internals import commit_log, damage, jvm, offset_log, state_files
from tests.checkpoint_files import kind
from tests.integration.world import Parts, World
from tests.stream.records import reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def world(parts: Parts) -> World:
    """Two terms: their batches read 6 and 2 records of two partitions."""
    made = World(*parts)
    made.term(*(reading("a", at) for at in range(6)))
    made.term(reading("a", 60), reading("a", 61))
    return made


def test_the_logs_and_the_state_of_a_query_are_read_as_spark_wrote_them(world: World, spark: SparkSession) -> None:
    root = world.settings.service.checkpoint
    for folder in (Local(Path(root)), Files(spark, root)):
        batch = commit_log.last(folder)
        assert batch is not None
        assert offset_log.last(folder) == batch >= 1
        assert offset_log.is_begun(folder)
        assert offset_log.first(folder) == {world.topic: {0: 0, 1: 0}}
        end = {world.topic: {0: 4, 1: 4}}
        assert offset_log.ends(folder, batch) == end
        assert offset_log.position(folder) == offset_log.Position(batch + 1, end)
        partitions = offset_log.partitions(folder)
        assert str(partitions) == spark.conf.get("spark.sql.shuffle.partitions")
        attempts = commit_log.attempts(folder, batch)
        assert [*attempts] == [f"{state_files.OPERATOR}/{number}" for number in range(partitions)]
        for store, attempt in attempts.items():
            names = {f"{store}/{name}" for name in folder.names(store)}
            assert names & {f(store, batch, attempt) for f in (state_files.changelog, state_files.snapshot)}
        assert damage.of_logs(folder) == damage.of_state(folder, batch) == {}
        assert [file.name for file in folder.walk() if kind(file.name) is None] == [], "the table lacks them"
        committed = logs.committed(folder)
        assert committed is not None
        assert (committed.batch, committed.start, committed.end) == (batch, {world.topic: {0: 0, 1: 0}}, end)


@pytest.mark.thorough
def test_a_query_runs_on_after_edits_of_its_files(world: World, spark: SparkSession) -> None:
    files = Local(Path(world.settings.service.checkpoint))
    batch = commit_log.last(files)
    assert batch is not None
    commit_log.set_attempts(files, batch, [*commit_log.attempts(files, batch).values()])
    partitions = offset_log.partitions(files)
    for edit in (batch, batch + 1):
        offset_log.set_partitions(Files(spark, str(files)), edit, partitions)
    state_files.set_partitions(Files(spark, str(files)), partitions)
    world.send([reading("a", 62), reading("a", 63), reading("a", 64), reading("a", 65)])
    offset_log.replace(files, batch, {world.topic: {0: 5, 1: 5}})  # the next batch begins behind one record of each
    places = world.term()
    assert places == []
    assert offset_log.ends(files, batch + 1) == {world.topic: {0: 6, 1: 6}}
    windows = [value for name, value in world.values().items() if name.startswith("window:device")]
    assert sum(int(value["count"]) for value in windows) == 10, "two of twelve records were passed over"


def test_the_jvm_says_where_its_files_are_and_how_many_cores_it_has(spark: SparkSession, tmp_path: Path) -> None:
    assert not jvm.context(spark).isStopped()
    assert jvm.cores(spark) == spark.sparkContext.defaultParallelism
    assert all(Path(folder).is_dir() for folder in (*jvm.work_folders(spark), *jvm.own_folders(spark)))
    assert jvm.settings(spark)["spark.app.name"] == spark.sparkContext.appName
    assert jvm.started() is jvm.of(spark)
    rate = spark.readStream.format("rate").load()
    query = rate.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c %d")).start()
    try:
        assert jvm.checkpoint(jvm.query(query)).removeprefix("file:") == str(tmp_path / "c %d")
        assert not jvm.query(query).exception().isDefined()
    finally:
        query.stop()
    with pytest.raises(Exception, match="nothing") as caught:
        spark.read.parquet(str(tmp_path / "nothing"))
    assert jvm.throwable(caught.value) is not None
    assert jvm.throwable(ValueError()) is None
