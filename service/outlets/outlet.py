"""The protocol of an outlet. docs/outlets.md shows how to write another one.

    outlet.open(epoch)      connect, create what is missing, lock older writers out; returns the position
    outlet.write(entry)     write the rows of an entry, and its position; RefusedRowsError names rows that the store never takes
    outlet.close()          drop the connections; `open` may follow

`Delivery` calls these from one thread. It writes entries in order, and each entry once, unless the process dies or the outlet
fails between the rows and the position: then it writes the same entry again, after `open`. So an outlet is exact if rows and
position become visible together, or if an entry that is written again replaces its rows.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from service.errors import FencedError, OutletError
from service.micro_batch import MicroBatch, format_offsets
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Position:
    """Which entry it is, or which one an outlet has reached.

    `epoch` is the term that made the entry, `batch` its micro-batch, `part` 0 for the batch itself and more for values that
    silence or a correction closed after it. `digest` identifies the batch's offsets, `watermark_ms` is the watermark after it.
    `writer` is the epoch of the term that wrote it to the outlet.
    """

    epoch: int
    batch: int
    part: int = 0
    digest: str = ""
    watermark_ms: int = 0
    writer: int = 0

    @classmethod
    def of(cls, micro_batch: MicroBatch) -> Self:
        """Return the position of the finals of a batch."""
        offsets = f"{format_offsets(micro_batch.start)} {format_offsets(micro_batch.end)}"
        digest = hashlib.sha256(offsets.encode()).hexdigest()[:16]
        return cls(micro_batch.epoch, micro_batch.batch, 0, digest, micro_batch.watermark_ms)

    @property
    def name(self) -> str:
        """A name that the same entry always has, and no other entry."""
        return f"{self.batch:012d}-{self.part:06d}-{self.digest}"

    def __str__(self) -> str:
        part = f", part {self.part}" if self.part else ""
        return f"batch {self.batch}{part} of epoch {self.epoch}"

    def is_in(self, reached: "Position | None") -> bool:
        """Whether an outlet that has reached a position has this entry.

        Epochs only grow. A batch that is replayed is made again under a larger epoch, with the same offsets. A checkpoint that
        begins again has smaller numbers of batches under a larger epoch.
        """
        if reached is None:
            return False
        if self.epoch > reached.epoch:
            return (self.batch, self.part, self.digest) == (reached.batch, reached.part, reached.digest)
        return (self.epoch, self.batch, self.part) <= (reached.epoch, reached.batch, reached.part)

    def by(self, writer: int) -> "Position":
        """Return the position as written by a term."""
        return replace(self, writer=writer)

    def to_json(self) -> str:
        """Return the position as JSON."""
        return _POSITION.dump_json(self).decode()


_POSITION = TypeAdapter(Position)


@dataclass(frozen=True, slots=True)
class Entry:
    """Rows for an outlet, by the schema of its `tables.CONTENTS`. A key occurs once in an entry."""

    position: Position
    rows: pa.Table


MOST_REFUSED = 100
"""Rows of an entry that are set aside. A store that refuses more of them refuses all that comes: it is mended first."""


class RefusedRowsError(Exception):
    """The store refuses rows of an entry for what they hold, and has none of the entry. `messages` are by the rows' numbers."""

    def __init__(self, messages: Mapping[int, str]) -> None:
        self.messages = messages
        super().__init__(f"{len(messages)} rows are refused: {next(iter(messages.values()))}")


class Outlet(Protocol):
    """Where finals go. All methods raise OutletError, OutletRefusedError where waiting does not help, or FencedError."""

    def check(self) -> str:
        """Try what `open` and `write` need, change nothing, and return what was found in one line."""

    def open(self, epoch: int) -> Position | None:
        """Return the position of the last entry that is complete; None when there is none.

        From then on a writer of an older epoch can write nothing, and gets FencedError. Raises FencedError when a writer of a
        newer epoch has been here.
        """

    def write(self, entry: Entry) -> int:
        """Write rows and position, and return the bytes sent. A row replaces an older row of its key, never a newer one.

        Raises RefusedRowsError for rows that the store refuses for themselves. The entry then comes without them.
        """

    def close(self) -> None:
        """Drop the connections. Never raises."""


def identity(name: str, settings: Settings) -> str:
    """Return a name of an outlet that no outlet of another pipeline has, for positions that are stored in one place."""
    return f"{settings.redis.prefix}.{name}"


def written(reached: Position | None) -> Position | None:
    """Return a stored position; None for one that `open` has stored before the first entry."""
    return reached if reached is not None and reached.batch >= 0 else None


def require_newest(reached: Position | None, epoch: int, place: str) -> None:
    """Raise FencedError if a term after `epoch` has written to an outlet."""
    if reached is not None and reached.writer > epoch:
        what = f"{place}: epoch {reached.writer} has written there, this is epoch {epoch}"
        raise FencedError(
            what, remedy="Another writer uses this outlet. If there is none: docs/outlets.md#a-larger-epoch"
        )


def parse(text: str | bytes, place: str) -> Position:
    """Return a stored position; raise OutletError when it cannot be read."""
    try:
        return _POSITION.validate_json(text)
    except ValidationError as error:
        what = f"{place}: the position of the outlet cannot be read: {error.errors()[0]['msg']}"
        raise OutletError(what, remedy="Restore it, or give the outlet another place") from error
