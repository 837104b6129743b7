"""Choose what is final or settled of a step: windows that leave and closed sessions, for those who keep values for good.

The operator emits finals only where somebody asks for them: without `Finals` a batch has no such row.
"""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from state import windows
from state.layout import OPEN, TRANSITIONS, Changes, session_schema


@dataclass(frozen=True, slots=True)
class Finals:
    """The finals that are asked for: windows of these views, and whether sessions."""

    views: frozenset[str] = frozenset()
    sessions: bool = False

    def of(self, sessions: pa.Table, leaving: pa.Table, transitions: pa.Table | None = None) -> Changes:
        """Return the closed sessions among a step's session changes, the windows among those that leave, and transitions.

        A session that became part of another one (`merged`) is among them: silence may have closed it before.
        """
        kept = sessions.filter(pc.not_equal(sessions["state"], OPEN)) if self.sessions else sessions.slice(0, 0)
        if not kept.num_rows:
            kept = session_schema(()).empty_table()
        devices = TRANSITIONS.empty_table() if transitions is None else transitions
        return Changes(kept, devices, of_views(leaving, self.views))


def of_views(table: pa.Table, views: Collection[str]) -> pa.Table:
    """Return the windows of some views."""
    wanted = windows.are_of(table, views)
    if wanted.all():
        return table
    return windows.compact(table.filter(pa.array(wanted)))
