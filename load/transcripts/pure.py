"""The first executor: the rules as plain functions, without Spark, Kafka or Redis.

Admission is the oracle's (load/judge/oracle.py), windows and sessions are those of load/judge/expected.py. What the engine
and the clock add:

    input is silent since the last admitted reading if all records are read; the clock then closes what ended `idle_after` ago
    the watermark is the largest admitted event time less `max_delay + max_ahead`, and never falls
    a reading below the watermark of the step before is late: what it belongs to may be closed
    what silence closes stays closed until it says something else, which revises it, or until the watermark passes it
    a closed window leaves for the outlet, and leaves again, with a larger revision, if it is closed with other readings. With
    `final_after` it is closed when it is settled, and each reading until it is final makes a revision
    an open window of a roll-up has the readings of closed windows. What silence has closed of it stays until it is closed again
    a status that readers see leaves when it has changed; without a reading none goes back

Views that change are in view_changes.py. All records are taken again then: the filter of a view is asked about each of them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from load.judge import oracle
from load.judge.rules import Reference, Rules, amount, views_of
from load.transcripts.profile import LEAVING, VIEWS, changed
from load.transcripts.transcript import FIELDS, Fields, Output, Record, Step, Transcript, reject, view_of
from load.transcripts.view_changes import Shown, ViewChanges

Items = dict[str, Fields]
_Device = tuple[int, Mapping[str, tuple[float, int]], Sequence[tuple[int, int]]]
"""Of a device its last reading, the last value of each measure with its time, and starts and counts of its sessions."""
AWAY_MS = 15_000
"""A silence begins again when nobody has looked at the topics for longer."""
PLACES = ("online", "quiet", "offline")
"""In the order in which a status moves on without a reading."""


class SimulatedClock:
    """A clock that only the transcripts move, and what silence makes of it."""

    def __init__(self, after_ms: int) -> None:
        self.now_ms = 0
        self.after_ms = after_ms
        self._looked_ms = self._since_ms = self._read_ms = 0
        self._admitted = 0
        self._unread_ms: int | None = None

    def arrive(self, records: Iterable[Record]) -> None:
        """The clock is never behind the broker's."""
        self.now_ms = max([self.now_ms, *(record.at_ms for record in records)])

    def wait(self, ms: int, admitted: int, unread: Collection[Record]) -> None:
        """So much time passes, in which nothing arrives and these records are not read; so many were `admitted` until now."""
        if admitted != self._admitted or self.now_ms - self._looked_ms > AWAY_MS:
            self._since_ms, self._admitted = self.now_ms, admitted
        begin_ms, self.now_ms = self.now_ms, self.now_ms + ms
        self._looked_ms = self.now_ms
        if not unread:
            self._read_ms, self._unread_ms = self.now_ms, None
        else:  # those that were left by the step before are read
            self._read_ms = self._read_ms if self._unread_ms is None else self._unread_ms
            self._unread_ms = begin_ms

    def line_ms(self, watermark_ms: int) -> int | None:
        """Up to where silence closes now, None for nothing."""
        line_ms = self._read_ms - self.after_ms
        return line_ms if line_ms >= self._since_ms and line_ms > watermark_ms else None


class Pure:
    """All transcripts of a run in one ledger, one step after the other."""

    def __init__(self, rules: Rules, reference: Reference, idle_after_ms: int) -> None:
        self._rules, self._reference = rules, reference
        self._documents = tuple(VIEWS)
        self.views = ViewChanges(rules.views)
        self._taken: list[tuple[int, oracle.Record]] = []
        self._ledger = self._retaken()
        self._parts: set[str] = set()
        self._delay_ms = rules.max_delay_ms + rules.max_ahead_ms
        self.simulated_clock = SimulatedClock(idle_after_ms)
        self.watermark_ms = 0
        self._idle: dict[str, tuple[object, Fields]] = {}
        self._revisions: Counter[str] = Counter()
        self._left: Items = {}
        self._left_contents: dict[str, object] = {}
        self._settled: dict[str, object] = {}
        self._settled_unchanged: set[str] = set()
        self._told: dict[str, tuple[Fields, tuple[int, object] | None]] = {}
        self._begin()

    def begin(self, transcript: Transcript) -> None:
        """Rejects are numbered from here."""
        self._begin()
        self.simulated_clock.now_ms = transcript.origin_ms

    def _begin(self) -> None:
        self._number = 0
        self._rejects: Items = {}
        self._records: list[Record] = []
        self._unread: tuple[Record, ...] = ()

    def step(self, _transcript: Transcript, step: Step) -> Output:
        """Everything there is after the step, of all transcripts."""
        if step.change:
            self._change(step.change)
        self._ledger.watermark_ms = self.watermark_ms
        self.simulated_clock.arrive((*step.add, *step.unread))
        for record in (*self._unread, *step.add):
            self._take(record)
        self._records += [*step.add, *step.unread]
        self._unread = step.unread
        newest = self._ledger.newest_ms
        if newest is not None:
            self.watermark_ms = max(self.watermark_ms, newest - self._delay_ms)
        if self.views.has_parts:
            self._parts |= {item for item, fields in self._there()[0].items() if "complete_from" in fields}
            if self.views.reach(self.watermark_ms):
                self._ledger = self._retaken()
        admitted = sum(each.admitted for each in self._ledger.partitions.values())
        self.simulated_clock.wait(step.silent_ms, admitted, self._unread)
        return self._output()

    def replay(self, transcript: Transcript) -> Output:
        """As another run ends that reads all records of the transcript at once, and sees the end of the silence."""
        again = Pure(self._rules, self._reference, self.simulated_clock.after_ms)
        again.simulated_clock.now_ms = self.simulated_clock.now_ms - self.simulated_clock.after_ms
        return again.step(transcript, Step(add=tuple(self._records), silent_ms=self.simulated_clock.after_ms))

    def _change(self, change: Mapping[str, Any]) -> None:
        self._documents = changed(self._documents, change)
        self.views.change(
            views_of(self._documents, self._rules.measures, self._rules.max_delay_ms), self._ledger, self.watermark_ms
        )
        self._ledger = self._retaken()

    def _retaken(self) -> oracle.Ledger:
        """A ledger with the views that are computed now, which has taken what came before."""
        ledger = oracle.Ledger(replace(self._rules, views=self.views.views), self._reference)
        for watermark_ms, record in self._taken:
            ledger.watermark_ms = watermark_ms
            ledger.take_all(record)
        return ledger

    def _take(self, record: Record) -> None:
        self._number += 1
        taken = oracle.Record(record.topic, record.partition, self._number, record.at_ms, None, record.value)
        self._taken.append((self.watermark_ms, taken))
        for index, reason in self._ledger.take_all(taken):
            if reason is not None:
                self._rejects[reject(self._number, index)] = {"reason": reason}

    def _output(self) -> Output:
        there, contents = self._there()
        for item, (closed_content, fields) in list(self._idle.items()):
            if item not in there and fields.get("count") == 0:
                continue  # a window without readings is there when it is closed, and changes when it is closed again
            if self._is_rollup(item) and not there.get(item, {}).get("closed_by"):
                continue
            if contents.get(item) != closed_content:
                del self._idle[item]
                self._revisions[item] += item in there
            elif there[item].get("closed_by") or there[item].get("status", "online") != "online":
                del self._idle[item]
        self._revisions.update(item for item, was in self._settled.items() if contents.get(item) != was)
        self._settled = {item: contents[item] for item, each in there.items() if each.get("closed_by") == "settled"}
        completed = {item for item in self._parts if item in there and "complete_from" not in there[item]}
        self._revisions.update(completed)
        self._parts -= completed
        line_ms = self.simulated_clock.line_ms(self.watermark_ms)
        if line_ms is not None:
            silenced, _ = self._there(line_ms)
            for item in [item for item, each in silenced.items() if each != there.get(item)]:
                has_all = item in contents and not self._is_rollup(item)
                now = contents[item] if has_all else content(silenced[item])
                self._revisions[item] += item in self._idle and self._idle[item][0] != now
                self._idle[item] = now, silenced[item]
        self._tell(there, contents)
        there |= {item: fields for item, (_, fields) in self._idle.items()}
        for item, fields in there.items():
            if not item.startswith("device "):
                there[item] = {**fields, "revision": self._revisions[item]}
        self._leave(there)
        told = {item: fields for item, (fields, _) in self._told.items()}
        return {**there, **self._left, **told, **self._rejects, **dict(self.views.items())}

    def _is_rollup(self, item: str) -> bool:
        return any(view.source is not None and view.name == view_of(item) for view in self.views.views)

    def _tell(self, there: Items, contents: Mapping[str, object]) -> None:
        """Note each status that readers see now, if it is another one than before, with the event time since when."""
        for item in [each for each in there if each.startswith("device ")]:
            device, shown = item.removeprefix("device "), self._idle.get(item, (None, there[item]))[1]
            last_seen, values, sessions = cast("_Device", contents[item])
            lasts = {"status": last_seen, **{f"{measure}.status": at for measure, (_, at) in values.items()}}
            for field, last in lasts.items():
                before, known = self._told.get(f"told {device}/{field}", ({"status": None}, None))
                now = last, sessions if field == "status" else None
                is_reading = now != known
                was, status = before["status"], shown[field]
                if was == status or not (is_reading or PLACES.index(status) > PLACES.index(was)):
                    if is_reading and was is not None:
                        self._told[f"told {device}/{field}"] = before, now
                    continue
                interval = self._reference.get(device, {}).get(self._rules.expected_interval or "")
                limits = {"offline": self._rules.gap_ms, "quiet": amount(interval or "0 s"), "online": 0}
                at = last + limits[status]
                if field == "status" and status == "online" and was in {None, "offline"}:
                    start = max(start for start, _ in sessions)
                    at = start if known is None or start > known[0] else last
                why = "reading" if is_reading else "idle" if item in self._idle else "watermark"
                told = {"status": status, "was": was, "at": at, "why": why}
                self._told[f"told {device}/{field}"] = told, now

    def _leave(self, there: Items) -> None:
        for item, fields in there.items():
            if not item.startswith(tuple(f"window {view}/" for view in LEAVING)) or not fields["closed_by"]:
                continue
            left = item.replace("window", "left", 1)
            before, is_same = self._left.get(left), self._left_contents.get(left) == content(fields)
            if before is not None and is_same and fields["closed_by"] == "settled":
                if before["closed_by"] == "idle":
                    self._settled_unchanged.add(left)  # it counts as a revision that did not leave
            elif not is_same:
                revision = 0 if before is None else before["revision"] + 1 + (left in self._settled_unchanged)
                self._settled_unchanged.discard(left)
                self._left[left] = {**{name: fields.get(name) for name in FIELDS["left"]}, "revision": revision}
                self._left_contents[left] = content(fields)

    def _there(self, line_ms: int = -1) -> tuple[Items, dict[str, object]]:
        """Return the values that follow from the readings, each with the properties whose change makes it another value."""
        expected = self._ledger.close(self.watermark_ms, line_ms)
        items: Items = {}
        contents: dict[str, object] = {}
        for (view, measure, key, start), each in self.views.windows(expected.windows, self._ledger, self._reference):
            items[f"window {view}/{measure}/{key}/{start}"] = _window(each)
        of_device: dict[str, list[object]] = {}
        for (device, start), session in expected.sessions.items():
            shown = {name: getattr(session, name) for name in ("state", "count", "last", "reason", "closed_by")}
            others = session.measures["temperature"].others
            shown |= {name: value for name, value in others.items() if value is not None}
            items[f"session {device}/{start}"] = shown
            of_device.setdefault(device, []).append((start, session.count))
        contents |= {item: content(fields) for item, fields in items.items()}
        for name, known in expected.devices.items():
            values = {measure: value for measure, (value, _) in known.values.items()}
            lasts = dict(known.values)
            statuses = {f"{measure}.status": status for measure, status in known.statuses.items()}
            items[f"device {name}"] = {"status": known.status, "last_seen": known.last_seen, **values, **statuses}
            contents[f"device {name}"] = known.last_seen, lasts, of_device.get(name)
        return items, contents


def content(fields: Fields) -> object:
    """Return the content of a window or session. If it changes after silence has closed it, the value is revised."""
    carried = tuple(fields.get(name) for name in ("increase", "integral", "longest_gap"))  # from before the window
    return fields["count"], fields.get("last"), carried


def _window(shown: Shown) -> Fields:
    window = shown.value
    numbers: dict[str, Any] = {}
    for name in shown.statistics:
        value = window.others[name] if name in window.others else getattr(window, name)
        numbers |= {} if value is None or name not in FIELDS["window"] else {name: value}
    mark = {} if shown.complete_from is None else {"complete_from": shown.complete_from}
    local = {"local_start": window.local_start} if window.local_start else {}
    return {**numbers, **mark, **local, "final": window.final, "closed_by": window.closed_by}
