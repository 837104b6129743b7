"""Reference snapshots on a file system that Python's workers cannot read: Spark hands them out."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from service.errors import ReferenceDataError, SetupError
from service.reference import snapshots
from service.reference.attributes import Attributes, HandedOut, Serving, Stored
from service.reference.current_snapshot import CurrentSnapshot, in_use
from service.reference.folder import RemoteFolder, SharedFolder, snapshot_folder
from service.spark import batch_context
from service.spark.batch_context import BatchContext
from service.spark.files import Files

pytestmark = pytest.mark.spark


def table(site: str, *devices: str) -> pa.Table:
    return pa.table({"device": list(devices), "site": pa.array([site] * len(devices), pa.string())})


@pytest.fixture
def remote(spark: SparkSession, tmp_path: Path) -> RemoteFolder:
    """Through the JVM, as every other file system is."""
    return RemoteFolder(spark, str(tmp_path / "reference"))


def in_tasks(spark: SparkSession, attributes: Attributes, file: str) -> set[tuple[str, str | None]]:
    """What the tasks of a job look up."""

    def look_up(batches):
        for batch in batches:
            rows = attributes.of(batch["device"])
            yield pa.RecordBatch.from_arrays([batch["device"], rows["site"].combine_chunks()], ["device", "site"])

    batch_context.set_for_tasks(spark.sparkContext, BatchContext(reference=file))
    try:
        frame = spark.createDataFrame(pa.table({"device": ["a", "b"]})).repartition(2)
        return {tuple(row) for row in frame.mapInArrow(look_up, "device string, site string").collect()}
    finally:
        batch_context.set_for_tasks(spark.sparkContext, BatchContext())


def test_tasks_look_up_the_snapshot_of_their_batch_and_see_the_next_one_after_a_swap(spark, remote) -> None:
    first = snapshots.store(remote, table("leeds", "a"))
    current = CurrentSnapshot(remote, ["site"])
    assert isinstance(current.attributes, HandedOut)
    assert in_tasks(spark, current.attributes, first.path.name) == {("a", "leeds"), ("b", None)}
    second = snapshots.store(remote, table("cork", "a", "b"))
    assert in_tasks(spark, current.attributes, first.path.name) == {("a", "leeds"), ("b", None)}, "no swap yet"
    assert current.swap(second)
    assert in_tasks(spark, current.attributes, second.path.name) == {("a", "cork"), ("b", "cork")}


def test_a_process_without_the_drivers_copy_takes_the_file_that_spark_has(spark, remote, tmp_path) -> None:
    snapshot = snapshots.store(remote, table("leeds", "a"))
    on_another_host = Stored(tmp_path / "not-here" / snapshot.path.name, ("site",))
    assert in_tasks(spark, on_another_host, "") == {("a", "leeds"), ("b", None)}


def test_a_task_without_a_snapshot_ends_with_a_sentence(spark, remote) -> None:
    with pytest.raises(Exception, match="the driver has named no snapshot"):
        in_tasks(spark, in_use(remote, ["site"]), "")


def test_another_process_goes_on_with_the_snapshots_of_before(spark, remote, tmp_path) -> None:
    first = snapshots.store(remote, table("leeds", "a"))
    current = CurrentSnapshot(remote, ["site"])
    current.before_batch()
    second = snapshots.store(remote, table("cork", "a"))
    other = RemoteFolder(spark, str(tmp_path / "reference"))
    assert snapshots.latest(other) is not None
    assert snapshots.latest(other).version == second.version
    resumed = CurrentSnapshot(other, ["site"], resume=True)
    assert resumed.snapshot.version == first.version, "the batch may be repeated"
    assert resumed.swap()


def test_snapshots_that_no_pointer_names_are_removed_and_their_copies_emptied(spark, remote, tmp_path) -> None:
    made = [snapshots.store(remote, table(f"site-{n}", "a")) for n in range(4)]
    CurrentSnapshot(remote, ["site"])
    assert {path.stem for path in (tmp_path / "reference").glob("*.arrow")} == {each.version for each in made[2:]}
    assert [each.path.stat().st_size > 0 for each in made] == [False, False, True, True]
    assert not Path(SparkFiles.get(made[0].path.name)).exists()
    again = snapshots.store(remote, table("site-0", "a"))
    assert in_tasks(spark, again.attributes(), "") == {("a", "site-0"), ("b", None)}, "it is back"


def test_a_look_at_the_folder_leaves_nothing_behind_and_copies_are_in_the_folder_of_spark(spark, remote) -> None:
    root = Path(SparkFiles.getRootDirectory())
    before = {*root.iterdir()}
    remote.replace("sent.json", b"{}")
    assert remote.read("sent.json") == b"{}"
    assert {*root.iterdir()} == before
    assert snapshots.store(remote, table("leeds", "a")).path.parents[1] == root


def test_a_damaged_snapshot_is_named(spark, remote, tmp_path) -> None:
    snapshot = snapshots.store(remote, table("leeds", "a"))
    for path in (tmp_path / "reference").glob("*.arrow"):
        path.write_bytes(b"ARROW1")
        path.with_name(f".{path.name}.crc").unlink()
    with pytest.raises(ReferenceDataError, match=rf"{tmp_path}/reference/{snapshot.version}\.arrow: .* is damaged"):
        snapshots.latest(RemoteFolder(spark, str(tmp_path / "reference")))


def test_a_checkpoint_on_this_machine_is_read_by_all_processes_itself(spark, tmp_path) -> None:
    folder = snapshot_folder(spark, str(tmp_path))
    assert isinstance(folder, SharedFolder)
    assert isinstance(in_use(folder, ["site"]), Serving)
    assert isinstance(snapshot_folder(spark, f"{tmp_path.as_uri()}"), SharedFolder)


def test_a_checkpoint_on_s3_without_its_jars_is_refused_with_the_command_that_fetches_them(spark: SparkSession) -> None:
    with pytest.raises(SetupError, match="s3a://bucket/checkpoint: Spark lacks the jars for S3") as refused:
        Files(spark, "s3a://bucket/checkpoint")
    assert "tidemark jars --group s3" in refused.value.remedy
