"""The values that an application reads. Times are event times in milliseconds since 1970, UTC, where nothing else is said."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from tidemark_client import times
from tidemark_client.calendars import Calendar, Calendars
from tidemark_client.errors import ContractError, UnknownViewError
from tidemark_client.names import KeyOf, Place, key_text

CONTRACT = 3
"""The version of the contract, schemas/redis.md of Tidemark, that this package reads."""

STATISTICS = ("count", "sum", "mean", "min", "max", "stddev", "first", "last")
"""The statistics of a view whose settings name none, and of every view of a service whose meta does not name them."""

SESSION_STATISTICS = ("count", "mean", "min", "max")
"""The statistics that the measures of all sessions have."""

ENDLESS_MS = 1 << 42
"""The length of the one window of a view without windows."""

Fields = Mapping[str, str]


@dataclass(frozen=True)
class View:
    """A named set of windows. `by` are its columns; none means one window over all devices.

    A view without windows has one, from 0 to ENDLESS_MS, for each key: all readings since the view began.
    """

    name: str
    by: tuple[str, ...]
    measures: tuple[str, ...]
    window_ms: int
    slide_ms: int
    retain_ms: int
    statistics: tuple[str, ...] = STATISTICS
    """The statistics of its windows. Those that began before a change of the settings may lack one."""
    stored_as: str = ""
    """The name of its version, which keys in Redis have; it changes when a new version of the view takes its place."""
    complete_from: int | None = None
    """Windows that begin before it lack readings, or are not there; None if none does."""
    calendar: Calendar | None = None
    """The days, weeks, months or years that its windows are; None if all are as long. With one, `window_ms` is the length of the
    longest window, and every start is a multiple of `slide_ms`."""
    per_ms: int = 1_000
    """The time to which `rate`, `increase_rate`, `integral` and `linear_integral` refer, such as an hour: kWh of kW."""
    wraps_at: float | None = None
    """The value at which its counters begin again at 0; None if a step down counts from 0."""
    carry_for_ms: int | None = None
    """How long a reading holds at most, also in the windows behind it; None if a window has its own readings only."""
    update_every_ms: int = 0
    """How much older than progress an open window may be. A final one never is."""
    final_after_ms: int | None = None
    """How far behind the broker's time a reading may be to be in a window when that is settled; None if windows leave when no
    reading can change them any more."""

    calendars: Calendars | None = None
    """The days, weeks, months or years in the time zone of each key; `of_key` has the `calendar` of one."""
    source: str | None = None
    """The view of whose closed windows its windows are put together, None if they are of readings. An open window lacks the
    readings of that view's open windows."""

    @property
    def stored(self) -> str:
        """The view's name in keys and in the places of the change feed."""
        return self.stored_as or self.name

    @property
    def endless(self) -> bool:
        """Whether it is a view without windows."""
        return self.window_ms == ENDLESS_MS

    @property
    def window(self) -> timedelta:
        """`window_ms` as a timedelta."""
        return times.to_timedelta(self.window_ms)

    @property
    def slide(self) -> timedelta:
        """`slide_ms` as a timedelta."""
        return times.to_timedelta(self.slide_ms)

    @property
    def retain(self) -> timedelta:
        """`retain_ms` as a timedelta."""
        return times.to_timedelta(self.retain_ms)

    def of_key(self, key: str) -> View:
        """The view as its windows of one key are, which may follow the time zone of that key."""
        if self.calendars is None:
            return self
        name = key.split("|")[self.by.index(self.calendars.time_zone_column)]
        return replace(self, calendar=self.calendars.of(name))

    def starts(self, at: int) -> list[int]:
        """Starts of all windows that contain a time, the newest first."""
        if self.calendar is not None:
            return [self.calendar.start(at)]
        newest = at // self.slide_ms * self.slide_ms
        return [newest - back * self.slide_ms for back in range(self.window_ms // self.slide_ms)]

    def between(self, since: int, until: int, most: int | None = None) -> Sequence[int]:
        """Starts of all windows that end after `since` and start by `until`, the oldest first.

        Of a view with a calendar, the first `most` and one more: each of them is computed.
        """
        if self.calendar is None:
            return range(self.starts(since)[-1], until + 1, self.slide_ms)
        starts: list[int] = []
        start = self.calendar.start(since)
        while start <= until and (most is None or len(starts) <= most):
            starts.append(start)
            start = self.calendar.end(start)
        return starts

    def backwards(self, at: int) -> Iterator[int]:
        """Starts from that of the newest window that contains a time back, without an end."""
        start = self.starts(at)[0]
        while True:
            yield start
            start = start - self.slide_ms if self.calendar is None else self.calendar.start(start - 1)

    def end(self, start: int) -> int:
        """The end of the window that begins at a time."""
        return start + self.window_ms if self.calendar is None else self.calendar.end(start)

    def last_closed(self, until: int) -> int:
        """The latest time at which a window may start that ends by `until`."""
        if self.calendar is not None:
            return self.calendar.start(self.calendar.start(until) - 1)
        return until - self.window_ms

    @property
    def step_ms(self) -> int:
        """The distance between the starts of two windows, of a calendar about the least one."""
        calendar = self.calendar if self.calendars is None else self.calendars.of("UTC")
        return self.slide_ms if calendar is None else calendar.shortest_ms

    def key(self, key: KeyOf) -> str:
        """The text of a key. Raises KeyTextError."""
        return key_text(self.name, self.by, key)

    def measure(self, name: str | None) -> str:
        """The measure of that name, or the only one. Raises UnknownViewError."""
        if name is None and len(self.measures) == 1:
            return self.measures[0]
        if name is None or name not in self.measures:
            asked = "no measure was given" if name is None else f"{name!r} is none of them"
            raise UnknownViewError(f"view {self.name!r} has the measures {', '.join(self.measures)}; {asked}")
        return name


@dataclass(frozen=True)
class Meta:
    """What the service says of itself. `shards` is the number of stores that its values are spread over."""

    measures: tuple[str, ...]
    views: Mapping[str, View]
    session_gap_ms: int
    session_max_duration_ms: int
    session_retain_ms: int
    shards: int = 1
    tzdata: str = ""
    """The version of the time zones' rules that windows of days and months follow, such as 2026f; "" without such windows."""
    measure_status: bool = False
    """Whether each measure of a device has a status of its own."""
    devices_update_every_ms: int = 0
    """How much older than progress a device or its open session may be, as long as its status and session stay the same."""
    session_statistics: tuple[str, ...] = SESSION_STATISTICS
    """The statistics of the measures of sessions. Those beside SESSION_STATISTICS are of `session_measures`."""
    session_measures: tuple[str, ...] = ()
    """The measures that have statistics of order in sessions."""
    session_per_ms: int = 1_000
    """The time to which `increase_rate`, `integral` and `linear_integral` of sessions refer."""
    session_wraps_at: float | None = None
    """The value at which counters in sessions begin again at 0; None if a step down counts from 0."""

    @staticmethod
    @lru_cache(maxsize=16)
    def of(text: str, key: str) -> Meta:
        """The meta that a key has. Raises ContractError. Each query of windows asks for it, with one text."""
        try:
            document = json.loads(text)
            contract, sessions = document["contract"], document.get("sessions")
            if contract == CONTRACT:
                gap_ms, longest_ms, retain_ms = (sessions[name] for name in ("gap_ms", "max_duration_ms", "retain_ms"))
                # A version that is not complete yet has the name of the one that serves.
                views = {
                    view.name: view for each in document["views"] if not each.get("next") for view in [_view(each)]
                }
                shards = range(1, document.get("shards", 1) + 1)[-1]  # raises unless it is a whole number from 1
                tzdata = str(document.get("tzdata", ""))
                measures, by_measure = tuple(document["measures"]), bool(sessions.get("measure_status"))
                own = by_measure, int(sessions.get("update_every_ms", 0))
                order = tuple(sessions.get("statistics", SESSION_STATISTICS)), tuple(sessions.get("measures", ()))
                units = int(sessions.get("per_ms", 1_000)), sessions.get("wraps_at")
                return Meta(measures, views, gap_ms, longest_ms, retain_ms, shards, tzdata, *own, *order, *units)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            msg = f"{key} is not what a service of Tidemark writes: {error!r}. Is the prefix the service's?"
            raise ContractError(msg) from error
        msg = (
            f"{key} is of contract {contract}, this package reads {CONTRACT}. "
            "Install the tidemark-client of the service's version"
        )
        raise ContractError(msg)

    def view(self, name: str) -> View:
        """Raises UnknownViewError."""
        if name not in self.views:
            raise UnknownViewError(f"the service has no view {name!r}; its views are {', '.join(self.views) or 'none'}")
        return self.views[name]


def _view(document: Mapping[str, Any]) -> View:
    window_ms, slide_ms, retain_ms = (document[name] for name in ("window_ms", "slide_ms", "retain_ms"))
    by, measures = tuple(document["by"]), tuple(document["measures"])
    statistics = tuple(document.get("statistics", STATISTICS))
    name, complete_from = document["name"], document.get("complete_from")
    shown = document.get("of", name)
    calendar = Calendar(**document["calendar"]) if "calendar" in document else None
    calendars = Calendars(**document["calendars"]) if "calendars" in document else None
    units = document.get("per_ms", 1_000), document.get("wraps_at")
    times = document.get("carry_for_ms"), int(document.get("update_every_ms", 0)), document.get("final_after_ms")
    more = statistics, name, complete_from, calendar, *units, *times
    source = document["from"].partition("@")[0] if "from" in document else None
    return View(shown, by, measures, window_ms, slide_ms, retain_ms, *more, calendars, source)


@dataclass(frozen=True)
class Written:
    """Who wrote a value: the writer's term and batch, ordered as a pair; `updated` is the writer's clock."""

    epoch: int
    batch: int
    updated: int

    @staticmethod
    def of(fields: Fields) -> Written:
        return Written(int(fields["epoch"]), int(fields["batch"]), int(fields["updated"]))


@lru_cache(maxsize=64)
def _settled(text: str) -> Mapping[str, int]:
    """The event times by which windows are settled, by view; asked for each window, with one text."""
    return {view: int(until) for view, until in json.loads(text).items()}


def closed_by(window: Fields, progress: Fields, view: str) -> str:
    """Why a window is closed, "watermark", "settled" or "idle"; "" while it is open. `progress` was read before the window.

    `view` is the view's name in keys. With "settled" later readings still count, and each makes a revision. If the window was
    read first, a reading could still have come in before the progress that closes it.
    """
    end = int(window["end"])
    if "final" in progress and end <= int(progress["final"]):
        return "watermark"
    if "settled" in progress and end <= _settled(progress["settled"]).get(view, -1):
        return "settled"
    if "idle" not in progress or end > int(progress["idle"]):
        return ""
    # What was written after the silence is open again.
    silence = int(progress["idle_epoch"]), int(progress["idle_batch"])
    return "idle" if (int(window["epoch"]), int(window["batch"])) <= silence else ""


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


@dataclass(frozen=True)
class Window(times.Span):
    """Readings of one measure and key with `start` <= event time < `end`.

    A statistic is None where the window's view does not have it, or did not have it when the window began.

    `final` says that it is closed: it changes no more, except as `closed_by` and `revision` say (docs/application-developer.md).
    Redis does not keep `final` and `closed_by`: they follow from the progress that was read just before the window.
    """

    view: str
    measure: str
    key: str
    start: int
    end: int
    # The statistics are written by `python -m schemas.generated`.
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
    delta: float | None
    rate: float | None
    median: float | None
    p95: float | None
    p99: float | None
    distinct: int | None
    increase: float | None
    increase_rate: float | None
    resets: int | None
    changes: int | None
    longest_gap: float | None
    time_weighted_mean: float | None
    integral: float | None
    linear_mean: float | None
    linear_integral: float | None
    coverage: float | None
    final: bool
    closed_by: str
    revision: int
    written: Written
    complete_from: int | None = None
    """The event time from which a view without windows has all readings. Another window has it only while it lacks readings of
    before its view was added; it is written again with them."""
    local_start: str = ""
    """`start` on the clock of the view's zone, as ISO 8601; "" in a view without one."""
    sketch: str | None = None
    """Of a view with `sketches`: what quantiles of several windows are computed from."""

    @property
    def last_time(self) -> datetime:
        """`last` as a time in UTC."""
        return times.to_datetime(self.last)

    @staticmethod
    def of(place: Place, fields: Fields, progress: Fields) -> Window:
        """`progress` was read before `fields`; it is empty where there is none."""
        cause = closed_by(fields, progress, place.view)
        return Window(
            place.view.partition("@")[0],
            place.measure,
            place.key,
            start=int(fields["start"]),
            end=int(fields["end"]),
            count=int(fields["count"]),
            last=int(fields["last"]),
            final=cause != "",
            closed_by=cause,
            revision=int(fields.get("revision", "0")),
            written=Written.of(fields),
            local_start=fields.get("local_start", ""),
            sketch=fields.get("sketch"),
            **{name: read(fields.get(name)) for name, read in _OPTIONAL},
        )


_READERS: Mapping[str, Callable[[str | None], Any]] = {"float | None": _float, "int | None": _int}
_OPTIONAL = [(each.name, _READERS[str(each.type)]) for each in dataclasses.fields(Window) if each.type in _READERS]
"""The fields of a window that it may lack, with the function that reads each."""


@dataclass(frozen=True)
class Summary:
    """A measure in a session; all others are None where `count` is 0.

    Those behind `max` follow the order of readings. A session has those of `Meta.session_statistics`, and the measures in
    `Meta.session_measures`; of one reading `increase_rate`, `time_weighted_mean` and `coverage` are None.
    """

    count: int
    mean: float | None
    min: float | None
    max: float | None
    increase: float | None = None
    increase_rate: float | None = None
    resets: int | None = None
    changes: int | None = None
    longest_gap: float | None = None
    time_weighted_mean: float | None = None
    integral: float | None = None
    linear_mean: float | None = None
    linear_integral: float | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class Session:
    """Readings of one device without a gap longer than the service's. `duration` is `last` - `start`, in ms."""

    device: str
    start: int
    last: int
    count: int
    duration: int
    state: str
    reason: str
    closed_by: str
    revision: int
    merged_into: int | None
    measures: Mapping[str, Summary]
    written: Written

    @property
    def start_time(self) -> datetime:
        """`start` as a time in UTC."""
        return times.to_datetime(self.start)

    @property
    def last_time(self) -> datetime:
        """`last` as a time in UTC."""
        return times.to_datetime(self.last)

    @property
    def length(self) -> timedelta:
        """`duration` as a timedelta."""
        return times.to_timedelta(self.duration)

    @staticmethod
    def of(place: Place, fields: Fields) -> Session:
        names = [name[: -len(".count")] for name in fields if name.endswith(".count")]
        return Session(
            place.key,
            start=int(fields["start"]),
            last=int(fields["last"]),
            count=int(fields["count"]),
            duration=int(fields["duration"]),
            state=fields["state"],
            reason=fields["reason"],
            closed_by=fields["closed_by"],
            revision=int(fields["revision"]),
            merged_into=_int(fields.get("merged_into")),
            measures={name: _summary(name, fields) for name in names},
            written=Written.of(fields),
        )


def _summary(name: str, fields: Fields) -> Summary:
    parts = {part: read(fields.get(f"{name}.{part}")) for part, read in _OF_SESSION}
    return Summary(int(fields[f"{name}.count"]), **parts)


_OF_SESSION = [
    (each.name, _READERS[str(each.type)]) for each in dataclasses.fields(Summary) if str(each.type) in _READERS
]


@dataclass(frozen=True)
class Reading:
    """A measure's newest value, and its time.

    `status` is the measure's own: "online", "quiet" or "offline"; None where the service does not say it
    (sessions.measure_status).
    """

    value: float
    at: int
    status: str | None = None

    @property
    def time(self) -> datetime:
        """`at` as a time in UTC."""
        return times.to_datetime(self.at)


@dataclass(frozen=True)
class Early:
    """Recent readings that were too early. `at` is the broker's time of the last one, `ahead_ms` how far it was ahead."""

    count: int
    at: int
    ahead_ms: int
    until: int


@dataclass(frozen=True)
class Device:
    """The current state of a device. `session` is the start of the open session.

    `status` is "online", "quiet", "offline", or "never": the device is in the reference and has never sent a reading.
    """

    id: str
    status: str
    last_seen: int
    session: int | None
    reference: str
    attributes: Mapping[str, str]
    latest: Mapping[str, Reading]
    early: Early | None
    skewed: bool
    written: Written

    @property
    def last_seen_time(self) -> datetime | None:
        """`last_seen` as a time in UTC; None where no reading was ever admitted."""
        return times.to_datetime(self.last_seen) if self.last_seen else None

    @staticmethod
    def of(device: str, fields: Fields) -> Device:
        names = [name for name in fields if name != "early" and not name.startswith("ref.") and f"{name}.at" in fields]
        early = [int(fields[name]) for name in ("early", "early.at", "early.ahead", "early.until") if name in fields]
        return Device(
            device,
            status=fields["status"],
            last_seen=int(fields["last_seen"]),
            session=_int(fields["session"] or None),
            reference=fields["reference"],
            attributes={name[len("ref.") :]: text for name, text in fields.items() if name.startswith("ref.")},
            latest={
                name: Reading(float(fields[name]), int(fields[f"{name}.at"]), fields.get(f"{name}.status"))
                for name in names
            },
            early=Early(*early) if early else None,
            skewed=fields.get("skewed") == "1",
            written=Written.of(fields),
        )


@dataclass(frozen=True)
class Progress:
    """What all values include. `offsets` has each topic's next offset by partition.

    Windows that end by `final` are closed by the watermark; it never falls. `idle` is the time up to which a silence of all
    input has closed windows and sessions that were written up to the batch (`idle_epoch`, `idle_batch`). These three stay until
    the watermark has passed `idle`; then they are None. `waiting` open values are older than these offsets, by at most
    `update_every_ms` of their view and the time of a batch. Windows that end by the time that `settled` has of their view, by its
    name in keys, are settled.
    """

    epoch: int
    batch: int
    watermark: int
    final: int
    offsets: Mapping[str, Mapping[int, int]]
    reference: str
    updated: int
    idle: int | None
    idle_epoch: int | None
    idle_batch: int | None
    waiting: int = 0
    settled: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(fields: Fields) -> Progress | None:
        """None where the service has not written its first batch, or has lost it and writes it again."""
        if "offsets" not in fields:
            return None
        offsets = json.loads(fields["offsets"])
        return Progress(
            epoch=int(fields["epoch"]),
            batch=int(fields["batch"]),
            watermark=int(fields["watermark"]),
            final=int(fields["final"]),
            offsets={topic: {int(number): end for number, end in each.items()} for topic, each in offsets.items()},
            reference=fields["reference"],
            updated=int(fields["updated"]),
            idle=_int(fields.get("idle")),
            idle_epoch=_int(fields.get("idle_epoch")),
            idle_batch=_int(fields.get("idle_batch")),
            waiting=int(fields.get("waiting", "0")),
            settled=_settled(fields.get("settled", "{}")),
        )

    @staticmethod
    def of_all(shards: Sequence[Fields]) -> Progress | None:
        """What all shards have; None where one has no progress.

        That is the smallest of each: of (epoch, batch), `watermark`, `final`, `closed_until`, `updated`, (`idle_epoch`,
        `idle_batch`), of each view's `settled`, and of each partition's offsets. `reference` is that of the smallest (epoch,
        batch). So `silent` is as of the smallest batch: it stays true until all shards have the batch that ends the silence.
        """
        found = [each for each in map(Progress.of, shards) if each is not None]
        if len(found) < len(shards) or len(found) == 1:
            return found[0] if len(shards) == 1 and found else None
        oldest = min(found, key=lambda each: (each.epoch, each.batch))
        final, until = min(each.final for each in found), min(each.closed_until for each in found)
        silences = [(each.idle_epoch, each.idle_batch) for each in found if each.idle is not None]
        idles = [each.idle for each in found if each.idle is not None]
        idle = until if until > final else min(idles) if len(idles) == len(found) else None
        idle_epoch, idle_batch = (None, None) if idle is None else min(silences)
        return replace(
            oldest,
            watermark=min(each.watermark for each in found),
            final=final,
            offsets=_smallest([each.offsets for each in found]),
            updated=min(each.updated for each in found),
            idle=idle,
            idle_epoch=idle_epoch,
            idle_batch=idle_batch,
            waiting=max(each.waiting for each in found),
            settled={view: min(each.settled.get(view, final) for each in found) for view in oldest.settled},
        )

    @property
    def closed_until(self) -> int:
        """No window that ends later is closed, but for settled ones. Of those that end after `final`, some may be open again."""
        return self.final if self.idle is None else max(self.final, self.idle)

    def settled_until(self, view: View) -> int:
        """All windows of the view that end by then are closed: they are settled or final."""
        return max(self.final, self.settled.get(view.stored, self.final))

    @property
    def silent(self) -> bool:
        """Whether all input is silent now."""
        return (self.idle_epoch, self.idle_batch) == (self.epoch, self.batch)

    def includes(self, topic: str, partition: int, offset: int) -> bool:
        """Whether a record is in the values, or was rejected."""
        return self.offsets.get(topic, {}).get(partition, 0) > offset


@dataclass(frozen=True)
class Change:
    """An entry of the change feed: `places`, all of one kind, have changed. `id` is what `follow` goes on after.

    An entry of the kind "progress" says that windows have become final: they have no entries of their own.
    """

    id: str
    kind: str
    places: tuple[Place, ...]
    epoch: int
    batch: int


def _smallest(offsets: Sequence[Mapping[str, Mapping[int, int]]]) -> dict[str, dict[int, int]]:
    """Each partition's smallest next offset; a partition that one of them does not have is left out."""
    first, *others = offsets
    return {
        topic: {
            number: min(end, *(each[topic][number] for each in others))
            for number, end in ends.items()
            if all(number in each.get(topic, {}) for each in others)
        }
        for topic, ends in first.items()
    }
