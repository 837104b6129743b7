"""The folder with the snapshots: on this machine, where all processes map its files, or on another file system.

Python's workers have no JVM and cannot read another file system. So the driver keeps a copy of each snapshot that it uses, and
Spark hands it to every executor (`SparkContext.addFile`); there it has the copy's name (service/reference/attributes.py).
"""

import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from service.spark.files import Files, Local, local
from service.spark.handed_out import new_folder

REFERENCE = "reference"
_SNAPSHOT = ".arrow"


class SnapshotFolder(Protocol):
    """Names have no /. Methods raise OSError."""

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        ...

    def replace(self, name: str, content: Any) -> None:
        """Write a file atomically, also if the machine stops."""
        ...

    def keep(self, names: Iterable[str]) -> None:
        """Remove the snapshots, files that end in .arrow, that are not in `names`."""
        ...

    def path(self, name: str) -> Path:
        """Return the path of a file of this machine with the content of the snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder of this machine. It must be the same for the driver and every executor."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def replace(self, name: str, content: Any) -> None:
        Local(self.root).replace(name, content, is_synced=True)

    def keep(self, names: Iterable[str]) -> None:
        for old in {path.name for path in self.root.glob(f"*{_SNAPSHOT}")} - {*names}:
            (self.root / old).unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        return self.root / name


class RemoteFolder:
    """A folder on HDFS, S3 or another file system of Hadoop, with copies in a folder of this application.

    Spark cannot take a file back that it hands out, nor replace it, and new executors fetch all files. So each copy has a name of
    its own, and one that is not used any more is replaced by an empty file.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._context = spark.sparkContext
        self._files = Files(spark, root)
        self._copies: dict[str, Path] = {}

    def __str__(self) -> str:
        return str(self._files)

    def read(self, name: str) -> bytes:
        return self._files.read(name)

    def replace(self, name: str, content: Any) -> None:
        data = bytes(content)
        self._files.replace(name, data)
        if name.endswith(_SNAPSHOT) and name not in self._copies:
            self._hand_out(name, data)

    def keep(self, names: Iterable[str]) -> None:
        kept = {*names}
        for old in self._files.names(""):
            if old.endswith(_SNAPSHOT) and old not in kept:
                self._files.remove(old)
        for old in self._copies.keys() - kept:
            copy = self._copies.pop(old)
            empty = copy.with_suffix(".empty")
            empty.touch()
            empty.replace(copy)
            with suppress(OSError):
                Path(SparkFiles.get(copy.name)).unlink()

    def path(self, name: str) -> Path:
        copy = self._copies.get(name)
        return copy if copy is not None and copy.exists() else self._hand_out(name, self._files.read(name))

    @cached_property
    def _folder(self) -> Path:
        return new_folder()

    def _hand_out(self, name: str, content: bytes) -> Path:
        copy = self._folder / f"{name.removesuffix(_SNAPSHOT)}-{secrets.token_hex(4)}{_SNAPSHOT}"
        copy.write_bytes(content)
        self._context.addFile(str(copy))
        self._copies[name] = copy
        return copy


def snapshot_folder(spark: SparkSession, checkpoint: str) -> SharedFolder | RemoteFolder:
    """Return the folder `reference` of a checkpoint."""
    folder = local(checkpoint)
    return SharedFolder(folder / REFERENCE) if folder is not None else RemoteFolder(spark, f"{checkpoint}/{REFERENCE}")
