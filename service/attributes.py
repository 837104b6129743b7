"""Attributes: what the reference says of the devices of a batch, looked up in the fold, once per device.

The snapshot that serves is a file beside the checkpoint, named by the pointer `serving`; it changes between two batches only
(service/reference.py). A worker reads it once per version and keeps an index of it, so a batch pays for the devices it has,
never for the size of the reference, and no join and no broadcast is part of the query's plan.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd
import pyarrow as pa

from service.errors import ReferenceDataError

DEVICE = "device"
SERVING = "serving"


class Attributes(Protocol):
    """Anything that knows devices; it travels to the tasks, so it can be pickled."""

    def of(self, devices: pa.Array) -> pa.Table:
        """Row i is about devices[i] (strings, distinct): one string column per attribute, and `known` (bool).

        An unknown device has nulls. `known` is the last column.
        """
        ...


class Index:
    """A table of `device` and string columns, each device once, by device."""

    def __init__(self, table: pa.Table) -> None:
        self._attributes = table.drop_columns([DEVICE])
        self._index = pd.Index(table[DEVICE].to_pandas())

    def of(self, devices: pa.Array) -> pa.Table:
        place = self._index.get_indexer(pd.Index(devices.to_pandas()))
        known = place >= 0
        found = self._attributes.take(pa.array(place, mask=~known))
        return found.append_column("known", pa.array(known))


@dataclass(frozen=True, slots=True)
class Serving:
    """The snapshot that `folder`'s pointer names whenever it is asked; `columns` of it, all strings."""

    folder: Path
    columns: tuple[str, ...]

    def of(self, devices: pa.Array) -> pa.Table:
        version = (self.folder / SERVING).read_text(encoding="ascii")
        key = (self.folder, self.columns)
        held = _held.get(key)
        if held is None or held[0] != version:
            held = version, Index(self._read(version))
            _held.clear()  # one query a process: what served before is not asked for again
            _held[key] = held
        return held[1].of(devices)

    def _read(self, version: str) -> pa.Table:
        path = self.folder / f"{version}.arrow"
        try:
            with pa.memory_map(str(path)) as mapped:
                return pa.ipc.open_file(mapped).read_all().select([DEVICE, *self.columns])
        except (OSError, pa.ArrowException) as error:
            what = f"{path}: an executor cannot read the reference snapshot: {error}"
            remedy = "The checkpoint's folder must be the same on the driver and every executor"
            raise ReferenceDataError(what, remedy=remedy) from error


_held: dict[tuple[Path, tuple[str, ...]], tuple[str, Index]] = {}
