"""The attributes of then: which snapshot the batches have used, so that the past is computed with the attributes that it had.

    reference/used.json     {"is_cut": false, "uses": [{"version": "...", "rows": 10000, "columns": ["site"],
                            "from": {"readings": {"0": 4711}}}, ...]}, the oldest first

A snapshot is used from the offsets at which its first batch begins, until the next one is. The file has the last KEPT uses, with
no more than KEPT_ROWS rows in all, and the folder keeps their snapshots. Records of before, and those of a checkpoint that an
older version has begun, get the attributes of the oldest use: `is_cut` says so.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from service.checkpoint.document import Document
from service.micro_batch import MicroBatch, Offsets
from service.reference.attributes import Attributes, Stored
from service.reference.folder import SnapshotFolder
from service.spark.files import RESTORE

KEPT = 50
KEPT_ROWS = 10_000_000

Ints = NDArray[np.int64]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """A snapshot, and the offsets from which batches have used it."""

    version: str
    rows: int
    columns: tuple[str, ...]
    begin: Annotated[Offsets, Field(alias="from")]


@dataclass(frozen=True, slots=True)
class History:
    """The uses, the oldest first. With `is_cut` there were others before."""

    uses: tuple[Use, ...] = ()
    is_cut: bool = False

    def after(self, micro_batch: MicroBatch, version: str, table: pa.Table) -> "History":
        """Return the history with a batch that uses a snapshot. A batch that is repeated takes its own place."""
        use = Use(version, table.num_rows, tuple(table.column_names[1:]), micro_batch.start)
        uses = [each for each in self.uses if each.begin != use.begin]
        is_cut = self.is_cut or (not self.uses and micro_batch.batch > 0)
        if uses and uses[-1].version == use.version:
            return replace(self, uses=tuple(uses))
        uses.append(use)
        while len(uses) > KEPT or (len(uses) > 2 and sum(each.rows for each in uses) > KEPT_ROWS):
            is_cut = True
            del uses[0]
        return History(tuple(uses), is_cut)


_REMEDY = f"{RESTORE}, or remove the file: then the past gets present attributes"
DOCUMENT = Document[History]("used.json", History, remedy=_REMEDY)
"""In the folder of the snapshots."""


def read(folder: SnapshotFolder) -> History:
    """Return the history of a folder; an empty one without a file. Raises CheckpointError."""
    return DOCUMENT.read(folder) or History()


@dataclass(frozen=True, slots=True)
class Period:
    """A use, for tasks: the file of its snapshot, with which columns, and its offsets by the number of a partition."""

    path: Path
    known: tuple[str, ...]
    begin: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Then:
    """Look-ups in the snapshots of a history, for the records at given places. `of` looks up in the newest snapshot.

    A snapshot that lacks a column is left out for the next one that has all of them: a view by a new column has the attributes
    that devices had when the column came.
    """

    periods: tuple[Period, ...]
    columns: tuple[str, ...] = field(default=())

    def of(self, devices: pa.Array) -> pa.Table:
        return self._attributes(len(self.periods) - 1).of(devices)

    def only(self, columns: Sequence[str]) -> "Then":
        return replace(self, columns=tuple(columns))

    def split(self, partitions: Ints, offsets: Ints) -> Iterator[tuple[Ints, Attributes]]:
        """Yield the rows of each snapshot, and its look-up, for records by partition (`readings.number_of`) and offset."""
        used, seen = np.zeros(len(offsets), np.int64), set[int]()
        names, codes = np.unique(partitions, return_inverse=True)
        for number, period in enumerate(self.periods):
            begin = dict(period.begin)
            # A partition that a snapshot does not name came during its use, or had left before.
            from_offset = [begin.get(name, np.iinfo(np.int64).max if name in seen else 0) for name in names.tolist()]
            used[offsets >= np.array(from_offset, np.int64)[codes]] = number
            seen |= begin.keys()
        for number in np.unique(used).tolist():
            yield np.flatnonzero(used == number), self._attributes(number)

    def _attributes(self, number: int) -> Stored:
        fitting = [each for each in self.periods[number:] if {*self.columns} <= {*each.known}]
        return Stored((fitting or self.periods[-1:])[0].path, self.columns)


def attributes(
    folder: SnapshotFolder, newest: Stored, topics: Sequence[str], number_of: Callable[[str, int, Sequence[str]], int]
) -> Attributes:
    """Return the look-up for the past: `newest`, if all batches have used that one. Raises CheckpointError, OSError.

    `number_of` is `readings.number_of`.
    """
    uses = read(folder).uses
    if not uses or {use.version for use in uses} == {newest.path.name.removesuffix(".arrow")}:
        return newest
    periods = []
    for use in uses:
        path = _path(folder, use)
        if path is None:  # an older version of the service removes snapshots that no pointer names
            _log.warning("%s lacks the snapshot %s: readings of then get the attributes of before", folder, use.version)
            continue
        begin = [
            (number_of(topic, partition, topics), offset)
            for topic, each in use.begin.items()
            if topic in topics
            for partition, offset in each.items()
        ]
        periods.append(Period(path, use.columns, tuple(begin)))
    return Then(tuple(periods), newest.columns) if periods else newest


def _path(folder: SnapshotFolder, use: Use) -> Path | None:
    try:
        path = folder.path(f"{use.version}.arrow")
    except FileNotFoundError:
        return None
    return path if path.exists() else None
