"""What a rebuild does not publish: it runs beside a service that reads the same topics.

The service has copied the rejects of every record that the rebuild reads. Values that have expired would stay in Redis for their
`retain` after they are written: a run over days of records would hold all values of these days at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from service.settings import Settings
from state.columns import Bools, Ints, ints
from state.layout import Changes
from state.rules import ENDLESS_MS


@dataclass(frozen=True, slots=True)
class Shadow:
    """`now_ms` is the watermark of the service when the rebuild's query began: event time, in ms, as `retain`."""

    now_ms: int
    retain_ms: Mapping[str, int]
    """By view, under its name in keys; ENDLESS_MS for a view without windows."""
    session_retain_ms: int

    @classmethod
    def of(cls, settings: Settings, now_ms: int) -> "Shadow":
        retain = {view.name: ENDLESS_MS if view.is_endless else view.retain_ms for view in settings.views}
        return cls(now_ms, retain, settings.sessions.retain_ms)

    def leave_out(self, changes: Changes) -> tuple[Changes, int]:
        """Return the changes without expired windows and sessions, and how many those were."""
        views, codes = np.unique(changes.windows["view"].to_numpy().astype(str), return_inverse=True)
        floors = np.array([self.now_ms - self.retain_ms.get(view, 0) for view in views.tolist()], np.int64)
        windows = _newer(changes.windows, "end", floors[codes] if len(views) else np.zeros(0, np.int64))
        floor = np.full(changes.sessions.num_rows, self.now_ms - self.session_retain_ms)
        sessions = _newer(changes.sessions, "last", floor)
        before = changes.windows.num_rows + changes.sessions.num_rows
        return replace(changes, windows=windows, sessions=sessions), before - windows.num_rows - sessions.num_rows


def _newer(table: pa.Table, time: str, floor_ms: Ints) -> pa.Table:
    keep: Bools = ints(table, time) > floor_ms
    return table if keep.all() else table.filter(pa.array(keep))
