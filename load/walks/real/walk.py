"""The steps of a walk on real parts, drawn from a seed, and what is compared after each.

    send       records: in order, late, behind the watermark, out of range, of an unknown device, from the future, twice
    change     a restart with another range, another `max_delay`
    swap       another reference: a device moves, leaves or comes
    replay     rejects are sent again by `tidemark rejects replay`, with or without --force, some with another time or value
    correct    late readings are added to closed values
    backfill   closed values of a span are computed again
    lose       Redis loses all keys, or those of a shard, or progress, and the service publishes them again
    anew       a new checkpoint with a new prefix and new outlets reads everything once

A step is drawn by the seed, its number and what there is by then. A walk that fails prints its steps, and is made again without
some of them: what is left fails, too.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import isclose
from random import Random
from typing import Any

from load.walks.real import plain
from load.walks.real.parts import PARTITIONS, Parts, Service
from load.walks.real.plain import LATE, Key, Place, Record, Rules, Session, Stream, Value
from service import clock

DEVICES = ("d1", "d2", "d3", "d4")
STRANGER = "d5"
SITES = ("north", "south", "east")
RANGES = ((-50.0, 100.0), (-50.0, 1_000.0), (-50.0, 90.0))
DELAYS_MS = (20_000, 20_000, 6 * 3_600_000)
BEGIN_MS = 100 * plain.MINUTE_MS
"""How far before the clock's time a walk begins: a copy gets the broker's time of now."""

STEPS = ("send", "send", "send", "change", "swap", "replay", "replay", "correct", "backfill", "lose", "anew")
"""Drawn alike."""

FLUSHES = 12
"""Batches of one record, after which the outlets have all that was corrected or backfilled."""


class WrongError(Exception):
    """A value is not what plain lists say."""


@dataclass
class Walk:
    """One walk. `said` has a line for each step; `compared` counts values, `open` those of them of which the docs leave
    something open, `skipped` those with too much of it."""

    parts: Parts
    seed: str
    said: list[str] = field(default_factory=list)
    compared: int = 0
    open: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        chance = Random(self.seed)
        self.rules = Rules(rejects_unknown=chance.random() < 0.4)
        self.sites = {device: chance.choice(SITES[:2]) for device in DEVICES}
        self.time_ms = (clock.now_ms() - BEGIN_MS) // plain.MINUTE_MS * plain.MINUTE_MS
        self.begin_ms = self.time_ms
        self.service = Service(self.parts, shards=chance.choice((1, 2)), rules=self.rules, sites=self.sites)
        self.stream = Stream()
        self.corrected_again = False

    # -- the steps

    def step(self, name: str, number: int) -> None:
        """Make a step and compare. Raises WrongError."""
        chance = Random(f"{self.seed}/{number}/{name}")
        self.said.append(f"{number} {name}")
        getattr(self, f"_{name}")(chance)
        self.compare()

    def end(self) -> None:
        """Have the outlets get everything, and compare."""
        self.said.append("end")
        for _ in range(FLUSHES):
            if not self.service.waits_for_outlet():
                break
            self._put(DEVICES[0], self.time_ms, self.time_ms, 1.0, 0)
            self._take()
        if self.service.waits_for_outlet():
            raise WrongError(f"after {FLUSHES} batches corrected values are still not with the outlets")
        self.compare()

    def _send(self, chance: Random) -> None:
        self.time_ms += chance.choice((5_000, 30_000, 90_000, 200_000, 200_000))
        for _ in range(chance.randint(3, 8)):
            self._draw(chance)
        self._take()

    def _draw(self, chance: Random) -> None:
        kind = chance.choice(
            ("plain",) * 6 + ("late", "late", "behind", "range", "range", "unknown", "early", "ahead", "twice")
        )
        device, partition = chance.choice(DEVICES), chance.randrange(PARTITIONS)
        event_ms = self.time_ms - chance.randrange(10) * 1_000
        broker_ms, value = self.time_ms, float(chance.randrange(-40, 90))
        if kind == "late":
            event_ms -= chance.randrange(30, 600) * 1_000
        elif kind == "behind":
            event_ms -= chance.randrange(26, 200) * 1_000
            broker_ms = event_ms + 10_000
        elif kind == "range":
            value = chance.choice((95.0, 500.0, 700.0, 5_000.0))
            event_ms -= chance.choice((0, 0, 400_000))
        elif kind == "unknown":
            device = STRANGER
        elif kind == "early":
            event_ms = broker_ms + chance.randrange(6, 300) * 1_000
        elif kind == "ahead":
            broker_ms = event_ms = clock.now_ms() + 10 * 3_600_000
        elif kind == "twice" and self.stream.records:
            same = self.stream.records[chance.choice(sorted(self.stream.records))]
            device, event_ms, value = same.device, same.event_ms, same.value
        self._put(device, event_ms, broker_ms, value, partition, kind)

    def _put(
        self, device: str, event_ms: int, broker_ms: int, value: float, partition: int, kind: str = "flush"
    ) -> None:
        self.service.send({"device_id": device, "event_time": event_ms, "temperature": value}, partition, broker_ms)
        times = f"at {self._s(event_ms)}, broker {self._s(broker_ms)}"
        self.said.append(f"    {kind}: {device} {times}, partition {partition}: {value}")

    def _take(self) -> None:
        self._read()
        now_ms = clock.now_ms()
        for ends in self.service.take():
            for each in self.stream.take(self.rules, self.sites, now_ms, ends):
                self.said.append(f"        {each.place} {each.reason or 'admitted'}")
            self.said.append(f"    watermark {self._s(self.stream.watermark_ms)}")

    def _read(self) -> list[Record]:
        """Add the records that are new in the topic."""
        records = []
        for sent in self.service.new_records():
            value = sent.value
            record = Record(
                *sent.place,
                sent.broker_ms,
                value["device_id"],
                value["event_time"],
                value["temperature"],
                is_copy="tidemark-origin" in sent.headers,
                has_counted="tidemark-counted" in sent.headers,
            )
            self.stream.add(record)
            records.append(record)
        return records

    def _change(self, chance: Random) -> None:
        low, high = chance.choice(RANGES)
        self.rules = replace(self.rules, low=low, high=high, max_delay_ms=chance.choice(DELAYS_MS))
        self.service.configure(self.rules)
        self.said.append(f"    {self.rules}")

    def _swap(self, chance: Random) -> None:
        device = chance.choice((*DEVICES, STRANGER))
        site = chance.choice((None, *SITES))
        sites = {name: each for name, each in self.sites.items() if name != device}
        self.sites = sites if site is None or (not sites) else {**sites, device: site}
        if not self.sites:
            self.sites = {device: SITES[0]}
        self.service.refer(self.sites)
        self.said.append(f"    {self.sites}")

    def _replay(self, chance: Random) -> None:
        """A reject that the present checkpoint admits is left out: docs/operator/rejects.md says to replay before a new one."""
        known = self.service.marks()
        open_ = [
            place
            for place, each in sorted(self.stream.records.items())
            if each.reason and each.reason != "ahead" and (place not in known or known[place].state == "open")
        ]
        if not open_:
            return
        chosen = chance.sample(open_, min(len(open_), chance.randint(1, 3)))
        options = ["--force"] if chance.random() < 0.6 else []
        mend = chance.random()
        if mend < 0.2:
            options += ["--set", f"event_time={self.time_ms - chance.randrange(30) * 1_000}"]
        elif mend < 0.4:
            options += ["--set", f"temperature={chance.randrange(80)}.5"]
        takes = chance.random() < 0.7
        if not takes:
            self.service.stop()  # a running query reads the copies at once
        printed = self.service.replay(chosen, *options)
        self.said += [
            f"    replay of {chosen} {' '.join(options)}",
            *(f"        | {line}" for line in printed.splitlines()),
        ]
        new = {each.place: each for each in self._read()}
        after, copies = self.service.marks(), set[Place]()
        for place in chosen:
            mark = after.get(place)
            if mark is None or mark.state != "replayed":
                if "--force" in options:
                    raise WrongError(f"{place} was not sent again by --force: {mark}")
                continue
            if mark.copy is None or mark.copy not in new or not new[mark.copy].is_copy:
                raise WrongError(f"the copy of {place} is not in the topic: {mark}, {new}")
            copies.add(mark.copy)
            self.stream.replay(place, is_counted=self.stream.records[place].reason in LATE)
            self.said.append(f"        {place} is {mark.copy}")
        if copies != new.keys():
            raise WrongError(f"replay has sent {sorted(new)}, the marks have {sorted(copies)}")
        if takes:
            self._take()

    def _correct(self, chance: Random) -> None:
        if not self.stream.watermark_ms:
            return
        before = self.service.marks()
        again = self.corrected_again or chance.random() < 0.2
        number = self.service.correct(again=again)
        after = self.service.marks()
        done = [place for place, each in after.items() if each.state == "corrected"]
        new = [place for place in done if place not in before or before[place].state != "corrected"]
        self.said.append(f"    corrected {sorted(new)}, again: {again}")
        if not again and number != len(new):
            raise WrongError(f"correct says that it has corrected {number} readings, and marks {len(new)}")
        self.stream.recomputed(self.rules)
        wrong = [place for place in new if not self._may_be_corrected(self.stream.records[place])]
        if wrong:
            raise WrongError(f"corrected and should not be: {[self.stream.records[place] for place in wrong]}")
        self.stream.correct(place for place in done if again or place in new)
        left = [each for each in self.stream.records.values() if each.place not in done and self._is_due(each)]
        if left:
            raise WrongError(f"not corrected and should be: {left}")

    def _may_be_corrected(self, record: Record) -> bool:
        end_ms = record.event_ms // plain.MINUTE_MS * plain.MINUTE_MS + 2 * plain.MINUTE_MS
        is_fit = not record.refusal(self.rules, is_known=record.reason != "unknown_device")
        return record.reason in LATE and is_fit and record.replaced is None and end_ms <= self.stream.watermark_ms

    def _is_due(self, record: Record) -> bool:
        """Whether a reading must be corrected: all its windows are closed, and no session of its device is open that could be its
        own, with any late reading."""
        if record.reason not in LATE or not self._may_be_corrected(record):
            return False
        of_device = [each for each in self.stream.records.values() if each.device == record.device]
        times = sorted(each.event_ms for each in of_device if each.reason in {"", *LATE, "replayed", "out_of_range"})
        last = record.event_ms
        for event_ms in times:
            if last < event_ms <= last + plain.GAP_MS:
                last = event_ms
        return last + plain.GAP_MS < self.stream.watermark_ms

    def _backfill(self, chance: Random) -> None:
        if not self.stream.watermark_ms:
            return
        begin = self.begin_ms + chance.choice((-20, 0, 2, 5)) * plain.MINUTE_MS
        end = begin + chance.choice((3, 10, 60)) * plain.MINUTE_MS
        self.said.append(f"    {self._s(begin)} to {self._s(end)}")
        self.service.backfill(begin, end)
        self.stream.recomputed(self.rules)

    def _lose(self, chance: Random) -> None:
        if not self.stream.watermark_ms:
            return
        shard = chance.choice((None, self.service.shards - 1))
        pattern = chance.choice(("*", "*", "progress"))
        self.said.append(f"    {pattern} of shard {'all' if shard is None else shard}")
        self.service.lose(pattern, shard)
        self.stream.recomputed(self.rules)
        self._take()

    def _anew(self, chance: Random) -> None:
        if not self.stream.records:
            return
        self.service.new_checkpoint(self.rules, self.sites)
        self.stream.begin_again()
        self._take()
        self.corrected_again = True

    # -- what is compared

    def compare(self) -> None:
        """Compare Redis, and the outlets if they have everything. Raises WrongError."""
        if not self.stream.watermark_ms:
            return
        wrong = [*self._in_redis()]
        if not self.service.waits_for_outlet():
            self.service.wait_for_outlet()
            wrong += self._in_outlets()
        if wrong:
            raise WrongError("\n".join(sorted(wrong)))

    def _in_redis(self) -> Iterator[str]:
        progress = self.service.progress()
        if int(progress.get("watermark", -1)) != self.stream.watermark_ms:
            yield f"the watermark is {progress.get('watermark')}, not {self.stream.watermark_ms}"
        yield from self.service.problems()
        windows: dict[Key, Value] = {}
        totals: dict[str, Value] = {}
        sessions: dict[str, dict[int, Session]] = {}
        for name, fields in self.service.hashes().items():
            kind, *parts, start = name.split(":")
            if kind == "session":
                if fields["state"] != "merged":
                    count = int(fields["temperature.count"])
                    total = float(fields["temperature.mean"]) * count
                    session = Session(int(fields["last"]), int(fields["count"]), total, fields["state"] == "closed")
                    sessions.setdefault(parts[0], {})[int(start)] = session
                continue
            view, _, key = parts
            value = _value(fields)
            if view == plain.TOTAL:
                totals[key] = value
                continue
            windows[view, key, int(start)] = value
            is_closed = int(start) + plain.length_ms(view) <= self.stream.watermark_ms
            if is_closed != (fields["closed_by"] == "watermark"):
                yield f"Redis: {self._name((view, key, int(start)))} is closed by {fields['closed_by']!r}"
        yield from self._windows("Redis", windows, is_of_closed=False)
        yield from self._sessions("Redis", sessions, is_of_closed=False)
        wanted = self.stream.totals()
        self.compared += len(wanted)
        for device in sorted(wanted.keys() | totals.keys()):
            if not _is_alike(totals.get(device), wanted.get(device)):
                yield f"Redis: {plain.TOTAL} of {device} is {totals.get(device)}, not {wanted.get(device)}"

    def _in_outlets(self) -> Iterator[str]:
        windows = {(row["view"], row["key"], _ms(row["start"])): _value(row) for row in self.service.rows("windows")}
        sessions: dict[str, dict[int, Session]] = {}
        for row in self.service.rows("sessions"):
            if row["state"] != "merged":
                total = float(row["temperature_mean"]) * row["temperature_count"]
                session = Session(_ms(row["last"]), row["count"], total, row["state"] == "closed")
                sessions.setdefault(row["device"], {})[_ms(row["start"])] = session
        yield from self._windows("outlet", windows, is_of_closed=True)
        yield from self._sessions("outlet", sessions, is_of_closed=True)

    def _windows(self, place: str, there: Mapping[Key, Value], *, is_of_closed: bool) -> Iterator[str]:
        right = self.stream.windows()
        for key in sorted(right.keys() | there.keys()):
            records = right.get(key, [])
            is_closed = key[2] + plain.length_ms(key[0]) <= self.stream.watermark_ms
            if is_of_closed and not is_closed:
                if key in there:
                    yield f"{place}: {self._name(key)} is there, and is open"
                continue
            if not self._is_compared(records):
                continue
            allowed = [plain.value(some) if some else None for some in plain.choices(records)]
            if not any(_is_alike(there.get(key), each) for each in allowed):
                yield f"{place}: {self._name(key)} is {there.get(key)}, not {' or '.join(map(str, allowed))}"

    def _sessions(self, place: str, there: Mapping[str, Mapping[int, Session]], *, is_of_closed: bool) -> Iterator[str]:
        right = self.stream.devices()
        for device in sorted(right.keys() | there.keys()):
            records, actual = right.get(device, []), there.get(device, {})
            if not self._is_compared(records):
                continue
            allowed = [self.stream.sessions(some) for some in plain.choices(records)]
            if is_of_closed:
                allowed = [{start: each for start, each in some.items() if each.is_closed} for some in allowed]
            if not any(_are_same(actual, some) for some in allowed):
                yield f"{place}: sessions of {device} are {self._shown(actual)}, not {self._shown(allowed[0])}"

    def _is_compared(self, records: Sequence[Record]) -> bool:
        """Whether the docs leave not too much of a value open; counts it."""
        left_open = plain.open_records(records)
        is_compared = left_open <= plain.MOST_OPEN
        self.compared += is_compared
        self.skipped += not is_compared
        self.open += is_compared and left_open > 0
        return is_compared

    def _name(self, key: Key) -> str:
        return f"{key[0]}:{key[1]} at {self._s(key[2])}"

    def _shown(self, sessions: Mapping[int, Session]) -> str:
        return "; ".join(
            f"{self._s(start)} to {self._s(each.last_ms)}: {each.readings} of {each.total:.1f}"
            f"{' closed' if each.is_closed else ''}"
            for start, each in sorted(sessions.items())
        )

    def _s(self, ms: int) -> str:
        """Seconds since the walk's begin."""
        return f"{(ms - self.begin_ms) / 1000:.0f} s"


def _value(fields: Mapping[str, Any]) -> Value:
    return int(fields["count"]), float(fields["sum"]), float(fields["min"]), float(fields["max"])


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _is_alike(actual: Value | None, wanted: Value | None) -> bool:
    if actual is None or wanted is None:
        return actual is wanted
    return all(isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in zip(actual, wanted, strict=True))


def _are_same(actual: Mapping[int, Session], wanted: Mapping[int, Session]) -> bool:
    return actual.keys() == wanted.keys() and all(
        (*each[:2], each.is_closed) == (*wanted[start][:2], wanted[start].is_closed)
        and isclose(each.total, wanted[start].total, rel_tol=1e-9, abs_tol=1e-6)
        for start, each in actual.items()
    )


def steps_of(seed: str, length: int) -> list[tuple[str, int]]:
    """The steps of a walk, numbered; the first one sends records."""
    chance = Random(f"{seed}/steps")
    return [("send", 0), *((chance.choice(STEPS), number) for number in range(1, length))]


def play(parts: Parts, seed: str, steps: Sequence[tuple[str, int]]) -> tuple[Walk, Exception | None]:
    """Make a walk of these steps. Returns it, and the first difference."""
    walk = Walk(parts, seed)
    try:
        for name, number in steps:
            walk.step(name, number)
        walk.end()
    except Exception as error:  # whatever fails is a failure of the walk
        return walk, error
    finally:
        with suppress(Exception):
            walk.service.close()
    return walk, None


def shrink(parts: Parts, seed: str, steps: Collection[tuple[str, int]]) -> tuple[Walk, Exception | None]:
    """Leave out steps as long as what is left fails. Returns the last walk that fails."""
    left = list(steps)
    walk, error = play(parts, seed, left)
    for each in reversed(list(left)[1:]):
        fewer = [other for other in left if other != each]
        shorter, failure = play(parts, seed, fewer)
        if failure is not None:
            left, walk, error = fewer, shorter, failure
    return walk, error
