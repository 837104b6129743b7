"""Store the states of buckets in Spark's map state: for each bucket a base, and the deltas of its batches since.

    key 0      the head (`codec.encode_head`)
    key 1      the base, a whole state (`codec.encode`)
    key 2 ...  the deltas since the base, in order (`codec.encode_delta`)

The token of a base is a hash of its bytes, that of a delta a hash of the token before it and of its bytes. The head has the last
one. So equal tokens mean equal states, of whichever query, checkpoint or attempt they are.

A worker keeps the states of its buckets with their tokens. Spark gives a bucket to any idle worker, and repeats batches that
failed. So a worker uses a kept state only if its token equals the head's, or becomes equal by applying newer deltas. Otherwise
the worker reads everything.

A call on map state is a round trip to the JVM of about 1 ms, and takes some 50 ms for each MB that is read (Spark 4.1.1). A
batch costs a worker that has the state one get and two puts.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from state import codec
from state.codec import CodecError, Head
from state.delta import apply, diff
from state.layout import BucketState

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState

MAX_DELTAS = 64
"""Deltas after which a base is written, however small they are: a worker that starts applies all of them."""

CACHE_BYTES = 512 << 20
"""Bytes of the states that a worker keeps: 1.8 million devices with a window each."""

_HEAD, _BASE, _FIRST = 0, 1, 2
_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Stored:
    """The state of a bucket as it is stored."""

    head: Head
    state: BucketState


class Written(NamedTuple):
    """Bytes: what is stored of the bucket now, what this batch wrote, and the rows that it changed (`Delta.changed_bytes`)."""

    stored: int
    written: int
    changed: int


Key = tuple[str, int]
"""The query, by its checkpoint, and the bucket: a worker runs tasks of all queries of its application."""


class Cache:
    """The states that a worker keeps, by query and bucket: those used last, of `limit_bytes` together."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[Key, tuple[Stored, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Stored | None:
        """The stored state that was put last; None if it was dropped."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Key, stored: Stored) -> None:
        """Keep a state, and drop the least recently used ones above the limit."""
        self.drop(key)
        size = _size(stored.state)
        self._entries[key] = stored, size
        self._bytes += size
        while self._bytes > self._limit_bytes:
            self.drop(next(iter(self._entries)))

    def drop(self, key: Key) -> None:
        """Forget the state."""
        _, size = self._entries.pop(key, (None, 0))
        self._bytes -= size


_CACHE = Cache()


class Store:
    """States in a map state, whose current grouping key is the bucket that the calls name."""

    def __init__(self, entries: "MapState", cache: Cache = _CACHE, *, query: str = "") -> None:
        self._entries = entries
        self._cache = cache
        self._query = query

    def load(self, bucket: int) -> Stored | None:
        """The stored state, None without one; CodecError when it cannot be read."""
        data = self._get(_HEAD)
        if data is None:
            return None
        head = codec.decode_head(data)
        stored = self._known(bucket, head)
        if stored is None:
            values = {key: bytes(value) for (key,), (value,) in self._entries.iterator()}
            keys = range(_BASE, _FIRST + head.deltas)
            stored = _restored(head, [values.get(key, b"") for key in keys])
        self._cache.put((self._query, bucket), stored)
        return stored

    def save(self, bucket: int, stored: Stored | None, state: BucketState) -> Written:
        """Store the state that a step made of `stored`, the result of `load`. An empty state removes the entries."""
        if not (state.devices.num_rows or state.windows.num_rows):
            if stored:
                self._entries.clear()
            self._cache.drop((self._query, bucket))
            return Written(0, 0, 0)
        delta = diff(stored.state, state) if stored else None
        changed = delta.changed_bytes if delta else _size(state)
        if stored and delta:
            data = codec.encode_delta(delta)
            head = Head(
                stored.head.deltas + 1,
                stored.head.base_bytes,
                stored.head.delta_bytes + len(data),
                _token(data, stored.head.token),
            )
        if not (stored and delta) or _is_due(head, bucket):
            data = codec.encode(state)
            head = Head(0, len(data), 0, _token(data))
            if stored:
                self._entries.clear()
        self._put(_BASE + head.deltas, data)
        encoded = codec.encode_head(head)
        self._put(_HEAD, encoded)
        self._cache.put((self._query, bucket), Stored(head, state))
        return Written(head.base_bytes + head.delta_bytes + len(encoded), len(data) + len(encoded), changed)

    def _known(self, bucket: int, head: Head) -> Stored | None:
        """The kept state with newer deltas applied; None if it cannot become the stored one."""
        kept = self._cache.get((self._query, bucket))
        if kept is None or kept.head.token == head.token:
            return kept
        deltas = [self._get(_BASE + number) for number in range(kept.head.deltas + 1, head.deltas + 1)]
        token, state = kept.head.token, kept.state
        for data in deltas:
            token = _token(data or b"", token)
        if token != head.token:
            return None
        for data in deltas:
            state = apply(state, codec.decode_delta(data or b""))
        return Stored(head, state)

    def _get(self, key: int) -> bytes | None:
        value = self._entries.getValue((key,))
        return bytes(value[0]) if value else None

    def _put(self, key: int, data: bytes) -> None:
        self._entries.updateValue((key,), (data,))


def restore(values: Sequence[bytes]) -> BucketState:
    """The state in the stored values of a bucket, in the order of their keys; CodecError when it cannot be read."""
    return _restored(codec.decode_head(values[0]), values[1:] or [b""]).state


def _restored(head: Head, values: Sequence[bytes]) -> Stored:
    token = b""
    for data in values:
        token = _token(data, token)
    base, *deltas = values
    state = codec.decode(base)
    if token != head.token:
        raise CodecError(f"base and {len(deltas)} deltas are not those that the head of the bucket names")
    for data in deltas:
        state = apply(state, codec.decode_delta(data))
    return Stored(head, state)


def _token(data: bytes, before: bytes = b"") -> bytes:
    return blake2b(before + data, digest_size=_TOKEN_BYTES).digest()


def _is_due(head: Head, bucket: int) -> bool:
    """Whether to write a base: when the deltas have as many bytes as the base, which at most doubles the written bytes.

    Buckets differ by up to a quarter of it, so that they do not write their bases in the same batch.
    """
    share = 0.75 + bucket * 0.618 % 1 / 2
    return head.delta_bytes >= share * head.base_bytes or head.deltas > share * MAX_DELTAS


def _size(state: BucketState) -> int:
    return int(state.runs.nbytes + state.devices.nbytes + state.windows.nbytes)
