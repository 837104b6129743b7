"""What Redis and an outlet must hold: plain lists of records, and the decisions about each. No code of the service.

A record has one of three fates in windows and sessions:

    IN      it is in each value that it belongs to, once
    OUT     it is in none
    EITHER  it is in a value or not, each value alone: the docs leave it open, see `Stream.recomputed`

So a value is right if it has all records that are IN, and any of those that are EITHER, and each of these once.
The rules are from docs/guarantees.md, docs/operator/rejects.md, docs/outlets.md and docs/decisions/0029, 0047 and 0051.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

MAX_AHEAD_MS = 5_000
GAP_MS = 120_000
MINUTE_MS = 60_000
NO_SITE = "(none)"

IN, OUT, EITHER = "in", "out", "either"
LATE = ("late", "behind")

MOST_OPEN = 10
"""Records of a value that may be in it or not. With more of them a value is not compared."""

Place = tuple[int, int]
"""Partition and offset."""
Key = tuple[str, str, int]
"""View, key and start of a window."""
Value = tuple[int, float, float, float]
"""Count, sum, minimum and maximum."""


class View(NamedTuple):
    """A view with windows; `by` is "device", "site" or "" for all."""

    name: str
    by: str
    window_ms: int
    step_ms: int


VIEWS = (
    View("device", "device", MINUTE_MS, MINUTE_MS),
    View("site", "site", MINUTE_MS, MINUTE_MS),
    View("all", "", 2 * MINUTE_MS, MINUTE_MS),
)
TOTAL = "total"
"""The view without windows, by device."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that a walk changes."""

    low: float = -50.0
    high: float = 100.0
    max_delay_ms: int = 20_000
    rejects_unknown: bool = False

    @property
    def delay_ms(self) -> int:
        """How far the watermark is behind the newest reading."""
        return self.max_delay_ms + MAX_AHEAD_MS


@dataclass(slots=True)
class Record:
    """A record of the topic. `is_copy` says that a replay has sent it, `has_counted` that its original counts without windows.

    `replaced` is None, or says of an original whether views without windows count it. `reason` is that of the present checkpoint,
    "" for admitted.
    """

    partition: int
    offset: int
    broker_ms: int
    device: str
    event_ms: int
    value: float
    is_copy: bool = False
    has_counted: bool = False
    replaced: bool | None = None
    reason: str | None = None
    site: str | None = None
    is_in_total: bool = False
    is_corrected: bool = False
    fate: str = OUT

    @property
    def place(self) -> Place:
        return self.partition, self.offset

    def refusal(self, rules: Rules, *, is_known: bool) -> str:
        """Why admission rejects it whenever it comes, "" if it does not."""
        if rules.rejects_unknown and not is_known:
            return "unknown_device"
        if not rules.low <= self.value <= rules.high:
            return "out_of_range"
        return "early" if self.event_ms > self.broker_ms + MAX_AHEAD_MS else ""


class Session(NamedTuple):
    """A session: its last reading, how many there are, the sum of their values, and whether the watermark has closed it."""

    last_ms: int
    readings: int
    total: float
    is_closed: bool


class Stream:
    """All records of the topic, as a checkpoint has read them."""

    def __init__(self) -> None:
        self.records: dict[Place, Record] = {}
        self.watermark_ms, self.newest_ms = 0, -1

    def add(self, record: Record) -> None:
        """Add a record that nobody has read yet."""
        self.records[record.place] = record

    def begin_again(self) -> None:
        """A new checkpoint with a new prefix reads all records again, by the settings and the reference of now.

        It keeps the marks: an original that was replaced counts nowhere. What was corrected is in no value until it is corrected
        again, or Redis loses its data: EITHER.
        """
        self.watermark_ms, self.newest_ms = 0, -1
        for each in self.records.values():
            each.reason, each.fate = None, OUT

    def take(self, rules: Rules, sites: Mapping[str, str], now_ms: int, ends: Mapping[int, int]) -> list[Record]:
        """A batch reads the records that are left before these offsets of partitions, at a time of the service's clock.

        Returns them.
        """
        batch = [each for each in self.records.values() if each.reason is None and each.offset < ends[each.partition]]
        newest_ms = self.newest_ms
        for each in batch:
            each.site = sites.get(each.device, NO_SITE)
            refusal = each.refusal(rules, is_known=each.device in sites)
            is_late = each.event_ms < each.broker_ms - rules.max_delay_ms
            is_ahead = each.broker_ms > now_ms + MAX_AHEAD_MS
            if refusal or is_ahead:
                each.reason = refusal or "ahead"
            elif is_late:
                each.reason = "late"
            elif each.replaced is not None:
                each.reason = "replayed"
                newest_ms = max(newest_ms, each.event_ms)  # it still moves the watermark
            elif each.event_ms < self.watermark_ms:
                each.reason = "behind"
            else:
                each.reason = ""
                newest_ms = max(newest_ms, each.event_ms)
            is_fit = each.reason in {"", "replayed", *LATE}
            # The copy of a copy: where the first original counts, no later one does.
            each.is_in_total = is_fit and not each.has_counted and each.replaced is not False
            each.fate = IN if each.reason == "" else EITHER if each.is_corrected and each.reason in LATE else OUT
        self.newest_ms = newest_ms
        self.watermark_ms = max(self.watermark_ms, newest_ms - rules.delay_ms)
        return batch

    def replay(self, original: Place, *, is_counted: bool) -> None:
        """A reject was sent again: its copy counts in its place, and it counts nowhere, whatever was decided about it."""
        record = self.records[original]
        record.replaced, record.fate = is_counted, OUT

    def correct(self, corrected: Iterable[Place]) -> None:
        """Late readings were added to closed values."""
        for place in corrected:
            self.records[place].is_corrected, self.records[place].fate = True, IN

    def recomputed(self, rules: Rules) -> None:
        """Closed values were computed from the topic by the settings of now.

        What the docs leave open after that:

        - A record that was rejected for its value, or as late, and that the settings admit by now, is in a value that was
          computed again, and not in the others (rejects.md says of copies alone that they count whatever the settings admit).
        - A record that was admitted, and that the settings reject by now: the poorer value is not written over a richer one, but
          comes back after a loss, and with a correction of another reading.
        """
        for each in self.records.values():
            if each.reason is None or each.replaced is not None:
                continue
            is_refused = bool(each.refusal(rules, is_known=each.reason != "unknown_device"))
            if each.is_corrected and not is_refused:
                continue
            is_late = each.event_ms < each.broker_ms - rules.max_delay_ms
            if each.fate == IN:
                is_open = is_refused or is_late
            else:
                is_open = each.reason in {"out_of_range", "late"} and not is_refused and not is_late
            if is_open:
                each.fate = EITHER

    def windows(self) -> dict[Key, list[Record]]:
        """The records of each window that may be in it."""
        found: dict[Key, list[Record]] = defaultdict(list)
        for each in self.records.values():
            for view in VIEWS if each.fate != OUT else ():
                start = each.event_ms // view.step_ms * view.step_ms
                while start > each.event_ms - view.window_ms:
                    found[view.name, key_of(view, each), start].append(each)
                    start -= view.step_ms
        return found

    def totals(self) -> dict[str, Value]:
        """The values of the view without windows, by device."""
        found: dict[str, list[Record]] = defaultdict(list)
        for each in self.records.values():
            if each.is_in_total:
                found[each.device].append(each)
        return {device: value(records) for device, records in found.items()}

    def devices(self) -> dict[str, list[Record]]:
        """The records of each device that may be in its sessions."""
        found: dict[str, list[Record]] = defaultdict(list)
        for each in self.records.values():
            if each.fate != OUT:
                found[each.device].append(each)
        return found

    def sessions(self, records: Iterable[Record]) -> dict[int, Session]:
        """The sessions of one device's records, by their start: chains of readings that are not further apart than the gap."""
        chains: list[list[Record]] = []
        for each in sorted(records, key=lambda each: each.event_ms):
            if chains and each.event_ms - chains[-1][-1].event_ms <= GAP_MS:
                chains[-1].append(each)
            else:
                chains.append([each])
        return {
            chain[0].event_ms: Session(
                chain[-1].event_ms,
                len(chain),
                sum(each.value for each in chain),
                chain[-1].event_ms + GAP_MS < self.watermark_ms,
            )
            for chain in chains
        }


def key_of(view: View, record: Record) -> str:
    """The key of a record's windows in a view."""
    return {"device": record.device, "site": record.site or NO_SITE, "": "all"}[view.by]


def length_ms(name: str) -> int:
    """The length of a view's windows."""
    return next(view.window_ms for view in VIEWS if view.name == name)


def value(records: Collection[Record]) -> Value:
    """The value of some records."""
    values = [each.value for each in records]
    return len(values), sum(values), min(values), max(values)


def choices(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Each choice of records: all that are IN, with some of the others. The first one has none of these."""
    sure = [each for each in records if each.fate == IN]
    others = [each for each in records if each.fate == EITHER]
    for many in range(len(others) + 1):
        for some in combinations(others, many):
            yield [*sure, *some]


def open_records(records: Iterable[Record]) -> int:
    """How many records may be in a value or not."""
    return sum(each.fate == EITHER for each in records)
