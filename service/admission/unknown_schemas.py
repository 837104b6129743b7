"""How the driver and the tasks of a batch exchange unknown schema ids; schema_catalog.py has the complete protocol.

The driver sets the refused ids as a local property of the thread that runs the batch. Spark hands it to the tasks of its jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from pyspark import TaskContext

from service.errors import SchemaError

REFUSED = "tidemark.schemas.refused"
"""The property: the refused ids, with commas between, or ALL. Where it is not set, tasks reject every unknown id."""
ALL = "*"
IDS_AT_ONCE = 32
"""Ids in one UndecidedError."""
_PREFIX = "schema ids "


class UndecidedError(SchemaError):
    """Raised by a task that meets unknown ids that are not refused, before anything of the batch is written.

    The driver catches it, looks the ids up and runs the batch again. From a failed Python worker the driver gets only the text of
    the traceback, and no accumulators (Spark 4.1.1); service/pipeline/failure.py parses the ids from that text, so the text
    must have nothing but the ids.
    """

    @classmethod
    def of(cls, ids: Iterable[int]) -> Self:
        return cls(ids_text(ids))

    @property
    def ids(self) -> list[int]:
        return [int(each) for each in self.what.removeprefix(_PREFIX).split(", ")]


@dataclass(frozen=True, slots=True)
class UnknownSchemaCheck:
    """Decides in a task whether records of unknown ids may be rejected."""

    def __call__(self, records: Mapping[int, int]) -> None:
        """Raise UndecidedError for ids that are not refused, the most frequent first; `records` counts the records by id."""
        context = TaskContext.get()
        refused = None if context is None else context.getLocalProperty(REFUSED)
        if refused is None or refused == ALL:
            return
        new = sorted(
            records.keys() - {int(each) for each in refused.split(",") if each}, key=lambda each: -records[each]
        )
        if new:
            raise UndecidedError.of(new[:IDS_AT_ONCE])


def ids_text(ids: Iterable[int]) -> str:
    """Return ids as text for messages: `schema ids 1, 2`."""
    return _PREFIX + ", ".join(map(str, ids))
