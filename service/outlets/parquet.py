"""The outlet of kind `parquet`: files in folders of a view and a day.

    <path>/view=<view>/day=<day>/<batch>-<part>-<digest>.parquet     windows, by the day (UTC) of their start
    <path>/day=<day>/<batch>-<part>-<digest>.parquet                 sessions, or states by the day of their time
    <path>/_position.json                                            the last entry that is complete

    <path>/.../<batch>-compacted-<digest>.parquet                    the rows of many files
    <path>/[view=<view>/]day=1970-01-01/000000000000-columns.parquet  no rows, and the columns of all files, if these differ

A file is written under a hidden name and renamed. The position is written after the last file of an entry. An entry that is
written again, because the position was lost, has the same files under the same names, so that it replaces them.

A folder with many small files is compacted: the rows of these files, of a key only the newest one, become one file. Its metadata
names the files that it replaces, which are then removed. If the process dies in between, the next `open` removes them, and hidden
files. A large file stays, so the memory and the time of a compaction do not grow with the rows of a day.

pandas, pyarrow and Spark take the columns of the first file by name for those of all: they show no measure that was added later,
and give no error. So if the files differ in their columns, the first one has them all.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from service.errors import OutletError, OutletRefusedError
from service.outlets import outlet, tables
from service.outlets.outlet import Entry, Position
from service.settings import ParquetOutlet

POSITION = "_position.json"
_REPLACED = b"tidemark.replaced"
_COMPACTED = "-compacted-"
_DIGITS = 12
"""Of the number of a batch, with which the name of a file begins."""
_UNFINISHED = ".new"
"""The end of the hidden name of a file that is being written. A crash leaves it there."""
_COLUMNS = "day=1970-01-01", "000000000000-columns.parquet"
_LARGE = 16 << 20
"""The most bytes of a small file: some 300,000 windows. Twice as many become one at a time: a million take 530 MB of memory."""
_REMEDY = "Check [[outlets]] path, its disk and the rights of the service's user. Move a damaged file away, and backfill its day"


class Parquet:
    """Files below one folder of a local or another file system."""

    def __init__(self, options: ParquetOutlet, *_: object) -> None:
        self._options = options
        self._content = tables.CONTENTS[options.content]
        self._place = f"The outlet {options.name} at {options.path}"
        self._epoch = 0
        self._first: dict[str, str] = {}
        self._columns: dict[str, pa.Schema] = {}

    def check(self) -> str:
        with self._named():
            system, root = folder_of(self._options.path)
            there = system.get_file_info(root).type
            if there == pafs.FileType.File:
                raise OutletRefusedError(f"{self._place}: it is a file", remedy="Name a folder")
            reached = outlet.written(self._read_position(system, root))
        return f"{self._options.path}, " + (f"has {reached}" if reached is not None else "new")

    def open(self, epoch: int) -> Position | None:
        with self._named():
            system, root = folder_of(self._options.path)
            system.create_dir(root, recursive=True)
            reached = self._read_position(system, root)
            outlet.require_newest(reached, epoch, self._place)
            self._epoch = epoch
            self._write_position(system, root, (reached or Position(0, -1)).by(epoch))
            infos = system.get_file_info(pafs.FileSelector(root, recursive=True))
            for info in infos:
                if info.is_file and info.base_name.startswith(".") and info.base_name.endswith(_UNFINISHED):
                    system.delete_file(info.path)
            folders = _folders(infos)
            for folder, files in folders.items():
                self._finish(system, folder, files)
            self._first = {_above(folder): folders[folder][0].path for folder in sorted(folders, reverse=True)}
            return outlet.written(reached)

    def write(self, entry: Entry) -> int:
        with self._named():
            system, root = folder_of(self._options.path)
            outlet.require_newest(self._read_position(system, root), self._epoch, self._place)
            written = 0
            folders = []
            for folder, rows in self._split(entry.rows):
                path = f"{root}/{folder}"
                self._keep_columns(system, _above(path), rows.schema)
                system.create_dir(path, recursive=True)
                written += _write(system, f"{path}/{entry.position.name}.parquet", rows, ())
                folders.append(path)
            self._write_position(system, root, entry.position)
            for path in folders:
                self._compact(system, path)
        return written

    def close(self) -> None:
        """Nothing is open between two entries."""

    def _split(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each folder; windows without the column `view`, which the folder's name has."""
        day = pc.strftime(rows[self._content.time], "%Y-%m-%d")
        views = rows["view"] if "view" in rows.column_names else pa.repeat("", rows.num_rows)
        keys = pa.table({"view": views, "day": day})
        for key in keys.group_by(["view", "day"]).aggregate([]).to_pylist():
            chosen = pc.and_(pc.equal(keys["view"], key["view"]), pc.equal(keys["day"], key["day"]))
            some = rows.filter(chosen)
            if key["view"]:
                yield f"view={key['view']}/day={key['day']}", some.drop_columns(["view"])
            else:
                yield f"day={key['day']}", some

    def _keep_columns(self, system: pafs.FileSystem, above: str, schema: pa.Schema) -> None:
        """Have the first file of the folders of days, which are in `above`, show the columns of all files."""
        if above not in self._columns:
            first = self._first.get(above)
            self._columns[above] = schema if first is None else _schema(system, first)
        known = self._columns[above]
        folder, name = f"{above}/{_COLUMNS[0]}", _COLUMNS[1]
        has_all = self._first.get(above) == f"{folder}/{name}"
        if {*schema.names} <= {*known.names} and (has_all or len(schema) == len(known)):
            return
        parts = [known, schema]
        if not has_all:  # once: files of other times may have had other columns
            infos = system.get_file_info(pafs.FileSelector(above, recursive=True))
            parts += [_schema(system, each.path) for each in infos if _is_data(each)]
        every = pa.unify_schemas([each.remove_metadata() for each in parts], promote_options="permissive")
        system.create_dir(folder, recursive=True)
        _write(system, f"{folder}/{name}", every.empty_table(), ())
        self._first[above], self._columns[above] = f"{folder}/{name}", every

    def _read_position(self, system: pafs.FileSystem, root: str) -> Position | None:
        try:
            with system.open_input_stream(f"{root}/{POSITION}") as stream:
                text = stream.read()
        except FileNotFoundError:
            return None
        return outlet.parse(text, self._place)

    def _write_position(self, system: pafs.FileSystem, root: str, position: Position) -> None:
        _replace(system, f"{root}/{POSITION}", position.to_json().encode())

    def _compact(self, system: pafs.FileSystem, folder: str) -> None:
        infos = system.get_file_info(pafs.FileSelector(folder))
        small = sorted((each.base_name, each.size) for each in infos if _is_data(each) and each.size <= _LARGE)
        if len(small) < self._options.compact_after:
            return
        sizes = itertools.accumulate(size for _, size in small)
        names = [name for (name, _), size in zip(small, sizes, strict=True) if size <= 2 * _LARGE]
        parts = [_read(system, f"{folder}/{name}") for name in names]
        rows = newest(pa.concat_tables(parts, promote_options="default"), self._content.key, self._content.newest)
        digest = hashlib.sha256("".join(names).encode()).hexdigest()[:16]
        _write(system, f"{folder}/{names[-1][:_DIGITS]}{_COMPACTED}{digest}.parquet", rows, names)
        self._remove(system, folder, names)

    def _finish(self, system: pafs.FileSystem, folder: str, infos: Sequence[pafs.FileInfo]) -> None:
        """Remove files whose rows are in a compacted one.

        A compaction takes the oldest of the small files. Where none is older than a compacted one, it was not cut off, and is not
        opened: of large files a folder may have many.
        """
        small = [each for each in infos if each.size <= _LARGE]
        for info in infos:
            if _COMPACTED not in info.base_name or all(each == info or _batch(each) > _batch(info) for each in small):
                continue
            with _opened(system, info.path) as file:
                metadata = pq.read_metadata(file).metadata or {}
            replaced = set(json.loads(metadata.get(_REPLACED, b"[]")))
            names = [each.base_name for each in infos if each.base_name in replaced and each != info]
            self._remove(system, folder, names)

    def _remove(self, system: pafs.FileSystem, folder: str, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                system.delete_file(f"{folder}/{name}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            what = f"{self._place}: {' '.join(str(error).split())}"
            family = OutletRefusedError if isinstance(error, PermissionError | NotADirectoryError) else OutletError
            raise family(what, remedy=_REMEDY) from error


def folder_of(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system and the folder of an outlet's path."""
    if ":" in path:
        system, root = pafs.FileSystem.from_uri(path)
        return system, root.rstrip("/")
    return pafs.LocalFileSystem(), os.path.abspath(path)


def newest(rows: pa.Table, key: Sequence[str], order_by: Sequence[str] = tables.NEWEST) -> pa.Table:
    """Return of each key the row that is largest in columns, in the order of the table."""
    known = [name for name in key if name in rows.column_names]
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (*known, *order_by)])
    numbered: Any = rows.select(known).append_column("row", pa.array(range(rows.num_rows), pa.int64())).take(order)
    last = numbered.group_by(known, use_threads=False).aggregate([("row", "last")])["row_last"]
    return rows.take(pc.take(last, pc.sort_indices(last)))


def _above(path: str) -> str:
    """Return the folder that has a file, or a day's folder."""
    return path.rpartition("/")[0]


def _batch(info: pafs.FileInfo) -> str:
    return str(info.base_name)[:_DIGITS]


def _is_data(info: pafs.FileInfo) -> bool:
    return info.base_name.endswith(".parquet") and not info.base_name.startswith(".")


def _folders(infos: Iterable[pafs.FileInfo]) -> dict[str, list[pafs.FileInfo]]:
    """Return the files of each folder, in the order of their names."""
    folders: dict[str, list[pafs.FileInfo]] = {}
    for info in sorted(filter(_is_data, infos), key=lambda each: each.path):
        folders.setdefault(_above(info.path), []).append(info)
    return folders


@contextmanager
def _opened(system: pafs.FileSystem, path: str) -> Iterator[Any]:
    """Open a file for a block, and name it in the block's errors: pyarrow does not."""
    with system.open_input_file(path) as file:
        try:
            yield file
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"{path} cannot be read: {error}") from error


def _schema(system: pafs.FileSystem, path: str) -> pa.Schema:
    with _opened(system, path) as file:
        return pq.read_schema(file)


def _read(system: pafs.FileSystem, path: str) -> pa.Table:
    with _opened(system, path) as file:
        # The file alone: pyarrow would add columns of the names of its folders.
        table: pa.Table = pq.ParquetFile(file).read()
        return table


def _write(system: pafs.FileSystem, path: str, rows: pa.Table, replaced: Sequence[str]) -> int:
    metadata = {_REPLACED: json.dumps(list(replaced)).encode()} if replaced else None
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(metadata), sink, compression="zstd")
    content = sink.getvalue()
    _replace(system, path, content)
    return int(content.size)


def _replace(system: pafs.FileSystem, path: str, content: Any) -> None:
    """Write a file in full or not at all."""
    if not isinstance(system, pafs.LocalFileSystem):
        with system.open_output_stream(path) as stream:  # an object is visible when it is closed
            stream.write(content)
        return
    folder, _, name = path.rpartition("/")
    hidden = f"{folder}/.{name}{_UNFINISHED}"
    with system.open_output_stream(hidden) as stream:
        stream.write(content)
    system.move(hidden, path)
