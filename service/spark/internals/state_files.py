"""The files of the state: `state/0/P/<version>_<attempt>.zip` and `.changelog` of partition P, and the operator's metadata.

A batch writes its number + 1 as the version. Each start of a query writes a file of metadata, which has the number of partitions
and the absolute names of the schemas of the state's columns (4.1.4).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.spark.files import Files, Local
from service.spark.internals import log_files

FOLDER = "state"
OPERATOR = f"{FOLDER}/0"
TABLES = "SSTs"
"""In the folder of a store: the tables that snapshots refer to."""

_METADATA = f"{OPERATOR}/_metadata/v2"
_SCHEMAS = "stateSchemaFilePaths"


def snapshot(store: str, batch: int, attempt: str) -> str:
    """Return the name of a store's complete state after a batch."""
    return f"{store}/{batch + 1}_{attempt}.zip"


def changelog(store: str, batch: int, attempt: str) -> str:
    """Return the name of a store's changes in a batch."""
    return f"{store}/{batch + 1}_{attempt}.changelog"


def set_partitions(files: Files, partitions: int) -> None:
    """Set the number of partitions in all metadata. Raises OSError, ValueError, KeyError."""
    _edit(files, lambda store: store.update(numPartitions=partitions))


def relocate(files: Local, place: Path) -> None:
    """Let the metadata name schemas below `place`, where the checkpoint is going to be. Raises OSError, ValueError, KeyError."""

    def move(store: dict[str, Any]) -> None:
        if paths := store.get(_SCHEMAS):
            names = [path.rpartition(f"/{OPERATOR}/")[2] for path in paths]
            store[_SCHEMAS] = [f"file:{place}/{OPERATOR}/{name}" for name in names]

    _edit(files, move)


def _edit(files: Files | Local, change: Callable[[dict[str, Any]], None]) -> None:
    def change_stores(document: dict[str, Any]) -> None:
        for store in document["stateStoreInfo"]:
            change(store)

    for number in log_files.numbers(files, _METADATA):
        log_files.edit(files, f"{_METADATA}/{number}", change_stores)
