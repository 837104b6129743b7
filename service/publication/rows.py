"""Format output rows as columns of text, and pack them into calls of publish.lua.

Arrow formats complete columns; Python handles one list per column, and msgpack packs lists of bytes. A row costs about 3 us
here, less than Redis needs for it, so with several calls in flight Redis is the bottleneck.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.redis import key_columns
from service.redis.key_columns import Texts, decimal, shard_numbers, texts
from service.redis.keys import Keys
from service.reference.attributes import Attributes
from service.settings import Sessions, View, ViewVersion
from state import blobs, keyed_calendar, quantiles
from state.calendar import local_times
from state.columns import TOTALS, Floats
from state.kept import Kept, Totals
from state.layout import CLOSED
from state.list_columns import SKETCH, TRAIL
from state.statistics import ORDERED, SESSION_STATISTICS, STATISTICS, Shown
from state.window_columns import CARRIED, COLUMNS
from state.windows import TEXTS

Call = tuple[str, bytes]

SCRIPT = Path(__file__).with_name("publish.lua").read_bytes()

FOR_EVER = 0
"""The TTL of a row that does not expire."""


def script_keys(keys: Keys) -> tuple[str, ...]:
    """KEYS of publish.lua, in its order."""
    known = keys.epoch, keys.changes, keys.ends, keys.progress, keys.republish, keys.skewed, keys.rebuild, keys.meta
    return *known, keys.absent, keys.correction


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of rows, and the fields that tell two of its values apart in a batch: publish.lua's argument `same`."""

    name: str
    same: tuple[str, ...]


WINDOW = Kind("window", ("count", "end"))
# A merged session keeps its own count and last reading: only `merged_into` differs.
SESSION = Kind("session", ("state", "count", "last"))
DEVICE = Kind("device", ("last_seen", "status", "session"))


@dataclass(frozen=True, slots=True)
class Stamp:
    """The arguments of every call: the writer and its batch as decimal text, the feed's length and age (ms), and progress so far.

    `settled` is an event time in ms: see WritePolicy.
    """

    epoch: str
    batch: str
    updated: str
    feed: int
    feed_ms: int
    after: tuple[int, int] | None = None
    settled: int | None = None

    def call(self, step: str, **arguments: Any) -> Call:
        """A call of one of publish.lua's steps."""
        writer = {"epoch": self.epoch, "batch": self.batch, "updated": self.updated}
        feed = {"feed": self.feed, "feed_ms": self.feed_ms}
        known = {"after": self.after, "settled": self.settled}
        present = {name: value for name, value in known.items() if value is not None}
        # The cmsgpack of Redis 6.2 and 7 cannot read msgpack's type for bytes.
        return step, msgpack.packb({**writer, **feed, **present, **arguments}, use_bin_type=False)


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows of a kind: `keys`, `ttl` (ms) and every column of `fields` have n elements; None is "no such field".

    `devices` has the ids of rows that are devices. `shared` are arguments of every call, explained above the kind's step.
    """

    kind: Kind
    keys: Texts
    ttl: list[int]
    fields: Mapping[str, Texts]
    devices: Texts = field(default_factory=list)
    shared: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Sequence[int]) -> "Rows":
        """The rows at these indices."""

        def chosen(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows]

        fields = {name: chosen(column) for name, column in self.fields.items()}
        devices = chosen(self.devices) if self.devices else []
        return replace(self, keys=chosen(self.keys), ttl=chosen(self.ttl), fields=fields, devices=devices)

    def calls(self, stamp: Stamp, size: int) -> Iterator[Call]:
        """Calls of at most `size` rows, each packed when the iterator reaches it."""
        kind, names, columns = self.kind, list(self.fields), list(self.fields.values())
        fixed = {"kind": kind.name, "same": kind.same, "fields": names, **self.shared}
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield stamp.call(
                "write",
                **fixed,
                **({"clock": self.devices[part]} if self.devices else {}),
                keys=self.keys[part],
                ttl=self.ttl[part],
                columns=[column[part] for column in columns],
            )


def by_shard(table: pa.Table, count: int) -> list[pa.Table]:
    """The rows of each of `count` shards, in their order. A window belongs to that of its key, all else to that of its device."""
    if count == 1:
        return [table]
    numbers = shard_numbers(table["key" if "key" in table.column_names else "device"], count)
    ordered = table.take(np.argsort(numbers, kind="stable"))
    ends = np.cumsum(np.bincount(numbers, minlength=count)).tolist()
    return [ordered.slice(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]


def window_rows(
    table: pa.Table,
    keys: Keys,
    views: Collection[View],
    watermark_ms: int,
    begun: Mapping[tuple[str, str], int] | None = None,
    ahead_ms: int = 0,
) -> Rows:
    """Format windows (a table of state.windows.schema) as hashes. A view that is not in `views` raises KeyError.

    A row has the statistics of its view, without those that need a column that is null. With `begun` all windows are endless:
    a row has the event time from which its view and measure has all readings, and it does not expire. Any other row is kept for
    `retain` after the window's end, whose last reading may be `ahead_ms` before its event time. A row of a view with a calendar
    has its start on the zone's clock.
    """
    columns = plain(table)
    values = statistics(columns, {view.name: view.shown for view in views})
    is_partly = any(column.null_count for column in values.values())
    times = {name: columns[name] for name in ("start", "end")}
    fields = {name: texts(decimal(column)) for name, column in {**values, **times}.items()}
    local = local_starts(columns, {view.name: view.zone for view in views if view.zone is not None})
    if local is not None:
        fields["local_start"], is_partly = texts(local), is_partly or local.null_count > 0
    if sketched := [view.name for view in views if view.sketches]:
        fields["sketch"], is_partly = _sketches(columns, sketched), True
    marks = _marks(columns, views)
    if marks is not None:
        fields["complete_from"], is_partly = texts(decimal(marks)), True
    names = key_columns.windows(keys, columns["view"], columns["measure"], columns["key"], columns["start"])
    # A window expires `retain` after its end, and its key leaves the view's set then.
    retain_ms = {view.name: FOR_EVER if view.is_endless else view.retain_ms + ahead_ms for view in views}
    kept_ms = {view.name: ms and view.longest_ms + ms for view, ms in zip(views, retain_ms.values(), strict=True)}
    floors = {name: str(watermark_ms - ms) if ms and watermark_ms > ms else "" for name, ms in kept_ms.items()}
    to_end_ms = pc.subtract(columns["end"], columns["last"]).to_numpy()
    is_filling = any(view.fill == "last" for view in views)
    if is_filling:
        # Without readings it is written when it is over, and `last` may be `carry_for` before it.
        to_end_ms = np.where(columns["count"].to_numpy() > 0, to_end_ms, 0)
    kept = [retain_ms[view] for view in columns["view"].to_pylist()]
    ttl = [ms and ms + to_end for ms, to_end in zip(kept, to_end_ms.tolist(), strict=True)]
    shared: dict[str, Any] = {"views": {name: (kept_ms[name], floors[name]) for name in kept_ms}}
    if since := max((view.since for view in views if isinstance(view, ViewVersion)), default=0):
        shared["since"] = since
    if is_partly:
        shared["partly"] = True
    if any(view.carry_for_ms is not None for view in views):
        # What is carried into a window changes without its count.
        last = ("last", "last_value") if is_filling else ()
        shared["equal"] = [name for name in (*last, *ORDERED) if name in fields]
    if begun is not None:
        pairs = zip(columns["view"].to_pylist(), columns["measure"].to_pylist(), strict=True)
        fields["complete_from"] = texts(decimal(pa.array([begun.get(pair, 0) for pair in pairs], pa.int64())))
        shared["endless"] = True
    return Rows(WINDOW, texts(names), ttl, fields, shared=shared)


def local_starts(columns: Mapping[str, Any], zones: Mapping[str, str | int]) -> Any:
    """Return the start of each window on the clock of its zone, null for a view without one; None if no row has one.

    `zones` are by view: the zone, or the place of the zone in the columns of the view's keys.
    """
    size = len(columns["start"])
    local, is_absent = np.full(size, "", object), np.ones(size, np.bool_)
    for view, zone in zones.items():
        own = np.flatnonzero(pc.equal(columns["view"], view).to_numpy(zero_copy_only=False))
        start = columns["start"].to_numpy()[own]
        if isinstance(zone, int):
            local[own] = keyed_calendar.local_times(start, zone, columns["key"].take(own))
        else:
            local[own] = local_times(start, zone)
        is_absent[own] = False
    return None if is_absent.all() else pa.array(local, pa.string(), mask=is_absent)


def _sketches(columns: Mapping[str, Any], views: Sequence[str]) -> Texts:
    """Return the sketch of each window of these views, None of other windows and of those that began without a quantile."""
    if SKETCH not in columns:
        return [None] * len(columns["view"])
    own = pc.is_in(columns["view"], pa.array(views, pa.string())).to_numpy(zero_copy_only=False)
    return [
        quantiles.text(each) if each and is_own else None
        for each, is_own in zip(_numpy(columns[SKETCH]), own, strict=True)
    ]


def _marks(columns: Mapping[str, Any], views: Iterable[View]) -> Any:
    """The event time from which the windows of a row's view and measure have all readings, for rows that begin before it; None
    if all rows begin later, which costs nothing where every view is complete."""
    start = columns["start"].to_numpy()
    marks = np.zeros(len(start), np.int64)
    for view in views:
        for measure in {*columns["measure"].unique().to_pylist()} if view.is_marked else ():
            from_ms = view.complete_from(measure)
            if from_ms is not None:
                of = pc.and_(pc.equal(columns["view"], view.name), pc.equal(columns["measure"], measure))
                marks[of.to_numpy(zero_copy_only=False) & (start < from_ms)] = from_ms
    return pa.array(marks, mask=marks == 0) if marks.any() else None


def statistics(columns: Mapping[str, Any], chosen: Mapping[str, Shown]) -> dict[str, Any]:
    """Return the statistics of windows as numbers, null where a row lacks one; `chosen` has what each view shows.

    A window without readings has those of what is carried into it.
    """
    shown = {view: chosen[view] for view in pc.unique(columns["view"]).to_pylist()}
    used = [each.names for each in shown.values()]
    per_s = _by_row(columns, {view: each.per_ms / 1000 for view, each in shown.items() if each.per_ms != 1000}, 1.0)
    wraps_at = _by_row(columns, {view: each.wraps_at for view, each in shown.items() if each.wraps_at}, np.nan)
    known = {name: columns[name] for name in ("start", "end", *COLUMNS) if name in columns}
    nulls = {name: column.is_null().to_numpy(False) for name, column in known.items() if column.null_count}
    kept = Kept({name: _numpy(each) for name, each in known.items()}, wraps_at)
    is_filled = kept["count"] == 0
    errors: dict[str, Any] = {}
    if is_filled.any():
        errors = {"divide": "ignore", "invalid": "ignore"}
        nulls |= {name: nulls.get(name, False) | is_filled for name in known.keys() & COLUMNS.keys() - CARRIED}
    fields: dict[str, Any] = {}
    for name, statistic in STATISTICS.items():
        if any(name in names for names in used) and known.keys() >= set(statistic.columns):
            absent = [nulls[column] for column in statistic.columns if column in nulls]
            if not all(name in names for names in used):
                lacking = pa.array([view for view, each in shown.items() if name not in each.names], pa.string())
                absent.append(pc.is_in(columns["view"], lacking).to_numpy(zero_copy_only=False))
            with np.errstate(**errors):
                numbers = statistic.of_window(kept)
            if per_s is not None:
                numbers = statistic.per(numbers, per_s)
            if statistic.may_be_absent:
                absent.append(np.isnan(numbers))
                numbers = np.where(absent[-1], 0, numbers).astype(statistic.type.to_pandas_dtype())
            fields[name] = pa.array(numbers, mask=np.logical_or.reduce(absent) if absent else None)
    return fields


def _by_row(columns: Mapping[str, Any], of_view: Mapping[str, float], other: float) -> Floats | None:
    """Return the number of each window's view, `other` for one that is not in `of_view`; None where no window is of one."""
    if not of_view:
        return None
    return np.array([of_view.get(view, other) for view in columns["view"].to_pylist()])


def _numpy(column: Any) -> npt.NDArray[Any]:
    """A column of windows; null is 0, or no bytes."""
    if column.type == blobs.TYPE:
        return blobs.of_column(column)
    numbers: npt.NDArray[Any] = (pc.fill_null(column, 0) if column.null_count else column).to_numpy()
    return numbers


def as_of_watermark(rows: Rows, watermark_ms: int, gap_ms: int) -> list[Rows]:
    """Return rows of the past as of a watermark, without those that have expired; windows as [those it has passed, the others].

    The TTL counts from when the watermark passed the row's last reading, for sessions and devices `gap_ms` later. That of a
    window includes the time from its last reading to its end; one without readings has its end in place of that reading.
    """
    is_window = rows.kind is WINDOW
    if not len(rows):  # then there are no statistics either
        return [rows] * (2 if is_window and not rows.shared.get("endless") else 1)
    written_ms = watermark_ms if is_window else watermark_ms - gap_ms
    last = rows.fields["last_seen" if rows.kind is DEVICE else "last"]
    if is_window:
        triples = zip(rows.fields["count"], last, rows.fields["end"], strict=True)
        last = [end if count == b"0" else at for count, at, end in triples]
    ttl_ms = [ttl - max(0, written_ms - int(at or 0)) for ttl, at in zip(rows.ttl, last, strict=True)]
    alive = [row for row, ms in enumerate(ttl_ms) if ms > 0]
    rows = replace(rows, ttl=ttl_ms, shared={**rows.shared, "again": True})
    if rows.shared.get("endless"):
        return [replace(rows, ttl=[FOR_EVER] * len(rows))]
    if not is_window:
        return [rows.take(alive)]
    has_passed = [int(end or 0) <= watermark_ms for end in rows.fields["end"]]
    complete, opened = ([row for row in alive if has_passed[row] is passed] for passed in (True, False))
    return [replace(rows, shared={**rows.shared, "complete": True}).take(complete), rows.take(opened)]


def session_rows(table: pa.Table, keys: Keys, settings: Sessions, closed_by: str = "watermark") -> Rows:
    """Format sessions (state.layout.session_schema) as hashes."""
    column = _columns(table)
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
    for measure, name, values in session_statistics(column, settings.shown):
        fields[f"{measure}.{name}"] = texts(decimal(values))
    names = texts(key_columns.sessions(keys, column["device"], column["start"]))
    # A session that lasts is written again and again, its device's list only when a session is new.
    shared = {"list_ttl": settings.retain_ms + settings.max_duration_ms}
    return Rows(SESSION, names, [settings.retain_ms] * len(names), fields, shared=shared)


def session_statistics(columns: Mapping[str, Any], shown: Shown) -> Iterator[tuple[str, str, Any]]:
    """Yield measure, statistic and numbers of sessions, null where one is absent; `shown` has those of order."""
    for measure in _measures(columns, ".sum"):
        totals = Totals(*(columns[f"{measure}.{part}"].to_numpy(zero_copy_only=False) for part in TOTALS))
        nothing = totals.count == 0
        for name, of_session in SESSION_STATISTICS.items():
            yield measure, name, pa.array(of_session(totals), mask=None if name == "count" else nothing)
    start, last = columns["start"].to_numpy(), columns["last"].to_numpy()
    wraps_at = None if shown.wraps_at is None else np.full(len(start), shown.wraps_at)
    for measure in _measures(columns, f".{TRAIL}"):
        kept = Kept({TRAIL: blobs.of_column(columns[f"{measure}.{TRAIL}"]), "start": start, "end": last}, wraps_at)
        for name in shown.names:
            statistic = STATISTICS[name]
            # No time passes in a session of one reading.
            with np.errstate(divide="ignore", invalid="ignore"):
                numbers = statistic.per(statistic.of_window(kept), shown.per_ms / 1000)
            absent = np.isnan(numbers)
            kind = statistic.type.to_pandas_dtype()
            yield measure, name, pa.array(np.where(absent, 0, numbers).astype(kind), mask=absent)


def device_rows(table: pa.Table, keys: Keys, ttl_ms: int, reference: str, attributes: Attributes | None) -> Rows:
    """Format devices (state.layout.status_schema) as hashes, with their attributes in this version of the reference."""
    column = _columns(table)
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
    statuses = []
    for measure in measures(table, ".value"):
        fields[measure] = texts(decimal(column[f"{measure}.value"]))
        fields[f"{measure}.at"] = texts(decimal(column[f"{measure}.at"]))
        if (status := f"{measure}.status") in column:
            fields[status] = texts(column[status])
            statuses.append(status)
    names, devices = texts(key_columns.devices(keys, column["device"])), texts(column["device"])
    # Silence changes the status of a measure, and nothing else of its device.
    shared = {"equal": statuses} if statuses else {}
    return Rows(DEVICE, names, [ttl_ms] * len(names), fields, devices=devices, shared=shared)


def plain(table: pa.Table) -> dict[str, Any]:
    """Return the columns of windows, with their dictionaries decoded."""
    return {**_columns(table), **{name: table[name].combine_chunks().cast(pa.string()) for name in TEXTS}}


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table[name].combine_chunks() for name in table.column_names}


def measures(table: pa.Table, ending: str) -> list[str]:
    """Return the measures of a table's columns `<measure><ending>`."""
    return _measures(table.column_names, ending)


def _measures(names: Iterable[str], ending: str) -> list[str]:
    return [name.removesuffix(ending) for name in names if name.endswith(ending)]
