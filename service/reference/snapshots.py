"""Reference snapshots: the devices' attributes, read over JDBC, validated, and stored in the checkpoint's folder.

    database --fetch--> table --validate--> store --> <folder>/<version>.arrow, named by the pointer `current`
                                                                 |
                   CurrentSnapshot.swap() between two batches: pointer `serving`, see current_snapshot.py
                                                                 v
                    attributes.Serving: looked up by the fold, and by publish, for the devices of a batch

A pointer is a file with a version. A folder of this machine must be the same for the driver and every executor; of a folder on
another file system every process gets copies (folder.py).
"""

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
from pyspark.sql import SparkSession

from service import clock
from service.errors import ReferenceDataError, SetupError
from service.reference import history
from service.reference.attributes import DEVICE, SERVING, Stored, indexed, without_index
from service.reference.database import READ_MS, fetch
from service.reference.expectations import require_columns, validate
from service.reference.folder import SharedFolder, SnapshotFolder
from service.spark.files import FULL, MAKE_ROOM

if TYPE_CHECKING:
    from service.settings import Reference

CURRENT = "current"
"""Pointer to the last good snapshot, which is the one that was stored last."""
LAST_BATCH = "joined"
"""Pointer to the snapshot of the last batch."""
SOURCE = b"tidemark.source"
_SNAPSHOT = re.compile(r"^[0-9a-f]{12}\.arrow$")
_log = logging.getLogger(__name__)

Place = Path | SnapshotFolder
"""Where snapshots are; a path is a folder of this machine."""


@dataclass(frozen=True)
class Snapshot:
    """One validated version of the reference data.

    `version` is a hash of the content, 12 hex digits. `table` has `device` and then the query's other columns in its order, all
    strings, sorted by device. `read_ms` is the time of the query.
    """

    version: str
    table: pa.Table
    read_ms: int
    path: Path

    def attributes(self, columns: Sequence[str] = ()) -> Stored:
        """Return a look-up of the named columns, or of all; it works in every process that can read the file."""
        return Stored(self.path, tuple(columns or self.table.column_names[1:]))


def load(
    spark: SparkSession,
    reference: "Reference",
    folder: Place,
    *,
    fresh_ms: int = 0,
    require: Iterable[str] = (),
    former: Snapshot | None = None,
) -> Snapshot:
    """Fetch, validate and store a snapshot, which becomes the folder's last good one.

    `require` names columns that the data must have, such as those of a running query. `former` is the last good snapshot, if the
    caller has it. A last good snapshot of the same query and expectations saves work: data equal to it is not validated again,
    and if it was read less than `fresh_ms` ago, it is returned without a query.

    Raises what `fetch`, `validate` and `store` raise; then nothing is stored.
    """
    former = former or _last_good(folder)
    if former is not None and 0 <= clock.now_ms() - former.read_ms < fresh_ms and _fits(former, reference, require):
        return former
    table = _arranged(fetch(spark, reference), _source(reference))
    require_columns(table, require)
    if former is None or former.version != _version(table) or not _fits(former, reference, require):
        validate(table, reference, None if former is None else former.table.num_rows)
    return store(folder, table)


def load_or_keep(
    spark: SparkSession, reference: "Reference", folder: Place, *, fresh_ms: int = 0, require: Sequence[str] = ()
) -> tuple[Snapshot, ReferenceDataError | None]:
    """`load`; if that fails, return the last good snapshot of any age and the error, and log both.

    Raises what `load` raises when there is no last good snapshot, or it lacks a column.
    """
    try:
        return load(spark, reference, folder, fresh_ms=fresh_ms, require=require), None
    except ReferenceDataError as error:
        kept = _last_good(folder)
        if kept is None:
            raise
        require_columns(kept.table, (*reference.columns, *require))
        age_s = (clock.now_ms() - kept.read_ms) // 1000
        _log.warning("%s. Going on with the last good snapshot %s, read %d s ago", error, kept.version, age_s)
        return kept, error


def _last_good(folder: Place) -> Snapshot | None:
    with contextlib.suppress(ReferenceDataError):  # data from the database replaces a damaged snapshot
        return latest(folder)
    return None


def _fits(snapshot: Snapshot, reference: "Reference", require: Iterable[str]) -> bool:
    """Whether a snapshot is of this query, was validated with these expectations, and has the columns."""
    source = (snapshot.table.schema.metadata or {}).get(SOURCE)
    return source == _source(reference) and {*require} <= {*snapshot.table.column_names}


def _source(reference: "Reference") -> bytes:
    """Return a hash of the query, of the columns with limits, and of the content of the expectations file, if there is one."""
    rules = b""
    if reference.expectations is not None:
        with contextlib.suppress(OSError):
            rules = reference.expectations.read_bytes()
    limits = dict(reference.ranges), reference.session_gap, reference.expected_interval
    # Without limits the hash is that of 0.4.0, so that the first start after an upgrade keeps the snapshot.
    query = [reference.url, reference.query, reference.key, *reference.columns, *([str(limits)] if any(limits) else [])]
    return hashlib.sha256("\0".join(query).encode() + b"\0" + rules).hexdigest().encode()


def columns(snapshot: Snapshot, reference: "Reference") -> tuple[str, ...]:
    """Return the attribute columns in use, in order: the columns of the settings, or all columns of the query."""
    names = reference.columns or tuple(snapshot.table.column_names[1:])
    require_columns(snapshot.table, names)
    return names


def store(folder: Place, table: pa.Table) -> Snapshot:
    """Write the table as the folder's last good snapshot, and delete older ones that neither a pointer nor the history names.

    The former last good snapshot stays until the next call. The pointer is written last: after a crash before that, the former
    one is still the last good one. Raises SetupError when the folder cannot be written.
    """
    table, place = _arranged(table), folder_of(folder)
    version = _version(table)
    name = f"{version}.arrow"
    kept = {version}
    for pointer in (CURRENT, SERVING, LAST_BATCH):
        with contextlib.suppress(ReferenceDataError):  # a damaged pointer must not stop good data
            kept.add(_pointed(place, pointer) or version)
    sink, read_ms = pa.BufferOutputStream(), int((table.schema.metadata or {})[READ_MS])
    stored = indexed(table)
    with pa.ipc.new_file(sink, stored.schema) as writer:
        writer.write_table(stored, max_chunksize=max(1, stored.num_rows))  # one chunk: a look-up maps it without a copy
    _replace(place, name, sink.getvalue())
    point(place, CURRENT, version)
    kept.update(use.version for use in history.read(place).uses)
    place.keep(f"{each}.arrow" for each in kept)
    path = place.path(name)
    return Snapshot(version, without_index(_mapped(path)), read_ms, path)  # from the file: no copy stays in memory


def _arranged(table: pa.Table, source: bytes | None = None) -> pa.Table:
    """Return the table sorted by device, in one chunk, with a snapshot's metadata only."""
    metadata = table.schema.metadata or {}
    read_ms = metadata.get(READ_MS) or str(clock.now_ms()).encode()
    expected = {READ_MS: read_ms, SOURCE: metadata.get(SOURCE) or b"" if source is None else source}
    if source is None and metadata == expected:
        return table
    return table.sort_by(DEVICE).combine_chunks().replace_schema_metadata(expected)


def latest(folder: Place, *, pointer: str = CURRENT) -> Snapshot | None:
    """Return the snapshot that a pointer names, None when there is no pointer.

    The pointers are CURRENT, SERVING and LAST_BATCH. Raises ReferenceDataError with the name of the file that is damaged.
    """
    place = folder_of(folder)
    version = _pointed(place, pointer)
    if version is None:
        return None
    name = f"{version}.arrow"
    try:
        path = place.path(name)
        stored = _mapped(path)
        stored.validate(full=True)
        table = without_index(stored)
        read_ms = int((table.schema.metadata or {})[READ_MS])
        if _version(table) != version or (stored.num_columns > table.num_columns and not stored.equals(indexed(table))):
            raise _damaged(place, name, "its content does not have the hash in its name")
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise _damaged(place, name, " ".join(str(error).split())) from error
    return Snapshot(version, table, read_ms, path)


def _mapped(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _version(table: pa.Table) -> str:
    """Return a hash of the content, without chunks and metadata. CSV distinguishes null (nothing) from "" (quotes)."""
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink)
    return hashlib.sha256(sink.getvalue()).hexdigest()[:12]


def point(folder: Place, pointer: str, version: str) -> None:
    """Write a pointer. Raises SetupError when the folder cannot be written."""
    _replace(folder_of(folder), pointer, version.encode())


def folder_of(folder: Place) -> SnapshotFolder:
    """Return the folder at a place."""
    return SharedFolder(folder) if isinstance(folder, Path) else folder


def _pointed(folder: SnapshotFolder, pointer: str) -> str | None:
    try:
        version = folder.read(pointer).decode("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(folder, pointer, str(error)) from error
    if not _SNAPSHOT.match(f"{version}.arrow"):
        raise _damaged(folder, pointer, "it names no snapshot")
    return version


def _damaged(folder: SnapshotFolder, name: str, why: str) -> ReferenceDataError:
    msg = f"{folder}/{name}: the stored reference snapshot is damaged: {why}"
    return ReferenceDataError(
        msg, remedy="Delete the file `current` in the same folder: the next start reads the database"
    )


def _replace(folder: SnapshotFolder, name: str, content: Any) -> None:
    try:
        folder.replace(name, content)
    except OSError as error:
        msg = f"{folder}/{name}: the reference snapshot cannot be written ({error.strerror or error})"
        remedy = MAKE_ROOM if FULL.search(msg) else "Give the service a checkpoint folder that it may write"
        raise SetupError(msg, remedy=remedy) from error
