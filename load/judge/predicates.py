"""Filters by SQLite: a second engine for the predicates of the settings.

SQLite and Spark agree on comparisons of values of one type, AND, OR, NOT, IN, BETWEEN, LIKE, CASE, COALESCE and null. They do not
on comparisons of text with numbers: an oracle's settings have none. NaN is larger than every number in Spark, and null in SQLite,
so it becomes an infinity here; a sign before it would make a difference.
"""

import math
import re
import sqlite3
from collections.abc import Mapping

Value = str | float | None
_NAME = r"(?<![\w.])[A-Za-z_][\w.]*(?![\w.]*\s*\()"


class Predicate:
    """A predicate over these names."""

    def __init__(self, where: str, names: tuple[str, ...]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute("pragma case_sensitive_like = on")
        self._names = names
        columns = ", ".join(f'? as "{name}"' for name in names)
        self._query = f"select ({where}) from (select {columns})"  # noqa: S608 - of the settings

    def __call__(self, values: Mapping[str, Value]) -> bool:
        """Whether values, null where they lack a name, meet it; a null result does not."""
        row = self._connection.execute(self._query, [_bound(values.get(name)) for name in self._names]).fetchone()
        return bool(row[0])


def _bound(value: Value) -> Value:
    return math.inf if isinstance(value, float) and math.isnan(value) else value


class Formula:
    """An expression over fields of a record; `fields` are their paths. Arithmetic, `abs` and `coalesce` follow SQLite."""

    def __init__(self, text: str) -> None:
        names = re.findall(_NAME, text)
        self.fields = tuple(dict.fromkeys(names))
        self._can_be_null = "nullif" in text
        query = re.sub(r"(?<![\w.])(\d+)(?![\w.])", r"\1.0", text)
        query = re.sub(_NAME, lambda found: f'"{found[0]}"', query)
        columns = ", ".join(f'cast(? as real) as "{name}"' for name in self.fields)
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._query = f"select ({query}) from (select {columns})"  # noqa: S608 - of the settings

    def __call__(self, numbers: Mapping[str, float | None]) -> float | None:
        """The value; NaN for one that is null though every field has a number."""
        values = [numbers[name] for name in self.fields]
        result = self._connection.execute(self._query, values).fetchone()[0]
        if result is None and not self._can_be_null and None not in values:
            return float("nan")
        return None if result is None else float(result)
