"""The rules: each takes the history entry by entry and says what violates one of the promises.

    P1 P4     Verdicts    the oracle's: every window, session, device, reject and partition's sum
    P2        GoesBack    no reader sees a value go back: its (epoch, batch), a final window, a closed session, a count
    P3        Torn        nor a torn one: the fields of one hash agree with each other, and all are there
    P5        OneWriter   what Redis accepted never returns to an epoch that had ended
    P7        Loss        what the service counted as lost is what nobody can read any more
    P8        Recovers    after the last fault of a series the lag is back under two triggers within 60 s
    observed  Observed    something was there to be judged: an empty history is no proof of anything

They share nothing with the service but the contract in schemas/redis.md. P2 and P3 are in values.py, P8 in recovery.py. P2 and P5
hold in each shard by itself (`EachShard`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Protocol

from load.faults.history import Entry


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` was broken at `at` (ms since the epoch)."""

    rule: str
    at: int
    text: str


class Rule(Protocol):
    """Takes every entry in order, then the end."""

    def take(self, entry: Entry) -> Iterator[Violation]:
        """Return the violations of an entry after the earlier entries."""
        ...

    def end(self) -> Iterator[Violation]:
        """Return the violations that show only after the last entry."""
        ...


class EachShard:
    """A rule for each shard by itself, and for all shards together, of which only progress is recorded.

    An entry that is not of Redis is for each of them. A `redis_lost` of one shard is not for the other shards.
    """

    OF_REDIS: ClassVar = {"epoch", "progress", "feed", "value"}

    def __init__(self, rule: Callable[[], Rule]) -> None:
        self._all = rule()
        self._rules: dict[int, Rule] = {}

    def take(self, entry: Entry) -> Iterator[Violation]:
        shard = entry.get("shard")
        if entry["what"] in self.OF_REDIS and shard is not None:
            # What was for each until now was for this shard, too.
            yield from self._rules.setdefault(shard, deepcopy(self._all)).take(entry)
            return
        yield from self._all.take(entry)
        if entry["what"] not in self.OF_REDIS:
            for number, rule in self._rules.items():
                if entry["what"] != "redis_lost" or shard in {None, number}:
                    yield from rule.take(entry)

    def end(self) -> Iterator[Violation]:
        for rule in (self._all, *self._rules.values()):
            yield from rule.end()


class Recorded:
    """The violations that a row or the runner recorded itself."""

    def take(self, entry: Entry) -> Iterator[Violation]:
        if entry["what"] == "violation":
            yield Violation(entry["rule"], entry["at"], entry["text"])

    def end(self) -> Iterator[Violation]:
        yield from ()


class Verdicts:
    """P1, P4 and the contract: the oracle's differences; a verdict that compared nothing is none."""

    def __init__(self) -> None:
        self._verdicts = self._contracts = 0
        self._at = 0

    def take(self, entry: Entry) -> Iterator[Violation]:
        self._at = entry["at"]
        if entry["what"] == "contract":
            self._contracts += 1
            for sentence in entry["violations"]:
                yield Violation("contract", entry["at"], sentence)
        if entry["what"] != "verdict":
            return
        self._verdicts += 1
        for kind, count in entry["kinds"].items():
            rule = "P4" if kind.startswith(("reject.", "partition.")) else "P1"
            example = next((each for each in entry["examples"] if each.startswith(f"{kind}:")), "")
            yield Violation(rule, entry["at"], f"{count} x {kind}; {example}")
        for what in ("windows", "sessions", "devices", "rejects"):
            if not entry["compared"].get(what):
                yield Violation("observed", entry["at"], f"the oracle compared no {what}")

    def end(self) -> Iterator[Violation]:
        if not self._verdicts:
            yield Violation("observed", self._at, "the oracle gave no verdict")
        elif self._contracts < self._verdicts:
            yield Violation("observed", self._at, "the contract was not checked")


class OneWriter:
    """P5: the feed is in the order of Redis's writes, so terms in it may only grow.

    What Redis loses may be the epoch, too: it is an older one until the next. That begins with what its batch had published,
    and goes on with the final values of that one batch beside the stream. So does a term that was asked for a republication, with
    all of its values. Once views have changed, each term may compute their past beside the stream, under the batch at which that
    begins.
    """

    def __init__(self) -> None:
        self._term = (-1, -1)
        self._epoch = -1
        self._lost = False
        self._again: int | None = None
        self._is_asked = self._is_republishing = self._is_filling = False

    def take(self, entry: Entry) -> Iterator[Violation]:
        if entry["what"] == "epoch":
            if entry["epoch"] < self._epoch and not self._lost:
                yield Violation("P5", entry["at"], f"the epoch is {entry['epoch']} after {self._epoch}")
            self._epoch = max(self._epoch, entry["epoch"])
        elif entry["what"] == "redis_lost":
            self._lost = True
        elif entry["what"] == "republish":
            self._is_asked = True
        elif entry["what"] == "views":
            self._is_filling = True
        elif entry["what"] == "feed":
            for epoch, batch, entries in entry["spans"]:
                if epoch > self._term[0]:
                    self._again, self._lost = batch if self._lost else None, False
                    self._is_republishing, self._is_asked = self._is_asked, False
                is_beside = self._is_republishing or self._is_filling
                if epoch < self._term[0]:
                    text = f"{entries} writes of epoch {epoch}, batch {batch} after one of {self._term}"
                    yield Violation("P5", entry["at"], f"overlapping epochs: {text}")
                elif (epoch, batch) < self._term and batch != self._again and not is_beside:
                    text = f"{entries} writes of batch {batch} after one of batch {self._term[1]}, epoch {epoch}"
                    yield Violation("P5", entry["at"], text)
                self._term = max(self._term, (epoch, batch))

    def end(self) -> Iterator[Violation]:
        yield from ()


class Loss:
    """P7: all gaps together are all losses that were counted."""

    def __init__(self) -> None:
        self._sums = {"gap": 0, "lost": 0}
        self._at = 0

    def take(self, entry: Entry) -> Iterator[Violation]:
        self._at = entry["at"]
        if entry["what"] in self._sums:
            self._sums[entry["what"]] += entry["records"]
        yield from ()

    def end(self) -> Iterator[Violation]:
        if self._sums["gap"] != self._sums["lost"]:
            text = f"{self._sums['gap']} records cannot be read any more, {self._sums['lost']} were counted as lost"
            yield Violation("P7", self._at, text)


class Observed:
    """Something was there to be judged. A run lets its load go on until nothing is `lacking`, however slow the machine is."""

    LEAST: ClassVar[Mapping[str, int]] = {"progress": 20, "value": 20, "feed": 20, "lag": 10, "metrics": 5}
    """For some ten seconds with a writer: the observer reads the lag once a second, /metrics every other one."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, int | None]] = Counter()
        self._shards: list[int | None] = [None]
        self._at = 0

    def take(self, entry: Entry) -> Iterator[Violation]:
        self._at = entry["at"]
        if entry["what"] == "run" and entry.get("shards", 1) > 1:
            self._shards = list(range(entry["shards"]))
        self._seen[entry["what"], entry.get("shard")] += 1
        yield from ()

    @property
    def lacking(self) -> dict[str, int]:
        """Return the kinds of entries of which there are too few, with their number: the smallest of a shard."""
        counts = {what: self._seen[what, None] for what in self.LEAST}
        counts |= {what: min(self._seen[what, shard] for shard in self._shards) for what in ("value", "feed")}
        return {what: count for what, count in counts.items() if count < self.LEAST[what]}

    def end(self) -> Iterator[Violation]:
        for what, count in self.lacking.items():
            yield Violation("observed", self._at, f"{count} entries of {what!r}: too few to judge by")
