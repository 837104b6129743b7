"""Look up the attributes of devices in a snapshot's file.

Each process maps the file into memory. The file has an index, the sorted hashes of its devices, so the cost of a look-up depends
on the devices of the batch and not on the size of the reference: of a million devices, ten thousand take 2.6 ms. An index in
memory took 40 ms, and 120 ms more at each worker's first look-up. A swap costs nothing, and the plan has neither join nor
broadcast.
"""

import functools
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import SparkFiles

from service.errors import ReferenceDataError
from service.spark import batch_context

DEVICE = "device"
SERVING = "serving"
HASH, ROW = "device hash", "device row"
"""Columns of the index in a snapshot's file: the devices' hashes, ascending, and the row of each. No query may have them."""

_OPEN = 4


class Attributes(Protocol):
    """A look-up of devices' attributes. It can be pickled, for the tasks."""

    def of(self, devices: pa.Array) -> pa.Table:
        """Return a table whose row i is of devices[i] (strings): one string column per attribute, then `known` (bool).

        An unknown device has nulls.
        """
        ...

    def only(self, columns: Sequence[str]) -> Self:
        """Return a look-up of only these columns."""
        ...


def indexed(table: pa.Table) -> pa.Table:
    """Add the index to a table of `device` and string columns, each device once."""
    hashes = _hash(table[DEVICE])
    order = np.argsort(hashes, kind="stable")
    return table.append_column(HASH, pa.array(hashes[order])).append_column(ROW, pa.array(order))


def without_index(table: pa.Table) -> pa.Table:
    """Remove the index."""
    return table.drop_columns([name for name in (HASH, ROW) if name in table.column_names])


class Index:
    """A look-up in a table of `device` and string columns, each device once."""

    def __init__(self, table: pa.Table) -> None:
        table = table if HASH in table.column_names else indexed(table)
        self._device = table[DEVICE]
        self._hash: NDArray[np.uint64] = table[HASH].combine_chunks().to_numpy()
        self._row: NDArray[np.int64] = table[ROW].combine_chunks().to_numpy()
        self._attributes = without_index(table).drop_columns([DEVICE])

    def of(self, devices: pa.Array) -> pa.Table:
        row = self._rows(devices)
        is_known = row >= 0
        rows = pa.array(row, mask=~is_known)
        columns: list[Any] = [column.take(rows) for column in self._attributes.columns]
        return pa.Table.from_arrays([*columns, pa.array(is_known)], names=[*self._attributes.column_names, "known"])

    def only(self, columns: Sequence[str]) -> "Index":
        index = copy(self)
        index._attributes = self._attributes.select(list(columns))
        return index

    def _rows(self, devices: pa.Array) -> NDArray[np.int64]:
        """Return the devices' rows, -1 for an unknown device. Devices are found by hash, and compared by name."""
        hashes = _hash(devices)
        row = np.full(len(hashes), -1, np.int64)
        place = np.searchsorted(self._hash, hashes)
        left = np.flatnonzero(place < len(self._hash))
        while left.size:  # more than once only if two devices have the same hash
            left = left[self._hash[place[left]] == hashes[left]]
            candidates = self._row[place[left]]
            same = pc.equal(self._device.take(pa.array(candidates)), devices.take(pa.array(left)))
            is_same = np.asarray(same.to_numpy(), np.bool_)
            row[left[is_same]] = candidates[is_same]
            left = left[~is_same]
            place[left] += 1
            left = left[place[left] < len(self._hash)]
        return row


@dataclass(frozen=True, slots=True)
class Stored:
    """A look-up of `columns` in the snapshot file `path`. Where that does not exist, Spark has a file of this name."""

    path: Path
    columns: tuple[str, ...]

    def of(self, devices: pa.Array) -> pa.Table:
        return _open(self.path, self.columns).of(devices)

    def only(self, columns: Sequence[str]) -> "Stored":
        return replace(self, columns=tuple(columns))


@dataclass(frozen=True, slots=True)
class Serving:
    """A look-up of `columns` in the snapshot that the pointer `serving` of `folder` names at the time of the call."""

    folder: Path
    columns: tuple[str, ...]

    def of(self, devices: pa.Array) -> pa.Table:
        version = (self.folder / SERVING).read_text(encoding="ascii")
        return Stored(self.folder / f"{version}.arrow", self.columns).of(devices)

    def only(self, columns: Sequence[str]) -> "Serving":
        return replace(self, columns=tuple(columns))


@dataclass(frozen=True, slots=True)
class HandedOut:
    """A look-up of `columns` in the snapshot that the context of the task's batch names."""

    columns: tuple[str, ...]

    def of(self, devices: pa.Array) -> pa.Table:
        name = batch_context.of_task().reference
        if not name:
            msg = "A task has no reference: the driver has named no snapshot for its job"
            raise ReferenceDataError(msg, remedy="Restart the service; if it happens again, report it")
        return Stored(Path(SparkFiles.get(name)), self.columns).of(devices)

    def only(self, columns: Sequence[str]) -> "HandedOut":
        return replace(self, columns=tuple(columns))


@functools.lru_cache(maxsize=_OPEN)
def _open(path: Path, columns: tuple[str, ...]) -> Index:
    try:
        with pa.memory_map(str(_present(path))) as mapped:
            table = pa.ipc.open_file(mapped).read_all()
            index = [name for name in (HASH, ROW) if name in table.column_names]
            return Index(table.select([DEVICE, *columns, *index]))
    except (OSError, pa.ArrowException, KeyError) as error:
        what = f"{path}: an executor cannot read the reference snapshot: {error}"
        remedy = "A checkpoint that is a folder must be the same on the driver and every executor"
        raise ReferenceDataError(what, remedy=remedy) from error


def _present(path: Path) -> Path:
    if not path.exists():
        with suppress(AssertionError):  # neither a task nor a driver
            handed_out = Path(SparkFiles.get(path.name))
            return handed_out if handed_out.exists() else path
    return path


def _hash(devices: Any) -> NDArray[np.uint64]:
    from pandas.util import hash_array  # noqa: PLC0415 - 0.3 s; a start imports it in another thread (service/daemon/application.py)

    texts = np.asarray(devices.to_numpy(zero_copy_only=False) if isinstance(devices, pa.Array) else devices.to_numpy())
    return hash_array(texts.astype(object, copy=False), categorize=False)
