"""Parse and check the devices' own limits: text columns of the reference, named in the settings.

    reference.ranges             measure = [lowest, highest]: numbers                   used by admission
    reference.session_gap        durations, "30 s" or milliseconds, at most max_duration       by sessions
    reference.expected_interval  durations between two readings                         by the status `quiet`

For a null the settings' own limit holds, if there is one. Validation refuses a snapshot with text that is no limit.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from service.settings import LARGEST, YEAR_MS, Reference
from service.units import parse_duration_ms

_EXAMPLES = 5
_FOREIGN = re.compile(r"[^-+.eE\d\s]", re.ASCII)
"""A character that no number has. Python reads 1_000, and Spark, which admits by the limit, reads no number (4.1.1)."""


def durations_ms(column: Any, otherwise: int) -> NDArray[np.int64]:
    """Parse a column of durations to ms, `otherwise` where it is null.

    So is text that is no duration: a snapshot that is kept while the database is away may be older than the setting.
    """
    return _each(column, lambda text: _duration_ms(text) or otherwise, otherwise).astype(np.int64)


def faults(table: pa.Table, reference: Reference) -> Iterator[str]:
    """Yield one line for each column with invalid limits, with up to five examples."""
    for name in filter(None, (reference.session_gap, reference.expected_interval)):
        wrong = [text for text in _texts(table, name) if not _duration_ms(text)]
        yield from _fault(name, "must be a duration above 0, such as '30 s' or 30000 (ms)", wrong)
    for measure, (low, high) in reference.ranges.items():
        for name in (low, high):
            wrong = [text for text in _texts(table, name) if math.isnan(_number(text))]
            yield from _fault(name, f"must be a number from {-LARGEST} to {LARGEST}", wrong)
        crossed = np.flatnonzero(_each(table[low], _number, math.nan) > _each(table[high], _number, math.nan))
        if len(crossed):
            rows = table.select(["device", low, high]).take(pa.array(crossed[:_EXAMPLES])).to_pylist()
            examples = ", ".join(f"device {row['device']!r} ({row[low]} to {row[high]})" for row in rows)
            yield f"{low}: must not be above {high} ({measure}); of {len(crossed)} devices it is, such as {examples}"


def _each(column: Any, parse: Callable[[str], float], otherwise: float) -> NDArray[Any]:
    """`parse` of each text, `otherwise` where it is null; each different text is parsed once."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = array.dictionary_encode()
    parsed = np.array([*map(parse, encoded.dictionary.to_pylist()), otherwise])
    values: NDArray[Any] = parsed[encoded.indices.fill_null(len(parsed) - 1).to_numpy(zero_copy_only=False)]
    return values


def _texts(table: pa.Table, name: str) -> Sequence[str]:
    unique: Any = pc.unique(table[name])
    texts: list[str] = unique.drop_null().to_pylist()
    return texts


def _fault(name: str, rule: str, examples: Sequence[str]) -> Iterator[str]:
    if examples:
        yield f"{name}: {rule}: {len(examples)} values are not, such as {', '.join(map(repr, examples[:_EXAMPLES]))}"


def _duration_ms(text: str) -> int:
    """Return the duration, 0 for text that is none and for one that is too long."""
    try:
        duration_ms = int(text) if text.isdecimal() else parse_duration_ms(text)
    except ValueError:
        return 0
    return duration_ms if duration_ms <= YEAR_MS else 0


def _number(text: str) -> float:
    """Return the number, NaN for text that is none and for one that no measure may have."""
    try:
        number = math.nan if _FOREIGN.search(text) else float(text)
    except ValueError:
        return math.nan
    return number if abs(number) <= LARGEST else math.nan
