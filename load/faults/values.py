"""P2 and P3: what a reader may see in one key, look after look. The contract is schemas/redis.md."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from load.faults.history import Entry
from load.faults.rules import Violation
from schemas import contract

Hash = Mapping[str, str]

SLACK = 1e-9
_WRITER = ("epoch", "batch", "updated")
_WINDOW = ("start", "end", "count", "sum", "mean", "min", "max", "stddev", "first", "last", *_WRITER)
_SESSION = ("start", "last", "count", "duration", "state", "reason", "closed_by", "revision", *_WRITER)
_DEVICE = ("status", "last_seen", "session", "reference", *_WRITER)


class GoesBack:
    """P2, per key, and for progress. Redis may lose data from `redis_lost` to the end of the fault around it."""

    def __init__(self) -> None:
        self._last: dict[str, Hash] = {}
        self._term = (-1, -1)
        self._progress: Entry | None = None
        self._running = 0
        self._losing = False
        self._rebuilt = False

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
            self._rebuilt = True
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
                for why in _back(key, before, now, entry["closing"]):
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
        if before is not None and entry["final"] < before["final"]:
            yield Violation("P2", entry["at"], f"windows were final up to {before['final']}, now to {entry['final']}")
        if before is not None and self._rebuilt and entry["epoch"] > before["epoch"]:
            self._rebuilt = False  # the first batch of a new checkpoint
        elif before is not None:
            if entry["batch"] < before["batch"]:
                yield Violation("P2", entry["at"], f"progress is at batch {term[1]} after {before['batch']}")
            if entry["watermark"] < before["watermark"]:
                text = f"the watermark is {entry['watermark']} after {before['watermark']}"
                yield Violation("P2", entry["at"], text)
            for partition, offset in before["offsets"].items():
                if entry["offsets"].get(partition, 0) < offset:
                    text = f"progress is at offset {entry['offsets'].get(partition)} of {partition} after {offset}"
                    yield Violation("P2", entry["at"], text)
        self._term, self._progress = max(term, self._term), entry


def _back(key: str, before: Hash, now: Hash, closing: Hash) -> Iterator[str]:
    kind = _kind(key)
    if _term(now) < _term(before):
        yield f"(epoch, batch) is {_term(now)} after {_term(before)}"
    rising = {"window": "count", "device": "last_seen"}.get(kind)
    # A view's other length would be another window; the lengths do not change within a run.
    if rising and _integer(now, rising) < _integer(before, rising):
        yield f"{rising} falls"
    if _integer(now, "revision") < _integer(before, "revision"):
        yield "revision falls"
    view = key.partition(":window:")[2].partition(":")[0]
    closed_by = contract.closed_by(before, closing, view) if kind == "window" else before.get("closed_by")
    if not closed_by:
        return
    changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    changed = [name for name in changed if name not in _WRITER]
    # A window that lacks the readings of before its view is replaced by one that has them.
    if kind == "window" and "complete_from" in before and "revision" in changed:
        return
    # What silence has closed may be corrected, and says so by its revision; the watermark may pass it later.
    if closed_by in {"idle", "settled"} and (changed == ["closed_by"] or "revision" in changed):
        return
    if changed:
        yield f"it was closed by {closed_by} and changes: {', '.join(changed)}"


class Torn:
    """P3: a hash that no single write can have made."""

    def take(self, entry: Entry) -> Iterator[Violation]:
        if entry["what"] != "value" or entry["hash"] is None:
            return
        key, fields = entry["key"], entry["hash"]
        kind = _kind(key)
        check = {"window": _window, "session": _session, "device": _device}[kind]
        try:
            whys = list(check(key, fields))
        except (KeyError, ValueError) as problem:
            whys = [f"a field is missing or no number: {problem!r}"]
        for why in whys:
            yield Violation("P3", entry["at"], f"{key}: {why}; it is {fields}")

    def end(self) -> Iterator[Violation]:
        yield from ()


def _window(key: str, fields: Hash) -> Iterator[str]:
    yield from _missing(fields, _WINDOW)
    start, end, count, first, last = (int(fields[name]) for name in ("start", "end", "count", "first", "last"))
    total, mean, low, high, deviation = (float(fields[name]) for name in ("sum", "mean", "min", "max", "stddev"))
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


def _session(key: str, fields: Hash) -> Iterator[str]:
    yield from _missing(fields, _SESSION)
    start, last, count, duration = (int(fields[name]) for name in ("start", "last", "count", "duration"))
    if str(start) != key.rpartition(":")[2]:
        yield "start is not that of its key"
    if count < 1 or duration != last - start or duration < 0:
        yield "duration is not last - start, or count < 1"
    reasons = {"open": {""}, "closed": {"gap", "max_duration"}, "merged": {"merged"}}
    if fields["reason"] not in reasons.get(fields["state"], ()):
        yield f"state {fields['state']} does not go with the reason {fields['reason']!r}"
    if (fields["state"] == "closed") != (fields["closed_by"] in {"watermark", "idle"}):
        yield "closed_by does not go with the state"
    if (fields["state"] == "merged") != bool(fields.get("merged_into")):
        yield "merged_into does not go with the state"
    for name in [name.removesuffix(".count") for name in fields if name.endswith(".count")]:
        readings = int(fields[f"{name}.count"])
        if readings > count:
            yield f"{name}.count is more than count"
        if readings:
            low, mean, high = (float(fields[f"{name}.{each}"]) for each in ("min", "mean", "max"))
            slack = SLACK * max(abs(low), abs(high))
            if not low - slack <= mean <= high + slack:
                yield f"{name}: min <= mean <= max does not hold"


def _device(_key: str, fields: Hash) -> Iterator[str]:
    yield from _missing(fields, _DEVICE)
    if fields["status"] not in ({"online", "quiet"} if fields["session"] else {"offline"}):
        yield "status does not go with session"
    if fields["session"] and int(fields["session"]) > int(fields["last_seen"]):
        yield "last_seen is before its session's start"
    for name in [name.removesuffix(".at") for name in fields if name.endswith(".at") and name != "early.at"]:
        if math.isnan(float(fields[name])) or int(fields[f"{name}.at"]) > int(fields["last_seen"]):
            yield f"{name}.at is after last_seen"


def _missing(fields: Hash, names: Iterable[str]) -> Iterator[str]:
    lacking = [name for name in names if name not in fields]
    if lacking:
        yield f"it lacks {', '.join(lacking)}"


def _kind(key: str) -> str:
    """Of a key in one shard or in one of several."""
    match = re.match(r"(\{.*?\}|[^:]*):(\w+)", key)
    return match[2] if match else ""


def _term(fields: Hash) -> tuple[int, int]:
    return _integer(fields, "epoch"), _integer(fields, "batch")


def _integer(fields: Hash, name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() else -1
