"""Filters by SQLite: a second engine for the predicates of the settings.

SQLite and Spark agree on comparisons of values of one type, AND, OR, NOT, IN, BETWEEN, LIKE, CASE, COALESCE and null. They do not
on NaN, which is null in SQLite, nor on comparisons of text with numbers: an oracle's settings have none of these.
"""

import sqlite3
from collections.abc import Mapping

Value = str | float | None


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
        row = self._connection.execute(self._query, [values.get(name) for name in self._names]).fetchone()
        return bool(row[0])
