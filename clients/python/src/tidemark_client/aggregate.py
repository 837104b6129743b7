"""The statistics of a longer span, merged from those of its windows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable

from tidemark_client.errors import ContractError
from tidemark_client.sketch import Sketch, quantiles, read
from tidemark_client.times import Span
from tidemark_client.values import View, Window

_PERCENTS = (50, 95, 99)


@dataclass(frozen=True)
class Aggregate(Span):
    """Readings of one measure and key in `windows` windows, from the `start` of the first to the `end` of the last.

    A statistic is None where a window lacks what it is computed from: quantiles need a view with `sketches`. Numbers of different
    devices are not merged.
    `final` says that all the windows are.
    """

    view: str
    measure: str
    key: str
    start: int
    end: int
    windows: int
    count: int
    sum: float | None
    mean: float | None
    min: float | None
    max: float | None
    stddev: float | None
    first: int | None
    last: int
    first_value: float | None
    last_value: float | None
    median: float | None
    p95: float | None
    p99: float | None
    final: bool


def apart(windows: Iterable[Window], view: View) -> list[Window]:
    """The windows of which none covers a time twice, counted back from the newest: all but those of a sliding view."""
    chosen: list[Window] = []
    for each in sorted(windows, key=lambda window: -window.start):
        if not chosen or view.calendar is not None or (chosen[0].start - each.start) % view.window_ms == 0:
            chosen.append(each)
    return chosen[::-1]


def merged(windows: list[Window], name: Callable[[int], str]) -> Aggregate | None:
    """The statistics of these windows of one view, measure and key, which are in order and apart; None without one.

    `name` is the key in Redis of the window with a start. Raises ContractError for a sketch that no service writes.
    """
    if not windows:
        return None
    begins, ends, number, is_final = windows[0], windows[-1], len(windows), all(each.final for each in windows)
    windows = [each for each in windows if each.count] or windows  # the others have nothing to merge
    oldest, newest = windows[0], windows[-1]
    count = sum(each.count for each in windows)
    sums = [_sum(each) for each in windows]
    total = None if any(each is None for each in sums) else _added([each for each in sums if each is not None])
    mean = None if total is None or not count else total / count
    least, most = _of(min, [each.min for each in windows]), _of(max, [each.max for each in windows])
    sketches = [_sketch(each.sketch, name(each.start)) for each in windows if each.sketch is not None]
    known = quantiles(sketches, _PERCENTS) if len(sketches) == len(windows) else [None] * len(_PERCENTS)
    # Of a bin the middle is shown, which may be beyond the only value in it.
    median, p95, p99 = (_within(each, least, most) for each in known)
    return Aggregate(
        oldest.view,
        oldest.measure,
        oldest.key,
        start=begins.start,
        end=ends.end,
        windows=number,
        count=count,
        sum=total,
        mean=mean,
        min=least,
        max=most,
        stddev=None if mean is None else _stddev(windows, count, mean),
        first=oldest.first,
        last=newest.last,
        first_value=oldest.first_value,
        last_value=newest.last_value,
        median=median,
        p95=p95,
        p99=p99,
        final=is_final,
    )


def _sketch(text: str, key: str) -> Sketch:
    try:
        return read(text)
    except ValueError as error:
        raise ContractError(f"{key}: field sketch is not what a service of Tidemark writes: {error}") from error


def _within(value: float | None, least: float | None, most: float | None) -> float | None:
    if value is None:
        return None
    value = value if least is None else max(value, least)
    return value if most is None else min(value, most)


def _sum(window: Window) -> float | None:
    if window.sum is not None:
        return window.sum
    return None if window.mean is None else window.mean * window.count


def _of(choose: Callable[[list[float]], float], values: list[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return choose(known) if len(known) == len(values) else None


def _stddev(windows: list[Window], count: int, mean: float) -> float | None:
    """Of the population: the windows' variances, and how far their means are from the mean of all."""
    parts = []
    for each in windows:
        total = _sum(each)
        if each.stddev is None or total is None:
            return None
        distance = total / each.count - mean
        parts.append(each.count * (each.stddev * each.stddev + distance * distance))
    return math.sqrt(_added(parts) / count)


def _added(numbers: list[float]) -> float:
    """The sum; beyond the largest double it is infinite, or NaN, as the service's."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)
