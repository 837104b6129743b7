"""Changes of statuses on their way to the outlets: each leaves once, and begins with the status that left before.

A batch has the status of each device before and after it, by the state (state/layout.py). Three others change a status, and the
state does not have it then: silence, the list of devices that have never sent, and clocks that are ahead. `Transitions` remembers
the statuses that have left and that the state does not have, until a batch reaches or ends them:

    silence     a device that it took offline is offline until its next reading, or until the watermark says so as well
    never       a device of the reference, until its first reading
    skewed      a device, as long as Redis lists it

What a batch changes of this memory holds once the batch is committed: a replay finds the memory as the first attempt did.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from state.layout import OFFLINE, ONLINE, QUIET

SCHEMA = pa.schema(
    [
        pa.field("device", pa.string(), nullable=False),
        pa.field("field", pa.string(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("was", pa.string()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
    ]
)
"""What leaves. `field` is the field of the device's hash that has changed."""
STATUS, CLOCK = "status", "skewed"
NEVER, SKEWED, IN_TIME = "never", "skewed", "in_time"
READING, WATERMARK, IDLE, REFERENCE, EARLY = "reading", "watermark", "idle", "reference", "early"
_PLACE = {ONLINE: 0, QUIET: 1, OFFLINE: 2}
Key = tuple[str, str]
"""Device and field."""


@dataclass(frozen=True, slots=True)
class Left:
    """A status that has left, and the time (ms) of the last reading then."""

    status: str
    last_ms: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory as JSON has it: `known`, what `batch` changes of it, None for what it forgets, and `outlets` of states."""

    known: tuple[tuple[Key, Left], ...] = ()
    batch: int = -1
    changes: tuple[tuple[Key, Left | None], ...] = ()
    outlets: tuple[str, ...] = ()


@dataclass(slots=True)
class Transitions:
    """The statuses that have left for `outlets` and that the state does not have, for the one writer of a checkpoint."""

    known: dict[Key, Left] = field(default_factory=dict)
    batch: int = -1
    changes: dict[Key, Left | None] = field(default_factory=dict)
    outlets: tuple[str, ...] = ()

    @classmethod
    def of(cls, stored: Memory, committed: int, outlets: tuple[str, ...]) -> "Transitions":
        """Return the memory after the last committed batch. Nothing has left for outlets of which none is in the memory."""
        if not set(outlets) & set(stored.outlets):
            return cls(outlets=outlets)
        after = cls(dict(stored.known), stored.batch, dict(stored.changes), outlets)
        after.settle(committed)
        after.batch, after.changes = -1, {}
        return after

    def stored(self) -> Memory:
        """Return what the file has."""
        return Memory(tuple(self.known.items()), self.batch, tuple(self.changes.items()), self.outlets)

    def settle(self, committed: int) -> None:
        """Hold what the last batch has changed, if it is committed."""
        if self.batch <= committed:
            for key, left in self.changes.items():
                if left is None:
                    self.known.pop(key, None)
                else:
                    self.known[key] = left
            self.changes = {}

    def begin(self, batch: int) -> None:
        """Begin a batch, or its repeat. The batches before are committed."""
        self.settle(batch - 1)
        self.batch, self.changes = batch, {}

    def of_batch(self, table: pa.Table) -> pa.Table:
        """Return what leaves of a batch's TRANSITIONS."""
        return self._leaving(table, self.changes, WATERMARK)

    def of_silence(self, table: pa.Table) -> "tuple[pa.Table, Transitions]":
        """Return what leaves of the TRANSITIONS that silence has caused, and the memory then. After `settle`."""
        changes: dict[Key, Left | None] = {}
        left = self._leaving(table, changes, IDLE)
        return left, self._with({key: each for key, each in changes.items() if each is not None})

    def of_expected(self, devices: Iterable[str], at_ms: int) -> "tuple[pa.Table, Transitions]":
        """Return what leaves of devices that have never sent, as listed at that time, and the memory then. After `settle`."""
        new = [device for device in sorted(devices) if (device, STATUS) not in self.known]
        left = _table([(device, STATUS, at_ms, None, NEVER, REFERENCE) for device in new])
        return left, self._with({(device, STATUS): Left(NEVER) for device in new})

    def of_clocks(self, skewed: Mapping[str, int], watermark_ms: int) -> "tuple[pa.Table, Transitions]":
        """Return what leaves of the devices that Redis lists as skewed, by the time of their last early reading, and the memory
        then. After `settle`."""
        before = {device for device, name in self.known if name == CLOCK}
        new, over = sorted(skewed.keys() - before), sorted(before - skewed.keys())
        left = _table(
            [(device, CLOCK, skewed[device], IN_TIME, SKEWED, EARLY) for device in new]
            + [(device, CLOCK, watermark_ms, SKEWED, IN_TIME, READING) for device in over]
        )
        after = self._with({(device, CLOCK): Left(SKEWED, skewed[device]) for device in new})
        for device in over:
            del after.known[device, CLOCK]
        return left, after

    def _with(self, left: dict[Key, Left]) -> "Transitions":
        return Transitions(self.known | left, outlets=self.outlets)

    def _leaving(self, table: pa.Table, changes: dict[Key, Left | None], closed_by: str) -> pa.Table:
        """Return what leaves, and note in `changes` what is left of it that the state does not have."""
        if not table.num_rows:
            return SCHEMA.empty_table()
        is_idle = closed_by == IDLE
        keys: list[Key] = []
        if self.known or is_idle:
            keys = list(zip(table["device"].to_pylist(), table["field"].to_pylist(), strict=True))
        known = [row for row, key in enumerate(keys) if key in self.known]
        is_plain = pc.fill_null(pc.not_equal(table["was"], table["status"]), True)
        if known:
            is_known = pa.array([key in self.known for key in keys])
            is_plain = pc.and_(is_plain, pc.invert(is_known))
        plain = table.filter(is_plain)
        why = pc.if_else(plain["is_reading"], READING, closed_by)
        columns = {name: plain[name] for name in ("device", "field", "at", "was", "status")}
        left = pa.table({**columns, "why": why}).cast(SCHEMA)
        if is_idle:
            changes |= {
                key: Left(status, last)
                for key, status, last in zip(
                    zip(left["device"].to_pylist(), left["field"].to_pylist(), strict=True),
                    plain["status"].to_pylist(),
                    plain["last"].to_pylist(),
                    strict=True,
                )
            }
        rows = []
        for row in table.take(pa.array(known, pa.int64())).to_pylist() if known else ():
            key = row["device"], row["field"]
            before, status, is_reading = self.known[key], row["status"], row["is_reading"]
            is_later = _PLACE[status] > _PLACE.get(before.status, -1)
            if is_later if not is_reading else status != before.status:
                at = row["at"] if row["at"] > before.last_ms else row["last"]
                rows.append((*key, at, before.status, status, READING if is_reading else closed_by))
            if is_idle:
                changes[key] = Left(status, row["last"]) if is_later else before
            elif is_reading or _PLACE[status] >= _PLACE.get(before.status, -1):
                changes[key] = None
        return pa.concat_tables([left, _table(rows)]) if rows else left


def _table(rows: Collection[tuple[object, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    return pa.Table.from_arrays(
        [pa.array(each, of.type) for each, of in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
