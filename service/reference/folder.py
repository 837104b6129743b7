"""The folder with the snapshots: on this machine, where all processes map its files, or on another file system.

Python's workers have no JVM and cannot read another file system. So the driver keeps a copy of each snapshot that it uses, and
Spark hands it to every executor (`SparkContext.addFile`); there it has the copy's name (service/reference/attributes.py).
"""

import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from service.spark.files import Files, Local, local
from service.spark.handed_out import new_folder

REFERENCE = "reference"
_SNAPSHOT = ".arrow"


class SharedFolder(Local):
    """A folder of this machine. It must be the same for the driver and every executor."""

    def replace(self, name: str, content: bytes, *, is_synced: bool = True) -> None:
        """Write a file atomically, also if the machine stops."""
        super().replace(name, content, is_synced=is_synced)

    def keep(self, names: Iterable[str]) -> None:
        """Remove the snapshots, files that end in .arrow, that are not in `names`. Raises OSError."""
        for old in {name for name in self.names("") if name.endswith(_SNAPSHOT)} - {*names}:
            self.remove(old)

    def path(self, name: str) -> Path:
        """Return the path of a file of this machine with the content of the snapshot. Raises OSError."""
        return self.root / name


class RemoteFolder(Files):
    """A folder on HDFS, S3 or another file system of Hadoop, with copies in a folder of this application.

    Spark cannot take a file back that it hands out, nor replace it, and new executors fetch all files. So each copy has a name of
    its own, and one that is not used any more is replaced by an empty file.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        super().__init__(spark, root)
        self._context = spark.sparkContext
        self._copies: dict[str, Path] = {}

    def replace(self, name: str, content: bytes) -> None:
        data = bytes(content)
        super().replace(name, data)
        if name.endswith(_SNAPSHOT) and name not in self._copies:
            self._hand_out(name, data)

    def keep(self, names: Iterable[str]) -> None:
        kept = {*names}
        for old in self.names(""):
            if old.endswith(_SNAPSHOT) and old not in kept:
                self.remove(old)
        for old in self._copies.keys() - kept:
            copy = self._copies.pop(old)
            empty = copy.with_suffix(".empty")
            empty.touch()
            empty.replace(copy)
            with suppress(OSError):
                Path(SparkFiles.get(copy.name)).unlink()

    def path(self, name: str) -> Path:
        copy = self._copies.get(name)
        return copy if copy is not None and copy.exists() else self._hand_out(name, self.read(name))

    @cached_property
    def _folder(self) -> Path:
        return new_folder()

    def _hand_out(self, name: str, content: bytes) -> Path:
        copy = self._folder / f"{name.removesuffix(_SNAPSHOT)}-{secrets.token_hex(4)}{_SNAPSHOT}"
        copy.write_bytes(content)
        self._context.addFile(str(copy))
        self._copies[name] = copy
        return copy


SnapshotFolder: TypeAlias = SharedFolder | RemoteFolder


def snapshot_folder(spark: SparkSession, checkpoint: str) -> SnapshotFolder:
    """Return the folder `reference` of a checkpoint."""
    folder = local(checkpoint)
    return SharedFolder(folder / REFERENCE) if folder is not None else RemoteFolder(spark, f"{checkpoint}/{REFERENCE}")
