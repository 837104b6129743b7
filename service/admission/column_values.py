"""The values of a column of the record: at most `max_values` different ones are keys of views, all others count as `(other)`.

A value is decided once, for good: it is listed while the column's list has room, and `(other)` when the list is full. A task
that meets a value without a decision asks the driver (questions.py), which writes the lists to the checkpoint before the batch
runs again. docs/decisions/0026-values-of-columns.md has the reasons.

    columns/values.json    in the checkpoint: the lists by column, in the order of the decisions

A replay and a recomputation read the same lists, and so decide the same. A value that only late readings have is in no list: a
correction counts it as itself if there is room, and notes its decision in the mark of each reading (service/recompute/late.py).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext, SparkFiles

from service.admission.decode import OTHER
from service.admission.questions import COLUMN_VALUES, UndecidedError
from service.checkpoint.document import Document
from service.settings import Settings
from service.spark.files import Folder
from service.spark.handed_out import hand_out
from state.columns import array

DOCUMENT = Document[dict[str, list[str]]]("columns/values.json", dict[str, list[str]])
AT_ONCE = 2_000
"""Values of a column in one question."""
DECIDED = "\x01"
"""Begins a value that is decided already. No key has a control character (decode.OTHER takes the place of such values)."""
ADDED = 100
"""New values that go to the tasks with each job; more of them become a file, which each executor reads once."""

_KEPT = 4
"""Decisions that a worker keeps: it runs the tasks of several queries in turns."""
Lists = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Known:
    """The decisions, in a task: `lists` of values by column, and the columns whose list is `full`.

    With `asks`, `decided` raises UndecidedError. Otherwise a value that is not listed is itself, but all of them are OTHER
    in a call that has more of them than the column's `room`.
    """

    lists: Mapping[str, pa.Array] = field(default_factory=dict)
    full: frozenset[str] = frozenset()
    asks: bool = False
    room: Mapping[str, int] = field(default_factory=dict)

    def are_listed(self, name: str, values: pa.Array) -> pa.Array:
        """Return which values of a column are in its list."""
        return pc.is_in(values, value_set=self.lists.get(name, pa.array([], pa.string())))

    def decided(self, columns: Mapping[str, pa.ChunkedArray]) -> dict[str, pa.DictionaryArray]:
        """Return the columns, strings and nulls, with OTHER in place of the values that are not listed.

        In a batch run values may begin with DECIDED.
        """
        result, undecided = {}, {}
        for name, column in columns.items():
            encoded = array(column).dictionary_encode()
            values = encoded.dictionary
            is_new = pc.and_(pc.invert(self.are_listed(name, values)), pc.not_equal(values, OTHER))
            if not self.asks:
                is_decided = pc.starts_with(values, DECIDED)
                is_new = pc.and_not(is_new, is_decided)
                values = pc.if_else(is_decided, pc.utf8_slice_codeunits(values, len(DECIDED)), values)
            count = pc.sum(is_new).as_py() or 0
            if count:
                if name in self.full or count > self.room.get(name, count):
                    values = pc.if_else(is_new, OTHER, values)
                elif self.asks:
                    undecided[name] = values.filter(is_new).to_pylist()
            result[name] = pa.DictionaryArray.from_arrays(encoded.indices, values)
        if undecided:
            asked = {name: sorted(texts)[:AT_ONCE] for name, texts in undecided.items()}
            raise UndecidedError.of(COLUMN_VALUES, asked)
        return result


def known(text: str) -> Known:
    """Return, in a task, the decisions of `ColumnValues.text`; "" is nothing, and asks nothing."""
    return Known() if not text else _known(text)


@lru_cache(maxsize=_KEPT)
def _known(text: str) -> Known:
    name, added, full = json.loads(text)
    lists: dict[str, list[str]] = json.loads(Path(SparkFiles.get(name)).read_bytes()) if name else {}
    texts = {column: [*lists.get(column, ()), *added.get(column, ())] for column in {*lists, *added}}
    return Known(_arrays(texts), frozenset(full), asks=True)


def stored(settings: Settings, files: Folder) -> Known:
    """Return the decisions of a checkpoint, for a recomputation. Raises CheckpointError."""
    if not settings.grouped_columns:
        return Known()
    lists = DOCUMENT.read(files) or {}
    room = {name: max(0, limit - len(lists.get(name, ()))) for name, limit in _limits(settings).items()}
    return Known(_arrays(lists), room=room)


@dataclass(slots=True)
class ColumnValues:
    """Decides values on the driver. `limits` are the grouped columns with their `max_values`; {} costs nothing."""

    context: SparkContext
    files: Folder
    limits: Mapping[str, int]
    _lists: dict[str, list[str]] | None = None
    _file: str = ""
    _added: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, context: SparkContext, settings: Settings, files: Folder) -> Self:
        return cls(context, files, _limits(settings))

    def text(self) -> str:
        """Return the decisions for the tasks, as BatchContext.column_values. Raises CheckpointError."""
        if not self.limits:
            return ""
        lists = self._all()
        full = [name for name, limit in self.limits.items() if len(lists.get(name, ())) >= limit]
        return json.dumps([self._file, self._added, full])

    def decide(self, values: Lists, fence: Callable[[], object]) -> bool:
        """List new values while there is room; return whether something has changed for the tasks.

        `fence` is called before lists are written, and raises FencedError when there is another writer: a frozen one that wakes
        up would replace the lists of its successor. Raises CheckpointError.
        """
        fence()
        lists, before = self._all(), self.text()
        for name, texts in values.items():
            listed = lists.setdefault(name, [])
            room = max(0, self.limits[name] - len(listed))
            known = set(listed)
            chosen = [text for text in texts if text not in known][:room]
            listed += chosen
            self._added.setdefault(name, []).extend(chosen)
        DOCUMENT.write(self.files, lists)
        if sum(map(len, self._added.values())) > ADDED:
            self._distribute(lists)
        return self.text() != before

    def sizes(self) -> dict[str, int]:
        """Return the number of listed values of each column."""
        return {name: len(self._all().get(name, ())) for name in self.limits}

    def _distribute(self, lists: Lists) -> None:
        self._file = hand_out(self.context, "columns", json.dumps(lists).encode())
        self._added = {}

    def _all(self) -> dict[str, list[str]]:
        if self._lists is None:
            self._lists = DOCUMENT.read(self.files) or {}
            if any(self._lists.values()):
                self._distribute(self._lists)
        return self._lists


def _limits(settings: Settings) -> dict[str, int]:
    return {name: settings.columns[name] for name in settings.grouped_columns}


def _arrays(lists: Lists) -> dict[str, pa.Array]:
    return {name: pa.array(texts, pa.string()) for name, texts in lists.items()}
