"""Names of keys and text of values over columns. Text is bytes, so that publishing does not fail on ids that are not UTF-8."""

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.redis.keys import Keys, shard_of
from state.columns import Ints

Array: TypeAlias = "pa.Array[Any]"  # a string: Arrow's classes take no arguments when the program runs
Texts = list[bytes | None]

NO_KEY = b"(none)"


# The text of a key or of a device may contain ":", because the parts around it have none.


def windows(keys: Keys, view: Array, measure: Array, key: Array, start: Array) -> Array:
    """Binary array of window keys; a null key is "(none)"."""
    filled: Any = pc.fill_null(_binary(key), pa.scalar(NO_KEY))
    return _joined(keys, "window", _binary(view), _binary(measure), filled, decimal(start))


def sessions(keys: Keys, device: Array, start: Array) -> Array:
    return _joined(keys, "session", _binary(device), decimal(start))


def devices(keys: Keys, device: Array) -> Array:
    return _joined(keys, "device", _binary(device))


def _joined(keys: Keys, kind: str, *columns: Array) -> Array:
    join: Any = pc.binary_join_element_wise
    joined: Array = join(pa.scalar(f"{keys.prefix}:{kind}".encode()), *columns, pa.scalar(b":"))
    return joined


def shard_numbers(column: Any, count: int) -> Ints:
    """`shard_of` each element of a table's string column; a null window key is "(none)"."""
    encoded: Any = pc.fill_null(_binary(column.combine_chunks()), pa.scalar(NO_KEY)).dictionary_encode()
    numbers = np.array([shard_of(text, count) for text in encoded.dictionary.to_pylist()], np.int64)
    taken: Ints = numbers[encoded.indices.to_numpy()]
    return taken


def _binary(array: Array) -> Array:
    """Strings as bytes, without a copy or a check."""
    column: Any = array
    binary: Array = column if pa.types.is_binary(column.type) else column.cast(pa.binary())
    return binary


def decimal(values: Any) -> Array:
    """Format numbers, an Arrow or NumPy array, as text in a binary array; null stays null.

    Integers are decimal. A double is the shortest text that reads back as the same double, as Python's repr, in a notation that
    may differ ("517" for 517.0, "0.00001" for 1e-05): Arrow's formatting costs 60 ns a value, repr 440 ns.
    """
    numbers: Any = values if isinstance(values, pa.Array) else pa.array(values)
    text: Array = numbers.cast(pa.string()).cast(pa.binary())
    return text


def texts(array: Array) -> Texts:
    """A string or binary array as Python bytes; null is None."""
    values: Texts = _binary(array).to_numpy(zero_copy_only=False).tolist()
    return values
