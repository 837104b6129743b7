"""Skips in Spark's offset log: the files as Hadoop writes them, and nothing in them but offsets is another."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.checkpoint import event_time, narrow, skips
from service.checkpoint.event_time import Log
from service.checkpoint.skips import Span
from service.kafka.source import READ_AHEAD
from service.micro_batch import MicroBatch
from service.settings import Kafka
from service.spark.files import Files, Local
from service.spark.internals import offset_log
from service.spark.internals.offset_log import Position

pytestmark = pytest.mark.spark

KAFKA = Kafka(bootstrap="nowhere:1", topics=("readings",), max_per_batch=1_000)
CONF = '{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}'


@pytest.fixture(autouse=True)
def edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_time, "edges_now", lambda _: {"readings": {0: (0, 30), 1: (0, 40)}})


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Files:
    """Nothing is committed; batch 0 reads partition 0 from 3 and partition 1 from 4."""
    files = Files(spark, str(tmp_path / "checkpoint"))
    files.replace(offset_log.FIRST, b'\0v1\n{"readings":{"0":3,"1":4}}')
    return files


def begin(folder: Files, batch: int, *ends: int) -> None:
    line = json.dumps({"readings": {str(p): end for p, end in enumerate(ends)}})
    folder.replace(f"offsets/{batch}", f"v1\n{CONF}\n{line}\n-\n{line}".encode())


def commit(folder: Files, batch: int) -> None:
    folder.replace(f"commits/{batch}", b"v1\n{}")


def span(partition: int, first: int, end: int) -> Span:
    return Span("readings", partition, first, end)


def test_a_batch_ends_at_a_skip_and_the_next_one_begins_behind_it(folder: Files) -> None:
    begin(folder, 0, 10, 10)
    commit(folder, 0)
    begin(folder, 1, 30, 40)
    skips.write(folder, [span(0, 12, 15), span(0, 20, 21), span(1, 50, 51)])
    assert narrow.apply(folder, KAFKA) == 0
    assert offset_log.ends(folder, 1) == {"readings": {0: 12, 1: 40}}
    micro_batch = MicroBatch(1, 1, 0, {"readings": {0: 10, 1: 10}}, {"readings": {0: 12, 1: 40}})
    assert Log(folder).unread(KAFKA, micro_batch) == {("readings", 0)}, "though the batch is small"
    later = Log(folder)
    later.unread(KAFKA, MicroBatch(1, 0, 0, micro_batch.start, micro_batch.start))
    assert later.unread(KAFKA, micro_batch) == frozenset(), "what runs on is not narrowed"
    assert narrow.apply(folder, KAFKA) == 0, "once"

    commit(folder, 1)
    assert narrow.apply(folder, KAFKA) == 3
    assert offset_log.position(folder) == Position(2, {"readings": {0: 15, 1: 40}})
    begin(folder, 2, 30, 40)
    assert narrow.apply(folder, KAFKA) == 0
    assert offset_log.ends(folder, 2) == {"readings": {0: 20, 1: 40}}
    assert offset_log.ends(folder, 0) == {"readings": {0: 10, 1: 10}}


def test_far_before_a_skip_a_batch_ends_where_nothing_of_it_is_read_ahead(folder: Files) -> None:
    far = 5 * READ_AHEAD
    begin(folder, 0, 2 * far, 2 * far)
    skips.write(folder, [span(0, far, far + 1)])
    narrow.apply(folder, KAFKA)
    assert offset_log.ends(folder, 0) == {"readings": {0: far - READ_AHEAD, 1: 2 * far}}
    commit(folder, 0)
    begin(folder, 1, 2 * far, 4 * far)
    narrow.apply(folder, KAFKA)
    assert offset_log.ends(folder, 1) == {"readings": {0: far, 1: 2 * far + READ_AHEAD}}, (
        "what is read slowly is little"
    )


def test_a_batch_that_begins_with_a_skip_begins_behind_it(folder: Files) -> None:
    begin(folder, 0, 10, 10)
    skips.write(folder, [span(0, 3, 5), span(1, 2, 12)])
    assert narrow.apply(folder, KAFKA) == 2 + 8
    assert offset_log.position(folder) == Position(0, {"readings": {0: 5, 1: 12}}, is_repeated=True)
    assert offset_log.ends(folder, 0) == {"readings": {0: 10, 1: 12}}, "nothing of partition 1 is left of it"
    assert folder.read(offset_log.FIRST).startswith(b"\0v1\n{")
    assert narrow.apply(folder, KAFKA) == 0


def test_nothing_else_of_the_files_changes_and_their_checksums_fit(folder: Files) -> None:
    begin(folder, 0, 10, 10)
    skips.write(folder, [span(0, 3, 4), span(1, 7, 8)])
    narrow.apply(folder, KAFKA)
    version, conf, *sources = folder.read("offsets/0").decode().split("\n")
    assert (version, conf) == ("v1", CONF)
    assert sources == ['{"readings":{"0":10,"1":7}}', "-", '{"readings":{"0":10,"1":7}}']
    local = Local(Path(str(folder)))
    assert (local.root / "offsets" / ".0.crc").exists()
    for name in ("offsets/0", offset_log.FIRST):
        assert not local.problem(name)
        assert not folder.problem(name)


def test_a_new_checkpoint_and_one_without_skips_stay_as_they_are(folder: Files) -> None:
    assert narrow.apply(folder, KAFKA) == 0
    skips.write(folder, [span(0, 3, 5)])
    assert narrow.apply(folder, KAFKA) == 0, "no batch was begun: the first one is narrowed when Spark has planned it"
