"""The settings that determine where sessions begin and end, and which windows never end."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state.rollups import Level

# Sixteen cells to a session's longest duration: the cut of an endless session is at most 1/16 early.
CELLS = 16

# An admitted event time is 0 <= ms < 2^42 (the year 2109): admission bounds it by the broker's time. The fold raises for others.
EVENT_MS_LIMIT = 1 << 42

MOST_READINGS = 65_536
"""Readings of a window that are not folded: 1 MB. See state/trails.py."""

DAY_MS = 86_400_000
MONTH_MS = 2_629_746_000
"""The length of a month on average, which stands for a month where a length is one number. It is no whole number of days."""

ENDLESS_MS = EVENT_MS_LIMIT
"""Length of the one window of a view without windows: it begins at 0 and no watermark reaches its end."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What makes a session, and what is remembered of a device.

    gap_ms           readings of a device at most this far apart are of one session. Exactly `gap_ms` apart still is:
                     the same as Spark's `session_window`, whose merge condition is `start <= previous end`.
                     It is that of devices whose runs bring none of their own
    max_duration_ms  a session is never longer; a device that never falls silent is cut at a cell's edge
    retain_ms        a silent device is forgotten once the watermark is past its last reading by more than this
    measures         names of the measures, in the order of their columns; no name may be empty or occur twice
    endless          (view, measure) of the views without windows. Their values are kept until they are not in here any more
    by_device        the views of `endless` whose keys name devices: their rows count for the limit on devices
    by_measure       each measure of a device has a status of its own: see state/devices.py
    has_line         statuses follow a line of their own, which is ahead of the watermark (state/watermark.py)
    has_transitions  a step also returns statuses before and after it (state/layout.py)
    most_readings    a window keeps so many readings one by one, None for no limit: see state/trails.py
    update_every     how long open windows wait before they are written again, in ms by view (state/waiting.py): all views have
                     theirs, 0 for those that do not wait. Windows of other views are not written
    devices_every_ms the same of devices and open sessions
    leads            how long before the watermark passes their end windows leave, in ms by view (state/settled.py); of views
                     whose windows leave when they are final there is none
    fills            for how long after a reading windows without one are published, in ms by view; of views that publish none
                     there is none
    trails           the measures whose runs have trails, for statistics of order of sessions (state/trails.py)
    rollups          the views that are put together of closed windows of other views, each level behind that of its sources
                     (state/rollups.py)
    """

    gap_ms: int
    max_duration_ms: int
    retain_ms: int
    measures: tuple[str, ...]
    endless: Collection[tuple[str, str]] = frozenset()
    by_device: Collection[str] = frozenset()
    most_readings: int | None = MOST_READINGS
    by_measure: bool = False
    has_line: bool = False
    has_transitions: bool = False
    update_every: Mapping[str, int] = field(default_factory=dict)
    devices_every_ms: int = 0
    leads: Mapping[str, int] = field(default_factory=dict)
    fills: Mapping[str, int] = field(default_factory=dict)
    rollups: "Sequence[Level]" = ()
    trails: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("gap_ms", self.gap_ms), ("max_duration_ms", self.max_duration_ms)):
            if not 0 < value < EVENT_MS_LIMIT:
                raise ValueError(f"{name} is {value}, allowed is 1 .. {EVENT_MS_LIMIT - 1}")
        if not 0 <= self.retain_ms < EVENT_MS_LIMIT:
            raise ValueError(f"retain_ms is {self.retain_ms}, allowed is 0 .. {EVENT_MS_LIMIT - 1}")
        if "" in self.measures or len(set(self.measures)) != len(self.measures):
            raise ValueError(f"measures are {self.measures}: every name must be there once and not be empty")

    @property
    def cell_ms(self) -> int:
        """Length of a cell: a run never crosses a multiple of it, and max_duration cuts only there."""
        return max(1, self.max_duration_ms // CELLS)
