"""The limit on devices: while the state has `admission.max_devices` devices, no other device is admitted.

Admission cannot read the state, which is behind the shuffle. So after each batch the driver writes to the checkpoint, with the
event time, whether the state is full. If it is, the driver writes a list of the state's devices, and hands it to the tasks of all
batches until there is room again. A replay reads the same entry, and decides the same.

    devices/N    in the checkpoint: 8 bytes for each device in the state after batch N, sorted

The state may exceed the limit by the new devices of one batch.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from service.checkpoint.document import changing, store
from service.checkpoint.event_time import NO_LIST
from service.spark.files import Folder
from service.spark.handed_out import hand_out
from state import reader
from state.columns import array

FOLDER = "devices"
ROOM = 0.95
"""There is room when the state has less than this share of the limit, so that not every new device makes a new list."""

Hashes = NDArray[np.uint64]
Bools = NDArray[np.bool_]

_lists: dict[str, tuple[str, Hashes]] = {}
"""In a worker: by checkpoint, the name and the content of the list that was used last."""


def hashes(devices: pa.Array) -> Hashes:
    """Return 8 bytes of BLAKE2b for each device. A device with the hash of a listed device is admitted too."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in devices.to_pylist())
    return np.frombuffer(digests, np.uint64)


def are_known(devices: pa.Array, name: str) -> Bools:
    """Return, in a task, which devices are in the list of this name."""
    listed = _load(name)
    hashed = hashes(devices)
    at = np.minimum(np.searchsorted(listed, hashed), max(0, len(listed) - 1))
    return listed[at] == hashed if len(listed) else np.zeros(len(hashed), np.bool_)


def _load(name: str) -> Hashes:
    owner = name.rpartition("-")[0]
    kept = _lists.get(owner)
    if kept is None or kept[0] != name:
        kept = _lists[owner] = name, np.fromfile(SparkFiles.get(name), np.uint64)
    return kept[1]


def was_reached(files: Folder) -> bool:
    """Whether the state was ever full: the last list of devices is kept. Raises CheckpointError."""
    return bool(files.names(FOLDER))


@dataclass(slots=True)
class DeviceLimit:
    """Counts the state's devices by bucket, on the driver, and makes the list. `limit` 0 is no limit."""

    spark: SparkSession
    checkpoint: str
    files: Folder
    limit: int
    buckets: int
    _sizes: dict[int, int] = field(default_factory=dict)
    _list: tuple[int, str] = NO_LIST, ""

    def list_after(self, batch: int, noted: int, sizes: Iterable[tuple[int, int]]) -> int:
        """Return the batch whose list of devices is used from the next batch on, or NO_LIST.

        `noted` is the return value for the batch before; `sizes` has the changed buckets with their number of devices.
        """
        self._sizes |= dict(sizes)
        devices = sum(self._sizes.values())
        if not self.limit:
            return NO_LIST
        if noted == NO_LIST:
            return batch if devices >= self.limit else NO_LIST
        # After a restart, buckets that have not changed yet are not counted.
        has_room = len(self._sizes) == self.buckets and devices < ROOM * self.limit
        return NO_LIST if has_room else noted

    def distribute(self, noted: int) -> str:
        """Hand the list of batch `noted` to the tasks. Return its name, "" for NO_LIST.

        Raises CheckpointError, or Spark's error when the state cannot be read.
        """
        if noted == NO_LIST:
            return ""
        if noted != self._list[0]:
            owner = hashlib.blake2b(self.checkpoint.encode(), digest_size=8).hexdigest()
            self._list = noted, hand_out(self.spark.sparkContext, f"devices-{owner}", self._stored(noted))
        return self._list[1]

    def _stored(self, batch: int) -> bytes:
        try:
            return self.files.read(f"{FOLDER}/{batch}")
        except FileNotFoundError:
            content = self._listed(batch)
        store(self.files, f"{FOLDER}/{batch}", content)
        with changing(self.files, FOLDER):
            for name in self.files.names(FOLDER):
                if name != str(batch):
                    self.files.remove(f"{FOLDER}/{name}")
        return content

    def _listed(self, batch: int) -> bytes:
        states: Any = reader.states(self.spark, self.checkpoint, batch)
        lists = [hashes(array(state.devices.column("device"))) for _, state in states]
        return np.sort(np.concatenate(lists)).tobytes() if lists else b""
