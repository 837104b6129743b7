"""The files of the state: `state/0/P/<version>_<attempt>.zip` and `.changelog` of partition P, and the operator's metadata.

A batch writes its number + 1 as the version. Each start of a query writes a file of metadata with the number of
partitions (4.1.4).
"""

from typing import Any

from service.spark.files import Files
from service.spark.internals import log_files

FOLDER = "state"
OPERATOR = f"{FOLDER}/0"
TABLES = "SSTs"
"""In the folder of a store: the tables that snapshots refer to."""

_METADATA = f"{OPERATOR}/_metadata/v2"


def snapshot(store: str, batch: int, attempt: str) -> str:
    """Return the name of a store's complete state after a batch."""
    return f"{store}/{batch + 1}_{attempt}.zip"


def changelog(store: str, batch: int, attempt: str) -> str:
    """Return the name of a store's changes in a batch."""
    return f"{store}/{batch + 1}_{attempt}.changelog"


def set_partitions(files: Files, partitions: int) -> None:
    """Set the number of partitions in all metadata. Raises OSError, ValueError, KeyError."""

    def change(document: dict[str, Any]) -> None:
        for store in document["stateStoreInfo"]:
            store["numPartitions"] = partitions

    for number in log_files.numbers(files, _METADATA):
        log_files.edit(files, f"{_METADATA}/{number}", change)
