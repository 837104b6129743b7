"""The keys of readings that were admitted, in the checkpoint, for `admission.distinct`.

    distinct/<bucket>/<batch>-<epoch>.delta    the keys that a batch added
    distinct/<bucket>/<batch>-<epoch>.base     all keys after it that were not forgotten

The task that folds a bucket's readings reads what batches before its own have written, decides with state/duplicates.py, and
writes the delta of its batch when it has folded all. So a batch that is repeated decides the same, and overwrites what the
attempt before it wrote. The driver removes files of the batch before each attempt, because a bucket may have no readings in it
any more: with other settings, or a schema that is found meanwhile. A query without the setting removes all keys.

A delta begins with the token of the delta before it. Workers keep memories by the token of the last delta. A memory whose last
delta is not the one in the folder is read again.
"""

import hashlib
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from service.checkpoint.document import changing, content, damaged
from service.errors import SettingsError
from service.settings import Admission, Settings
from service.spark.files import Local, local
from state import codec, duplicates
from state.codec import CodecError
from state.columns import Bools, Ints
from state.duplicates import Memory
from state.watermark import EventTime

FOLDER = "distinct"
MAX_DELTAS = 32
"""Deltas after which all keys are written."""
CACHE_BYTES = 512 << 20
"""Bytes of the memories that a worker keeps."""

_TOKEN_BYTES = 16


class Place(NamedTuple):
    """Of a file: its batch and the epoch of its writer."""

    batch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class _Kept:
    place: Place | None
    token: bytes
    memory: Memory
    deltas: int


_CACHE: OrderedDict[tuple[str, int], _Kept] = OrderedDict()


@dataclass(slots=True)
class SeenKeys:
    """The memories that a task needs in a batch; `write` ends it. Keys with an event time below `floor_ms` are forgotten."""

    checkpoint: Path
    place: Place
    floor_ms: int
    _before: dict[int, _Kept] = field(default_factory=dict)
    _added: dict[int, pa.Table] = field(default_factory=dict)

    def firsts(self, bucket: int, keys: pa.Table) -> tuple[Bools, list[Ints]]:
        """As `state.duplicates.firsts`, for all keys of the batch in a bucket. The others are remembered by `write`."""
        kept = self._before[bucket] = _load(self.checkpoint, bucket, self.place.batch)
        is_duplicate, places = duplicates.firsts(kept.memory, keys, self.floor_ms)
        self._added[bucket] = keys.filter(pa.array(~is_duplicate)).combine_chunks()
        return is_duplicate, places

    def write(self) -> None:
        """Write the keys that the batch added. Raises SetupError when the folder cannot be written."""
        for bucket, added in self._added.items():
            if added.num_rows:
                self._write(bucket, added)

    def _write(self, bucket: int, added: pa.Table) -> None:
        kept, files, name = self._before[bucket], Local(self.checkpoint), f"{self.place.batch}-{self.place.epoch}"
        memory = duplicates.remember(kept.memory, added, self.floor_ms)
        data = kept.token + codec.pack(b"K", added)
        token, is_due = _token(data), kept.deltas >= MAX_DELTAS
        with changing(files, f"{FOLDER}/{bucket}/{name}"):
            files.replace(f"{FOLDER}/{bucket}/{name}.delta", data)
            if is_due:
                living = codec.pack(b"K", duplicates.living(memory, self.floor_ms))
                files.replace(f"{FOLDER}/{bucket}/{name}.base", token + living)
                _clean(files, bucket, self.place.batch)
        _keep(self.checkpoint, bucket, _Kept(self.place, token, memory, 0 if is_due else kept.deltas + 1))


def folder(settings: Settings) -> Path:
    """Return the folder of the checkpoint. Raises SettingsError where tasks cannot write it."""
    path = local(settings.service.checkpoint)
    if path is None:
        what = f"admission.distinct: service.checkpoint = {settings.service.checkpoint!r} is no folder of this machine"
        raise SettingsError(what, remedy="Name a folder that the driver and all executors share, or leave distinct out")
    return path


def floor_ms(before: EventTime, admission: Admission) -> int:
    """Return the time below which a batch that begins at `before` forgets keys.

    It is at most `distinct_for` behind the newest event time, or behind the watermark and its delay while the watermark is held:
    readings of a backlog still come in then.
    """
    newest_ms = min(before.newest_ms, before.watermark_ms + admission.watermark_delay_ms)
    return max(before.watermark_ms, newest_ms - admission.distinct_for_ms)


def clear(checkpoint: Path, buckets: int, batch: int) -> None:
    """Remove what an attempt before has written for a batch. Raises SetupError."""
    files = Local(checkpoint)
    with changing(files, FOLDER):
        for bucket in range(buckets):
            for name, each in _places(files, bucket):
                if each.batch >= batch:
                    files.remove(f"{FOLDER}/{bucket}/{name}")


def forget(checkpoint: str) -> None:
    """Remove all keys, because the setting is off: an attempt of a batch may have written some that the batch does not have.

    Raises SetupError.
    """
    path = local(checkpoint)
    if path is not None and (path / FOLDER).exists():
        with changing(path, FOLDER):
            shutil.rmtree(path / FOLDER)


def stored(checkpoint: Path, bucket: int, batch: int) -> pa.Table:
    """Return all keys of a bucket after a batch, as a table of `state.duplicates.SCHEMA`. Raises CheckpointError."""
    return duplicates.living(_load(checkpoint, bucket, batch + 1).memory, 0)


def write_all(files: Local, bucket: int, place: Place, keys: pa.Table) -> None:
    """Write all keys of a bucket after the batch of `place` below `files`. Raises OSError."""
    name = f"{place.batch}-{place.epoch}"
    delta = bytes(_TOKEN_BYTES) + codec.pack(b"K", duplicates.SCHEMA.empty_table())
    files.replace(f"{bucket}/{name}.delta", delta)
    files.replace(f"{bucket}/{name}.base", _token(delta) + codec.pack(b"K", keys))


def _load(checkpoint: Path, bucket: int, batch: int) -> _Kept:
    """The keys after the batches before this one."""
    files = Local(checkpoint)
    newest: dict[tuple[str, int], tuple[Place, str]] = {}
    for name, place in _places(files, bucket):
        at = Path(name).suffix, place.batch
        if place.batch < batch and (at not in newest or newest[at][0] < place):
            newest[at] = place, name
    deltas = {number: each for (kind, number), each in sorted(newest.items()) if kind == ".delta"}
    if not deltas:
        return _Kept(None, bytes(_TOKEN_BYTES), Memory(), 0)
    last, last_name = deltas[max(deltas)]
    kept = _CACHE.get((str(checkpoint), bucket))
    if (
        kept is not None
        and kept.place == last
        and kept.token == _token(content(files, f"{FOLDER}/{bucket}/{last_name}"))
    ):
        return kept
    base = max((number for kind, number in newest if kind == ".base"), default=-1)
    token, memory = bytes(_TOKEN_BYTES), Memory()
    if base >= 0:
        token, table = _split(files, bucket, newest[".base", base][1])
        memory = duplicates.memory(table)
    following = [name for number, (_, name) in deltas.items() if number > base]
    for name in following:
        before, table = _split(files, bucket, name)
        if before != token:
            raise damaged(files, f"{FOLDER}/{bucket}/{name}", "it does not follow the file before it")
        token = _token(content(files, f"{FOLDER}/{bucket}/{name}"))
        memory = duplicates.remember(memory, table, 0)
    found = _Kept(last, token, memory, len(following))
    _keep(checkpoint, bucket, found)
    return found


def _keep(checkpoint: Path, bucket: int, kept: _Kept) -> None:
    _CACHE[str(checkpoint), bucket] = kept
    _CACHE.move_to_end((str(checkpoint), bucket))
    while sum(each.memory.nbytes for each in _CACHE.values()) > CACHE_BYTES and len(_CACHE) > 1:
        _CACHE.popitem(last=False)


def _clean(files: Local, bucket: int, batch: int) -> None:
    """Remove what is older than the base before the newest one: the batch may be repeated, and then reads the one before."""
    bases = sorted({place.batch for name, place in _places(files, bucket) if name.endswith(".base")})
    older = [each for each in bases if each < batch]
    for name, place in _places(files, bucket) if older else ():
        if place.batch < older[-1]:
            files.remove(f"{FOLDER}/{bucket}/{name}")


def _places(files: Local, bucket: int) -> Iterator[tuple[str, Place]]:
    for name in files.names(f"{FOLDER}/{bucket}"):
        batch, _, epoch = name.partition(".")[0].partition("-")
        if batch.isdecimal() and epoch.isdecimal():
            yield name, Place(int(batch), int(epoch))


def _split(files: Local, bucket: int, name: str) -> tuple[bytes, pa.Table]:
    data = content(files, f"{FOLDER}/{bucket}/{name}")
    try:
        return data[:_TOKEN_BYTES], codec.unpack(b"K", data[_TOKEN_BYTES:])
    except CodecError as error:
        raise damaged(files, f"{FOLDER}/{bucket}/{name}", error) from error


def _token(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_TOKEN_BYTES).digest()
