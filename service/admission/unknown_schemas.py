"""Decide in a task whether records of unknown schema ids may be rejected; schema_catalog.py has the complete protocol."""

from collections.abc import Iterable, Mapping

from service.admission import guids
from service.admission.questions import SCHEMA_IDS, UndecidedError

ALL = "*"
IDS_AT_ONCE = 32
"""Ids in one question."""


def check(records: Mapping[int, int], refused: str | None) -> None:
    """Raise UndecidedError for ids that are not refused, the most frequent first; `records` counts the records by id.

    `refused` are the refused ids, with commas between, or ALL; None is all, too.
    """
    if refused is None or refused == ALL:
        return
    known = {int(each) for each in refused.split(",") if each}
    new = sorted(records.keys() - known, key=lambda each: -records[each])
    if new:
        raise UndecidedError.of(SCHEMA_IDS, new[:IDS_AT_ONCE])


def ids_text(ids: Iterable[int]) -> str:
    """Return ids as text for messages: `schema ids 1, 2`."""
    return f"{SCHEMA_IDS} {', '.join(map(guids.shown, ids))}"
