"""The hashes and sorted sets of Redis, as they are, against what the oracle expects."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from load.judge.expected import ENDLESS_MS, Device, MeasureValue, WindowValue
from load.judge.oracle import Expected
from load.judge.statistics import ALL, ORDERED, tolerance
from load.judge.verdict import Hash, Verdict

RELATIVE = 1e-9
"""Sums, means and deviations may differ by this share of themselves, or of the largest value that went into them."""


def check_hashes(expected: Expected, prefix: str, hashes: Iterable[tuple[str, Hash]], verdict: Verdict) -> None:
    """All window, session and device hashes, by key, in any order; a key that comes twice is looked at once."""
    checks = _Checks(expected, verdict)
    by_kind = {"window": checks.window, "session": checks.session, "device": checks.device}
    for key, actual in hashes:
        kind, _, name = key.removeprefix(f"{prefix}:").partition(":")
        by_kind[kind](key, name, actual)
    checks.finish(prefix)


def check_indexes(expected: Expected, prefix: str, sets: Mapping[str, Mapping[str, float]], verdict: Verdict) -> None:
    """The sorted sets by name: a view's keys by the start of their newest window."""
    right: dict[str, dict[str, float]] = {name: {} for name in sets}
    for place, value in expected.windows.items():
        keys = right[f"{prefix}:keys:{place[0]}"]
        keys[place[2]] = max(value.start, keys.get(place[2], value.start))
    for name, members in right.items():
        kind = name.removeprefix(f"{prefix}:").partition(":")[0]
        for member in sorted(members.keys() | sets[name].keys()):
            if members.get(member) != sets[name].get(member):
                score = f"expected with the score {members.get(member)}, is {sets[name].get(member)}"
                verdict.add(f"{kind}.score", f"{name} {member}: {score}")


def _window_key(prefix: str, place: tuple[object, ...]) -> str:
    return ":".join(map(str, (prefix, "window", *place)))


class _Checks:
    """One method a kind of hash, called with its key, the key's name behind the kind, and the hash."""

    def __init__(self, expected: Expected, verdict: Verdict) -> None:
        self._expected, self._verdict = expected, verdict
        self._windows = bytearray(len(expected.windows))
        self._sessions: set[tuple[str, int]] = set()
        self._devices: set[str] = set()
        self._device_hashes: list[tuple[str, str, Hash]] = []
        self._extra: set[str] = set()
        self._idle: set[tuple[str, int]] = set()
        self._merged: dict[tuple[str, int], tuple[str, Hash]] = {}
        self._starts: dict[str, list[int]] = {}
        for device, start in expected.sessions:
            self._starts.setdefault(device, []).append(start)

    def window(self, key: str, name: str, actual: Hash) -> None:
        view, _, rest = name.partition(":")
        measure, _, rest = rest.partition(":")
        text, _, start = rest.rpartition(":")
        place = (view, measure, text, _integer(start) or 0)
        number = self._expected.windows.number(place)
        if number is None or key.rpartition(":")[2] != str(place[3]):
            self._is_extra("window", key, actual)
            return
        if self._windows[number]:
            return
        self._windows[number] = 1
        right = self._expected.windows[place]
        check = _Fields("window", key, actual, self._verdict)
        for each in ("start", "end"):
            check.integer(each, getattr(right, each))
        _check_statistics(check, right, self._expected.statistics[view])
        if right.local_start:
            check.text("local_start", right.local_start)
        else:
            check.none("local_start")
        if right.end != ENDLESS_MS:
            check.none("complete_from")
        # A reading that came after a silence leaves the others closed by it, and the oracle cannot tell which.
        check.text("closed_by", right.closed_by or ("idle" if actual.get("closed_by") == "idle" else ""))

    def session(self, key: str, name: str, actual: Hash) -> None:
        device, _, text = name.rpartition(":")
        place = (device, _integer(text) or 0)
        right = self._expected.sessions.get(place) if text == str(place[1]) else None
        if right is None and actual.get("state") == "merged":
            self._merged[place] = key, actual
        elif right is None:
            self._is_extra("session", key, actual)
        elif place not in self._sessions:
            self._sessions.add(place)
            check = _Fields("session", key, actual, self._verdict)
            for each in ("start", "last", "count"):
                check.integer(each, getattr(right, each))
            check.integer("duration", right.last - right.start)
            check.none("merged_into")
            closed_by = right.closed_by or ("idle" if actual.get("closed_by") == "idle" else "")
            check.text("closed_by", closed_by)
            check.text("state", "closed" if closed_by else "open")
            if closed_by and not right.closed_by:
                self._idle.add(place)
            else:
                check.text("reason", right.reason)
            for measure, value in right.measures.items():
                _check_measure(check, measure, value)

    def device(self, key: str, name: str, actual: Hash) -> None:
        right = self._expected.devices.get(name)
        if right is None:
            # One that has sent nothing but early readings has a hash that says so, and no more.
            if actual.get("last_seen") != "0" or not _integer(actual.get("early")):
                self._is_extra("device", key, actual)
        elif name not in self._devices:
            self._devices.add(name)
            self._device_hashes.append((key, name, actual))

    def finish(self, prefix: str) -> None:
        """Add the values that never came to the verdict, and the merged sessions that no expected session covers."""
        expected, add = self._expected, self._verdict.add
        for key, name, actual in self._device_hashes:
            right = expected.devices[name]
            if right.session is not None and (name, right.session) in self._idle:
                right = replace(right, status="offline", session=None)
            _check_device(_Fields("device", key, actual, self._verdict), right, expected.measures)
        for number, window in enumerate(expected.windows):
            if not self._windows[number]:
                add("window.missing", f"{_window_key(prefix, window)}, expected {expected.windows[window]}")
        for place in expected.sessions.keys() - self._sessions:
            add("session.missing", f"{prefix}:session:{place[0]}:{place[1]}, expected {expected.sessions[place]}")
        for device in expected.devices.keys() - self._devices:
            add("device.missing", f"{prefix}:device:{device}, expected {expected.devices[device]}")
        for (device, start), (key, actual) in self._merged.items():
            self._verdict.merged += 1
            if not any(expected.sessions[device, s].last >= start > s for s in self._starts.get(device, ())):
                add("session.extra", f"{key}: is merged, and no expected session covers it; is {dict(actual)}")
            merged_into = actual.get("merged_into")
            into = (device, _integer(merged_into))
            if into not in expected.sessions and into not in self._merged:
                add("session.merged_into", f"{key}: merged_into {merged_into} is no session of the device")
        self._verdict.compared |= {
            "windows": len(expected.windows),
            "sessions": len(expected.sessions),
            "devices": len(expected.devices),
        }

    def _is_extra(self, kind: str, key: str, actual: Hash) -> None:
        if key not in self._extra:
            self._extra.add(key)
            self._verdict.add(f"{kind}.extra", f"{key}: no admitted reading gives it; is {dict(actual)}")


def statistics_of(right: WindowValue, chosen: Collection[str]) -> Iterator[tuple[str, float | None, float]]:
    """Yield each statistic, the value that a window has of it, and by how much that may be off besides RELATIVE, 0 for the same
    number. A window has the statistics of its view, and None of the others."""
    error = RELATIVE * max(abs(right.min), abs(right.max))
    errors = {"sum": error * right.count, "mean": error, "stddev": error}
    for name in ALL:
        value = None if name not in chosen else right.others[name] if name in right.others else getattr(right, name)
        yield name, value, errors[name] if name in errors else tolerance(name, value or 0.0)


def _check_statistics(check: "_Fields", right: WindowValue, chosen: Collection[str]) -> None:
    for name, value, error in statistics_of(right, chosen):
        if value is None:
            check.none(name)
        elif name in {"count", "first", "last"}:
            check.integer(name, int(value))
        else:
            check.number(name, value, error)


def _check_measure(check: "_Fields", measure: str, right: MeasureValue) -> None:
    if right.count == 0:
        check.optional_zero(f"{measure}.count")
        for each in ("mean", "min", "max", *ORDERED):
            check.none(f"{measure}.{each}")
        return
    for each in ORDERED:
        if (other := right.others.get(each)) is None:
            check.none(f"{measure}.{each}")
        else:
            check.number(f"{measure}.{each}", other, tolerance(each, other))
    check.integer(f"{measure}.count", right.count)
    check.number(f"{measure}.mean", right.mean, RELATIVE * max(abs(right.min), abs(right.max)))
    check.number(f"{measure}.min", right.min)
    check.number(f"{measure}.max", right.max)


def _check_device(check: "_Fields", right: Device, measures: Collection[str]) -> None:
    check.text("status", right.status)
    check.integer("last_seen", right.last_seen)
    check.text("session", "" if right.session is None else str(right.session))
    for column, attribute in right.attributes.items():
        if attribute is None:
            check.none(f"ref.{column}")
        else:
            check.text(f"ref.{column}", attribute)
    for measure in measures:
        if measure not in right.values:  # no reading of the device has it
            check.none(measure)
            check.none(f"{measure}.at")
            continue
        value, at = right.values[measure]
        check.number(measure, value)
        check.integer(f"{measure}.at", at)
        if right.statuses:
            check.text(f"{measure}.status", right.statuses[measure])
        else:
            check.none(f"{measure}.status")


class _Fields:
    """The fields of one hash against their right values."""

    def __init__(self, kind: str, key: str, actual: Hash, verdict: Verdict) -> None:
        self._kind, self._key, self._actual, self._verdict = kind, key, actual, verdict
        epoch, batch = _integer(actual.get("epoch")), _integer(actual.get("batch"))
        now = verdict.progress["epoch"], verdict.progress["batch"]
        if epoch is None or batch is None or (epoch, batch) > now:
            self._wrong("batch", f"at most epoch and batch {now}, those of progress", f"{epoch}, {batch}")

    def text(self, name: str, right: str) -> None:
        if self._actual.get(name) != right:
            self._wrong(name, repr(right), self._actual.get(name))

    def integer(self, name: str, right: int) -> None:
        if _integer(self._actual.get(name)) != right:
            self._wrong(name, str(right), self._actual.get(name))

    def number(self, name: str, right: float, error: float = 0.0) -> None:
        """`error` is what the number may be off by, besides a share of its own; by default it is the same double."""
        value = _number(self._actual.get(name))
        share = RELATIVE if error else 0.0
        if value is None or not math.isclose(value, right, rel_tol=share, abs_tol=error):
            self._wrong(name, repr(right), self._actual.get(name))

    def none(self, name: str) -> None:
        if self._actual.get(name, "") != "":
            self._wrong(name, "nothing", self._actual[name])

    def optional_zero(self, name: str) -> None:
        if self._actual.get(name, "0") != "0":
            self._wrong(name, "0", self._actual[name])

    def _wrong(self, name: str, right: str, actual: str | None) -> None:
        shown = "not there" if actual is None else repr(actual)
        self._verdict.add(f"{self._kind}.{name}", f"{self._key} {name}: expected {right}, is {shown}")


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.removeprefix("-").isdecimal() else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
