"""Reference data: static facts about devices, read over JDBC, validated, versioned, looked up by device.

    database --fetch--> table --validate--> store --> <folder>/<version>.arrow, named by the pointer `current`
                                                                 |
                                     CurrentSnapshot.swap() between two batches: pointer `serving`
                                                                 v
                    attributes.Serving: looked up by the fold, and by publish, for the devices of a batch

No batch runs while the pointer moves, so no batch is mixed, and a task that runs again because an executor was lost reads
the same pointer. The snapshot folder must be the same for the driver and every executor.

Where unknown devices are rejected, admission joins every reading with the devices, in the plan itself. A persisted side of
a running query is never refreshed, and another DataFrame's cache is not the query's: so there is one DataFrame whose plan
never changes and whose rows are what the pointer names when they are computed; a swap computes them anew.
"""

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from service import clock
from service.errors import ReferenceDataError, SettingsError, SetupError
from service.reference.attributes import DEVICE, SERVING, Serving, Stored, indexed, without_index
from service.reference.database import READ_MS, UnreadableError, fetch, innermost
from service.reference.expectations import require_columns, validate
from service.spark.files import FULL, MAKE_ROOM, local

if TYPE_CHECKING:
    from service.settings import Reference, Settings

__all__ = [
    "CurrentSnapshot",
    "Snapshot",
    "UnreadableError",
    "columns",
    "fetch",
    "frame",
    "latest",
    "load",
    "load_or_keep",
    "store",
    "validate",
]

CURRENT = "current"
JOINED = "joined"
SOURCE = b"tidemark.source"
_SNAPSHOT = re.compile(r"^[0-9a-f]{12}\.arrow$")
_ROWS_PER_BATCH = 65_536
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """One validated state of the reference data.

    `version` is a hash of the content (12 hex digits): equal content has an equal version. `table` has `device` and
    then the query's other columns in its order, all strings, sorted by device. `read_ms` is when the database was
    asked.
    """

    version: str
    table: pa.Table
    read_ms: int
    path: Path

    def attributes(self, columns: Sequence[str] = ()) -> Stored:
        """What it knows of devices: the named columns, or all; to be looked up from any process that sees the file."""
        return Stored(self.path, tuple(columns or self.table.column_names[1:]))


def load(
    spark: SparkSession,
    reference: "Reference",
    folder: Path,
    *,
    fresh_ms: int = 0,
    require: Iterable[str] = (),
    former: Snapshot | None = None,
) -> Snapshot:
    """Fetch, validate, store: after it the snapshot is the folder's last good one. `former` is that if the caller has it.

    Raises what `fetch`, `validate` and `store` raise; nothing is stored then. `require` names columns that must be
    there, such as those a running query was built with. What the last good snapshot has said already, under the same
    expectations, is not held against them again. With `fresh_ms`, the last good snapshot is taken as it is when it was
    read less than that ago by the same query and held against the same expectations.
    """
    former = former or _former(folder)
    if former is not None and 0 <= clock.now_ms() - former.read_ms < fresh_ms and _answers(former, reference, require):
        return former
    table = _arranged(fetch(spark, reference), _source(reference))
    require_columns(table, require)
    if former is None or former.version != _version(table) or not _answers(former, reference, require):
        validate(table, reference, None if former is None else former.table.num_rows)
    return store(folder, table)


def load_or_keep(
    spark: SparkSession,
    reference: "Reference",
    folder: Path,
    *,
    fresh_ms: int = 0,
    require: Sequence[str] = (),
) -> tuple[Snapshot, ReferenceDataError | None]:
    """`load`, and where that fails the last good snapshot, of whatever age, and why it is that one; said in the log, too.

    Raises what `load` raises when there is no last good one, or it lacks a column.
    """
    try:
        return load(spark, reference, folder, fresh_ms=fresh_ms, require=require), None
    except ReferenceDataError as error:
        kept = _former(folder)
        if kept is None:
            raise
        require_columns(kept.table, (*reference.columns, *require))
        age_s = (clock.now_ms() - kept.read_ms) // 1000
        _log.warning("%s. Going on with the last good snapshot %s, read %d s ago", error, kept.version, age_s)
        return kept, error


def _former(folder: Path) -> Snapshot | None:
    with contextlib.suppress(ReferenceDataError):  # a damaged one is replaced by what the database has
        return latest(folder)
    return None


def _answers(snapshot: Snapshot, reference: "Reference", require: Iterable[str]) -> bool:
    """Whether a snapshot is of this query, was held against these expectations, and has the columns."""
    said = (snapshot.table.schema.metadata or {}).get(SOURCE)
    return said == _source(reference) and {*require} <= {*snapshot.table.column_names}


def _source(reference: "Reference") -> bytes:
    """Where a table came from and what it was held against, as a hash; the rules themselves are part of it."""
    rules = b""
    with contextlib.suppress(OSError):
        rules = reference.expectations.read_bytes()
    asked = "\0".join([reference.url, reference.query, reference.key, *reference.columns])
    return hashlib.sha256(asked.encode() + b"\0" + rules).hexdigest().encode()


def columns(snapshot: Snapshot, reference: "Reference") -> tuple[str, ...]:
    """The attribute columns in use: those the settings name, or all of the query's, in order."""
    names = reference.columns or tuple(snapshot.table.column_names[1:])
    require_columns(snapshot.table, names)
    return names


def store(folder: Path, table: pa.Table) -> Snapshot:
    """Write the table as the folder's last good snapshot; what it held before stays until the next one.

    Both files are replaced whole, the pointer last: a crash in between leaves the former snapshot. Raises
    SetupError when the folder cannot be written.
    """
    table = _arranged(table)
    version = _version(table)
    path = folder / f"{version}.arrow"
    kept = {version}
    for pointer in (CURRENT, SERVING, JOINED):
        with contextlib.suppress(ReferenceDataError):  # a damaged pointer is no reason to refuse good data
            kept.add(_pointed(folder, pointer) or version)
    sink, read_ms = pa.BufferOutputStream(), int((table.schema.metadata or {})[READ_MS])
    stored = indexed(table)
    with pa.ipc.new_file(sink, stored.schema) as writer:
        writer.write_table(stored, max_chunksize=max(1, stored.num_rows))  # one piece: a look-up reads it where it lies
    _replace(path, sink.getvalue())
    _replace(folder / CURRENT, version.encode())
    for old in folder.iterdir():
        if _SNAPSHOT.match(old.name) and old.stem not in kept:
            old.unlink(missing_ok=True)
    return Snapshot(version, without_index(_mapped(path)), read_ms, path)  # from the file: no copy stays in memory


def _arranged(table: pa.Table, source: bytes | None = None) -> pa.Table:
    """In the order of a snapshot, in one piece, with nothing but its own metadata."""
    said = table.schema.metadata or {}
    read_ms = said.get(READ_MS) or str(clock.now_ms()).encode()
    kept = {READ_MS: read_ms, SOURCE: said.get(SOURCE) or b"" if source is None else source}
    if source is None and said == kept:
        return table
    return table.sort_by(DEVICE).combine_chunks().replace_schema_metadata(kept)


def latest(folder: Path, *, pointer: str = CURRENT) -> Snapshot | None:
    """The last good snapshot, None when there is none; raises ReferenceDataError naming the file when it is damaged.

    With `pointer=SERVING`, the one that a CurrentSnapshot held last, with JOINED the one that the last batch joined with, perhaps
    before a restart.
    """
    version = _pointed(folder, pointer)
    if version is None:
        return None
    path = folder / f"{version}.arrow"
    try:
        stored = _mapped(path)
        stored.validate(full=True)
        table = without_index(stored)
        read_ms = int((table.schema.metadata or {})[READ_MS])
        if _version(table) != version or (stored.num_columns > table.num_columns and not stored.equals(indexed(table))):
            raise _damaged(path, "its content is not what its name says")
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise _damaged(path, " ".join(str(error).split())) from error
    return Snapshot(version, table, read_ms, path)


def _mapped(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def frame(spark: SparkSession, folder: Path, columns: Sequence[str], *, pointer: str = CURRENT) -> DataFrame:
    """`device` and `columns`, all strings, of the snapshot that the pointer names whenever the rows are computed.

    Not persisted: without a CurrentSnapshot every batch reads the file again, and a batch may see another snapshot than the
    last.
    """
    source, names = str(folder), [DEVICE, *columns]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # the one row that makes Spark call us
            pass
        version = (Path(source) / pointer).read_text(encoding="ascii")
        with pa.memory_map(str(Path(source) / f"{version}.arrow")) as mapped:
            file = pa.ipc.open_file(mapped)
            for number in range(file.num_record_batches):
                batch = file.get_batch(number).select(names)
                for start in range(0, batch.num_rows, _ROWS_PER_BATCH):
                    yield batch.slice(start, _ROWS_PER_BATCH)

    # One partition: a single task reads the pointer, so one computation is of one snapshot.
    return spark.range(0, 1, 1, 1).mapInArrow(
        read, StructType([StructField(n, StringType(), n != DEVICE) for n in names])
    )


class CurrentSnapshot:
    """The snapshot that a running query works with.

    `attributes` looks it up; `frame`, for whoever must join with it, is one persisted DataFrame of `device` and `columns`,
    the same object for ever. `snapshot` is what both hold. Between two swaps nothing is read from the database.
    """

    def __init__(self, spark: SparkSession, folder: Path, columns: Sequence[str], *, resume: bool = False) -> None:
        """Take the folder's last good snapshot; raises ReferenceDataError when there is none, or it lacks a column.

        With `resume`, take the one that the last batch joined with, where it is still there and fits: a batch that is
        replayed then joins with what it joined with the first time, and `swap` after it brings the last good one.
        """
        self._folder = folder
        self._columns = tuple(columns)
        self.attributes = Serving(folder, self._columns)
        self._spark = spark
        self._frame: DataFrame | None = None
        self.snapshot = (self._joined_before() if resume else None) or self._newest()
        self._joined: Snapshot | None = None
        self._serve(self.snapshot)

    @property
    def frame(self) -> DataFrame:
        """Computed when it is first asked for; raises ReferenceDataError when it cannot be."""
        if self._frame is None:
            self._frame = frame(self._spark, self._folder, self._columns, pointer=SERVING)
            self._compute(self._frame, self.snapshot)
        return self._frame

    @property
    def is_joined(self) -> bool:
        """Whether anybody joins with `frame`: the plan of a batch is bound to its rows before the batch begins."""
        return self._frame is not None

    def swap(self, snapshot: Snapshot | None = None) -> bool:
        """Put the given snapshot, or the folder's last good one, in the place of the one that is held.

        Call it when no batch is running: in foreachBatch after its action. The next batch joins with the new rows.
        True when the content is another one; nothing is computed when it is not. Raises ReferenceDataError, and
        goes on holding the former snapshot, when the new one lacks a column or cannot be loaded.
        """
        new, former = snapshot or self._newest(), self.snapshot
        require_columns(new.table, self._columns)
        if new.version != former.version:
            try:
                self._serve(new)
            except ReferenceDataError:
                self._serve(former)
                raise
        self.snapshot = new
        return new.version != former.version

    def joins(self) -> None:
        """A batch begins, so the one before is committed. What it joins with is what a replay of it has to join with:
        a swap after its action does not change that. Raises SetupError when it cannot be noted."""
        if self._joined is None or self._joined.version != self.snapshot.version:
            _replace(self._folder / JOINED, self.snapshot.version.encode())
        self._joined = self.snapshot

    def rewind(self) -> None:
        """Before the query starts again: hold what the last batch joined with, which may have to be replayed."""
        if self._joined is not None:
            self.swap(self._joined)

    def close(self) -> None:
        """Free the memory that the rows take on the executors."""
        if self._frame is not None:
            self._frame.unpersist(blocking=True)

    def _joined_before(self) -> Snapshot | None:
        try:
            snapshot = latest(self._folder, pointer=JOINED)
        except ReferenceDataError as error:
            _log.warning("%s. Going on with the last good one", error.what)
            return None
        fits = snapshot is not None and set(self._columns) <= set(snapshot.table.column_names)
        return snapshot if fits else None

    def _newest(self) -> Snapshot:
        snapshot = latest(self._folder)
        if snapshot is None:
            msg = f"{self._folder}: there is no reference snapshot"
            raise ReferenceDataError(msg, remedy="Load one from the database first")
        require_columns(snapshot.table, self._columns)
        return snapshot

    def _serve(self, snapshot: Snapshot) -> None:
        _replace(self._folder / SERVING, snapshot.version.encode())
        if self._frame is not None:
            self._compute(self._frame, snapshot)

    def _compute(self, joined: DataFrame, snapshot: Snapshot) -> None:
        joined.unpersist(blocking=True)
        joined.persist()
        remedy = "The snapshot folder must be the same on the driver and every executor"
        try:
            held = joined.count()
        except (PySparkException, Py4JJavaError) as error:
            msg = f"{snapshot.path}: an executor cannot load the reference snapshot: {innermost(error)}"
            raise ReferenceDataError(msg, remedy=remedy) from error
        if held != snapshot.table.num_rows:
            msg = f"{snapshot.path}: the executors hold {held} rows of the snapshot's {snapshot.table.num_rows}"
            raise ReferenceDataError(msg, remedy=remedy)


def _version(table: pa.Table) -> str:
    """Content only: neither chunks nor metadata count. CSV tells null (nothing) from "" (quotes)."""
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink)
    return hashlib.sha256(sink.getvalue()).hexdigest()[:12]


def _pointed(folder: Path, pointer: str) -> str | None:
    try:
        version = (folder / pointer).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(folder / pointer, str(error)) from error
    if not _SNAPSHOT.match(f"{version}.arrow"):
        raise _damaged(folder / pointer, "it names no snapshot")
    return version


def _damaged(path: Path, why: str) -> ReferenceDataError:
    msg = f"{path}: the stored reference snapshot is damaged: {why}"
    return ReferenceDataError(msg, remedy="Delete the file `current` beside it: the next start reads the database")


def _replace(path: Path, content: Any) -> None:
    """Write whole or not at all, also when the machine stops; raises SetupError when the folder cannot be written."""
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        msg = f"{path}: the reference snapshot cannot be written ({error.strerror})"
        remedy = MAKE_ROOM if FULL.search(msg) else "Give the service a checkpoint folder that it may write"
        raise SetupError(msg, remedy=remedy) from error


def snapshot_folder(settings: "Settings") -> Path:
    """Where the last good reference lives: beside the query's own files in the checkpoint."""
    folder = local(settings.service.checkpoint)
    if folder is None:
        what = f"service.checkpoint = {settings.service.checkpoint!r}: with [reference] it must be a folder"
        raise SettingsError(what, remedy="Name a folder that the driver and every executor share")
    return folder / "reference"
