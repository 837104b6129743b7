"""Spark's commit log: `commits/N`, written when batch N is over. It has the ids of the attempts whose state counts.

The version 2 of the file has the ids (`spark.sql.streaming.stateStore.checkpointFormatVersion` 2, Spark 4.1.4).
"""

from collections.abc import Mapping, Sequence

from service.spark.files import Folder
from service.spark.internals import log_files

FOLDER = "commits"
_IDS = "stateUniqueIds"


def numbers(folder: Folder) -> list[int]:
    """Return the committed batches that the log has, ascending."""
    return log_files.numbers(folder, FOLDER)


def last(folder: Folder) -> int | None:
    """Return the last committed batch, None without one."""
    return max(numbers(folder), default=None)


def attempts(folder: Folder, batch: int) -> Mapping[str, str]:
    """Return the id of the attempt whose state a batch has committed, by store folder. Raises OSError, ValueError."""
    operators = log_files.content(folder, f"{FOLDER}/{batch}").get(_IDS) or {}
    return {f"state/{name}/{number}": ids[0] for name, stores in operators.items() for number, ids in enumerate(stores)}


def set_attempts(files: Folder, batch: int, ids: Sequence[str]) -> None:
    """Set the ids of the attempts whose state a batch has committed, by partition of the one operator."""
    log_files.edit(files, f"{FOLDER}/{batch}", lambda entry: entry.update({_IDS: {"0": [[each] for each in ids]}}))
