"""Propose settings for a sample of records, and say what the sample cannot tell."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations

from service.admission import avro_types, device_ids
from service.proposal import rhythm, roles, times
from service.proposal.columns import NUMBER, Columns, Seen, columns
from service.proposal.rhythm import Rhythm, round_up
from service.proposal.roles import Quantity, Sender
from service.proposal.times import Clock
from service.settings import Admission, Sessions, source
from service.units import format_duration, rough_duration

_MOST_VIEWS = 4
"""Views by columns of the reference: each view costs."""
_USUAL = 0.9
"""The part of a topic's records that have a usual field."""
_LONGEST_SHOWN = 60
"""Characters of a value that is shown."""
_NEXT = 4
"""Other fields that are named where a choice is not sure."""
_DAY_MS, _LONGEST_AHEAD_MS, _LONGEST_GAP_MS = 86_400_000, 600_000, 43_200_000
_READABLE = (avro_types.NUMBERS, {"string", "enum"}, {"boolean"}, avro_types.TIMESTAMPS)
"""Avro types of one field that a setting reads."""
_LACKED = "numbers that the reader's schema lacks"
_DURATION = re.compile(r"\d{1,9}(\.\d{1,3})?\s*(ms|s|m|min|h|d)")
_READINGS = 10
"""Readings of a device that a window has at least, and intervals without a reading that end a session."""


@dataclass(frozen=True, slots=True)
class Table:
    """The reference as text, column by column."""

    columns: Mapping[str, Sequence[str | None]]

    def key(self, ids: Set[str]) -> str | None:
        """Return the column whose values are all different and are most of these ids; None if half of the ids are in none."""
        shares = {
            name: len(ids & set(values)) / max(1, len(ids))
            for name, values in self.columns.items()
            if None not in values and len(set(values)) == len(values)
        }
        best = max(shares, key=lambda name: shares[name], default=None)
        return best if best is not None and shares[best] >= 0.5 else None

    def limits(self) -> list[str]:
        """Return the settings of a device's own limits that have a column of their name with durations, such as "30 s"."""
        return [name for name in ("session_gap", "expected_interval") if self._is_duration(name)]

    def _is_duration(self, name: str) -> bool:
        present = [value for value in self.columns.get(name, ()) if value is not None]
        return bool(present) and all(_DURATION.fullmatch(value) for value in present)


@dataclass
class Proposal:
    """Proposed settings. `doubts` are choices that may be wrong, `open` are settings that somebody must give.

    `device` and `clock` are the first of `devices` and `clocks`, None without any. Durations are None where the default serves.
    """

    columns: Columns
    devices: Sequence[Sender]
    clocks: Sequence[Clock]
    measures: Sequence[Quantity] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    has_types: bool = False
    """Whether a schema has the types of the fields: the records are Avro."""
    rhythm: Rhythm = field(default_factory=lambda: Rhythm(0, 0, 0, is_enough=False))
    window_ms: int = 60_000
    gap_ms: int | None = None
    max_delay_ms: int | None = None
    status_delay_ms: int | None = None
    behind_ms: tuple[int, int] | None = None
    """How far 99 % of the readings, and the last of them, are behind the broker's time; negative for ahead."""
    usual_ms: int | None = None
    """How far 90 % of the readings are behind, where that is much less than the proposed `max_delay`."""
    max_ahead_ms: int | None = None
    reference_key: str | None = None
    categories: Sequence[str] = ()
    more_categories: Sequence[str] = ()
    """Other columns with few values, without a view."""
    limits: Sequence[str] = ()
    """Settings of [reference] that have a column of their name."""
    doubts: dict[str, str] = field(default_factory=dict)
    """By setting, such as `input.device_id`."""
    open: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> Sender | None:
        return self.devices[0] if self.devices and "input.device_id" not in self.open else None

    @property
    def clock(self) -> Clock | None:
        return self.clocks[0] if self.clocks and "input.event_time" not in self.open else None

    @property
    def text_numbers(self) -> bool:
        """Whether `input.text_numbers` is needed: Avro's schema has the types."""
        in_text = any(each.is_text for each in self.measures) or (self.clock is not None and self.clock.is_text)
        return in_text and not self.has_types


def propose(
    sample: Sequence[Seen],
    reference: Table | None = None,
    types: Callable[[Sequence[str]], Collection[str]] | None = None,
) -> Proposal:
    """Return the proposal for a sample. `types` returns the Avro types of a path in the reader's schema, None for JSON."""
    found = columns(sample)
    unreadable = _unreadable(found, types) if types is not None else {}
    for path in unreadable:
        del found.of[path]
    clocks = times.clocks(found, sample)
    known = {value for values in reference.columns.values() for value in values if value} if reference else set()
    paths = {clock.path for clock in clocks}
    made = Proposal(found, roles.senders(found, paths, known), clocks, has_types=types is not None)
    _judge_device(made)
    _judge_clock(made, sample)
    device, clock = made.device, made.clock
    made.measures, left_out = roles.quantities(found, device.path if device else "", paths)
    made.left_out = {**left_out, **unreadable}
    _judge_measures(made)
    if device is not None and clock is not None:
        made.rhythm = rhythm.rhythm(device.values, clock.ms, sample)
        _judge_rhythm(made)
        if "input.event_time" not in made.doubts:
            _judge_delay(made, clock, sample)
    if reference is not None:
        _judge_reference(made, reference)
    _judge_shapes(made, sample)
    return made


def _unreadable(found: Columns, types: Callable[[Sequence[str]], Collection[str]]) -> dict[str, str]:
    """Return the fields that a reader's schema lacks or has with types that no setting reads, and why."""
    reasons = {}
    for path, column in found.of.items():
        names = set(types(column.parts))
        if source.is_word(path) or names & {"record", "map"} or any(names and names <= each for each in _READABLE):
            continue
        absent = _LACKED if column.is_all(NUMBER) else "not in the reader's schema"
        reasons[path] = f"{' or '.join(sorted(names))} in the reader's schema" if names else absent
    return reasons


def _judge_device(made: Proposal) -> None:
    if not made.devices:
        made.open["input.device_id"] = "no field looks like the id of a device"
        return
    best, *others = made.devices
    rivals = [each for each in others if each.score > best.score - roles.AHEAD and not roles.is_same(best, each)]
    reasons = []
    if rivals:
        reasons.append(f"it may also be {', '.join(each.path for each in rivals[:_NEXT])}")
    elif best.score < roles.SURE and best.devices > 1:
        reasons.append("neither its name nor its values say that it is a device")
    if best.devices == 1:
        reasons.append("the sample has one value of it")
    share = made.columns.of[best.path].share
    if share < 1:
        reasons.append(f"{1 - share:.1%} of the records lack it, and are rejected")
    bad = sum(bool(device_ids.problem(str(value))) for value in {*best.values} - {None})
    if quoted := next((text for value in best.values if roles.is_json(text := str(value))), None):
        reasons.append(f"the ids are JSON, and keep their quotes and brackets: {quoted[:_LONGEST_SHOWN]}")
    if bad:
        reasons.append(f"{bad} of {best.devices} ids are too long or have control characters, and are rejected")
    if reasons:
        made.doubts["input.device_id"] = "; ".join(reasons)


def _judge_shapes(made: Proposal, sample: Sequence[Seen]) -> None:
    """Doubt that topics are one input if two of them have less than half of their usual fields in common."""
    rows: dict[str, list[int]] = {}
    for number, seen in enumerate(sample):
        rows.setdefault(seen.partition[0], []).append(number)
    columns = {path: column for path, column in made.columns.of.items() if source.in_record(path)}
    usual = {
        topic: {
            path
            for path, column in columns.items()
            if sum(column.values[number] is not None for number in of_topic) >= _USUAL * len(of_topic)
        }
        for topic, of_topic in rows.items()
    }
    for (one, fields), (other, others) in combinations(usual.items(), 2):
        if len(fields & others) < min(len(fields), len(others)) / 2:
            parts = [
                f"{t} has {', '.join(sorted(p)[:_NEXT])}" for t, p in ((one, fields - others), (other, others - fields))
            ]
            made.doubts["kafka.topics"] = (
                f"the records have different shapes: {', '.join(parts)}. Run init for each topic, and put the sections together "
                "as [[inputs]]"
            )
            return


def _judge_clock(made: Proposal, sample: Sequence[Seen]) -> None:
    if not made.clocks:
        made.clocks = [times.of_kafka(sample)]
        made.doubts["input.event_time"] = (
            "no field has times, so a reading has its record's time in Kafka; a time is ISO 8601 text with a date, or a number "
            "of s, ms, us or ns since 1970"
        )
        return
    best, *others = made.clocks
    reasons = []
    rivals = [each for each in others if each.score > best.score - 1 and not times.is_same(best, each)]
    if rivals:
        reasons.append(f"it may also be {', '.join(each.path for each in rivals[:_NEXT])}")
    missing = sum(at is None for at in best.ms) / max(1, len(best.ms))
    if missing:
        reasons.append(f"{missing:.1%} of the records have no such time there, and are rejected")
    if best.others:
        reasons.append(f"its texts have the pattern {' and '.join(best.others)}, too")
    if best.is_local:
        reasons.append(
            f"it has no zone, is read as UTC and then is {times.lag(best)}: it may be local time, which needs time_zone"
        )
    elif abs(best.lag_ms) > _DAY_MS:
        reasons.append(f"it is {times.lag(best)}: a reading that old is rejected as late, one that new as early")
    if reasons:
        made.doubts["input.event_time"] = "; ".join(reasons)


def _judge_measures(made: Proposal) -> None:
    if not made.measures:
        made.open["input.measures"] = "no field of an object is always a number"
    reasons = []
    column = roles.kinds_of_value(made.columns, made.device, made.measures)
    if column is not None:
        values = ", ".join(sorted(set(map(str, column.present)))[:_NEXT])
        reasons.append(
            f"one device sends values of several kinds: {column.path} is {values}; each is a measure of its own"
        )
        made.measures = roles.of_kinds(made.columns, column, made.measures)
    elif (unread := _unread(made.left_out)) and len(unread) >= len(made.measures):
        reasons.append(f"there are numbers that Tidemark cannot read: {', '.join(unread[:_NEXT])}")
    if lacked := [path for path, why in made.left_out.items() if why == _LACKED]:
        reasons.append(f"the reader's schema lacks numbers that records have: {', '.join(lacked[:_NEXT])}")
    if in_text := [each.path for each in made.measures if each.is_text]:
        reasons.append(f"texts with numbers may be codes: {', '.join(in_text[:_NEXT])}")
    stray = [f"{each.stray} of {each.path}" for each in made.measures if each.stray]
    if stray:
        reasons.append(
            f"records with values that are no numbers, or beyond 1e140, are rejected: {', '.join(stray[:_NEXT])}"
        )
    if reasons:
        made.doubts["input.measures"] = "; ".join(reasons)


def _unread(left_out: Mapping[str, str]) -> list[str]:
    return [path for path, why in left_out.items() if why.startswith(("an array", "also "))]


def _judge_rhythm(made: Proposal) -> None:
    seen = made.rhythm
    if not seen.is_enough:
        made.doubts["sessions.gap"] = (
            f"the sample has {seen.gaps} gaps between readings of one device, too few to tell; -n takes a larger sample"
        )
        return
    gap_ms = min(_LONGEST_GAP_MS, round_up(max(3 * seen.long_ms, _READINGS * seen.median_ms, 10_000)))
    made.gap_ms = gap_ms if gap_ms != Sessions().gap_ms else None
    made.window_ms = round_up(max(60_000, _READINGS * seen.median_ms))


def _judge_delay(made: Proposal, clock: Clock, sample: Sequence[Seen]) -> None:
    lags = sorted(seen.broker_ms - at for seen, at in zip(sample, clock.ms, strict=True) if at is not None)
    behind, ahead = lags[int(0.99 * (len(lags) - 1))], -lags[int(0.01 * (len(lags) - 1))]
    made.behind_ms = behind, lags[-1]
    defaults = Admission()
    if behind > defaults.max_delay_ms / 2:
        made.max_delay_ms = min(_DAY_MS, round_up(2 * behind))
        usual_ms = max(500, lags[int(0.9 * (len(lags) - 1))])
        made.usual_ms = usual_ms if 8 * usual_ms <= made.max_delay_ms else None
    if ahead > defaults.max_ahead_ms / 2:
        made.max_ahead_ms = min(_LONGEST_AHEAD_MS, round_up(2 * ahead))
    if made.usual_ms is not None:  # a clock that is ahead moves the line for all devices
        made.status_delay_ms = round_up(max(10_000, 2 * made.usual_ms)) + (made.max_ahead_ms or 0)
    late = sum(each > (made.max_delay_ms or defaults.max_delay_ms) for each in lags)
    early = sum(-each > (made.max_ahead_ms or defaults.max_ahead_ms) for each in lags)
    if late > 0.01 * len(lags):
        made.doubts["admission.max_delay"] = (
            f"{late} of {len(lags)} readings are further behind, and are rejected as late"
        )
    if early > 0.01 * len(lags):
        made.doubts["admission.max_ahead"] = (
            f"{early} of {len(lags)} readings are further ahead, and are rejected as early"
        )


def _judge_reference(made: Proposal, reference: Table) -> None:
    ids = {str(value) for value in made.device.values if value is not None} if made.device else set()
    made.reference_key = reference.key(ids)
    if made.reference_key is None:
        made.open["reference.key"] = f"no column has the ids of the sample; there are {', '.join(reference.columns)}"
        return
    missing = ids - set(reference.columns[made.reference_key])
    if missing:
        made.doubts["reference.key"] = (
            f"the reference lacks {len(missing)} of {len(ids)} devices: their columns are (none)"
        )
    made.limits = reference.limits()
    columns = {name: values for name, values in reference.columns.items() if name not in made.limits}
    found = list(roles.categories(columns, made.reference_key))
    made.categories, made.more_categories = found[:_MOST_VIEWS], found[_MOST_VIEWS:]


def pace(seen: Rhythm) -> str:
    """Return how often a device sends, for people."""
    if not seen.gaps:
        return "no device has two readings in the sample"
    return f"a device sends every {rough_duration(seen.median_ms)}, 99 % of its gaps are at most {rough_duration(seen.long_ms)}"


def delays(made: Proposal) -> str:
    """Return how late the readings of the sample are, for people."""
    if made.behind_ms is None:
        return ""
    most, last = (rough_duration(max(0, ms)) if ms > 0 else "0 s" for ms in made.behind_ms)
    return f"99 % of the readings are at most {most} behind the broker's time, the latest {last}"


def final_after(made: Proposal) -> str:
    """Return how long after its end a window is final, for people."""
    defaults = Admission()
    delay_ms = made.max_delay_ms or defaults.max_delay_ms
    ahead_ms = made.max_ahead_ms or defaults.max_ahead_ms
    parts = f"max_delay {format_duration(delay_ms)} + max_ahead {format_duration(ahead_ms)}"
    return f"{rough_duration(delay_ms + ahead_ms)} after their end ({parts})"


def settled_after(made: Proposal) -> str:
    """Return what `final_after` would change, for people; "" where many readings are about as late as the latest."""
    if made.usual_ms is None:
        return ""
    after_ms = round_up(2 * made.usual_ms)
    end_ms = after_ms + (made.max_ahead_ms or Admission().max_ahead_ms)
    return (
        f"90 % of the readings are at most {rough_duration(made.usual_ms)} behind: with final_after = "
        f'"{format_duration(after_ms)}" windows leave {rough_duration(end_ms)} after their end, and later readings revise them'
    )


def lines(made: Proposal) -> Iterator[tuple[str, str]]:
    """Yield each setting that is not sure, and why."""
    yield from made.open.items()
    yield from made.doubts.items()
