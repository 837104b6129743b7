"""The snapshot of a running query, which changes only between two batches.

No batch runs while the pointer `serving` changes, so all tasks of a batch read one snapshot. That includes a task that runs again
because an executor was lost.

With a small reference, admission joins every reading with the devices, in the plan (lookup.JoinLookUp). Spark never refreshes the
persisted side of a join in a running query. So there is one DataFrame, whose plan reads the snapshot that the pointer names; a
swap computes its rows again.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from service.errors import ReferenceDataError
from service.reference.attributes import DEVICE, SERVING, Serving
from service.reference.database import innermost
from service.reference.expectations import require_columns
from service.reference.snapshots import JOINED, Snapshot, latest, point

_ROWS_PER_BATCH = 65_536
_log = logging.getLogger(__name__)


class CurrentSnapshot:
    """The snapshot that a running query uses.

    `attributes` looks devices up in it. `frame` is a persisted DataFrame of `device` and `columns`, for a join; it is the same
    object after a swap. `snapshot` is the content of both. Not thread-safe: call it from the query's thread.
    """

    def __init__(self, spark: SparkSession, folder: Path, columns: Sequence[str], *, resume: bool = False) -> None:
        """Take the folder's last good snapshot; raises ReferenceDataError when there is none, or it lacks a column.

        With `resume`, take the snapshot of the last batch if it exists and has the columns: the batch may be replayed, and must
        read the same attributes. `swap` after it takes the last good one.
        """
        self._folder = folder
        self._columns = tuple(columns)
        self.attributes = Serving(folder, self._columns)
        self._spark = spark
        self._frame: DataFrame | None = None
        self.snapshot = (self._of_last_batch() if resume else None) or self._last_good()
        self._joined: Snapshot | None = None
        self._serve(self.snapshot)

    @property
    def frame(self) -> DataFrame:
        """The rows, computed on first use; raises ReferenceDataError when that fails."""
        if self._frame is None:
            self._frame = _frame(self._spark, self._folder, self._columns)
            self._compute(self._frame, self.snapshot)
        return self._frame

    @property
    def is_joined(self) -> bool:
        """Whether `frame` is in use. Its rows cannot change after the plan of a batch is made."""
        return self._frame is not None

    def swap(self, snapshot: Snapshot | None = None) -> bool:
        """Use another snapshot, by default the last good one, from the next batch on. Return whether its content differs.

        Call it while no batch runs: in foreachBatch after its action. Raises ReferenceDataError, and keeps the former snapshot,
        when the new one lacks a column or cannot be loaded.
        """
        new, former = snapshot or self._last_good(), self.snapshot
        require_columns(new.table, self._columns)
        if new.version != former.version:
            try:
                self._serve(new)
            except ReferenceDataError:
                self._serve(former)
                raise
        self.snapshot = new
        return new.version != former.version

    def before_batch(self) -> None:
        """Write the pointer `joined` when a batch begins, for its replay. Raises SetupError when that fails.

        A batch begins after the one before is committed, and a swap after its action does not change the pointer.
        """
        if self._joined is None or self._joined.version != self.snapshot.version:
            point(self._folder, JOINED, self.snapshot.version)
        self._joined = self.snapshot

    def rewind(self) -> None:
        """Use the snapshot of the last batch again, before a restart of the query that may replay the batch."""
        if self._joined is not None:
            self.swap(self._joined)

    def _of_last_batch(self) -> Snapshot | None:
        try:
            snapshot = latest(self._folder, pointer=JOINED)
        except ReferenceDataError as error:
            _log.warning("%s. Going on with the last good snapshot", error.what)
            return None
        fits = snapshot is not None and set(self._columns) <= set(snapshot.table.column_names)
        return snapshot if fits else None

    def _last_good(self) -> Snapshot:
        snapshot = latest(self._folder)
        if snapshot is None:
            msg = f"{self._folder}: there is no reference snapshot"
            raise ReferenceDataError(msg, remedy="Load one from the database first")
        require_columns(snapshot.table, self._columns)
        return snapshot

    def _serve(self, snapshot: Snapshot) -> None:
        point(self._folder, SERVING, snapshot.version)
        if self._frame is not None:
            self._compute(self._frame, snapshot)

    def _compute(self, frame: DataFrame, snapshot: Snapshot) -> None:
        frame.unpersist(blocking=True)
        frame.persist()
        remedy = "The snapshot folder must be the same on the driver and every executor"
        try:
            rows = frame.count()
        except (PySparkException, Py4JJavaError) as error:
            msg = f"{snapshot.path}: an executor cannot load the reference snapshot: {innermost(error)}"
            raise ReferenceDataError(msg, remedy=remedy) from error
        if rows != snapshot.table.num_rows:
            msg = f"{snapshot.path}: the executors have {rows} rows of the snapshot's {snapshot.table.num_rows}"
            raise ReferenceDataError(msg, remedy=remedy)


def _frame(spark: SparkSession, folder: Path, columns: Sequence[str]) -> DataFrame:
    """Return `device` and `columns`, all strings, of the snapshot that `serving` names when the rows are computed."""
    source, names = str(folder), [DEVICE, *columns]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # the one row that makes Spark call this function
            pass
        version = (Path(source) / SERVING).read_text(encoding="ascii")
        with pa.memory_map(str(Path(source) / f"{version}.arrow")) as mapped:
            file = pa.ipc.open_file(mapped)
            for number in range(file.num_record_batches):
                batch = file.get_batch(number).select(names)
                for start in range(0, batch.num_rows, _ROWS_PER_BATCH):
                    yield batch.slice(start, _ROWS_PER_BATCH)

    # One partition: a single task reads the pointer, so all rows are of one snapshot.
    fields = [StructField(name, StringType(), name != DEVICE) for name in names]
    return spark.range(0, 1, 1, 1).mapInArrow(read, StructType(fields))
