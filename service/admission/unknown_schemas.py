"""Decide in a task whether records of unknown schema ids may be rejected; schema_catalog.py has the complete protocol.

The driver sets the refused ids as a local property of the thread that runs the batch. Spark hands it to the tasks of its jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark import TaskContext

from service.admission.questions import SCHEMA_IDS, UndecidedError

REFUSED = "tidemark.schemas.refused"
"""The property: the refused ids, with commas between, or ALL. Where it is not set, tasks reject every unknown id."""
ALL = "*"
IDS_AT_ONCE = 32
"""Ids in one question."""


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
            raise UndecidedError.of(SCHEMA_IDS, new[:IDS_AT_ONCE])


def ids_text(ids: Iterable[int]) -> str:
    """Return ids as text for messages: `schema ids 1, 2`."""
    return f"{SCHEMA_IDS} {', '.join(map(str, ids))}"
