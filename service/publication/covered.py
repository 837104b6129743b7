"""Covered spans: event time for which Redis already has closed values, so that no other value may begin in it.

Values of the past are computed again after a loss (service/recompute/republish.py), and when a new checkpoint reads the topic
into a prefix in use. Both use the current settings and reference. If a session gap, a view's grid or a device's site has
changed, that gives other values than readers have seen, and readings count twice. Therefore:

    a closed session        covers its device from its first reading to its last
    an open session         covers the same, once the writer of this term has written it from the state
    a final window          covers its start for all keys of its view and measure, if the keys come from the reference
    a final window of an    covers all of its span for its view and measure
    older length or slide

A session that silence alone has closed covers nothing: the watermark may still close it in another way.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.errors import SinkError
from service.redis import link
from service.redis.keys import Keys as RedisKeys
from service.redis.keys import shards
from service.redis.link import progress, reader, server_id
from service.settings import Settings, View
from state.columns import Bools, Ints, Keys, ints
from state.layout import MERGED, Changes

SESSIONS = pa.schema([("device", pa.binary()), ("start", pa.int64()), ("last", pa.int64()), ("is_open", pa.bool_())])
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Grid:
    """The covered event time of a view and measure: `starts` of windows, and `spans` (n x 2, half open).

    Of a view with a zone for each key, windows that begin together may end apart: `windows` has starts and ends.
    """

    starts: Ints
    spans: Ints
    windows: Collection[tuple[int, int]] = ()

    def covers(self, start: Ints, end: Ints) -> Bools:
        """Return which windows are covered."""
        covered: Bools = np.isin(start, self.starts)
        if self.windows:
            covered |= np.array(
                [each in self.windows for each in zip(start.tolist(), end.tolist(), strict=True)], np.bool_
            )
        for begin, stop in self.spans.tolist():
            covered |= (start < stop) & (end > begin)
        return covered


@dataclass(frozen=True, slots=True)
class Covered:
    """The spans that Redis covers: `sessions` (SESSIONS), and windows by view and measure. Times are event times in ms.

    A query that reads the topic again has passed all spans after the first batch whose watermark reaches `until_ms`.
    """

    sessions: pa.Table
    windows: Mapping[tuple[str, str], Grid]
    until_ms: int

    def leave_out(self, changes: Changes) -> tuple[Changes, int]:
        """Return the changes without covered values, and how many values were covered.

        A row with the key of a closed value stays: publish.lua decides about it.
        """
        sessions = changes.sessions.filter(pa.array(~self._sessions(changes.sessions)))
        windows = changes.windows.filter(pa.array(~self._windows(changes.windows)))
        before = changes.sessions.num_rows + changes.windows.num_rows
        return replace(changes, sessions=sessions, windows=windows), before - sessions.num_rows - windows.num_rows

    def _windows(self, rows: pa.Table) -> Bools:
        covered = np.zeros(rows.num_rows, np.bool_)
        start, end = ints(rows, "start"), ints(rows, "end")
        for (view, measure), grid in self.windows.items():
            of_grid: Any = pc.and_(pc.equal(rows["view"], view), pc.equal(rows["measure"], measure))
            chosen = np.flatnonzero(of_grid.to_numpy())
            covered[chosen] = grid.covers(start[chosen], end[chosen])
        return covered

    def _sessions(self, rows: pa.Table) -> Bools:
        covered = np.zeros(rows.num_rows, np.bool_)
        spans = self.sessions
        if not spans.num_rows or not rows.num_rows:
            return covered
        names: Any = spans["device"].unique()
        row_codes: Any = pc.fill_null(pc.index_in(rows["device"].cast(pa.binary()), value_set=names), -1)
        chosen = np.flatnonzero(row_codes.to_numpy() >= 0)
        if not len(chosen):
            return covered
        codes = row_codes.to_numpy()[chosen]
        span_codes: Any = pc.index_in(spans["device"], value_set=names)
        start, last = ints(rows, "start")[chosen], ints(rows, "last")[chosen]
        low = min(int(start.min()), int(ints(spans, "start").min()))
        keys = Keys(len(names), low, max(int(last.max()), int(ints(spans, "last").max())))
        begins, ends = (keys.pack(span_codes.to_numpy(), ints(spans, name)) for name in ("start", "last"))
        order = np.argsort(begins)
        begins, furthest = begins[order], np.maximum.accumulate(ends[order])
        is_open = spans["is_open"].to_numpy()[order]
        # `last_span`: the device's last session that begins before the row ends. `furthest`: the latest end up to there.
        last_span = np.searchsorted(begins, keys.pack(codes, last), side="right") - 1
        overlaps = (last_span >= 0) & (furthest[last_span] >= keys.pack(codes, start))
        same = np.clip(np.searchsorted(begins, keys.pack(codes, start)), 0, len(begins) - 1)
        is_closed_value = (begins[same] == keys.pack(codes, start)) & ~is_open[same]
        covered[chosen] = overlaps & ~is_closed_value
        return covered


def read(
    settings: Settings, epoch: int, numbers: Iterable[int] | None = None, *, before_ms: int, until_ms: int | None
) -> dict[int, Covered]:
    """Return what each of some shards covers (None: of all), by a scan of all its keys. Raises SinkError.

    A shard covers nothing for another one, because one may have lost what another has.

    A window counts if it was written before `before_ms` by the writer's clock, so that a repeated republish ignores its own
    windows, and if it ends by `until_ms` in event time, up to which Redis was complete (None: no limit). `epoch` is the term's.
    """
    covered, stores, finals = {}, shards(settings.redis), progress(settings.redis, "final")
    for number in range(len(stores)) if numbers is None else numbers:
        keys, final_ms = stores[number], int(finals[number] or -1)
        if until_ms is not None:
            final_ms = min(final_ms, until_ms)
        scan = _Scan(settings, keys, epoch, before_ms, until_ms, final_ms)
        with reader(settings.redis, keys, "the stored values") as (client, budget):
            server = budget.attempt(partial(server_id, client, keys))
            for names in link.scan(client, budget, keys.matching("*"), _PAGE):
                own = [name.removeprefix(f"{keys.prefix}:".encode()) for name in names if keys.has(name)]
                budget.attempt(partial(scan.take, client, own))
            if budget.attempt(partial(server_id, client, keys)) != server:
                msg = f"{budget.place}: Redis was restarted or failed over during the read: the pages of its scan have other keys"
                raise SinkError(msg, remedy="The scan begins again")
        covered[number] = scan.covered()
    return covered


class _Scan:
    """Collects the covered spans of a scan. A page may be taken twice."""

    def __init__(
        self, settings: Settings, keys: RedisKeys, epoch: int, before_ms: int, until_ms: int | None, final_ms: int
    ) -> None:
        self._prefix = f"{keys.prefix}:".encode()
        self._epoch, self._before_ms, self._until_ms, self._final_ms = epoch, before_ms, until_ms, final_ms
        self._views = {view.name: view for view in settings.views}
        self._sessions: dict[tuple[bytes, int], tuple[int, bool]] = {}
        self._windows: dict[tuple[str, str], dict[tuple[str, int], tuple[int, str]]] = {}

    def take(self, client: Any, names: list[bytes]) -> None:
        """Read the sessions and windows among some names, which are keys without the prefix."""
        pipe = client.pipeline(transaction=False)
        places: list[Callable[[list[bytes]], None]] = []
        for name in names:
            kind, _, rest = name.partition(b":")
            place, _, start = rest.rpartition(b":")
            if kind == b"session":
                pipe.hmget(self._prefix + name, "state", "closed_by", "epoch", "last")
                places.append(partial(self._session, (place, int(start))))
            elif kind == b"window":
                view, measure, key = (text.decode(errors="replace") for text in place.split(b":", 2))
                if view not in self._views:
                    continue
                # One final window of a start is enough, with zones by key one of each zone: all of them cover the same.
                zone = self._views[view].zone
                at = key.split("|")[zone] if isinstance(zone, int) else "", int(start)
                if at not in self._windows.get((view, measure), ()):
                    pipe.hmget(self._prefix + name, "end", "updated", "complete_from")
                    places.append(partial(self._window, (view, measure), at, key))
        for take, values in zip(places, pipe.execute(), strict=True):
            if values[0] is not None:  # else the key has expired
                take(values)

    def _session(self, place: tuple[bytes, int], values: list[bytes]) -> None:
        state, closed_by, epoch, last = values
        is_of_term = state != MERGED.encode() and int(epoch) == self._epoch
        if closed_by == b"watermark" or is_of_term:
            self._sessions[place] = int(last), closed_by != b"watermark"

    def _window(self, of: tuple[str, str], at: tuple[str, int], key: str, values: list[bytes]) -> None:
        end, updated = map(int, values[:2])
        is_whole = values[2] is None  # else it may be replaced
        if is_whole and end <= self._final_ms and updated < self._before_ms:
            self._windows.setdefault(of, {})[at] = end, key

    def covered(self) -> Covered:
        """The covered spans of all pages."""
        rows = [(device, start, last, is_open) for (device, start), (last, is_open) in self._sessions.items()]
        columns = zip(*rows, strict=True) if rows else [[]] * 4
        sessions = pa.table([list(column) for column in columns], schema=SESSIONS)
        windows = {
            (view, measure): _grid(
                self._views[view], sorted((start, end, key) for (_, start), (end, key) in of.items())
            )
            for (view, measure), of in self._windows.items()
        }
        return Covered(sessions, windows, self._until_ms or 0)


def _grid(view: View, windows: Sequence[tuple[int, int, str]]) -> Grid:
    *times, keys = zip(*windows, strict=True)
    spans = np.array(times, np.int64).T
    start, end = spans[:, 0], spans[:, 1]
    is_old = ~view.are_windows(start, end, pa.array(keys))
    if view.zone_column is not None:
        return Grid(start[:0], _joined(spans[is_old]), frozenset(map(tuple, spans[~is_old].tolist())))
    by_reference = any(column != "device" for column in view.by)
    starts = start[~is_old] if by_reference else start[:0]
    return Grid(starts, _joined(spans[is_old]))


def _joined(spans: Ints) -> Ints:
    """Join spans that touch; the spans are sorted."""
    if not len(spans):
        return spans
    reach = np.maximum.accumulate(spans[:, 1])
    heads = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    ends = reach[np.append(heads[1:] - 1, len(spans) - 1)]
    joined: Ints = np.stack([spans[heads, 0], ends], axis=1)
    return joined
