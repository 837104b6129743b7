"""The steps of a walk, as Hypothesis' rule-based state machine: a failure shrinks, and prints its script.

    add        a batch of readings: in order, out of order, late, ahead of the broker's time, poisoned, twice, in arrays
    lag        the same, of partitions that are not read to their end
    replay     the same, after attempts that died half-way
    change     the same, after a restart with another session gap, other views, another length, filter and other statistics of a
               view, with or without removal of duplicates
    fill       the past of views that are new is computed
    again      rejects are sent again, some with another time, and go through admission as new records
    silence    the clock goes on and nothing comes
    swap       another reference: sites, session gaps and intervals of devices' own
    trouble    another process takes over; a writer of an earlier epoch goes on; stored state is damaged; Redis loses its epoch
               or its progress

A walk with rejects that were sent again ends with a new checkpoint: it reads all records from the first one on, with settings
that admit what was out of range.

After each step Redis and the rejects are compared with load/walks/plain.py, and with what was there before the step.
"""

# ruff: noqa: S101 - these are the steps of a test

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from load.judge.calendars import Calendar
from load.judge.expected import ENDLESS_MS, View
from load.judge.statistics import ALL, DEFAULT, ORDERED
from load.walks import plain
from load.walks.plain import Plain, Reading, RecordPlace, Rules
from load.walks.world import (
    COMPUTED,
    HALF_WRITTEN,
    LEFT,
    METERS,
    PREFIX,
    PUBLISHED,
    STORED,
    WRITER,
    WRITTEN,
    World,
    differences,
)
from schemas import contract

BASE_MS = 1_792_879_140_000
"""2026-10-24, 21:59 UTC, a minute before a day begins in ZONES: it has 25 hours in the first, and 24 in the second."""
ZONES = ("Europe/Rome", "Africa/Johannesburg")
DEVICES = ("a", "ü b*", "北:|50%")
GAPS_MS = (5_000, 10_000, 15_000, 30_000)
EDGES_MS = sorted({0, *(sign * (gap + by) for gap in (*GAPS_MS, 20_000) for by in (-1, 0, 1) for sign in (1, -1))})
VALUES: tuple[tuple[float | None, float | None], ...] = ((20.0, None), (21.5, 40.25), (None, 41.0), (-0.25, 0.0))


class Record(NamedTuple):
    """A record of a step. Its time is `by_ms` from now (`near` = 0), from one of the latest three readings of its device (1 to
    3), or from half-way between the latest two (4). In the topic with arrays one with `is_element` is in an array, in that of the
    record before it if there is one."""

    device: str
    near: int
    by_ms: int
    partition: int
    values: tuple[float | None, float | None]
    behind_ms: int
    poison: str
    times: int
    is_element: bool


STATISTICS = (
    DEFAULT,
    ("count", "mean", "last"),
    (*DEFAULT, "rate", "p95"),
    ("count", "last", "first_value", "delta", "median", "distinct"),
    ALL,
    ("count", "last", "sum", "p99", "distinct", "increase", "integral"),
)
"""Those of one view, by choice."""


def views(choice: int) -> tuple[View, ...]:
    """A view that never changes, and others: one gets another length under its name, one other statistics, one another filter.

    Some are roll-ups, one of them of the view that gets another filter. One by device and one by site carry readings, and now and
    then they fill windows without one. Windows of some are settled before they are final. Two have the days of their keys' zones.
    One without windows comes, goes, and has other statistics and measures.
    """
    steps = (10_000, 5_000, 20_000)[choice % 3]
    lead = (30_000, 0, 25_000, 10_000, 20_000, 0)[choice]
    more = [
        View(
            "slide",
            ("device",),
            20_000,
            (10_000, 20_000)[choice // 4],
            plain.MEASURES,
            STATISTICS[choice],
            lead_ms=lead,
        ),
        View("length", ("device",), steps, steps, ("t",), lead_ms=25_000),
        View(f"site_{choice % 2}", ("site",), (10_000, 30_000)[choice % 2], 10_000, ("t",) if choice < 3 else ("h",)),
        View("both", ("site", "device"), 15_000, 15_000, ("h",)),
    ]
    total = tuple(name for name in STATISTICS[choice] if name not in ORDERED)
    carrying = (*ORDERED, "count", "last")
    carry = View(
        "carry", ("device",), 10_000, 10_000, ("t",), carrying, carry_ms=25_000, lead_ms=lead, fills=choice % 3 < 2
    )
    plant = View("plant", ("site",), 10_000, 10_000, ("t",), carrying, carry_ms=15_000, fills=choice % 2 == 0)
    ever = View("ever", ("device",), ENDLESS_MS, ENDLESS_MS, plain.MEASURES[: 1 + choice // 3], total)
    without = (ever,) if choice % 3 != 1 else ()
    warm = View("warm", ("device",), 10_000, 10_000, ("t",), where=("t > 20", "h is null or device <> 'a'")[choice % 2])
    of_all = STATISTICS[choice]
    whole = View("all", (), 10_000, 10_000, plain.MEASURES, of_all, lead_ms=lead)
    half = View("half", (), 30_000, 30_000, ("t",), of_all, source=whole)
    most = tuple(name for name in ("count", "last", "mean", "max", "integral") if name in of_all)
    minute = View("minute", (), 60_000, 60_000, ("t",), most, source=half)
    warmer = View("warmer", ("device",), 20_000, 20_000, ("t",), where=warm.where, source=warm)
    rolled = (half, minute, warmer) if choice % 3 else (half, warmer)
    days = View("days", ("site",), 0, 0, ("h",), lead_ms=lead, calendar=Calendar(1, "d", ""), zone_column="site")
    zoned = replace(
        carry,
        name="zoned",
        by=("device", "site"),
        window_ms=0,
        step_ms=0,
        calendar=days.calendar,
        zone_column=days.zone_column,
    )
    without = (*without, days) if choice % 4 < 3 else without
    return (whole, warm, *rolled, carry, zoned, plant, *more[: 2 + choice // 2], *without)


records = st.lists(
    st.builds(
        Record,
        st.sampled_from(DEVICES),
        st.integers(0, 4),
        st.sampled_from(EDGES_MS),
        st.integers(0, 2),
        st.sampled_from(VALUES),
        st.sampled_from((0, 0, 0, 20_000, 60_000)),
        st.sampled_from(("", "", "", "", "", "late", "undecodable", "out_of_range")),
        st.sampled_from((1, 1, 1, 2)),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
pauses = st.sampled_from((0, 0, 1_000, 5_000, 10_000, 20_000, 40_000))
chances = st.integers(0, 7)
deaths = st.lists(
    st.tuples(st.sampled_from((COMPUTED, HALF_WRITTEN, WRITTEN, STORED, LEFT, PUBLISHED)), st.booleans()),
    min_size=1,
    max_size=2,
)
own = st.fixed_dictionaries(
    {
        "site": st.sampled_from((None, "north", "s|t%", *ZONES)),
        "gap": st.sampled_from((None, None, "5000", "30000", "999000")),
        "interval": st.sampled_from((None, "3000", "12000")),
    }
)


class Walk(RuleBasedStateMachine):
    """One walk; `client` and `url` belong to a Redis of its own. `walks` and `steps` count runs that shrink an example, too."""

    client: ClassVar[Any]
    url: ClassVar[str]
    folder: ClassVar[Path]
    count: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.count["walks"] += 1
        self.world = World(self.client, self.url, Rules(10_000, views(0), {}, "v0"), self.folder)
        self.plain = Plain()
        self.now_ms, self.changed_ms, self.silent_since_ms = BASE_MS, 0, -1
        self.events = {device: [BASE_MS] for device in DEVICES}
        self.offsets: Counter[int] = Counter()
        self.backlog: list[Reading] = []
        self.sent = 0
        self.before: dict[str, dict[str, str]] = {}
        self.batches: list[tuple[list[Reading], set[int]]] = []
        self.originals: dict[RecordPlace, bool] = {}

    @initialize(holds=st.booleans())
    def begin(self, holds: bool) -> None:
        """In half of the walks open values wait."""
        self.world.holds = holds

    @rule(sent=records, pass_ms=pauses, chance=chances)
    def add(self, sent: list[Record], pass_ms: int, chance: int) -> None:
        """A batch of all that there is."""
        self._batch(sent, pass_ms, chance)

    @rule(sent=records, pass_ms=pauses, limits=st.tuples(*[st.sampled_from((0, 1, 99))] * 3), chance=chances)
    def lag(self, sent: list[Record], pass_ms: int, limits: tuple[int, ...], chance: int) -> None:
        """A batch of at most so many records of each partition."""
        self._batch(sent, pass_ms, chance, limits=limits)

    @rule(sent=records, pass_ms=pauses, dies=deaths, chance=chances)
    def replay(self, sent: list[Record], pass_ms: int, dies: list[tuple[str, bool]], chance: int) -> None:
        """A batch whose first attempts die at such points; the next one is made by the same process or by another."""
        self._batch(sent, pass_ms, chance, dies=dies)

    @rule(sent=records, pass_ms=pauses, gap_ms=st.sampled_from(GAPS_MS), choice=st.integers(0, 5), chance=chances)
    def change(self, sent: list[Record], pass_ms: int, gap_ms: int, choice: int, chance: int) -> None:
        """A restart with another session gap and other views. All devices have a reading in the batch after it, which by an
        odd `chance` has died before, with the old settings: then it keeps the old views, and the next one has the others."""
        self.changed_ms = max(self.now_ms, self.changed_ms + 1)  # another time than before: no duplicates
        self.backlog += [
            self._reading(device, self.changed_ms, self.now_ms, self._place(0), VALUES[0]) for device in DEVICES
        ]
        settings = {"gap_ms": gap_ms, "views": views(choice), "distinct": choice in {1, 2, 5}}
        self._batch(sent, pass_ms, chance, dies=[(COMPUTED, True)] * (chance % 2), settings=settings)

    def _batch(
        self,
        sent: list[Record],
        pass_ms: int,
        chance: int,
        *,
        limits: tuple[int, ...] = (),
        dies: Sequence[tuple[str, bool]] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.now_ms += pass_ms
        self.backlog += self._arriving(sent)
        readings = self._read(limits)
        unread = {each.partition for each in self.backlog}
        if not readings:
            return
        self.silent_since_ms = -1
        random = Random(chance)
        if dies:
            self.plain.begin(self.world.rules.views)
        for point, is_same_process in dies:
            assert self.world.attempt(readings, unread, random, point) is None
            note(f"  died when it was {point}, {'goes on' if is_same_process else 'another process follows'}")
            self._watch()
            if not is_same_process:
                self.stop()
        if settings is not None:
            self._configure(**settings)
            self.stop()
        outcome = self.world.attempt(readings, unread, random)
        assert outcome is not None
        assert outcome.admitted + sum(outcome.rejected) == len(readings), f"{len(readings)} readings, {outcome}"
        assert outcome.records == len({(each.partition, each.offset) for each in readings}), outcome
        self.plain.batch(readings, unread, self.world.rules)
        self.batches.append((readings, unread))
        assert (outcome.refused_final, outcome.refused_old) == (0, self.plain.refused), outcome
        assert (self.world.time.watermark_ms, self.world.time.newest_ms) == (
            self.plain.watermark_ms,
            self.plain.newest_ms,
        )

    @rule(pass_ms=pauses, is_mended=st.booleans(), chance=chances)
    def again(self, pass_ms: int, is_mended: bool, chance: int) -> None:
        """A reject is sent again, mended if it `is_mended`: then its time is now. Else it may be late by then."""
        rejects = [each for readings, _ in self.batches for each in readings if self._may_be_sent_again(each)]
        self.now_ms += pass_ms
        for each in Random(chance).sample(rejects, min(2, len(rejects))):
            self.originals[each.place] = self.plain.rejects[each.place] in {"late", "behind"}
            is_counted = self.originals[each.place] or each.is_counted  # a copy has the headers of the original
            partition, offset, index = self._place(each.partition)
            at_ms = self.now_ms if is_mended else each.event_ms
            poison = "late" if at_ms < self.now_ms - plain.MAX_DELAY_MS else ""
            copy = replace(each, event_ms=at_ms, broker_ms=self.now_ms, offset=offset, index=index, poison=poison)
            self.backlog.append(replace(copy, is_counted=is_counted))
            note(f"  {each.place} is sent again as {partition}@{offset} at {(at_ms - BASE_MS) / 1000} s: {poison}")
        self._batch([], 0, chance)

    def _may_be_sent_again(self, reading: Reading) -> bool:
        reason = self.plain.rejects.get(reading.place)
        return reason in {"late", "behind", "out_of_range"} and reading.place not in self.originals

    @rule(ms=st.sampled_from((1_000, 12_000, 20_000, 30_000, 600_000)))
    def silence(self, ms: int) -> None:
        """Nothing comes. It counts from the first look that finds nothing, if no record is left to read."""
        if self.silent_since_ms < 0:
            self.silent_since_ms = self.now_ms
        note(f"  silent for {ms} ms")
        from_ms, self.now_ms = self.now_ms, self.now_ms + ms
        self.world.be_silent(from_ms, self.now_ms, has_read_all=not self.backlog)
        line_ms = self.now_ms - plain.IDLE_AFTER_MS
        if not self.backlog and line_ms >= self.silent_since_ms and line_ms > self.plain.watermark_ms:
            self.plain.silence(line_ms, self.world.rules)

    @rule(reference=st.dictionaries(st.sampled_from(DEVICES), own))
    def swap(self, reference: dict[str, dict[str, str | None]]) -> None:
        """Another snapshot serves from the next batch on."""
        self._configure(reference=reference, version=f"v{int(self.world.rules.version[1:]) + 1}")

    @rule()
    def fill(self) -> None:
        """The past of views that are new is computed from what was admitted."""
        self.world.fill(self.plain.all_admitted)
        self.plain.fill(self.world.rules)

    def stop(self) -> None:
        """Another process takes over."""
        self.world.restart()
        self.plain.restart()
        self.silent_since_ms = -1
        note(f"  epoch {self.world.epoch}")

    @rule(what=st.sampled_from(("stop", "frozen", "damaged", "epoch", "progress")), chance=st.integers(0, 1_000))
    def trouble(self, what: str, chance: int) -> None:
        """Another process takes over; writers of earlier epochs go on; stored state is damaged; Redis loses a key."""
        if what == "stop":
            self.stop()
        elif what == "frozen":
            self.world.wake()
        elif what == "damaged" and self.world.entries.states:
            self.world.damage(Random(chance))
        elif what == "epoch" or (what == "progress" and self.world.after):
            self.world.lose(what)

    @invariant()
    def is_as_plain(self) -> None:
        """P1, P2, P4: all values and rejects are those of plain lists, none went back, each reading is in one session."""
        self.count["steps"] += 1
        hashes = self._watch()
        if self.world.holds:
            self.plain.tell_again(
                {name for name, each in hashes.items() if self._has_attributes(each)}, self.world.rules
            )
        lines = differences(hashes, self.plain.there)
        assert not lines, "\n".join(lines)
        assert self.world.rejects == self.plain.rejects
        there, left = self.world.outlet.counts, self.plain.left
        wrong = {place for place in there.keys() | left.keys() if there.get(place) != left.get(place)}
        lines = [f"outlet: {place}: {there.get(place)}, not {left.get(place)}" for place in sorted(wrong)]
        assert not lines, "\n".join(lines)
        assert not self.world.outlet.twice
        counts: Counter[str] = Counter()
        for key, fields in hashes.items():
            if key.startswith("session:") and fields["state"] != "merged":
                counts[key.removeprefix("session:").rpartition(":")[0]] += int(fields["count"])
        assert counts == self.plain.admitted or self.plain.waiting
        assert self.plain.admitted.total() + len(self.plain.rejects) == self.sent - len(self.backlog)

    def _has_attributes(self, fields: Mapping[str, str]) -> bool:
        return fields.get("reference") == self.world.rules.version

    def teardown(self) -> None:
        """The contract holds."""
        self.world.close()
        assert contract.check(self.client, PREFIX) == []
        if self.originals:
            self._read_again()

    def _read_again(self) -> None:
        """A new checkpoint has each record once, whichever of its two places today's settings admit."""
        note("  a new checkpoint reads everything, nothing is out of range")
        holds = self.world.holds
        self.world, self.plain, self.before = World(self.client, self.url, self.world.rules, self.folder), Plain(), {}
        self.world.holds = holds
        for readings, unread in self.batches:
            now = [
                replace(
                    each,
                    poison="" if each.poison == "out_of_range" else each.poison,
                    is_replaced=self.originals.get(each.place),
                )
                for each in readings
            ]
            assert self.world.attempt(now, unread, Random(len(now))) is not None
            self.plain.batch(now, unread, self.world.rules)
        self.world.close()
        lines = differences(self._watch(), self.plain.there)
        assert not lines, "\n".join(lines)
        assert self.world.rejects == self.plain.rejects

    def _watch(self) -> dict[str, dict[str, str]]:
        """Return the content of Redis. Fails if a value has gone back since the last look."""
        hashes = self.world.read()
        for key, was in self.before.items():
            now = hashes.get(key)
            if "complete_from" in was and (now is None or was["complete_from"] != now.get("complete_from")):
                continue  # its view has ended, or its past is computed
            assert now is not None, f"{key} is gone"
            if was.get("closed_by") == "watermark":
                assert not differences({key: now}, {key: {n: was[n] for n in was.keys() - WRITER}}), key
            for name in ("revision", "last_seen", *(("count",) if key.startswith("window") else ())):
                assert int(was.get(name, 0)) <= int(now.get(name, 0)), f"{key}: {name} went back"
            if was.get("closed_by") in {"idle", "settled"} and any(
                was.get(n) != now.get(n) for n in ("count", "last", "merged_into")
            ):
                assert int(now["revision"]) == int(was["revision"]) + 1, f"{key}: changed, and no revision says so"
        self.before = hashes
        return hashes

    def _configure(self, **fields: Any) -> None:
        self.world.configure(replace(self.world.rules, **fields))
        note(f"  {fields}")

    def _arriving(self, sent: Sequence[Record]) -> list[Reading]:
        arriving: list[Reading] = []
        for record in sent:
            is_element = record.is_element and record.partition == METERS
            array = _array(arriving) if is_element else None
            broker_ms = array.broker_ms if array else self.now_ms - record.behind_ms
            at_ms = self._event_ms(record, broker_ms)
            for _ in range(record.times):
                place = self._place(record.partition, _array(arriving), is_element=is_element)
                arriving.append(self._reading(record.device, at_ms, broker_ms, place, record.values, record.poison))
        return arriving

    def _event_ms(self, record: Record, broker_ms: int) -> int:
        newest = self.events[record.device]
        near = (self.now_ms, *reversed(newest))[record.near % 4 % (len(newest) + 1)]
        if record.near == 4:
            near = sum(newest[-2:]) // len(newest[-2:])
        at_ms = min(max(near + record.by_ms, broker_ms - plain.MAX_DELAY_MS), broker_ms + plain.MAX_AHEAD_MS)
        if not record.poison:
            self.events[record.device] = sorted({*newest, at_ms})[-3:]
        return at_ms

    def _place(self, partition: int, array: Reading | None = None, *, is_element: bool = False) -> RecordPlace:
        """The next place in a partition: for an element, behind the last reading of an array."""
        self.sent += 1
        if is_element and array is not None and array.index is not None:
            return partition, array.offset, array.index + 1
        offset = self.offsets[partition]
        self.offsets[partition] += 1
        return partition, offset, 0 if is_element else None

    def _reading(
        self, device: str, at_ms: int, broker_ms: int, place: RecordPlace, values: tuple[Any, ...], poison: str = ""
    ) -> Reading:
        partition, offset, index = place
        if partition == METERS:  # its input has one measure
            values = (None, next((value for value in reversed(values) if value is not None), None))
        content = poison or ", ".join(f"{name} {value}" for name, value in zip(plain.MEASURES, values, strict=True))
        at, broker = ((ms - BASE_MS) / 1000 for ms in (at_ms, broker_ms))
        number = "" if index is None else f"#{index}"
        note(f"  {partition}@{offset}{number}: {device!r} at {at} s, in Kafka at {broker} s: {content}")
        of = dict(zip(plain.MEASURES, values, strict=True))
        return Reading(device, at_ms, broker_ms, partition, offset, of, poison, index)

    def _read(self, limits: tuple[int, ...]) -> list[Reading]:
        """The readings of the records of the next batch; the others stay."""
        offsets: dict[int, dict[int, None]] = {}
        for each in self.backlog:
            offsets.setdefault(each.partition, {})[each.offset] = None
        chosen = {number: set([*of][: limits[number]] if limits else of) for number, of in offsets.items()}
        read = [each for each in self.backlog if each.offset in chosen[each.partition]]
        self.backlog = [each for each in self.backlog if each not in read]
        note(f"  reads {len(read)}, leaves {len(self.backlog)}")
        return read


def _array(arriving: Sequence[Reading]) -> Reading | None:
    """The last reading that arrives, if it is an element of an array."""
    return arriving[-1] if arriving and arriving[-1].index is not None else None
