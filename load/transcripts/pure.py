"""The first executor: the rules as plain functions, without Spark, Kafka or Redis.

Admission is the oracle's (load/judge/oracle.py), windows and sessions are those of load/judge/expected.py. What the engine
and the clock add are three rules:

    the watermark is the largest admitted event time less `max_delay + max_ahead`, and never falls
    a reading below the watermark of the step before is late: what it belongs to may be closed
    what silence closes stays closed until it says something else, which revises it, or until the watermark passes it
    a closed window leaves for the outlet, and leaves again, with a larger revision, if it is closed with other readings
"""

from collections import Counter

from load.judge import oracle
from load.judge.rules import Reference, Rules
from load.transcripts.profile import KEPT
from load.transcripts.simulated_clock import SimulatedClock, content
from load.transcripts.transcript import FIELDS, Fields, Output, Record, Step, Transcript, reject

Items = dict[str, Fields]


class Pure:
    """All transcripts of a run in one ledger, one step after the other."""

    name = "pure"

    def __init__(self, rules: Rules, reference: Reference, idle_after_ms: int) -> None:
        self._rules, self._reference = rules, reference
        self._ledger = oracle.Ledger(rules, reference)
        self._delay_ms = rules.max_delay_ms + rules.max_ahead_ms
        self.simulated_clock = SimulatedClock(idle_after_ms)
        self.watermark_ms = 0
        self._idle: dict[str, tuple[object, Fields]] = {}
        self._revisions: Counter[str] = Counter()
        self._left: Items = {}
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
        self._ledger.watermark_ms = self.watermark_ms
        self.simulated_clock.arrive((*step.add, *step.unread))
        for record in (*self._unread, *step.add):
            self._take(record)
        self._records += [*step.add, *step.unread]
        self._unread = step.unread
        newest = self._ledger.newest_ms
        if newest is not None:
            self.watermark_ms = max(self.watermark_ms, newest - self._delay_ms)
        self.simulated_clock.wait(step.silent_ms, len(self._unread))
        return self._output()

    def replay(self, transcript: Transcript) -> Output:
        """As another run ends that reads all records of the transcript at once, and sees the end of the silence."""
        again = Pure(self._rules, self._reference, self.simulated_clock.after_ms)
        again.simulated_clock.now_ms = self.simulated_clock.now_ms - self.simulated_clock.after_ms
        return again.step(transcript, Step(tuple(self._records), silent_ms=self.simulated_clock.after_ms))

    def _take(self, record: Record) -> None:
        self._number += 1
        taken = oracle.Record(record.topic, record.partition, self._number, record.at_ms, None, record.value)
        for index, reason in self._ledger.take_all(taken):
            if reason is not None:
                self._rejects[reject(self._number, index)] = {"reason": reason}

    def _output(self) -> Output:
        there, contents = self._there()
        for item, (closed_content, _) in list(self._idle.items()):
            if contents.get(item) != closed_content:
                del self._idle[item]
                self._revisions[item] += item in there
            elif there[item].get("closed_by") or there[item].get("status", "online") != "online":
                del self._idle[item]
        line_ms = self.simulated_clock.line_ms(self.watermark_ms)
        if line_ms is not None:
            silenced, _ = self._there(line_ms)
            self._idle |= {item: (contents[item], each) for item, each in silenced.items() if each != there[item]}
        there |= {item: fields for item, (_, fields) in self._idle.items()}
        for item, fields in there.items():
            if not item.startswith("device "):
                there[item] = {**fields, "revision": self._revisions[item]}
        self._leave(there)
        return {**there, **self._left, **self._rejects}

    def _leave(self, there: Items) -> None:
        for item, fields in there.items():
            if not item.startswith(f"window {KEPT}/") or not fields["closed_by"]:
                continue
            left = item.replace("window", "left", 1)
            before = self._left.get(left)
            if before is None or before["count"] != fields["count"]:
                revision = 0 if before is None else before["revision"] + 1
                self._left[left] = {**{name: fields[name] for name in FIELDS["left"]}, "revision": revision}

    def _there(self, line_ms: int = -1) -> tuple[Items, dict[str, object]]:
        """What follows from the readings, and what makes each of it another one than before."""
        expected = self._ledger.close(self.watermark_ms, line_ms)
        items: Items = {}
        contents: dict[str, object] = {}
        for (view, measure, key, start), window in expected.windows.items():
            numbers = {name: getattr(window, name) for name in ("count", "mean", "min", "max", "stddev")}
            numbers |= {name: value for name, value in window.others.items() if value is not None}
            shown = {**numbers, "final": window.final, "closed_by": window.closed_by}
            items[f"window {view}/{measure}/{key}/{start}"] = shown
        of_device: dict[str, list[object]] = {}
        for (device, start), session in expected.sessions.items():
            shown = {name: getattr(session, name) for name in ("state", "count", "last", "reason", "closed_by")}
            items[f"session {device}/{start}"] = shown
            of_device.setdefault(device, []).append((start, session.count))
        contents |= {item: content(fields) for item, fields in items.items()}
        for name, known in expected.devices.items():
            values = {measure: value for measure, (value, _) in known.values.items()}
            items[f"device {name}"] = {"status": known.status, "last_seen": known.last_seen, **values}
            contents[f"device {name}"] = known.last_seen, values, of_device.get(name)
        return items, contents
