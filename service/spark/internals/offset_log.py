"""Spark's offset log: `offsets/N`, the end of batch N and the settings that it runs with, and the begin of the first batch.

Spark writes `offsets/N` before the batch runs, and `commits/N` after it. The next start replays a batch that is in `offsets` and
not in `commits` (4.1.4).
"""

import json
from dataclasses import dataclass

from service.errors import CheckpointError
from service.micro_batch import Offsets, format_offsets, parse_offsets
from service.spark.files import RESTORE, Files, Folder
from service.spark.internals import commit_log, log_files

FOLDER = "offsets"
FIRST = "sources/0/0"
"""The file with the begin of the first batch: the source writes it before batch 0 runs."""

_PARTITIONS = "spark.sql.shuffle.partitions"
_OTHERS = "The checkpoint is another program's: name an empty folder"


@dataclass(frozen=True, slots=True)
class Position:
    """The number of the next batch, the offsets at which it begins, and whether it was begun before and is repeated."""

    batch: int
    offsets: Offsets
    is_repeated: bool = False


def name(batch: int) -> str:
    """Return the name of the file that has the end of a batch; FIRST for batch -1."""
    return f"{FOLDER}/{batch}" if batch >= 0 else FIRST


def last(folder: Folder) -> int | None:
    """Return the number of the last batch that was begun; None for a new checkpoint."""
    return max(log_files.numbers(folder, FOLDER), default=None)


def position(folder: Folder) -> Position | None:
    """Return the position at which the next query starts; None if no batch was begun. The logs must be undamaged.

    A batch that was begun and not committed is replayed: it begins at the end of the batch before.
    """
    begun = last(folder)
    if begun is None:
        return None
    if begun in commit_log.numbers(folder):
        return Position(begun + 1, ends(folder, begun))
    return Position(begun, ends(folder, begun - 1), is_repeated=True)


def is_begun(folder: Folder) -> bool:
    """Whether the source has stored the begin of the first batch."""
    return FIRST.rpartition("/")[2] in folder.names(FIRST.rpartition("/")[0])


def first(folder: Folder) -> Offsets:
    """Return the begin of the first batch."""
    # The source writes a zero byte, a line with a version, and the offsets (Spark 4.1.4).
    return parse_offsets(folder.read(FIRST).decode().rpartition("\n")[2])


def ends(folder: Folder, batch: int) -> Offsets:
    """Return the end of a batch that was begun; with batch -1 the begin of the first one. Raises CheckpointError, or OSError."""
    return plan(folder, batch)[0] if batch >= 0 else first(folder)


def plan(folder: Folder, batch: int) -> tuple[Offsets, int]:
    """Return the end of a batch that was begun, and when it was planned (ms). Raises CheckpointError, or OSError."""
    _, settings, *lines = folder.read(name(batch)).decode().split("\n")
    # Spark writes a line for every branch of the plan that reads the source, all with the same offsets.
    sources = {line for line in lines if line != "-"}
    if len(sources) != 1:
        raise CheckpointError(f"{folder}/{name(batch)} reads {len(sources)} sources, not one", remedy=_OTHERS)
    try:
        return parse_offsets(sources.pop()), int(json.loads(settings).get("batchTimestampMs", 0))
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder}/{name(batch)} has no offsets of Kafka's: {error}", remedy=_OTHERS) from error


def replace(files: Folder, batch: int, offsets: Offsets) -> None:
    """Replace only the offsets of each source, at the end of a batch or, with batch -1, at the begin of the first one."""
    lines = files.read(name(batch)).decode().split("\n")
    head = 2 if batch >= 0 else 1
    text = format_offsets(offsets)
    changed = lines[:head] + [line if line == "-" else text for line in lines[head:]]
    files.replace(name(batch), "\n".join(changed).encode())


def partitions(folder: Folder) -> int:
    """Return the number of state partitions, from the newest file. Raises CheckpointError."""
    newest = f"{FOLDER}/{last(folder)}"
    try:
        return int(log_files.content(folder, newest)["conf"][_PARTITIONS])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CheckpointError(f"{folder}/{newest} has no {_PARTITIONS}", remedy=RESTORE) from error


def set_partitions(files: Files, batch: int, partitions: int) -> None:
    """Set the number of partitions that a batch runs with, if the batch was begun. A replay of the batch reads it."""
    if batch in log_files.numbers(files, FOLDER):
        log_files.edit(files, name(batch), lambda entry: entry["conf"].update({_PARTITIONS: str(partitions)}))
