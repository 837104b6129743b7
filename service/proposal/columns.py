"""Turn records into columns: for each path of a field its value in every record, and what kinds of values it has."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from service.settings import RECORD_KEY, field_path, source
from service.settings.source import TOPIC

MOST_FIELDS = 1_000
"""Fields that are looked at. A record may have as many names as its producer likes; those after these are only counted."""
DEEPEST = 16
NUMBER, TEXT, BOOLEAN, ARRAY, OBJECT, TIMESTAMP, OTHER = (
    "number",
    "text",
    "true or false",
    "array",
    "object",
    "timestamp",
    "bytes",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One record of the sample, decoded; `key` is the record's key as text, None if it has none or is not UTF-8.

    `words` has the values of other sources than fields, such as `$header.NAME`, by their names.
    """

    record: Mapping[str, Any]
    key: str | None
    broker_ms: int
    partition: tuple[str, int] = ("", 0)
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Column:
    """A field of the records: `values` has an entry for each record, None where it is missing or null."""

    path: str
    parts: tuple[str, ...]
    values: list[Any]
    kinds: Counter[str] = field(default_factory=Counter)

    @cached_property
    def present(self) -> list[Any]:
        """The values without None."""
        return [value for value in self.values if value is not None]

    @cached_property
    def distinct(self) -> int:
        return len(set(map(str, self.present)))

    @property
    def share(self) -> float:
        """The part of the records that have a value."""
        return len(self.present) / max(1, len(self.values))

    def is_all(self, *kinds: str) -> bool:
        """Whether there are values, all of these kinds."""
        return bool(self.kinds) and set(self.kinds) <= set(kinds)

    def is_whole(self) -> bool:
        """Whether every value is a whole number of 64 bits."""
        return self.is_all(NUMBER) and all(isinstance(v, int) and -(1 << 63) <= v < 1 << 63 for v in self.present)


@dataclass
class Columns:
    """All fields of a sample, by path, in the order of their first appearance; `more` counts fields that were not looked at."""

    of: dict[str, Column]
    records: int
    more: int = 0

    def leaves(self) -> Iterator[Column]:
        """Yield the fields that are no objects, and the other sources."""
        yield from (column for column in self.of.values() if not column.is_all(OBJECT))

    def fields(self) -> Iterator[Column]:
        """Yield the fields that are no objects."""
        yield from (column for column in self.leaves() if source.in_record(column.path))


def kind(value: Any) -> str:
    """Return what people call the type of a decoded value."""
    if isinstance(value, bool):
        return BOOLEAN
    kinds = (((int, float), NUMBER), (str, TEXT), (list, ARRAY), (Mapping, OBJECT), (datetime, TIMESTAMP))
    return next((name for types, name in kinds if isinstance(value, types)), OTHER)


def columns(sample: Sequence[Seen]) -> Columns:
    """Return the columns of a sample; the records' keys are the column `$key` if every record has one.

    Other sources than fields are columns, too; the topic only where there are several.
    """
    found = Columns({}, len(sample))
    more: set[tuple[str, ...]] = set()
    for number, seen in enumerate(sample):
        _add(found, more, seen.record, (), number)
    found.more = len(more)
    keys = [seen.key or None for seen in sample]
    if all(keys) and sample:
        found.of[RECORD_KEY] = Column(RECORD_KEY, (RECORD_KEY,), keys, Counter({TEXT: len(keys)}))
    for word in dict.fromkeys(word for seen in sample for word in seen.words):
        values = [seen.words.get(word) for seen in sample]
        if word != TOPIC or len(set(values)) > 1:
            parts = (word.partition(".")[0], *source.parse(word).names)
            found.of[word] = Column(word, parts, values, Counter({TEXT: sum(value is not None for value in values)}))
    return found


def _add(
    found: Columns, more: set[tuple[str, ...]], node: Mapping[str, Any], above: tuple[str, ...], number: int
) -> None:
    for name, given in node.items():
        if given is None:
            continue
        value = str(given) if isinstance(given, UUID) else float(given) if isinstance(given, Decimal) else given
        parts = (*above, name)
        path = field_path.spelled(parts)
        column = found.of.get(path)
        if column is None:
            if len(found.of) >= MOST_FIELDS:
                if len(more) < MOST_FIELDS:
                    more.add(parts)
                continue
            column = found.of[path] = Column(path, parts, [None] * found.records)
        column.values[number] = value
        column.kinds[kind(value)] += 1
        if isinstance(value, Mapping) and len(parts) < DEEPEST:
            _add(found, more, value, parts, number)
