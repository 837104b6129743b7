"""Spark's map state without Spark."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import MapState
from typing_extensions import override


class Entries(MapState):
    """The entries of one grouping key at a time, `key`; `calls` names what was asked of them."""

    def __init__(self) -> None:
        self.states: dict[Any, dict[int, bytes]] = {}
        self.key: Any = None
        self.calls: list[str] = []

    @override
    def getValue(self, key: tuple[int, ...]) -> tuple[bytes] | None:
        self.calls.append("get")
        value = self.states.get(self.key, {}).get(key[0])
        return None if value is None else (value,)

    @override
    def updateValue(self, key: tuple[int, ...], value: tuple[bytes, ...]) -> None:
        self.calls.append("put")
        self.states.setdefault(self.key, {})[key[0]] = value[0]

    @override
    def iterator(self) -> Iterator[tuple[tuple[int], tuple[bytes]]]:
        self.calls.append("iterate")
        return iter([((key,), (value,)) for key, value in self.states.get(self.key, {}).items()])

    @override
    def clear(self) -> None:
        self.calls.append("clear")
        self.states.pop(self.key, None)
