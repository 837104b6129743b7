"""May a row replace the stored value of its key? publish.lua's function `verdict` in plain Python, for its tests.

tests/verdicts.yaml has its cases. A value and a row are the fields of a hash, with numbers as numbers: epoch, batch, count, end
and complete_from of a window; count, last, state, reason and closed_by of a session; last_seen and status of a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("verdicts.yaml")
EQUAL = {"window": ("count", "end"), "session": ("count", "last", "state"), "device": ("last_seen", "status")}
EQUAL_CORRECTED = {"window": ("count", "end", "max"), "session": ("count", "last", "state", "reason")}
"""Fields by which two values are the same, for a batch and for a correction, which also compares `sum`, but for rounding."""

Value = Mapping[str, Any]


@dataclass(frozen=True)
class Clock:
    """What the writer and progress have reached: a batch of an epoch, and event times by which windows are closed or settled.

    `policy` is stream, republish (complete rows), fill (complete rows, for the last time) or correct. `rebuilding` says whether a
    writer reads the topic again.
    """

    policy: str = "stream"
    epoch: int = 2
    batch: int = 5
    final: int = -1
    idle: int = -1
    idle_at: tuple[int, int] = (2, 4)
    settled: int = -1
    rebuilding: bool = False
    behind: bool = False
    """Whether rows are open windows of roll-ups."""

    @property
    def is_complete(self) -> bool:
        return self.policy != "stream"


def verdict(kind: str, stored: Value | None, row: Value, clock: Clock) -> str:
    """Return keep, write, revise (write and count a revision), older, or closed (to this writer)."""
    corrects, end = clock.policy == "correct", row.get("end")
    if stored is None:
        is_nothing = corrects and row.get("state") == "merged"
        is_part = end is not None and end <= clock.final and not clock.is_complete
        return "keep" if is_nothing else "older" if is_part else "write"
    phase = _phase(kind, stored, clock)
    if corrects and phase != "final" and stored.get("state") != "merged":
        return "closed"
    is_behind = not corrects and (stored["epoch"], stored["batch"]) > (clock.epoch, clock.batch)
    has_less = clock.behind and phase == "idle"
    if not has_less and (is_behind or _is_poorer(kind, stored, row, clock, phase)):
        return "older"
    is_part = clock.is_complete and "complete_from" in stored and not corrects
    is_equal = has_less or (not is_part and _is_equal(kind, stored, row, phase, corrects=corrects))
    if phase == "open" and not corrects:
        return "keep" if is_equal and (stored["epoch"], stored["batch"]) == (clock.epoch, clock.batch) else "write"
    if is_equal:
        return "write" if phase == "idle" and row.get("closed_by") == "watermark" else "keep"
    return "revise" if corrects or phase != "final" or is_part else "closed"


def _phase(kind: str, stored: Value, clock: Clock) -> str:
    """Whether a value is open, or closed: before it is final (settled), by silence alone (idle), or by the watermark (final)."""
    if kind == "window":
        if stored["end"] <= clock.final:
            return "final"
        if stored["end"] <= clock.settled:
            return "settled"
        is_before = (stored["epoch"], stored["batch"]) <= clock.idle_at
        return "idle" if stored["end"] <= clock.idle and is_before else "open"
    if stored.get("state") != "closed":
        return "open"
    return "idle" if stored["closed_by"] == "idle" else "final"


def _is_poorer(kind: str, stored: Value, row: Value, clock: Clock, phase: str) -> bool:
    """Whether a row has less than the stored value, and that tells against it."""
    amount = "last_seen" if kind == "device" else "count"
    if stored[amount] <= row[amount]:
        return False
    if clock.policy == "correct":
        return "merged" not in {stored.get("state"), row.get("state")}
    if kind == "session":
        return phase == "idle" and stored["epoch"] < clock.epoch and row["state"] == "open"
    if kind == "window":
        begins, stored_begins = row.get("complete_from", -1), stored.get("complete_from", -1)
        lost_its_beginning = "complete_from" in row and not clock.rebuilding and stored_begins < begins
        # A final window is closed to rows with fewer readings, unless it is a part.
        is_guarded = phase != "final" or ("complete_from" in stored and clock.policy == "republish")
        return stored["end"] == row["end"] and is_guarded and not lost_its_beginning
    return True


def _is_equal(kind: str, stored: Value, row: Value, phase: str, *, corrects: bool) -> bool:
    if corrects:
        exact = all(stored.get(name) == row.get(name) for name in EQUAL_CORRECTED[kind])
        return exact and abs(stored.get("sum", 0) - row.get("sum", 0)) <= 1e-9 * abs(row.get("sum", 0))
    names = EQUAL[kind]
    if kind == "session" and phase == "idle":
        # Its device has said nothing since: an open session with the same readings stays closed.
        return row["state"] != "merged" and all(stored[name] == row[name] for name in ("count", "last"))
    return all(stored[name] == row[name] for name in names)
