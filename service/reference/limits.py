"""Limits of its own that a device may have: columns of the reference, named in the settings, text like all of them.

    reference.ranges             measure = [lowest, highest]: numbers                          used by admission
    reference.session_gap        durations, "30 s" or milliseconds; above max_duration it is that      by sessions
    reference.expected_interval  durations: how far apart readings are expected                 by the status `quiet`

What is null is not limited, or limited as the settings say for all. A snapshot with text that is no limit is refused, so
whoever reads a limit here can rely on it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from service.settings import LARGEST, YEAR_MS, Reference
from service.units import parse_duration_ms

_EXAMPLES = 5


def durations_ms(column: Any, otherwise: int) -> NDArray[np.int64]:
    """A column of durations in ms, `otherwise` where it is null."""
    return _each(column, _duration_ms, otherwise).astype(np.int64)


def faults(table: pa.Table, reference: Reference) -> Iterator[str]:
    """What is no limit in a table that has the columns: a line for each column, with up to five examples."""
    for name in filter(None, (reference.session_gap, reference.expected_interval)):
        wrong = [text for text in _texts(table, name) if not _is_duration(text)]
        yield from _fault(name, "must be a duration above 0, such as '30 s' or 30000 (ms)", wrong)
    for measure, (low, high) in reference.ranges.items():
        for name in (low, high):
            wrong = [text for text in _texts(table, name) if math.isnan(_number(text))]
            yield from _fault(name, "must be a finite number", wrong)
        crossed = np.flatnonzero(_each(table[low], _number, math.nan) > _each(table[high], _number, math.nan))
        examples = table["device"].take(pa.array(crossed[:_EXAMPLES])).to_pylist()
        yield from _fault(low, f"must not be above {high} ({measure}), in {len(crossed)} rows it is", examples)


def _each(column: Any, parse: Callable[[str], float], otherwise: float) -> NDArray[Any]:
    """`parse` of each text, `otherwise` where it is null; each different text is parsed once."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = array.dictionary_encode()
    known = np.array([*map(parse, encoded.dictionary.to_pylist()), otherwise])
    found: NDArray[Any] = known[encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    return found


def _texts(table: pa.Table, name: str) -> Sequence[str]:
    found: Any = pc.unique(table[name])
    texts: list[str] = found.drop_null().to_pylist()
    return texts


def _fault(name: str, rule: str, examples: Sequence[str]) -> Iterator[str]:
    if examples:
        yield f"{name}: {rule}: {len(examples)} different ones are not so, such as {', '.join(map(repr, examples[:_EXAMPLES]))}"


def _duration_ms(text: str) -> int:
    return int(text) if text.isdecimal() else parse_duration_ms(text)


def _is_duration(text: str) -> bool:
    try:
        return 0 < _duration_ms(text) <= YEAR_MS
    except ValueError:
        return False


def _number(text: str) -> float:
    """NaN for what is none, or so large that nothing can be added up."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if abs(number) <= LARGEST else math.nan
