"""The limit on devices: while the state has `admission.max_devices`, only those that it has are admitted.

Admission cannot ask the state, which lies behind the shuffle. So the driver notes with event time, after each batch, whether the
state is full. If it is, the devices that it has are written down once, as hashes, and given to the tasks of all batches until
there is room again. A replay begins with the same note, and so decides the same.

    devices/N    in the checkpoint: 8 bytes for each device in the state after batch N, sorted

The limit is passed by what one batch has of new devices.
"""

import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from service.checkpoint.event_time import NO_LIST
from service.spark.files import RESTORE, Files, Local, unusable
from state import reader
from state.columns import array

FOLDER = "devices"
ROOM = 0.95
"""There is room again when the state has less than this share of the limit: a list is not made for each device that comes."""

Hashes = NDArray[np.uint64]
Bools = NDArray[np.bool_]


def hashes(devices: pa.Array) -> Hashes:
    """One for each device. Whoever finds another with a known one's hash has had one device more admitted."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in devices.to_pylist())
    return np.frombuffer(digests, np.uint64)


def are_known(devices: pa.Array, name: str) -> Bools:
    """In a task: which of the devices are in the list that the driver has given under this name."""
    known = _load(name)
    wanted = hashes(devices)
    at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
    return known[at] == wanted if len(known) else np.zeros(len(wanted), np.bool_)


@lru_cache(maxsize=1)
def _load(name: str) -> Hashes:
    return np.fromfile(SparkFiles.get(name), np.uint64)


@dataclass(slots=True)
class DeviceLimit:
    """What the one writer knows of the state's devices, by bucket. `limit` 0 is none."""

    spark: SparkSession
    checkpoint: str
    files: Files | Local
    limit: int
    buckets: int
    _sizes: dict[int, int] = field(default_factory=dict)
    _given: str = ""

    def after(self, batch: int, noted: int, sizes: Iterable[tuple[int, int]]) -> int:
        """What to note after a batch: the batch whose devices are known from now on, or NO_LIST. `noted` is what was noted before
        it, `sizes` the buckets that it has changed and their devices."""
        self._sizes |= dict(sizes)
        devices = sum(self._sizes.values())
        if not self.limit:
            return NO_LIST
        if noted == NO_LIST:
            return batch if devices >= self.limit else NO_LIST
        # After a restart, until all buckets have changed, there may be more.
        has_room = len(self._sizes) == self.buckets and devices < ROOM * self.limit
        return NO_LIST if has_room else noted

    def give(self, noted: int) -> str:
        """Give the tasks of the next batch the devices that are known; the name of their list, "" where all are admitted.

        Raises CheckpointError, or Spark's error where the state cannot be read.
        """
        if noted == NO_LIST:
            return ""
        name = f"devices-{noted}"
        if name != self._given:
            path = Path(tempfile.mkdtemp(prefix="tidemark-")) / name
            path.write_bytes(self._stored(noted))
            self.spark.sparkContext.addFile(str(path))
            self._given = name
        return name

    def _stored(self, batch: int) -> bytes:
        try:
            return self.files.read(f"{FOLDER}/{batch}")
        except FileNotFoundError:
            content = self._listed(batch)
        try:
            self.files.replace(f"{FOLDER}/{batch}", content)
            for name in self.files.names(FOLDER):
                if name != str(batch):
                    self.files.remove(f"{FOLDER}/{name}")
        except OSError as error:
            what = f"{self.files}/{FOLDER}/{batch}: {error}"
            raise unusable(what, remedy=RESTORE) from error
        return content

    def _listed(self, batch: int) -> bytes:
        states: Any = reader.states(self.spark, self.checkpoint, batch)
        found = [hashes(array(state.devices.column("device"))) for _, state in states]
        return np.sort(np.concatenate(found)).tobytes() if found else b""
