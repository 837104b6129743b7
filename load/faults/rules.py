"""The rules: each takes the history entry by entry and says what violates one of the promises.

    P1 P4   the oracle's verdicts: every window, session, device, reject and partition's sum
    P2      no reader sees a value go back: not its (epoch, batch), a final window, a closed session, a count
    P3      nor a torn one: the fields of one hash agree with each other, and all are there
    P5      one writer: what Redis accepted never returns to an epoch that had ended
    P7      loss is loud: what the service counted as lost is what nobody can read any more
    P8      after the last fault of a series the lag is back under two triggers within 60 s
    observed  something was there to be judged: an empty history is no proof of anything

They share nothing with the service but the contract in schemas/redis.md.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from load.faults.history import Entry

Hash = Mapping[str, str]

BACK_S = 60.0
SLACK = 1e-9
_SAID = ("epoch", "batch", "updated")
_WINDOW = ("start", "end", "count", "sum", "mean", "min", "max", "stddev", "first", "last", "final", *_SAID)
_SESSION = ("start", "last", "count", "duration", "state", "reason", *_SAID)
_DEVICE = ("status", "last_seen", "session", "reference", *_SAID)


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` was broken at `at` (ms since the epoch)."""

    rule: str
    at: int
    text: str


class Rule(Protocol):
    """Takes every entry in order, then the end."""

    def take(self, entry: Entry) -> Iterator[Violation]:
        """What this entry, after those before it, violates."""
        ...

    def end(self) -> Iterator[Violation]:
        """What is only known when there are no more entries."""
        ...


def all_rules() -> list[Rule]:
    """A new set, for one history."""
    return [Said(), Verdicts(), GoesBack(), Torn(), OneWriter(), Loss(), Recovers(), Observed()]


class Said:
    """What a row or the runner found by itself."""

    def take(self, entry: Entry) -> Iterator[Violation]:
        if entry["what"] == "violation":
            yield Violation(entry["rule"], entry["at"], entry["text"])

    def end(self) -> Iterator[Violation]:
        yield from ()


class Verdicts:
    """P1 and P4: the oracle's differences; a verdict that compared nothing is none."""

    def __init__(self) -> None:
        self._verdicts = 0
        self._at = 0

    def take(self, entry: Entry) -> Iterator[Violation]:
        self._at = entry["at"]
        if entry["what"] != "verdict":
            return
        self._verdicts += 1
        for kind, count in entry["kinds"].items():
            rule = "P4" if kind.startswith(("reject.", "partition.")) else "P1"
            example = next((each for each in entry["examples"] if each.startswith(f"{kind}:")), "")
            yield Violation(rule, entry["at"], f"{count} x {kind}; {example}")
        for what in ("windows", "sessions", "devices", "rejects"):
            if not entry["compared"].get(what):
                yield Violation("observed", entry["at"], f"the oracle compared no {what}")
        for sentence in entry.get("contract", ()):
            yield Violation("contract", entry["at"], sentence)

    def end(self) -> Iterator[Violation]:
        if not self._verdicts:
            yield Violation("observed", self._at, "the oracle gave no verdict")


class GoesBack:
    """P2, per key, and for progress. Redis may lose data from `redis_lost` to the end of the fault around it."""

    def __init__(self) -> None:
        self._last: dict[str, Hash] = {}
        self._term = (-1, -1)
        self._progress: Entry | None = None
        self._running = 0
        self._losing = False

    def take(self, entry: Entry) -> Iterator[Violation]:
        what = entry["what"]
        if what == "fault":
            self._running += 1 if entry["phase"] == "begin" else -1
            if self._losing and not self._running:
                self._forget()
        elif what == "redis_lost":
            self._forget()
            self._losing = self._running > 0
        elif what == "rebuild":
            self._progress = None
        elif self._losing:
            return
        elif what == "progress":
            yield from self._take_progress(entry)
        elif what == "value":
            key, now = entry["key"], entry["hash"]
            before = self._last.get(key)
            if now is None:
                if before is not None:
                    yield Violation("P2", entry["at"], f"{key} is gone, it was {before}")
                    del self._last[key]
                return
            if before is not None:
                for why in _back(key, before, now):
                    yield Violation("P2", entry["at"], f"{key}: {why}; it was {before} and is {now}")
            self._last[key] = now

    def end(self) -> Iterator[Violation]:
        yield from ()

    def _forget(self) -> None:
        self._last.clear()
        self._term, self._progress, self._losing = (-1, -1), None, False

    def _take_progress(self, entry: Entry) -> Iterator[Violation]:
        term = entry["epoch"], entry["batch"]
        if term < self._term:
            yield Violation("P2", entry["at"], f"progress is at (epoch, batch) {term} after {self._term}")
        before = self._progress
        if before is not None:
            if entry["batch"] < before["batch"]:
                yield Violation("P2", entry["at"], f"progress is at batch {term[1]} after {before['batch']}")
            if entry["watermark"] < before["watermark"]:
                text = f"the watermark is {entry['watermark']} after {before['watermark']}"
                yield Violation("P2", entry["at"], text)
            for partition, offset in before["offsets"].items():
                if entry["offsets"].get(partition, 0) < offset:
                    text = f"progress is at offset {entry['offsets'].get(partition)} of [{partition}] after {offset}"
                    yield Violation("P2", entry["at"], text)
        self._term, self._progress = max(term, self._term), entry


def _back(key: str, before: Hash, now: Hash) -> Iterator[str]:
    kind = key.split(":")[1]
    if _term(now) < _term(before):
        yield f"(epoch, batch) is {_term(now)} after {_term(before)}"
    rising = {"window": "count", "device": "last_seen"}.get(kind)
    # A view's other length would be another window; the lengths do not change within a run.
    if rising and _integer(now, rising) < _integer(before, rising):
        yield f"{rising} falls"
    sealed = before.get("final") == "1" if kind == "window" else before.get("state") == "closed"
    if sealed:
        changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        changed = [name for name in changed if name not in _SAID]
        if changed:
            yield f"it was {'final' if kind == 'window' else 'closed'} and changes: {', '.join(changed)}"


class Torn:
    """P3: a hash that no single write can have made."""

    def take(self, entry: Entry) -> Iterator[Violation]:
        if entry["what"] != "value" or entry["hash"] is None:
            return
        key, found = entry["key"], entry["hash"]
        kind = key.split(":")[1]
        check = {"window": _window, "session": _session, "device": _device}[kind]
        try:
            whys = list(check(key, found))
        except (KeyError, ValueError) as problem:
            whys = [f"a field is missing or no number: {problem!r}"]
        for why in whys:
            yield Violation("P3", entry["at"], f"{key}: {why}; it is {found}")

    def end(self) -> Iterator[Violation]:
        yield from ()


def _window(key: str, found: Hash) -> Iterator[str]:
    yield from _missing(found, _WINDOW)
    start, end, count, first, last = (int(found[name]) for name in ("start", "end", "count", "first", "last"))
    total, mean, low, high, deviation = (float(found[name]) for name in ("sum", "mean", "min", "max", "stddev"))
    slack = SLACK * max(abs(low), abs(high))
    if str(start) != key.rpartition(":")[2]:
        yield "start is not that of its key"
    if count < 1 or not start <= first <= last < end:
        yield "start <= first <= last < end does not hold, or count < 1"
    if abs(total - mean * count) > slack * count + SLACK * abs(total):
        yield "sum is not mean * count"
    if not low - slack <= mean <= high + slack:
        yield "min <= mean <= max does not hold"
    if not 0 <= deviation <= (high - low) / 2 * (1 + 1e-6) + slack:
        yield "stddev is not within 0 and half of max - min"
    if count == 1 and first != last:
        yield "one reading cannot be at two times"


def _session(key: str, found: Hash) -> Iterator[str]:
    yield from _missing(found, _SESSION)
    start, last, count, duration = (int(found[name]) for name in ("start", "last", "count", "duration"))
    if str(start) != key.rpartition(":")[2]:
        yield "start is not that of its key"
    if count < 1 or duration != last - start or duration < 0:
        yield "duration is not last - start, or count < 1"
    reasons = {"open": {""}, "closed": {"gap", "max_duration"}, "merged": {"merged"}}
    if found["reason"] not in reasons.get(found["state"], ()):
        yield f"state {found['state']} does not go with the reason {found['reason']!r}"
    if (found["state"] == "merged") != bool(found.get("merged_into")):
        yield "merged_into does not go with the state"
    for name in [name.removesuffix(".count") for name in found if name.endswith(".count")]:
        readings = int(found[f"{name}.count"])
        if readings > count:
            yield f"{name}.count is more than count"
        if readings:
            low, mean, high = (float(found[f"{name}.{each}"]) for each in ("min", "mean", "max"))
            slack = SLACK * max(abs(low), abs(high))
            if not low - slack <= mean <= high + slack:
                yield f"{name}: min <= mean <= max does not hold"


def _device(_key: str, found: Hash) -> Iterator[str]:
    yield from _missing(found, _DEVICE)
    if (found["status"] == "online") != bool(found["session"]) or found["status"] not in {"online", "offline"}:
        yield "status does not go with session"
    if found["session"] and int(found["session"]) > int(found["last_seen"]):
        yield "last_seen is before its session's start"
    for name in [name.removesuffix(".at") for name in found if name.endswith(".at")]:
        if math.isnan(float(found[name])) or int(found[f"{name}.at"]) > int(found["last_seen"]):
            yield f"{name}.at is after last_seen"


def _missing(found: Hash, names: Iterable[str]) -> Iterator[str]:
    lacking = [name for name in names if name not in found]
    if lacking:
        yield f"it lacks {', '.join(lacking)}"


class OneWriter:
    """P5: the feed is in the order of Redis's writes, so terms in it may only grow."""

    def __init__(self) -> None:
        self._term = (-1, -1)
        self._epoch = -1

    def take(self, entry: Entry) -> Iterator[Violation]:
        if entry["what"] == "epoch":
            if entry["epoch"] < self._epoch:
                yield Violation("P5", entry["at"], f"the epoch is {entry['epoch']} after {self._epoch}")
            self._epoch = max(self._epoch, entry["epoch"])
        elif entry["what"] == "feed":
            for epoch, batch, entries in entry["spans"]:
                if epoch < self._term[0]:
                    text = f"{entries} writes of epoch {epoch}, batch {batch} after one of {self._term}"
                    yield Violation("P5", entry["at"], f"overlapping epochs: {text}")
                elif (epoch, batch) < self._term:
                    text = f"{entries} writes of batch {batch} after one of batch {self._term[1]}, epoch {epoch}"
                    yield Violation("P5", entry["at"], text)
                self._term = max(self._term, (epoch, batch))

    def end(self) -> Iterator[Violation]:
        yield from ()


class Loss:
    """P7: all gaps together are all losses that were counted."""

    def __init__(self) -> None:
        self._sums = {"gap": 0, "lost": 0}
        self._at = 0

    def take(self, entry: Entry) -> Iterator[Violation]:
        self._at = entry["at"]
        if entry["what"] in self._sums:
            self._sums[entry["what"]] += entry["records"]
        yield from ()

    def end(self) -> Iterator[Violation]:
        if self._sums["gap"] != self._sums["lost"]:
            text = f"{self._sums['gap']} records cannot be read any more, {self._sums['lost']} were counted as lost"
            yield Violation("P7", self._at, text)


@dataclass
class Fault:
    """One that P8 judges; the lag is only back with a newer batch, after a restart of the driver with a newer epoch."""

    name: str
    ended_at: int
    epoch: int
    batch: int
    back_at: int | None = None
    is_late: bool = False


class Recovers:
    """P8, for every fault after which there was no other for a minute and the load went on.

    Back is a lag that two triggers bring, with batches going on. The trigger is the mean one before the first fault, at
    least a second: on a small machine that others use, too, a shorter one is no measure. `faults` are those after which
    the lag came back, `is_open` says that one is being waited for.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.trigger_s: float | None = None
        self._rates: dict[int, float] = {}
        self._running = 0
        self._first: Entry | None = None
        self._term = (-1, -1)
        self._newest: Entry | None = None
        self._open: Fault | None = None

    @property
    def is_open(self) -> bool:
        """Whether the lag is not yet back after a fault."""
        return self._open is not None

    def take(self, entry: Entry) -> Iterator[Violation]:
        what, at = entry["what"], entry["at"]
        if what == "load":
            yield from self._take_load(entry)
        elif what == "progress":
            self._term = entry["epoch"], entry["batch"]
            if self._rates:
                self._first, self._newest = self._first or entry, entry
        elif what == "fault" and entry["phase"] == "begin":
            yield from self._judge(at)
            self._open = None
            self._running += 1
            self._measure()
        elif what == "fault":
            self._running -= 1
            if not self._running and self._rates:
                epoch, batch = self._term
                self._open = Fault(entry["name"], at, epoch + 1, 0) if entry.get("restarts") else None
                self._open = self._open or Fault(entry["name"], at, epoch, batch + 1)
        elif what == "lag" and self._open is not None:
            if self._term >= (self._open.epoch, self._open.batch) and entry["records"] <= self.limit:
                self._open.back_at = at
                self.faults.append(self._open)
            yield from self._judge(at)
            if self._open is not None and self._open.back_at is not None:
                self._open = None

    def end(self) -> Iterator[Violation]:
        if self._open is not None:
            text = f"the history ends before the lag is back after {self._open.name!r}"
            yield Violation("P8", self._open.ended_at, text)

    @property
    def limit(self) -> float:
        """Records that two triggers bring at the present rate."""
        return 2 * max(self.trigger_s or 1.0, 1.0) * sum(self._rates.values())

    def _take_load(self, entry: Entry) -> Iterator[Violation]:
        if entry["phase"] == "begin":
            self._rates[entry["id"]] = entry["rate"]
            return
        if self._open is not None and len(self._rates) == 1:
            text = f"the load ended before the lag was back after {self._open.name!r}"
            yield Violation("P8", entry["at"], text)
            self._open = None
        self._rates.pop(entry["id"], None)

    def _measure(self) -> None:
        first, last = self._first, self._newest
        if self.trigger_s is None and first is not None and last is not None and last["batch"] > first["batch"]:
            self.trigger_s = round((last["at"] - first["at"]) / 1000 / (last["batch"] - first["batch"]), 3)

    def _judge(self, at: int) -> Iterator[Violation]:
        """The open fault, when it has been open for too long; it stays open for the figures."""
        fault = self._open
        if fault is not None and at - fault.ended_at > BACK_S * 1000 and not fault.is_late:
            fault.is_late = True
            text = f"{(at - fault.ended_at) / 1000:.0f} s after {fault.name!r} the lag is not under {self.limit:.0f} records"
            yield Violation("P8", at, text)


class Observed:
    """Something was there to be judged."""

    LEAST = 20

    def __init__(self) -> None:
        self._seen = dict.fromkeys(("progress", "value", "feed", "lag", "metrics"), 0)
        self._at = 0

    def take(self, entry: Entry) -> Iterator[Violation]:
        self._at = entry["at"]
        if entry["what"] in self._seen:
            self._seen[entry["what"]] += 1
        yield from ()

    def end(self) -> Iterator[Violation]:
        for what, count in self._seen.items():
            if count < self.LEAST:
                yield Violation("observed", self._at, f"{count} entries of {what!r}: too few to judge by")


def _term(found: Hash) -> tuple[int, int]:
    return _integer(found, "epoch"), _integer(found, "batch")


def _integer(found: Hash, name: str) -> int:
    text = found.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() else -1
