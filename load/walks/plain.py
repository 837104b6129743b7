"""What Redis and the rejects must hold after a walk: plain lists and loops over single readings, no code of the service.

A setting that changes holds from the next batch on. What that means is documented in docs/data-engineer.md:

    a view, an attribute    a reading counts in the windows of the views and attributes of its batch, for good
    sessions.gap            open sessions are joined and parted anew. What was joined inside one cell stays joined
    a device's own gap      the same, from the batch on in which the device has a reading
    a view's statistics     a window that gets a reading has those that its view has then, and that it could keep since it began
    one reading of a time   the first one by partition, offset and index in an array, in the batches that have the setting
    a view's length,        another view under a name of its own in keys, which readers get when its past is computed. Its windows
    columns or filter       that begin before are marked until then. The same for a view that comes back
    a view's fill           windows without readings are written when they are closed or settled, and when that is changed while
                            they are settled, or they are closed again
    a roll-up               a window has the readings of closed windows of its source. What silence has closed has all, and stays
                            until the window is closed again
    a view without windows  begins with its first batch and ends with the first one without it. Redis has its values until the
                            next batch begins. It counts late readings, too

Where a smaller gap parts a session that silence has closed in an earlier term, the earlier part waits until the watermark
closes it, or it has as many readings: Redis cannot tell its writer from one that reads the topic again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from load.judge.expected import View
from load.judge.predicates import Predicate
from load.judge.statistics import NEEDS, ORDERED, Frame, kept_for, of_carried, plain
from load.judge.versions import Versions

MAX_DELAY_MS, MAX_AHEAD_MS, IDLE_AFTER_MS = 30_000, 5_000, 5_000
CELL_MS = 10_000
MAX_DURATION_MS = 16 * CELL_MS
RETAIN_MS = 300_000
DISTINCT_FOR_MS = 15_000
MEASURES = ("t", "h")

Fields = dict[str, str | int | float]
Place = tuple[str, str, str, int]
"""View, measure, key and start of a window."""
RecordPlace = tuple[int, int, int | None]
"""Partition, offset and the index of a reading in an array, None for a record that is a reading."""
Attributes = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading: a record, or the element `index` of one that is an array. `poison` is the reason for which admission rejects it,
    "" where it does not. A copy of a rejected one `is_counted` if views without windows have counted that. The original
    `is_replaced` by a copy: None if it is not, else whether views without windows count it.
    """

    device: str
    event_ms: int
    broker_ms: int
    partition: int
    offset: int
    values: Mapping[str, float | None]
    poison: str = ""
    index: int | None = None
    is_counted: bool = False
    is_replaced: bool | None = None

    @property
    def place(self) -> "RecordPlace":
        return self.partition, self.offset, self.index

    def meets(self, where: str | None) -> bool:
        """Whether it is in a view with this filter."""
        return where is None or _predicate(where)({"device": self.device, **self.values})


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that may change; `reference` is device -> column -> text: `site`, and in ms `gap` and `interval`."""

    gap_ms: int
    views: tuple[View, ...]
    reference: Mapping[str, Attributes]
    version: str
    distinct: bool = False
    """Whether a device has one reading of a time."""


@dataclass(slots=True)
class _Window:
    """`names` are the statistics of the view in the last batch that had a reading, `kept` are NEEDS of all batches.

    A window `is_settled` from the batch on in which it has left, or was settled unchanged since silence had closed it. `sent` is
    the content with which it has left last.
    """

    end: int
    kept: set[str]
    names: tuple[str, ...] = ()
    readings: list[tuple[int, float, str]] = field(default_factory=list)
    closed_by: str = ""
    revision: int = 0
    begun: int | None = None
    mark: int | None = None
    carried: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    unfilled: Mapping[str, tuple[int, float]] | None = None
    """What was carried into it when its view did not fill."""
    carry_ms: int | None = None
    is_settled: bool = False
    local: str = ""
    sent: tuple[object, ...] = ()
    base: list[tuple[int, float, str]] = field(default_factory=list)
    """Of a roll-up, the readings of the source's windows that the watermark has closed."""
    base_kept: set[str] = field(default_factory=set)
    """What these keep."""

    @property
    def content(self) -> tuple[object, ...]:
        """What is different when the window leaves again."""
        return len(self.readings), tuple(sorted(self.carried.items()))


@dataclass(slots=True)
class _Device:
    """`groups` are what was joined inside one cell, of open sessions; `open` are those sessions after the last batch.

    `status` is the result of `_status` after the last batch, `silent` that after the last batch or silence.
    """

    last_seen: int = 0
    gap_ms: int | None = None
    interval_ms: int | None = None
    values: dict[str, tuple[int, float]] = field(default_factory=dict)
    groups: list[list[Reading]] = field(default_factory=list)
    open: dict[int, Fields] = field(default_factory=dict)
    status: tuple[int | None, bool] | None = None
    silent: tuple[int | None, bool] | None = None


class Plain:
    """`there` is what must be in Redis, `rejects` are reasons by the place of a reading, `admitted` counts readings by device.

    `left` has of each window that has left for the outlet the number of readings and why it is closed, `all_admitted` all
    readings in their order.
    `waiting` are sessions of which Redis has more than the state, `refused` is how many the last batch had of them.
    """

    def __init__(self) -> None:
        self.watermark_ms, self.newest_ms, self.batches = 0, -1, 0
        self._begun: dict[tuple[str, str], int] = {}
        self._seen: dict[tuple[str, int], int] = {}
        self.term, self.refused = 1, 0
        self.there: dict[str, Fields] = {}
        self.waiting: set[str] = set()
        self._terms: dict[str, int] = {}
        self.rejects: dict[RecordPlace, str] = {}
        self.admitted: Counter[str] = Counter()
        self._windows: dict[Place, _Window] = {}
        self._carried: dict[Place, dict[str, tuple[int, float]]] = {}
        self.left: dict[Place, tuple[int, str]] = {}
        self._spent: set[Place] = set()
        self._settled: dict[str, int] = {}
        self.all_admitted: list[Reading] = []
        self._versions = Versions(())
        self._filled: set[str] = set()
        self._devices: dict[str, _Device] = {}
        self._planned: tuple[View, ...] | None = None

    def begin(self, views: Sequence[View]) -> tuple[View, ...]:
        """An attempt at a batch begins with these views. Return those that the batch has: of its first attempt."""
        if self._planned is None:
            self._planned = self._change_views(views)
        return self._planned

    def batch(self, readings: Sequence[Reading], unread: Collection[int], rules: Rules) -> None:
        """A batch of these readings, after which these partitions still have records."""
        self.refused = 0
        for each in readings:
            if each.poison or each.is_replaced is not None or each.event_ms < self.watermark_ms:
                self.rejects[each.place] = each.poison or ("behind" if each.is_replaced is None else "replayed")
        on_time = [each for each in readings if each.place not in self.rejects]
        if rules.distinct:
            on_time = self._without_copies(on_time)
        else:
            self._seen.clear()
        late = [each for each in readings if self._is_counted_late(each)]
        self.all_admitted += on_time
        rules, self._planned = replace(rules, views=self.begin(rules.views)), None
        self._advance(readings, unread)
        self._begin_views(rules)
        self._count(on_time, rules, [view for view in rules.views if not view.is_endless and view.source is None])
        ever = [*(each for each in on_time if not each.is_counted), *late]
        self._count(ever, rules, [view for view in rules.views if view.is_endless])
        self._roll_up(rules.views, self.watermark_ms, "watermark")
        self._spent |= {place for place, window in self._windows.items() if window.end <= self.watermark_ms}
        self.batches += 1
        leads = {view.name: view.lead_ms for view in rules.views if view.lead_ms}
        for name, lead in leads.items():
            self._settled[name] = max(self._settled.get(name, 0), self.watermark_ms + lead)
        self._fill({view.name: self.watermark_ms + view.lead_ms for view in rules.views}, "watermark")
        self._leave_settled(leads)
        self._close_windows(self.watermark_ms, "watermark")
        for each in on_time:
            self.admitted[each.device] += 1
            self._see(self._devices.setdefault(each.device, _Device()), each, rules)
        spoke = {each.device for each in on_time}
        for name, device in list(self._devices.items()):
            self._move(name, device, rules, has_spoken=name in spoke)
            if not device.open and device.last_seen + RETAIN_MS < self.watermark_ms:
                del self._devices[name]

    def _is_counted_late(self, reading: Reading) -> bool:
        """Whether views without windows count a rejected reading."""
        if reading.is_counted:
            return False
        if reading.is_replaced is not None:
            return reading.is_replaced and reading.poison in {"", "late"}
        return self.rejects.get(reading.place) in {"late", "behind"}

    def silence(self, line_ms: int, rules: Rules) -> None:
        """Input is silent, and the clock closes what is open up to this event time."""
        self._fill({view.name: line_ms for view in self._versions.views}, "idle")
        self._roll_up(self._versions.views, line_ms, "idle")
        self._close_windows(line_ms, "idle")
        for name, device in self._devices.items():
            gap_ms = rules.gap_ms if device.gap_ms is None else device.gap_ms
            sessions = _sessions(device.groups, gap_ms)
            left = [session for session in sessions if session[-1].event_ms + gap_ms >= line_ms]
            for number, session in enumerate(sessions):
                if session not in left:
                    self._put(name, _closed(sessions, number, gap_ms, "idle"))
            now = _status(device, [session[0].event_ms for session in left], line_ms)
            if now != device.silent:
                self._tell(name, device, now, rules)
            device.silent = now

    def restart(self) -> None:
        """Begin another term. Values that silence has closed are closed again where the state has them open."""
        self.term += 1
        self._filled = set()  # the next term computes the past again
        for device in self._devices.values():
            device.silent = device.status

    def _advance(self, readings: Sequence[Reading], unread: Collection[int]) -> None:
        self.newest_ms = max([self.newest_ms, *(each.event_ms for each in readings if not each.poison)])
        bound_ms = self.newest_ms - MAX_DELAY_MS - MAX_AHEAD_MS
        for partition in unread:
            read = [each.broker_ms for each in readings if each.partition == partition]
            bound_ms = min(bound_ms, max(read) - MAX_DELAY_MS if read else self.watermark_ms)
        self.watermark_ms = max(self.watermark_ms, bound_ms)

    def _without_copies(self, on_time: Iterable[Reading]) -> list[Reading]:
        """The first reading of each device and time, by its place; one far behind the newest time, or a held watermark's line, is
        forgotten."""
        first = []
        floor_ms = min(self.newest_ms, self.watermark_ms + MAX_DELAY_MS + MAX_AHEAD_MS) - DISTINCT_FOR_MS
        for each in sorted(on_time, key=lambda each: (each.partition, each.offset, each.index or 0)):
            key, is_new = (each.device, each.event_ms), True
            if key in self._seen:
                is_new = each.event_ms < floor_ms and self._seen[key] != self.batches
            if is_new:
                self._seen[key] = self.batches
                first.append(each)
            else:
                self.rejects[each.place] = "duplicate"
        return first

    def _begin_views(self, rules: Rules) -> None:
        """Views without windows begin and end with a batch; the values of those that ended with the last one go."""
        for key in [key for key in self.there if key.startswith("window:") and key.endswith(":0")]:
            if tuple(key.split(":")[1:3]) not in self._begun:
                del self.there[key]
        now = {(view.name, measure) for view in rules.views if view.is_endless for measure in view.measures}
        self._begun = {pair: self._begun.get(pair, self.batches) for pair in now}
        for place in [place for place, window in self._windows.items() if window.begun is not None]:
            if place[:2] not in self._begun:
                del self._windows[place]

    def _count(self, readings: Iterable[Reading], rules: Rules, views: Sequence[View]) -> None:
        needs = {view.name: kept_for(view.statistics) for view in views}
        for each in readings:
            for of_keys in [view for view in views if each.meets(view.where)]:
                key = of_keys.key(each.device, rules.reference.get(each.device, {}))
                view = of_keys.of_key(key)
                for measure in view.measures:
                    value = each.values[measure]
                    for start in () if value is None else view.starts(each.event_ms):
                        assert value is not None  # noqa: S101
                        place, begun = (view.name, measure, key, start), self._begun.get((view.name, measure))
                        new = _Window(view.end(start), needs[view.name], begun=begun, local=view.local(start))
                        window = self._windows.setdefault(place, new)
                        window.mark = self._mark(place)
                        window.names, window.kept = view.statistics, window.kept & needs[view.name]
                        window.revision += window.closed_by in {"idle", "settled"}
                        window.closed_by = ""
                        window.readings.append((each.event_ms, value, each.device))
                        window.carried, window.carry_ms = dict(self._carried.get(place, {})), view.carry_ms
                    if value is not None and view.carry_ms is not None:
                        self._carry((view.name, measure, key), view, each.device, (each.event_ms, value))

    def _carry(self, of: tuple[str, str, str], view: View, device: str, reading: tuple[int, float]) -> None:
        """A device's last reading before a window that still holds when the window begins is carried into it."""
        for start in _following(view, reading[0]):
            place = (*of, start)
            carried = self._carried.setdefault(place, {})
            carried[device] = max(carried.get(device, reading), reading)
            window = self._windows.get(place)
            # Into a window without readings it is carried when that is closed: see `_fill`.
            if window is not None and window.readings and window.carried != carried:
                before = _numbers(start, window)
                window.carried = dict(carried)
                if _numbers(start, window) != before:
                    window.revision += window.closed_by in {"idle", "settled"}
                    window.closed_by = ""

    def _roll_up(self, views: Iterable[View], line_ms: int, closed_by: str) -> None:
        """A roll-up's window has the readings of windows of its source that are closed since it began. When silence closes it, it
        has those of all."""
        for view in views:
            if view.source is None:
                continue
            found: dict[Place, list[_Window]] = {}
            for (name, measure, key, at), each in self._windows.items():
                if name != view.source.name or measure not in view.measures or (name, measure, key, at) in self._spent:
                    continue
                start = at // view.step_ms * view.step_ms
                if (each.end if closed_by == "watermark" else start + view.window_ms) <= line_ms:
                    found.setdefault((view.name, measure, key, start), []).append(each)
            for place in found:
                new = _Window(place[3] + view.window_ms, kept_for(view.statistics), view.statistics)
                self._windows.setdefault(place, new)
            for place, window in self._windows.items():
                if place[0] == view.name and window.closed_by != "watermark":
                    self._take_closed(place, window, found.get(place, []), line_ms, closed_by, view.statistics)

    def _take_closed(
        self,
        place: Place,
        window: _Window,
        parts: Sequence[_Window],
        line_ms: int,
        closed_by: str,
        names: tuple[str, ...],
    ) -> None:
        readings = window.base + [reading for each in parts for reading in each.readings]
        kept = window.base_kept
        if parts:
            needs = kept_for(names)
            kept = (kept if window.base else needs).intersection(needs, *(each.kept for each in parts))
        if closed_by == "watermark":
            window.base, window.base_kept = readings, kept
            if window.closed_by == "idle" and window.end > line_ms:
                return
        is_due = window.end <= line_ms
        is_more = len(readings) != len(window.readings) and (closed_by == "watermark" or is_due)
        # Silence writes a window that is open in Redis in any case, with the statistics that its view has now.
        is_closing = closed_by == "idle" and is_due and not window.closed_by
        if is_more:
            window.readings = readings
            window.revision += window.closed_by in {"idle", "settled"}
            window.closed_by = ""
        if is_more or is_closing:
            window.names, window.kept, window.mark = names, kept, self._mark(place)

    def _fill(self, lines_ms: Mapping[str, int], closed_by: str) -> None:
        """Windows without readings are there, with what is carried into them, when they are closed or settled by these lines."""
        views = {view.name: view for view in self._versions.views}
        for place, carried in list(self._carried.items()):
            of_keys, start, window = views.get(place[0]), place[3], self._windows.get(place)
            view = None if of_keys is None else of_keys.of_key(place[2])
            end = view.end(start) if view is not None else 0
            is_due = end <= lines_ms.get(place[0], -1) or (window is not None and window.is_settled)
            is_settled = closed_by == "idle" and window is not None and window.is_settled
            is_empty = window is None or not (window.readings or window.closed_by == "watermark")
            is_shown = view is not None and view.fills and view.holds(start, carried)
            if window is not None and view is not None and not view.fills:
                window.unfilled = dict(carried)
            # What has changed while the view did not fill stays as it was written.
            is_shown = is_shown and (window is None or window.unfilled != carried)
            if view is not None and is_shown and is_due and is_empty and not is_settled:
                if window is None:
                    window = self._windows[place] = _Window(
                        end, kept_for(view.statistics), view.statistics, carry_ms=view.carry_ms, local=view.local(start)
                    )
                elif window.carried != carried:
                    window.revision += window.closed_by in {"idle", "settled"}
                window.carried, window.mark = dict(carried), self._mark(place)
            if end <= self.watermark_ms:
                del self._carried[place]

    def _close_windows(self, line_ms: int, closed_by: str) -> None:
        for (view, measure, key, start), window in self._windows.items():
            if window.closed_by == "watermark" or not (window.readings or window.carried):
                continue
            if window.end <= line_ms and (closed_by == "watermark" or not window.is_settled):
                self._leave((view, measure, key, start), window, closed_by)
            is_settled = window.end <= self._settled.get(view, -1)
            if window.end <= line_ms and (closed_by == "watermark" or not is_settled):
                window.closed_by = closed_by
            elif is_settled:
                window.closed_by = "settled"
            self.there[f"window:{view}:{measure}:{key}:{start}"] = _shown(start, window)

    def _leave_settled(self, leads: Mapping[str, int]) -> None:
        """Windows that are not final leave when they are settled, whatever `final_after` is later, and whenever they change."""
        for place, window in self._windows.items():
            line_ms = self.watermark_ms + leads.get(place[0], 0)
            if self.watermark_ms < window.end and (window.is_settled or window.end <= line_ms):
                window.is_settled = True
                self._leave(place, window, "settled")

    def _leave(self, place: Place, window: _Window, closed_by: str) -> None:
        """A window of a present view and measure that lacks no reading leaves when it is closed, and again if it has changed."""
        if window.sent == window.content:
            return
        version = self._versions.of(place[0])
        if (
            version is not None
            and place[1] in version.view.measures
            and window.begun is None
            and self._mark(place) is None
        ):
            self.left[place] = len(window.readings), closed_by
            window.sent = window.content

    def _mark(self, place: Place) -> int | None:
        view, measure, _, start = place
        return self._versions.mark(view, measure, start)

    def _change_views(self, wanted: Sequence[View]) -> tuple[View, ...]:
        """The views of a batch, by their names in keys, where a batch before had others."""
        if not self.batches:
            self._versions = Versions(wanted)
        else:
            self._versions.complete(self._filled)
            self._versions.change(wanted, self.newest_ms)
        self._filled = set()
        return self._versions.views

    def fill(self, rules: Rules) -> None:
        """The past of new views is computed: windows that are closed and lack readings get them."""
        for version in self._versions.all:
            if not version.marks:
                continue
            computed: dict[Place, _Window] = {}
            view, needs = version.view, kept_for(version.view.statistics)
            for each in [each for each in self.all_admitted if each.meets(view.where)]:
                key = version.view.key(each.device, rules.reference.get(each.device, {}))
                view = version.view.of_key(key)
                for measure, mark in version.marks.items():
                    value = each.values[measure]
                    for start in () if value is None else view.starts(each.event_ms):
                        assert value is not None  # noqa: S101
                        if start < mark and (end := view.end(start)) <= self.watermark_ms:
                            new = _Window(end, needs, view.statistics, closed_by="watermark", local=view.local(start))
                            window = computed.setdefault((view.name, measure, key, start), new)
                            window.readings.append((each.event_ms, value, each.device))
            is_last = self.watermark_ms >= version.ends_ms
            for (name, measure, key, start), window in computed.items():
                text = f"window:{name}:{measure}:{key}:{start}"
                was = self.there.get(text, {"complete_from": 0, "revision": -1, "count": 0})
                # A device that has moved may leave fewer readings.
                if "complete_from" in was and (is_last or int(was["count"]) <= len(window.readings)):
                    window.revision = int(was["revision"]) + 1
                    self.there[text] = _shown(start, window)
            if is_last:
                self._filled.add(view.name)
                for text in [text for text in self.there if text.startswith(f"window:{view.name}:")]:
                    if "complete_from" in self.there[text]:
                        del self.there[text]

    def _see(self, device: _Device, each: Reading, rules: Rules) -> None:
        own = rules.reference.get(each.device, {})
        gap, interval = own.get("gap"), own.get("interval")
        device.gap_ms = None if gap is None else min(int(gap), MAX_DURATION_MS)
        device.interval_ms = None if interval is None else int(interval)
        device.last_seen = max(device.last_seen, each.event_ms)
        device.groups.append([each])
        for measure, value in each.values.items():
            if value is not None:
                device.values[measure] = max(device.values.get(measure, (-1, 0.0)), (each.event_ms, value))

    def _move(self, name: str, device: _Device, rules: Rules, *, has_spoken: bool) -> None:
        gap_ms = rules.gap_ms if device.gap_ms is None else device.gap_ms
        device.groups = _joined(device.groups, gap_ms)
        sessions = _sessions(device.groups, gap_ms)
        starts = [session[0].event_ms for session in sessions]
        for start, was in device.open.items():
            if start not in starts:
                into = max(each for each in starts if each < start)
                self._put(name, {**was, "state": "merged", "reason": "merged", "merged_into": into})
        before, device.open = device.open, {}
        for number, session in enumerate(sessions):
            if session[-1].event_ms + gap_ms < self.watermark_ms:
                self._put(name, _closed(sessions, number, gap_ms, "watermark"))
                device.groups = [group for group in device.groups if group[0] not in session]
            else:
                device.open[session[0].event_ms] = fields = _open_fields(session)
                if fields != before.get(session[0].event_ms):
                    self._put(name, fields)
        now = _status(device, device.open, self.watermark_ms)
        if has_spoken or now != device.status:
            self._tell(name, device, now, rules)
        device.status = device.silent = now

    def _put(self, device: str, session: Fields) -> None:
        """Keep a value that silence has closed until its content changes or the watermark passes it."""
        key = f"session:{device}:{session['start']}"
        was = self.there.get(key, {})
        revision = int(was.get("revision", 0))
        if was.get("closed_by") == "idle":
            is_less = session["state"] == "open" and int(session["count"]) < int(was["count"])
            if is_less and self._terms[key] < self.term:
                self.waiting.add(key)
                self.refused += 1
                return
            is_same = all(was.get(name) == session.get(name) for name in ("count", "last", "merged_into"))
            if is_same and session["closed_by"] != "watermark":
                self._terms[key] = self.term
                self.waiting.discard(key)
                return
            revision += not is_same
        self.there[key], self._terms[key] = {**session, "revision": revision}, self.term
        self.waiting.discard(key)

    def _tell(self, name: str, device: _Device, now: tuple[int | None, bool], rules: Rules) -> None:
        session, is_quiet = now
        shown: Fields = {
            "status": "offline" if session is None else "quiet" if is_quiet else "online",
            "last_seen": device.last_seen,
            "session": "" if session is None else session,
        }
        for measure, (at, value) in device.values.items():
            shown |= {measure: value, f"{measure}.at": at}
        self.there[f"device:{name}"] = shown
        self._attribute(name, rules)

    def tell_again(self, keys: Collection[str], rules: Rules) -> None:
        """Devices of these keys that are told again as they were, with the attributes of now.

        What waited when a process died is written again by the next one, which cannot know what was written.
        """
        for key in keys & self.there.keys():
            if key.startswith("device:"):
                self._attribute(key.removeprefix("device:"), rules)

    def _attribute(self, name: str, rules: Rules) -> None:
        site = rules.reference.get(name, {}).get("site")
        shown = self.there[f"device:{name}"]
        shown.pop("ref.site", None)
        shown |= {"reference": rules.version} | ({} if site is None else {"ref.site": site})


@cache
def _predicate(where: str) -> Predicate:
    return Predicate(where, ("device", *MEASURES))


def _joined(groups: Iterable[list[Reading]], gap_ms: int) -> list[list[Reading]]:
    """Groups of one device and cell that are not further apart than the gap become one."""
    joined: list[list[Reading]] = []
    for group in sorted(groups, key=lambda each: each[0].event_ms):
        is_near = bool(joined) and group[0].event_ms - joined[-1][-1].event_ms <= gap_ms
        if is_near and group[0].event_ms // CELL_MS == joined[-1][-1].event_ms // CELL_MS:
            joined[-1] = sorted(joined[-1] + group, key=lambda each: each.event_ms)
        else:
            joined.append(group)
    return joined


def _sessions(groups: Iterable[list[Reading]], gap_ms: int) -> list[list[Reading]]:
    """A group joins the session before it if the gap allows it and the session may last to the end of the group's cell."""
    sessions: list[list[Reading]] = []
    for group in groups:
        cell_end_ms = (group[0].event_ms // CELL_MS + 1) * CELL_MS
        is_near = bool(sessions) and group[0].event_ms - sessions[-1][-1].event_ms <= gap_ms
        if is_near and cell_end_ms <= sessions[-1][0].event_ms + MAX_DURATION_MS:
            sessions[-1] = sessions[-1] + group
        else:
            sessions.append(list(group))
    return sessions


def _open_fields(session: list[Reading]) -> Fields:
    start, last = session[0].event_ms, session[-1].event_ms
    fields: Fields = {"start": start, "last": last, "count": len(session), "duration": last - start}
    fields |= {"state": "open", "reason": "", "closed_by": ""}
    for measure in MEASURES:
        values = [value for each in session if (value := each.values[measure]) is not None]
        fields[f"{measure}.count"] = len(values)
        if values:
            fields |= {f"{measure}.mean": sum(values) / len(values)}
            fields |= {f"{measure}.min": min(values), f"{measure}.max": max(values)}
            kept = [
                (each.event_ms, each.values[measure] or 0.0, "") for each in session if each.values[measure] is not None
            ]
            frame = Frame(start, last)
            found = {f"{measure}.{name}": plain(name, kept, frame) for name in ORDERED}
            fields |= {name: value for name, value in found.items() if value is not None}
    return fields


def _closed(sessions: list[list[Reading]], number: int, gap_ms: int, closed_by: str) -> Fields:
    following = sessions[number + 1 : number + 2]
    is_cut = any(each[0].event_ms - sessions[number][-1].event_ms <= gap_ms for each in following)
    reason = "max_duration" if is_cut else "gap"
    return {**_open_fields(sessions[number]), "state": "closed", "reason": reason, "closed_by": closed_by}


def _status(device: _Device, starts: Collection[int], line_ms: int) -> tuple[int | None, bool]:
    """The start of the latest open session, and whether the device is quiet."""
    is_late = device.interval_ms is not None and device.last_seen + device.interval_ms < line_ms
    return max(starts, default=None), bool(starts) and is_late


def _following(view: View, event_ms: int) -> Iterator[int]:
    """The starts of the windows that a reading is carried into."""
    start = view.next_start(event_ms)
    while start <= event_ms + (view.carry_ms or 0):
        yield start
        start = view.next_start(start)


def _numbers(start: int, window: _Window) -> Mapping[str, float | None]:
    frame = Frame(start, window.end, window.carried, window.carry_ms)
    if not window.readings:
        return {"count": 0, "last": max(window.carried.values())[0], **of_carried(window.names, frame)}
    return {name: plain(name, window.readings, frame) for name in window.names if NEEDS[name] <= window.kept}


def _shown(start: int, window: _Window) -> Fields:
    numbers = _numbers(start, window)
    fields: Fields = {name: number for name, number in numbers.items() if number is not None}
    complete_from = window.mark if window.begun is None else window.begun
    return {
        **fields,
        "start": start,
        "end": window.end,
        "closed_by": window.closed_by,
        "revision": window.revision,
        **({} if complete_from is None else {"complete_from": complete_from}),
        **({"local_start": window.local} if window.local else {}),
    }
