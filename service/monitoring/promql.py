"""The part of PromQL that the alert rules use, evaluated over the samples of this process.

A series has the labels of /metrics. It has no `job` and no `instance`, which Prometheus adds, so grouping by them and matching on
them changes nothing here. Results are those of Prometheus 2.42 for samples of the same times: `rate` and `increase` extrapolate
to the ends of the range as promql/functions.go does. A series that the newest samples lack has no present value.
"""

import itertools
import math
import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from service.monitoring.history import History, Labels, Point

Vector: TypeAlias = dict[Labels, float]

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TOKEN = re.compile(
    r'\s*(?:(?P<number>\d+\.?\d*)|(?P<word>\w+)|(?P<text>"[^"]*")|\[(?P<range>\w+)\]|(?P<sign>[<>=!]=|=~|[*<>=(){},]))'
)
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}
_LEVELS = (("and",), tuple(_COMPARISONS), ("*",))
"""Operators by precedence, the weakest first."""
_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {"sum": math.fsum, "max": max, "min": min}


def seconds(duration: str) -> float:
    """Return a duration of Prometheus, such as `10m`, in seconds; "" is 0. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([smhd])", duration)
    if match is None:
        if duration:
            raise ValueError(f"{duration!r} is no duration")
        return 0.0
    return float(int(match[1]) * _UNITS_S[match[2]])


@dataclass(frozen=True, slots=True)
class Number:
    value: float

    def vector(self, _: History) -> Vector | float:
        return self.value


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric with matchers (label, `=` or `=~`, value); with a range it is an argument of a function."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()
    range_s: float = 0.0

    def vector(self, history: History) -> Vector | float:
        chosen = ((labels, points[-1]) for labels, points in history.series(self.name) if self._has(labels))
        return {labels: value for labels, (at_s, value) in chosen if at_s == history.at_s}

    def points(self, history: History) -> Iterator[tuple[Labels, list[Point]]]:
        """Yield the samples of the range by series."""
        since_s = history.at_s - self.range_s
        for labels, points in history.series(self.name):
            if self._has(labels):
                yield labels, points[bisect_left(points, (since_s, -math.inf)) :]

    def _has(self, labels: Labels) -> bool:
        known = dict(labels)
        return all(
            known.get(label, "") == value if how == "=" else re.fullmatch(value, known.get(label, ""))
            for label, how, value in self.matchers
        )


@dataclass(frozen=True, slots=True)
class OverTime:
    """A function of a range: rate, increase, changes or max_over_time."""

    name: str
    of: Selector

    def vector(self, history: History) -> Vector | float:
        function = _OVER_TIME[self.name]
        values = (
            (labels, function(points, self.of.range_s, history.at_s)) for labels, points in self.of.points(history)
        )
        return {labels: value for labels, value in values if value is not None}


@dataclass(frozen=True, slots=True)
class Quantile:
    share: float
    of: "Expression"

    def vector(self, history: History) -> Vector | float:
        buckets: dict[Labels, dict[float, float]] = {}
        for labels, count in vector(self.of, history).items():
            buckets.setdefault(tuple(pair for pair in labels if pair[0] != "le"), {})[float(dict(labels)["le"])] = count
        return {labels: quantile(self.share, counts) for labels, counts in buckets.items()}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """sum, max or min by labels."""

    name: str
    by: tuple[str, ...]
    of: "Expression"

    def vector(self, history: History) -> Vector | float:
        groups: dict[Labels, list[float]] = {}
        for labels, value in vector(self.of, history).items():
            groups.setdefault(_only(labels, self.by), []).append(value)
        return {labels: _AGGREGATES[self.name](values) for labels, values in groups.items()}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator between two expressions. `on` has the labels that match, None for all."""

    sign: str
    left: "Expression"
    right: "Expression"
    on: tuple[str, ...] | None = None

    def vector(self, history: History) -> Vector | float:
        left, right = self.left.vector(history), self.right.vector(history)
        if self.sign == "and":
            keys = {self._key(labels) for labels in _as_vector(right)}
            return {labels: value for labels, value in _as_vector(left).items() if self._key(labels) in keys}
        if self.sign == "*":
            return {labels: a * b for labels, a, b in self._pairs(left, right)}
        compare = _COMPARISONS[self.sign]
        return {labels: a for labels, a, b in self._pairs(left, right) if compare(a, b)}

    def pairs(self, history: History) -> list[tuple[Labels, float, float]]:
        """Return both sides of each element, whatever the comparison of the two gives."""
        return list(self._pairs(self.left.vector(history), self.right.vector(history)))

    def _pairs(self, left: Vector | float, right: Vector | float) -> Iterator[tuple[Labels, float, float]]:
        if isinstance(left, float):
            yield from ((labels, left, b) for labels, b in _as_vector(right).items())
        elif isinstance(right, float):
            yield from ((labels, a, right) for labels, a in left.items())
        else:
            others = {self._key(labels): b for labels, b in right.items()}
            yield from ((labels, a, others[key]) for labels, a in left.items() if (key := self._key(labels)) in others)

    def _key(self, labels: Labels) -> Labels:
        return labels if self.on is None else _only(labels, self.on)


Expression: TypeAlias = Number | Selector | OverTime | Quantile | Aggregate | Operation


def parse(text: str) -> Expression:
    """Return the expression. Raises ValueError for what this part of PromQL lacks."""
    parser = _Parser(text)
    expression = parser.operation(0)
    if parser.token[1]:
        parser.refuse()
    return expression


def ranges(expression: Expression) -> dict[str, float]:
    """Return how far the expression looks back at each metric, in seconds."""
    match expression:
        case Selector(name=name, range_s=range_s):
            return {name: range_s}
        case OverTime(of=of) | Quantile(of=of) | Aggregate(of=of):
            return ranges(of)
        case Operation(left=left, right=right):
            return longest(ranges(left), ranges(right))
    return {}


def longest(*each: Mapping[str, float]) -> dict[str, float]:
    joined: dict[str, float] = {}
    for name, range_s in (item for some in each for item in some.items()):
        joined[name] = max(range_s, joined.get(name, 0.0))
    return joined


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split(text))
        self._at = 0

    def _split(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise ValueError(f"cannot read {text[at:]!r} of {text!r}")
            yield match.lastgroup, match[match.lastgroup]
            at = match.end()
        yield "end", ""

    @property
    def token(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def refuse(self) -> None:
        raise ValueError(f"did not expect {self.token[1] or 'the end'!r} in {self._text!r}")

    def _next(self, kind: str = "", *words: str) -> str:
        """Return the next token. Raises ValueError if it is of another kind, or none of the words."""
        found, text = self.token
        if (kind and found != kind) or (words and text not in words):
            self.refuse()
        self._at += 1
        return text

    def _take(self, *words: str) -> bool:
        is_next = self.token[1] in words and self.token[0] != "text"
        self._at += is_next
        return is_next

    def operation(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self._operand()
        left = self.operation(level + 1)
        while self.token[1] in _LEVELS[level] and self.token[0] in {"word", "sign"}:
            sign = self._next()
            on = self._labels() if self._take("on") else None
            left = Operation(sign, left, self.operation(level + 1), on)
        return left

    def _operand(self) -> Expression:
        kind, text = self.token
        if kind == "number":
            return Number(float(self._next()))
        if self._take("("):
            inner = self.operation(0)
            self._next("sign", ")")
            return inner
        self._next("word")
        if text in _AGGREGATES:
            return self._aggregate(text)
        if text == "histogram_quantile":
            self._next("sign", "(")
            share = float(self._next("number"))
            self._next("sign", ",")
            return Quantile(share, self._closed(self.operation(0)))
        if text in _OVER_TIME:
            self._next("sign", "(")
            of = self._closed(self.operation(0))
            if not isinstance(of, Selector) or not of.range_s:
                self.refuse()
            return OverTime(text, of)  # type: ignore[arg-type]
        return self._selector(text)

    def _aggregate(self, name: str) -> Expression:
        by = self._labels() if self._take("by") else ()
        self._next("sign", "(")
        of = self._closed(self.operation(0))
        return Aggregate(name, self._labels() if self._take("by") else by, of)

    def _closed(self, inner: Expression) -> Expression:
        self._next("sign", ")")
        return inner

    def _selector(self, name: str) -> Selector:
        matchers = []
        if self._take("{"):
            while not self._take("}"):
                label, how = self._next("word"), self._next("sign", "=", "=~")
                matchers.append((label, how, self._next("text")[1:-1]))
                self._take(",")
        range_s = seconds(self._next("range")) if self.token[0] == "range" else 0.0
        return Selector(name, tuple(matchers), range_s)

    def _labels(self) -> tuple[str, ...]:
        self._next("sign", "(")
        labels = []
        while not self._take(")"):
            labels.append(self._next("word"))
            self._take(",")
        return tuple(labels)


def _increase(points: list[Point], range_s: float, at_s: float) -> float | None:
    """Return the growth of a counter, extrapolated to the range; a counter that fell began again at 0."""
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    (first_s, first), (last_s, last) = points[0], points[-1]
    falls = (before for (_, before), (_, after) in itertools.pairwise(points) if after < before)
    grown = last - first + math.fsum(falls)
    sampled_s = last_s - first_s
    between_s = sampled_s / (len(points) - 1)
    to_start_s, to_end_s = first_s - (at_s - range_s), at_s - last_s
    if grown > 0 and first >= 0:
        to_start_s = min(to_start_s, sampled_s * first / grown)
    to_start_s, to_end_s = (each if each < 1.1 * between_s else between_s / 2 for each in (to_start_s, to_end_s))
    return grown * (sampled_s + to_start_s + to_end_s) / sampled_s


def _rate(points: list[Point], range_s: float, at_s: float) -> float | None:
    grown = _increase(points, range_s, at_s)
    return None if grown is None else grown / range_s


def _changes(points: list[Point], _range_s: float, _at_s: float) -> float | None:
    pairs = itertools.pairwise(points)
    changed = sum(a != b and not (math.isnan(a) and math.isnan(b)) for (_, a), (_, b) in pairs)
    return float(changed) if points else None


def _max(points: list[Point], _range_s: float, _at_s: float) -> float | None:
    values = [value for _, value in points if not math.isnan(value)]
    return max(values, default=math.nan) if points else None


_OVER_TIME: Mapping[str, Callable[[list[Point], float, float], float | None]] = {
    "rate": _rate,
    "increase": _increase,
    "changes": _changes,
    "max_over_time": _max,
}


def quantile(share: float, counts: Mapping[float, float]) -> float:
    """Return the quantile of cumulative counts by upper bound, interpolated inside its bucket; NaN of none."""
    total = max(counts.values(), default=0.0)
    below_bound = below = 0.0
    for bound, count in sorted(counts.items()) if total > 0 else ():
        if count >= share * total:
            if math.isinf(bound):
                return below_bound
            return below_bound + (bound - below_bound) * (share * total - below) / max(count - below, 1e-9)
        below_bound, below = bound, count
    return math.nan


def vector(of: Expression, history: History) -> Vector:
    """Return the elements of an expression; a number is one element without labels."""
    return _as_vector(of.vector(history))


def _as_vector(value: Vector | float) -> Vector:
    return {(): value} if isinstance(value, float) else value


def _only(labels: Labels, names: tuple[str, ...]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)
