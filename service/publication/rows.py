"""Format output rows as columns of text, and pack them into calls of publish.lua.

Arrow formats whole columns; Python handles one list per column, and msgpack packs lists of bytes. A row costs about 3 us
here, less than Redis needs for it, so with several calls in flight Redis is the bottleneck.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.aggregation import moments
from service.redis.keys import Keys, Texts, decimal, texts
from service.reference.attributes import Attributes
from state.layout import CLOSED
from state.windows import TEXTS

Call = tuple[str, bytes]

SCRIPT = Path(__file__).with_name("publish.lua").read_bytes()


def script_keys(keys: Keys) -> tuple[str, ...]:
    """KEYS of publish.lua, in its order."""
    internal = keys.republish, keys.idle, keys.skewed, keys.rebuild
    return keys.epoch, keys.changes, keys.open, keys.progress, *internal, keys.meta


@dataclass(frozen=True, slots=True)
class Kind:
    """How publish.lua treats rows of a kind; the comment above its `write` explains each field."""

    name: str
    same: tuple[str, ...]
    seal: tuple[str, ...] = ()
    rising: tuple[str, ...] = ()
    stable: int = 0
    replace: bool = False
    content: tuple[str, ...] = ()


# Within a batch, a window's count identifies its content. When a checkpoint is lost and a newer writer reads the topic again,
# a window that has more readings than this writer has read so far stays until the writer has caught up.
WINDOW = Kind("window", ("count", "end"), ("final", "1"), ("count", "end"), stable=4, content=("count", "end"))
WINDOW_AGAIN = replace(WINDOW, same=("count", "end", "final"), stable=0)
# A merged session keeps its own count and last reading: only `merged_into` differs.
SESSION_CONTENT = ("count", "last", "merged_into")
SESSION = Kind("session", ("state", "count", "last"), ("state", "closed"), replace=True, content=SESSION_CONTENT)
DEVICE = Kind("device", ("last_seen", "status", "session"), rising=("last_seen",), replace=True)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The arguments of every call: the writer and its batch as decimal text, the feed's length, and progress so far.

    `settled` is an event time in ms: see Sink.
    """

    epoch: str
    batch: str
    updated: str
    feed: int
    after: tuple[int, int] | None = None
    settled: int | None = None

    def call(self, step: str, **arguments: Any) -> Call:
        """A call of one of publish.lua's steps."""
        writer = {"epoch": self.epoch, "batch": self.batch, "updated": self.updated, "feed": self.feed}
        known = {"after": self.after, "settled": self.settled}
        given = {name: value for name, value in known.items() if value is not None}
        # The cmsgpack of Redis 6.2 and 7 cannot read msgpack's type for bytes.
        return step, msgpack.packb({**writer, **given, **arguments}, use_bin_type=False)


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows of a kind: `keys`, `ttl` (ms) and every column of `fields` have n elements; None is "no such field".

    `open` has the windows' scores in the index of windows that are not final. `devices` has the ids of rows that are devices.
    `drops` is (length of the prefix of device keys, prefix of session keys).
    """

    kind: Kind
    keys: Texts
    ttl: list[int]
    fields: Mapping[str, Texts]
    open: Texts = field(default_factory=list)
    devices: Texts = field(default_factory=list)
    drops: tuple[int, str] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Sequence[int]) -> "Rows":
        """The rows at these indices."""

        def chosen(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows]

        fields = {name: chosen(column) for name, column in self.fields.items()}
        opened, devices = (chosen(texts) if texts else [] for texts in (self.open, self.devices))
        return replace(self, keys=chosen(self.keys), ttl=chosen(self.ttl), fields=fields, open=opened, devices=devices)

    def calls(self, stamp: Stamp, size: int) -> Iterator[Call]:
        """Calls of at most `size` rows, each packed when the iterator reaches it."""
        kind, names, columns = self.kind, list(self.fields), list(self.fields.values())
        fixed = {
            "kind": kind.name,
            "same": kind.same,
            "seal": kind.seal,
            "rising": kind.rising,
            "stable": kind.stable,
            "replace": kind.replace,
            "fields": names,
            # An empty table would be true in Lua.
            **({"content": kind.content} if kind.content else {}),
            **({"drops": self.drops} if self.drops else {}),
        }
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            opened: dict[str, Any] = {"open": self.open[part]} if self.open else {}
            if self.devices:
                opened["clock"] = ("last_seen", self.devices[part])
            yield stamp.call(
                "write",
                **fixed,
                **opened,
                keys=self.keys[part],
                ttl=self.ttl[part],
                columns=[column[part] for column in columns],
            )


def window_rows(table: pa.Table, keys: Keys, retain_ms: Mapping[str, int]) -> Rows:
    """Format windows (state.windows.SCHEMA) as hashes. A view that is not in `retain_ms` raises KeyError."""
    columns = _plain(table)
    count = columns["count"].to_numpy()
    sums = [columns[name].to_numpy() for name in ("sum_hi", "sum_lo", "sq_a", "sq_b", "sq_c")]
    total, mean, stddev = moments.finish(count, *sums)
    end = texts(decimal(columns["end"]))
    fields: dict[str, Texts] = {
        "count": texts(decimal(columns["count"])),
        "sum": texts(decimal(total)),
        "mean": texts(decimal(mean)),
        "min": texts(decimal(columns["min"])),
        "max": texts(decimal(columns["max"])),
        "stddev": texts(decimal(stddev)),
        "first": texts(decimal(columns["first"])),
        "last": texts(decimal(columns["last"])),
        # The stable fields: a key's start never changes, nor does its end while the view keeps its length.
        "start": texts(decimal(columns["start"])),
        "end": end,
        "final": [b"0"] * table.num_rows,
        "closed_by": [b""] * table.num_rows,
    }
    names = keys.windows(columns["view"], columns["measure"], columns["key"], columns["start"])
    ttl = [retain_ms[view] for view in columns["view"].to_pylist()]
    return Rows(WINDOW, texts(names), ttl, fields, end)


def as_of_watermark(rows: Rows, watermark_ms: int, gap_ms: int) -> list[Rows]:
    """Return rows of the past as of a watermark: windows that it has passed are final, rows that have expired are left out.

    The TTL counts from when the watermark passed the row's last reading, for sessions and devices `gap_ms` later.
    """
    is_window = rows.kind is WINDOW
    written_ms = watermark_ms if is_window else watermark_ms - gap_ms
    last = rows.fields["last_seen" if rows.kind is DEVICE else "last"]
    ttl_ms = [ttl - max(0, written_ms - int(at or 0)) for ttl, at in zip(rows.ttl, last, strict=True)]
    alive = [row for row, ms in enumerate(ttl_ms) if ms > 0]
    rows = replace(rows, ttl=ttl_ms)
    if not is_window:
        return [rows.take(alive)]
    rows = replace(rows, kind=WINDOW_AGAIN)
    has_passed = [int(end or 0) <= watermark_ms for end in rows.fields["end"]]
    final = rows.take([row for row in alive if has_passed[row]])
    closed: dict[str, Texts] = {"final": [b"1"] * len(final), "closed_by": [b"watermark"] * len(final)}
    final = replace(final, fields={**final.fields, **closed}, open=[])
    return [final, rows.take([row for row in alive if not has_passed[row]])]


def view_keys(table: pa.Table) -> dict[str, tuple[list[int], Texts]]:
    """By view of the windows: the last event times (ms) and the texts of its keys, each key once."""
    if not table.num_rows:
        return {}
    plain: Any = pa.table({name: column for name, column in _plain(table).items() if name in {"view", "key", "last"}})
    last = plain.group_by(["view", "key"]).aggregate([("last", "max")])
    views: dict[str, tuple[list[int], Texts]] = {}
    for view in last["view"].unique().to_pylist():
        part = last.filter(pc.equal(last["view"], view))
        members = texts(part["key"].combine_chunks())
        views[view] = part["last_max"].to_pylist(), members
    return views


def session_rows(table: pa.Table, keys: Keys, ttl_ms: int, closed_by: str = "watermark") -> Rows:
    """Format sessions (state.layout.session_schema) as hashes; of rows of the same session the last one counts."""
    column = _columns(_last_of(table, ["device", "start"]))
    is_closed = pc.equal(column["state"], CLOSED)
    fields = {
        "start": texts(decimal(column["start"])),
        "last": texts(decimal(column["last"])),
        "count": texts(decimal(column["count"])),
        "duration": texts(decimal(pc.subtract(column["last"], column["start"]))),
        "state": texts(column["state"]),
        "reason": texts(column["reason"]),
        "closed_by": texts(pc.if_else(is_closed, pa.scalar(closed_by), pa.scalar(""))),
        "merged_into": texts(decimal(column["merged_into"])),
    }
    for measure in _measures(table, ".sum"):
        count, total = (column[f"{measure}.{of}"].to_numpy(zero_copy_only=False) for of in ("count", "sum"))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = pa.array(total / count, mask=count == 0)
        values = {"count": column[f"{measure}.count"], "mean": mean}
        values |= {"min": column[f"{measure}.min"], "max": column[f"{measure}.max"]}
        fields |= {f"{measure}.{name}": texts(decimal(value)) for name, value in values.items()}
    names = texts(keys.sessions(column["device"], column["start"]))
    return Rows(SESSION, names, [ttl_ms] * len(names), fields)


def device_rows(table: pa.Table, keys: Keys, ttl_ms: int, reference: str, attributes: Attributes | None) -> Rows:
    """Format devices (state.layout.status_schema) as hashes, with their attributes in this version of the reference."""
    column = _columns(_last_of(table, ["device"]))
    session: Any = pc.fill_null(decimal(column["session"]), pa.scalar(b""))
    fields: dict[str, Texts] = {
        "status": texts(column["status"]),
        "last_seen": texts(decimal(column["last_seen"])),
        "session": texts(session),
        "reference": [reference.encode()] * len(column["device"]),
    }
    if attributes is not None:
        columns = attributes.of(column["device"])
        fields |= {f"ref.{name}": texts(columns[name].combine_chunks()) for name in columns.column_names[:-1]}
    for measure in _measures(table, ".value"):
        fields[measure] = texts(decimal(column[f"{measure}.value"]))
        fields[f"{measure}.at"] = texts(decimal(column[f"{measure}.at"]))
    names, devices = texts(keys.devices(column["device"])), texts(column["device"])
    drops = len(f"{keys.prefix}:device:".encode()), f"{keys.prefix}:session:"
    return Rows(DEVICE, names, [ttl_ms] * len(names), fields, devices=devices, drops=drops)


def _last_of(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return each key's last row. A bucket may emit twice in a batch: once for its input, once for a timer."""
    if table.num_rows < 2:
        return table
    numbered: Any = table.select(list(key)).append_column("row", pa.array(np.arange(table.num_rows)))
    rows: npt.NDArray[np.int64] = numbered.group_by(list(key)).aggregate([("row", "max")])["row_max"].to_numpy()
    return table if len(rows) == table.num_rows else table.take(np.sort(rows))


def _plain(table: pa.Table) -> dict[str, Any]:
    """The columns of windows, with their dictionaries decoded."""
    return {**_columns(table), **{name: table[name].combine_chunks().cast(pa.string()) for name in TEXTS}}


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table[name].combine_chunks() for name in table.column_names}


def _measures(table: pa.Table, ending: str) -> list[str]:
    return [name.removesuffix(ending) for name in table.column_names if name.endswith(ending)]
