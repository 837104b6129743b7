"""Attributes: what the reference says of the devices of a batch, looked up in the fold, once per device.

The snapshot that serves is a file beside the checkpoint, named by the pointer `serving`; it changes between two batches only
(snapshots.py). It is looked up where it lies: the file has an index, the devices' hashes in their order, is mapped
into memory by every process that asks, and is never loaded. So a batch pays for the devices it has and not for the size of
the reference, a swap costs nothing, and no join and no broadcast is part of the query's plan. A million devices: 2.6 ms for
ten thousand of them, where an index in memory took 40 ms, and 120 ms at each worker's first look.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from service.errors import ReferenceDataError

DEVICE = "device"
SERVING = "serving"
HASH, ROW = "device hash", "device row"
"""The index in a snapshot's file: the devices' hashes, ascending, and the row of each. No column of a query is called so."""

_OPEN = 4


class Attributes(Protocol):
    """Anything that knows devices; it travels to the tasks, so it can be pickled."""

    def of(self, devices: pa.Array) -> pa.Table:
        """Row i is about devices[i] (strings): one string column per attribute, and `known` (bool).

        An unknown device has nulls. `known` is the last column.
        """
        ...

    def only(self, columns: Sequence[str]) -> Self:
        """The same, for whoever needs no other columns than these."""
        ...


def indexed(table: pa.Table) -> pa.Table:
    """A table of `device` and string columns, each device once, with its index."""
    hashes = _hash(table[DEVICE])
    order = np.argsort(hashes, kind="stable")
    return table.append_column(HASH, pa.array(hashes[order])).append_column(ROW, pa.array(order))


def without_index(table: pa.Table) -> pa.Table:
    """What `indexed` was given."""
    return table.drop_columns([name for name in (HASH, ROW) if name in table.column_names])


class Index:
    """A table of `device` and string columns, each device once, by device."""

    def __init__(self, table: pa.Table) -> None:
        table = table if HASH in table.column_names else indexed(table)
        self._device = table[DEVICE]
        self._hash: NDArray[np.uint64] = table[HASH].combine_chunks().to_numpy()
        self._row: NDArray[np.int64] = table[ROW].combine_chunks().to_numpy()
        self._attributes = without_index(table).drop_columns([DEVICE])

    def of(self, devices: pa.Array) -> pa.Table:
        row = self._rows(devices)
        known = row >= 0
        taken = pa.array(row, mask=~known)
        columns: list[Any] = [column.take(taken) for column in self._attributes.columns]
        return pa.Table.from_arrays([*columns, pa.array(known)], names=[*self._attributes.column_names, "known"])

    def only(self, columns: Sequence[str]) -> "Index":
        made = object.__new__(Index)
        made._device, made._hash, made._row = self._device, self._hash, self._row
        made._attributes = self._attributes.select(list(columns))
        return made

    def _rows(self, devices: pa.Array) -> NDArray[np.int64]:
        """The devices' rows, -1 for one that is not there. A hash says where to look, the device's name decides."""
        wanted = _hash(devices)
        row = np.full(len(wanted), -1, np.int64)
        place = np.searchsorted(self._hash, wanted)
        asked = np.flatnonzero(place < len(self._hash))
        while asked.size:  # once, and again only for devices whose hash another device has, too
            asked = asked[self._hash[place[asked]] == wanted[asked]]
            found = self._row[place[asked]]
            same = pc.equal(self._device.take(pa.array(found)), devices.take(pa.array(asked)))
            is_it = np.asarray(same.to_numpy(), np.bool_)
            row[asked[is_it]] = found[is_it]
            asked = asked[~is_it]
            place[asked] += 1
            asked = asked[place[asked] < len(self._hash)]
        return row


@dataclass(frozen=True, slots=True)
class Stored:
    """The snapshot in the file `path`; `columns` of it, all strings."""

    path: Path
    columns: tuple[str, ...]

    def of(self, devices: pa.Array) -> pa.Table:
        return _open(self.path, self.columns).of(devices)

    def only(self, columns: Sequence[str]) -> "Stored":
        return replace(self, columns=tuple(columns))


@dataclass(frozen=True, slots=True)
class Serving:
    """The snapshot that `folder`'s pointer names whenever it is asked; `columns` of it, all strings."""

    folder: Path
    columns: tuple[str, ...]

    def of(self, devices: pa.Array) -> pa.Table:
        version = (self.folder / SERVING).read_text(encoding="ascii")
        return Stored(self.folder / f"{version}.arrow", self.columns).of(devices)

    def only(self, columns: Sequence[str]) -> "Serving":
        return replace(self, columns=tuple(columns))


@functools.lru_cache(maxsize=_OPEN)
def _open(path: Path, columns: tuple[str, ...]) -> Index:
    try:
        with pa.memory_map(str(path)) as mapped:
            table = pa.ipc.open_file(mapped).read_all()
            index = [name for name in (HASH, ROW) if name in table.column_names]
            return Index(table.select([DEVICE, *columns, *index]))
    except (OSError, pa.ArrowException, KeyError) as error:
        what = f"{path}: an executor cannot read the reference snapshot: {error}"
        remedy = "The checkpoint's folder must be the same on the driver and every executor"
        raise ReferenceDataError(what, remedy=remedy) from error


def _hash(devices: Any) -> NDArray[np.uint64]:
    from pandas.util import hash_array  # noqa: PLC0415 - 0.3 s that a start spends on it elsewhere (service/daemon/runner.py)

    texts = np.asarray(devices.to_numpy(zero_copy_only=False) if isinstance(devices, pa.Array) else devices.to_numpy())
    return hash_array(texts.astype(object, copy=False), categorize=False)
