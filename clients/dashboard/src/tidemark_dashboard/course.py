"""The course of the service over the last hour and day: what its /history says, kept over restarts of the service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RINGS = ("hour", "day")
MOST_POINTS = 720
"""Of a ring, twice its length: a service that starts again begins with empty rings."""
MOST_MARKS = 400
REASONS = 5
"""Reasons with a line of their own."""

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Mark:
    """Something that happened; `until_ms` is None for what goes on."""

    kind: str
    text: str
    at_ms: int
    until_ms: int | None


@dataclass(frozen=True)
class Recent:
    """Counts of the time since `since_ms` and since the start of the service, both up to `at_ms`."""

    since_ms: int
    at_ms: int
    p50_s: float | None
    p99_s: float | None
    rejects: Mapping[str, int]
    total: Mapping[str, int]

    @property
    def length_ms(self) -> int:
        return self.at_ms - self.since_ms


@dataclass
class Course:
    """The points of both rings, the oldest first, and the marks."""

    at_ms: int = 0
    every_s: dict[str, int] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    recent: Recent | None = None
    made: dict[str, tuple[int, list[tuple[str, str]]]] = field(default_factory=dict)
    """The plots that were made of it, by ring, and of which time."""

    def add(self, document: Mapping[str, Any]) -> None:
        """Take an answer of /history. Raises LookupError, TypeError and ValueError for another document."""
        columns, at_ms = document["columns"], int(document["at_ms"])
        rings: dict[str, list[Point]] = {
            name: [dict(zip(columns, each, strict=True)) for each in document[name]["points"]] for name in RINGS
        }
        marks = [
            Mark(str(each["kind"]), str(each["text"]), int(each["at_ms"]), each["until_ms"])
            for each in document["marks"]
        ]
        recent, total = document["recent"], document["total"]
        since_ms = int(recent["since_ms"])
        self.recent = Recent(
            since_ms, at_ms, recent["p50_s"], recent["p99_s"], dict(recent["rejects"]), dict(total["rejects"])
        )
        begin_ms = min((each.at_ms for each in marks), default=at_ms)
        for name, points in rings.items():
            self.every_s[name] = int(document[name]["every_s"])
            first_ms = points[0]["at_ms"] if points else at_ms
            former = [each for each in self.points.get(name, ()) if each["at_ms"] < first_ms]
            self.points[name] = [*former, *points][-MOST_POINTS:]
        former_marks = [_ended(each, self.at_ms) for each in self.marks if each.at_ms < begin_ms]
        self.marks = [*former_marks, *marks][-MOST_MARKS:]
        self.at_ms = at_ms

    def span(self, ring: str) -> tuple[int, int]:
        """The begin and the end of a ring's axis, in ms."""
        return self.at_ms - 360_000 * self.every_s.get(ring, 10), self.at_ms

    def seen(self, ring: str) -> list[Mark]:
        """The marks on a ring's axis, the newest first."""
        since, until = self.span(ring)
        return [
            each
            for each in reversed(self.marks)
            if each.at_ms <= until and (each.until_ms is None or each.until_ms >= since)
        ]

    def plot(self, ring: str, names: Sequence[str], unit: str) -> str:
        """The columns of a plot as JSON, with a gap where the service gave no points."""
        return self._json(ring, {name: lambda each, name=name: each[name] for name in names}, unit)

    def rejects(self, ring: str) -> str:
        """The rejects a minute, by the most frequent reasons."""
        since, _ = self.span(ring)
        counts: dict[str, int] = {}
        for each in self.points.get(ring, ()):
            if each["at_ms"] >= since:
                for reason, n in each["rejects"].items():
                    counts[reason] = counts.get(reason, 0) + n
        reasons = sorted(counts, key=lambda reason: (-counts[reason], reason))
        own, others = reasons[:REASONS], set(reasons[REASONS:])
        a_minute = 60 / self.every_s.get(ring, 10)
        values: dict[str, Any] = {
            name: lambda each, name=name: round(a_minute * each["rejects"].get(name, 0), 2) for name in own
        }
        if others:
            values["others"] = lambda each: round(a_minute * sum(each["rejects"].get(name, 0) for name in others), 2)
        return self._json(ring, values or {"none": lambda _: 0}, "a minute")

    def _json(self, ring: str, values: Mapping[str, Any], unit: str) -> str:
        since, until = self.span(ring)
        rows = list(_with_gaps(self.points.get(ring, ()), since, 2500 * self.every_s.get(ring, 10)))
        columns = {name: [None if each is None else value(each) for _, each in rows] for name, value in values.items()}
        marks = [
            [each.kind, each.at_ms / 1000, None if each.until_ms is None else each.until_ms / 1000, each.text]
            for each in self.seen(ring)
        ]
        document = {"t": [at_ms / 1000 for at_ms, _ in rows], "series": columns, "unit": unit, "marks": marks}
        return json.dumps({**document, "axis": [since / 1000, until / 1000]}, allow_nan=False)


def _ended(mark: Mark, at_ms: int) -> Mark:
    """An alert of a process that has gone ended with it, as far as is known."""
    return mark if mark.until_ms is not None else Mark(mark.kind, mark.text, mark.at_ms, at_ms)


def _with_gaps(points: Sequence[Point], since: int, longest_ms: int) -> Iterator[tuple[int, Point | None]]:
    before: int | None = None
    for each in points:
        at_ms = int(each["at_ms"])
        if at_ms < since:
            continue
        if before is not None and at_ms - before > longest_ms:
            yield (before + at_ms) // 2, None
        yield at_ms, each
        before = at_ms
