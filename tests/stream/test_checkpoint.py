"""The real pass on a checkpoint: what may change between two runs, and what becomes of each file that is damaged.

Damage must either make no difference or be refused, at the start or by `verify`, with the file's name.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.checkpoint import logs, manifest
from service.checkpoint.manifest import Manifest
from service.commands import verify
from service.errors import CheckpointError
from service.pipeline import failure
from service.settings import Settings
from service.spark.files import Files, Local
from tests.stream.records import make_settings, reading
from tests.stream.script import Add, Check, Expect, Restart, World, run

pytestmark = pytest.mark.spark

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file, hidden ones too, with its size and time of change."""
    files = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (stat.st_size, stat.st_mtime_ns) for path, stat in files}


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with input and checkpoint of five batches: snapshots, then changes to them. A file of input is not read yet."""
    folder = tmp_path_factory.mktemp("whole")
    settings = make_settings(folder)

    def snapshots(only: bool) -> Check:
        # Without a changelog each version is a snapshot at once; with it they come in the background, some time.
        return Check(lambda _: spark.conf.set(CHANGELOG, str(not only).lower()))

    ids = {"readings": "A1"}
    Files(spark, settings.service.checkpoint).create(manifest.NAME, Manifest.of(settings, ids, 2).encode())
    first, *others = (Add(*[reading(f"d{n}", 40 * batch + n, 20.0) for n in range(8)]) for batch in range(5))
    try:
        run(spark, settings, folder, [snapshots(True), first, *others[:2], snapshots(False), Restart(), *others[2:]])
    finally:
        spark.conf.set(CHANGELOG, "true")
    shutil.copy(folder / "input/000000.parquet", folder / "input/next.parquet")
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    # Spark knows the input by its path.
    shutil.copytree(whole / "checkpoint", tmp_path / "checkpoint")
    (tmp_path / "input").symlink_to(whole / "input")
    return tmp_path


def start(spark: SparkSession, settings: Settings, folder: Path) -> World:
    """One more start; CheckpointError as the service would raise it."""
    logs.require_whole(Files(spark, settings.service.checkpoint))
    world = World(spark, settings, (folder / "input").resolve().parent)
    try:
        world.settle()
    except PySparkException as error:
        raise failure.classify(world.failure, world.query, settings) from error
    finally:
        world.stop()
    return world


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=version)


def version(path: Path) -> int:
    """The number that the name of a log or of a file of the state begins with."""
    return int(re.split("[._]", path.name)[0])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def changelog(folder: Path) -> Path:
    """One that the next batch needs: newer than its store's newest snapshot."""
    for store in (folder / "state").glob("*/*"):
        snapshots = [version(path) for path in store.glob("*.zip")]
        last = newest(store, "*.changelog") if list(store.glob("*.changelog")) else None
        if last is not None and version(last) > max(snapshots, default=0):
            return last
    pytest.fail("every changelog is in a snapshot: nothing is tested")


def snapshot(folder: Path) -> Path:
    return newest(folder / "state/0/0", "*.zip")


def sst(folder: Path) -> Path:
    return max((folder / "state/0/0/SSTs").glob("*.sst"))


def flipped(find: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def harm(folder: Path) -> Path:
        flip(path := find(folder))
        return path

    return harm


def emptied(find: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def harm(folder: Path) -> Path:
        (path := find(folder)).write_bytes(b"")
        return path

    return harm


def removed(find: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def harm(folder: Path) -> Path:
        (path := find(folder)).unlink()
        return path

    return harm


DAMAGE = {
    "offset truncated": emptied(lambda c: newest(c / "offsets", "[0-9]*")),
    "offset flipped": flipped(lambda c: newest(c / "offsets", "[0-9]*")),
    "event time emptied": emptied(lambda c: newest(c / "event_time", "[0-9]*")),
    "event time deleted": removed(lambda c: newest(c / "event_time", "[0-9]*")),
    "changelog deleted": removed(changelog),
    "changelog emptied": emptied(changelog),
    "snapshot flipped": flipped(snapshot),
    "sst deleted": removed(sst),
}


@pytest.mark.thorough
@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_named_by_verify_and_refused_at_the_start(
    spark: SparkSession, copy: Path, harm: Callable[[Path], Path]
) -> None:
    settings = make_settings(copy)
    file = harm(copy / "checkpoint")
    report = verify.verify(spark, settings)
    # A file that only a snapshot knows of is missed when the state is read: then the reason has its name.
    assert any(file.name in name + why for name, why in report.damage.items()), report
    with pytest.raises(CheckpointError) as caught:
        start(spark, settings, copy)
    assert file.name in str(caught.value)


@pytest.mark.thorough
def test_a_whole_checkpoint_is_read_and_not_touched(spark: SparkSession, copy: Path) -> None:
    before = tree(copy / "checkpoint")
    report = verify.verify(spark, make_settings(copy))
    assert report.damage == {}
    assert report.committed == report.batches - 1 > 3
    assert report.rows.keys() == {"runs of open sessions", "devices", "windows"}
    assert report.rows["windows"] == 8
    assert report.rows["devices"] == 8
    assert any("newest committed" in line for line in report.lines())
    assert tree(copy / "checkpoint") == before
    assert start(spark, make_settings(copy), copy).batches > 0


def test_a_lost_commit_makes_no_difference(spark: SparkSession, copy: Path) -> None:
    newest(copy / "checkpoint/commits", "[0-9]*").unlink()
    assert verify.verify(spark, make_settings(copy)).damage == {}
    again = start(spark, make_settings(copy), copy)
    assert again.windows


def test_a_checkpoint_without_its_logs_is_refused_and_not_begun_again(spark: SparkSession, copy: Path) -> None:
    shutil.rmtree(copy / "checkpoint/offsets")
    shutil.rmtree(copy / "checkpoint/commits")
    with pytest.raises(CheckpointError, match="no file is left, and there is state"):
        start(spark, make_settings(copy), copy)
    assert "offsets" in verify.verify(spark, make_settings(copy)).damage


def test_hadoop_reads_the_same_folder_by_path_and_by_url(spark: SparkSession, copy: Path) -> None:
    local = Local(copy / "checkpoint")
    for root in (str(copy / "checkpoint"), f"file://{copy / 'checkpoint'}"):
        files = Files(spark, root)
        assert {(f.name, f.size) for f in files.walk()} == {(f.name, f.size) for f in local.walk()}
        assert sorted(files.names("offsets")) == sorted(local.names("offsets"))
        assert files.names("nothing") == []
        assert files.read("metadata") == local.read("metadata")
        assert files.problem("metadata") == ""
        with pytest.raises(FileNotFoundError, match="nothing"):
            files.read("nothing")
        with pytest.raises(FileExistsError, match="metadata"):
            files.create("metadata", b"{}")
    files.create("new", b"whole")
    assert local.read("new") == b"whole"
    assert local.problem("new") == ""
    flip(copy / "checkpoint/metadata")
    assert "metadata" in files.problem("metadata")
    assert list(Files(spark, str(copy / "nowhere")).walk()) == []


def test_documented_changes_work_on_a_running_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    known = spark.createDataFrame([("a", "pump", "leeds")], "device string, type string, site string")
    first = make_settings(tmp_path)
    second = make_settings(
        tmp_path,
        admission={"max_delay": "40 s", "max_ahead": "1 s", "ranges": {"temperature": [0, 50]}},
        input={"measures": {"temperature": "temperature", "humidity": "humidity"}},
        views=[
            {"name": "device", "by": ["device"], "window": "1 m"},
            {"name": "all", "window": "30 s", "slide": "10 s"},
        ],
        sessions={"gap": "10 s", "max_duration": "1 h"},
    )
    third = make_settings(
        tmp_path,
        admission={"unknown_device": "reject"},
        reference={"url": "jdbc:sqlite:none", "query": "none", "columns": ["type", "site"]},
        views=[{"name": "site", "by": ["site", "type"], "window": "1 m"}],
    )

    def knows(world: World) -> None:
        world.reference = known

    run(
        spark,
        first,
        tmp_path,
        [
            Add(reading("a", 0, 10.0), reading("a", 20, 20.0)),
            Expect(windows={("device", "temperature", "a", 0): (2, 15.0)}, sessions={("a", 0): "open"}),
            Restart(second),
            # 15 s is more than the new gap; the session that is open keeps what the old rule has put together.
            Add(reading("a", 35, 30.0, humidity=5.0), reading("a", 36, 60.0)),
            Check(
                lambda world: _counts(
                    world,
                    {
                        ("device", "temperature", "a", 0): 3,
                        ("device", "humidity", "a", 0): 1,
                        ("all", "humidity", "all", 30): 1,
                    },
                )
            ),
            Expect(rejects=["out_of_range"], sessions={("a", 0): "open", ("a", 35): "open"}),
            Check(knows),
            Restart(third),
            Add(reading("a", 40, 40.0), reading("b", 41, 40.0)),
            Expect(rejects=["out_of_range", "unknown_device"]),
            Check(lambda world: _counts(world, {("site", "temperature", "leeds|pump", 0): 1})),
        ],
    )


def _counts(world: World, expected: dict[tuple[str, str, str, float], int]) -> None:
    counts = {
        (view, measure, key, start / 1000): row["count"] for (view, measure, key, start), row in world.windows.items()
    }
    assert {key: counts.get(key) for key in expected} == expected


def test_the_shape_of_the_query_is_the_one_that_the_manifest_names(spark: SparkSession, whole: Path) -> None:
    """When this fails, the state of older checkpoints cannot be gone on with: raise manifest.QUERY_SHAPE, and say so."""
    root = str(whole / "checkpoint")
    operators = spark.read.format("state-metadata").load(root).select("operatorId", "operatorName").distinct()
    state = spark.read.format("statestore").option("operatorId", 0).option("stateVarName", "bucket").load(root)
    columns = {f.name: f.dataType.simpleString() for f in state.schema if f.name != "partition_id"}
    assert [tuple(row) for row in operators.collect()] == [(0, "transformWithStateInPandasExec")]
    types = {"key": "struct<bucket:int>", "user_map_key": "struct<number:int>", "user_map_value": "struct<data:binary>"}
    assert (manifest.QUERY_SHAPE, columns) == (2, types)
