"""The questions: each in SQL, and computed from the oracle's values in plain Python."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from load.judge.expected import WindowValue
from load.judge.oracle import Expected

MEASURE = "temperature"
Row = tuple[Any, ...]
Compute = Callable[[Expected], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Question:
    """`answer` gives the same rows as `sql`, in the same order."""

    name: str
    sql: str
    answer: Compute


def questions(right: Expected, minute: int) -> Sequence[Question]:
    """Return the ten questions; `minute` is a full minute of the readings (ms)."""
    device = min(right.devices)
    at = f"'{iso(minute)}'"
    of_minute = f"view = 'device' and start = {at}"
    some = sorted(right.devices)[:100]
    names = ", ".join(f"'{name}'" for name in some)
    return (
        Question("status", "select status, count(*) from devices group by status order by status", _status),
        Question(
            "sites",
            """select "ref.site", count(*), avg(temperature) from devices group by 1 order by 1 nulls first""",
            _sites,
        ),
        Question(
            "warmest",
            "select device, temperature from devices order by temperature desc nulls last, device limit 10",
            _warmest,
        ),
        Question(
            "one_device",
            f"select start, count, mean, final from windows where view = 'device' and key = '{device}' order by start",
            lambda right: [_line(value) for value in _of(right, "device", lambda key, _: key == device)],
        ),
        Question(
            "all",
            "select start, count, mean, final from windows where view = 'all' order by start",
            lambda right: [_line(value) for value in _of(right, "all")],
        ),
        Question(
            "minute",
            f"select count(*), sum(count)::bigint, avg(mean), max(max) from windows where {of_minute}",
            lambda right: [_summary(_of(right, "device", lambda _, value: value.start == minute))],
        ),
        Question(
            "sliding",
            f"select key, max from windows where view = 'site' and \"end\" = {at} order by max desc, key limit 5",
            lambda right: _highest(right, minute),
        ),
        Question(
            "sessions",
            "select state, count(*), avg(duration) from sessions where state <> 'merged' group by state order by state",
            _sessions,
        ),
        Question(
            "join",
            f"""select "ref.type", count(*) from windows w join devices d on d.device = w.key
            where w.view = 'device' and w.start = {at} and w.mean > 20 group by 1 order by 1 nulls first""",
            lambda right: _types(right, minute),
        ),
        Question(
            "hundred",
            f"select key, count(*), sum(count)::bigint from windows where view = 'device' and key in ({names}) "
            "group by key order by key",
            lambda right: _by_key(right, frozenset(some)),
        ),
    )


def iso(ms: int) -> str:
    """Return a time as an answer has it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _of(
    right: Expected, view: str, chosen: Callable[[str, WindowValue], bool] = lambda _key, _value: True
) -> list[WindowValue]:
    found = [value for place, value in right.windows.items() if place[0] == view and chosen(place[2], value)]
    return sorted(found, key=lambda value: value.start)


def _line(value: WindowValue) -> Row:
    return iso(value.start), value.count, value.mean, value.closed_by != ""


def _summary(windows: Sequence[WindowValue]) -> Row:
    counts, means = [each.count for each in windows], [each.mean for each in windows]
    return len(windows), sum(counts), statistics.fmean(means), max(each.max for each in windows)


def _status(right: Expected) -> list[Row]:
    groups: defaultdict[str, int] = defaultdict(int)
    for device in right.devices.values():
        groups[device.status] += 1
    return sorted(groups.items())


def _sites(right: Expected) -> list[Row]:
    groups: defaultdict[str | None, list[float]] = defaultdict(list)
    sizes: defaultdict[str | None, int] = defaultdict(int)
    for device in right.devices.values():
        site = device.attributes.get("site")
        sizes[site] += 1
        if MEASURE in device.values:
            groups[site].append(device.values[MEASURE][0])
    names = sorted(sizes, key=lambda name: (name is not None, name or ""))
    return [(name, sizes[name], statistics.fmean(groups[name]) if groups[name] else None) for name in names]


def _warmest(right: Expected) -> list[Row]:
    found = [(name, device.values[MEASURE][0]) for name, device in right.devices.items() if MEASURE in device.values]
    return sorted(found, key=lambda each: (-each[1], each[0]))[:10]


def _highest(right: Expected, end: int) -> list[Row]:
    found = [(place[2], value.max) for place, value in right.windows.items() if place[0] == "site" and value.end == end]
    return sorted(found, key=lambda each: (-each[1], each[0]))[:5]


def _sessions(right: Expected) -> list[Row]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for session in right.sessions.values():
        groups[session.state].append(session.last - session.start)
    return [(state, len(groups[state]), statistics.fmean(groups[state])) for state in sorted(groups)]


def _types(right: Expected, minute: int) -> list[Row]:
    groups: defaultdict[str | None, int] = defaultdict(int)
    for place, value in right.windows.items():
        if place[0] == "device" and value.start == minute and value.mean > 20:
            groups[right.devices[place[2]].attributes.get("type")] += 1
    return sorted(groups.items(), key=lambda each: (each[0] is not None, each[0] or ""))


def _by_key(right: Expected, keys: frozenset[str]) -> list[Row]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, value in right.windows.items():
        if place[0] == "device" and place[2] in keys:
            groups[place[2]].append(value.count)
    return [(key, len(groups[key]), sum(groups[key])) for key in sorted(groups)]
