"""The operator in Spark itself: sessions and windows over batches, a silent bucket, a restart, and the state read back."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state import codec, reader, watermark
from state.processor import CHANGES, OUTPUT, PARTS, RUNS, TIMES, BucketProcessor
from state.rules import Rules
from state.watermark import Delays, EventTime, Partition
from state.window_columns import COLUMNS
from state.windows import parts
from tests.runs import fold

# py4j leaves its sockets to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning")]

RULES = Rules(gap_ms=10_000, max_duration_ms=600_000, retain_ms=86_400_000, measures=("t",))
DELAY_MS = 5_000


MINUTE = 60_000


def minutes(ms):
    """Parts of a view of one minute over all devices: a reading each."""
    stats = {name: np.zeros(len(ms)) for name in COLUMNS} | {"count": np.ones(len(ms), np.int64)}
    stats |= {"first": ms, "last": ms}
    start = ms - ms % MINUTE
    return parts("view", "t", pa.array(["all"]), np.zeros(len(ms), np.int32), start, start + MINUTE, stats)


class Query:
    """Buckets of runs through the processor, one input file a batch; `changes` collects what came out."""

    def __init__(self, spark, directory):
        self.spark, self.directory, self.changes, self.files = spark, directory, [], 0
        self.time = EventTime()
        self.checkpoint = str(directory / "checkpoint")
        (directory / "in").mkdir()

    def start(self):
        schema = "bucket int, kind tinyint, payload binary"
        frame = self.spark.readStream.schema(schema).parquet(str(self.directory / "in"))
        changes = frame.groupBy("bucket").transformWithStateInPandas(
            BucketProcessor(RULES, Delays(DELAY_MS, DELAY_MS)),
            outputStructType=OUTPUT,
            outputMode="Update",
            timeMode="None",
        )
        writer = changes.writeStream.outputMode("update").option("checkpointLocation", self.checkpoint)
        self.query = writer.foreachBatch(self.take).start()

    def take(self, frame, _batch):
        for row in frame.where(f"kind = {CHANGES}").collect():
            for session in codec.unpack_changes(bytes(row.payload)).sessions.to_pylist():
                self.changes.append((session["device"], session["start"], session["last"], session["state"]))

    def add(self, buckets):
        """A file of {bucket: [(device, ms), ...]}, processed; all buckets are told what was read."""
        newest = max(ms for readings in buckets.values() for _, ms in readings)
        report = watermark.report(self.time, {0: Partition(newest, newest)})
        self.time = EventTime(newest - DELAY_MS, newest)
        rows = [{"bucket": bucket, "kind": TIMES, "payload": report} for bucket in (0, 1)]
        for bucket, readings in buckets.items():
            device, ms = pa.array([device for device, _ in readings]), np.array([ms for _, ms in readings], np.int64)
            runs = fold(device, ms, {"t": ms / 1000}, RULES)
            for kind, payload in ((RUNS, codec.pack(b"R", runs)), (PARTS, codec.pack(b"W", minutes(ms)))):
                rows.append({"bucket": bucket, "kind": kind, "payload": payload})
        schema = pa.schema([("bucket", pa.int32()), ("kind", pa.int8()), ("payload", pa.binary())])
        self.files += 1
        part = self.directory / f"{self.files}.part"
        pq.write_table(pa.Table.from_pylist(rows, schema), part)
        part.rename(self.directory / "in" / f"{self.files}.parquet")
        self.query.processAllAvailable()
        seen, self.changes = sorted(self.changes), []
        return seen


def test_sessions_close_survive_a_restart_and_can_be_read_from_the_checkpoint(spark, tmp_path):
    query = Query(spark, tmp_path)
    query.start()
    try:
        assert query.add({0: [("a", 100_000)], 1: [("b", 105_000), ("b2", 101_000)]}) == [
            ("a", 100_000, 100_000, "open"),
            ("b", 105_000, 105_000, "open"),
            ("b2", 101_000, 101_000, "open"),
        ]
        # The watermark reaches 110,000: exactly a's end, so a stays open.
        assert query.add({1: [("b", 115_000)]}) == [("b", 105_000, 115_000, "open")]
        query.query.stop()

        runs, devices, windows = reader.read(spark, query.checkpoint)
        names = ["bucket", "device", "session", "start", "last", "count", "t.sum"]
        assert [tuple(row.values()) for row in runs.select(names).to_pylist()] == [
            (0, "a", 100_000, 100_000, 100_000, 1, 100.0),
            (1, "b", 105_000, 105_000, 105_000, 1, 105.0),  # two cells of 37.5 s
            (1, "b", 105_000, 115_000, 115_000, 1, 115.0),
            (1, "b2", 101_000, 101_000, 101_000, 1, 101.0),
        ]
        assert devices.select(["bucket", "device", "last_seen", "t.at"]).to_pylist()[1] == {
            "bucket": 1,
            "device": "b",
            "last_seen": 115_000,
            "t.at": 115_000,
        }
        assert windows.select(["bucket", "view", "key", "start", "end", "count"]).to_pylist() == [
            {"bucket": bucket, "view": "view", "key": "all", "start": MINUTE, "end": 2 * MINUTE, "count": count}
            for bucket, count in ((0, 1), (1, 3))
        ]

        query.start()
        # One millisecond more, from bucket 1 alone: the silent bucket 0 is moved on, too.
        assert query.add({1: [("b", 115_001)]}) == [
            ("a", 100_000, 100_000, "closed"),
            ("b", 105_000, 115_001, "open"),
        ]
        assert query.add({0: [("a", 200_000)]}) == [
            ("a", 200_000, 200_000, "open"),
            ("b", 105_000, 115_001, "closed"),
            ("b2", 101_000, 101_000, "closed"),
        ]
        # The watermark is at 195,000: both buckets have closed the window that ended at 120,000.
        windows = reader.read(spark, query.checkpoint)[2].select(["bucket", "start", "count"])
        assert [tuple(row.values()) for row in windows.to_pylist()] == [(0, 3 * MINUTE, 1)]
    finally:
        query.query.stop()
