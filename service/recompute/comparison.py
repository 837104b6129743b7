"""Compare the closed values under two prefixes: those of a service, and those of a new checkpoint that read the same topics.

Compared are windows and sessions that the watermarks of both have closed, that begin where both have all readings, that have not
expired, and whose view both have. Numbers may differ in the last digits: the readings were added in another order. A value that a
correction has changed since it was closed differs without being wrong, and is counted for itself.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from service.aggregation.sessions import longest_gap_ms
from service.errors import SinkError
from service.printing import counted
from service.redis.keys import Keys, shards
from service.redis.link import Budget, reader, server_id
from service.settings import Settings
from state.rules import ENDLESS_MS

SHOWN = 5
"""Examples of differences."""

_PAGE = 1_000
_RELATIVE = 1e-9
_OF_SPREAD = 1e-7
"""Of a standard deviation, in relation to the largest value: schemas/redis.md."""
_ROUNDED = frozenset({"sum", "mean", "stddev", "delta", "rate"})
_OWN = frozenset({"epoch", "batch", "updated", "revision", "closed_by"})

Hash = Mapping[str, str]


@dataclass(slots=True)
class Comparison:
    """The numbers of values by result, and some examples of differences.

    `equal` and `different` values are in both. `corrected` ones differ, and have a revision that only the service gave them.
    `lacking` values only the service has, `additional` ones only the new checkpoint.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        return self.counts["equal"] + self.counts["corrected"] + self.differences

    @property
    def differences(self) -> int:
        return sum(self.counts[name] for name in ("different", "lacking", "additional"))

    def add(self, result: str, example: str = "") -> None:
        self.counts[result] += 1
        if result not in {"equal", "corrected"} and len(self.examples) < SHOWN:
            self.examples.append(example)

    def lines(self) -> Iterator[str]:
        """Yield the result for people."""
        names = ("equal", "corrected", "different", "lacking", "additional")
        found = ", ".join(f"{self.counts[name]:,} {name}" for name in names if self.counts[name])
        yield f"compared {counted(self.compared, 'closed value')}: {found or 'both prefixes have none'}"
        yield from self.examples


@dataclass(frozen=True, slots=True)
class _Side:
    """A shard of a prefix: what its progress and meta say, and its client. In a cluster two prefixes are on different nodes."""

    keys: Keys
    client: Any
    budget: Budget
    final_ms: int
    watermark_ms: int
    views: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Rules:
    """Which values can be compared: those that both sides have closed, and have all readings of. In ms."""

    views: Mapping[str, int]
    """The retain of the views that both sides have, by name in keys."""
    complete_from_ms: int
    final_ms: int
    now_ms: int
    gap_ms: int
    session_retain_ms: int

    def has_window(self, view: str, fields: Hash) -> bool:
        retain_ms, end_ms = self.views.get(view), int(fields["end"])
        return (
            retain_ms is not None
            and "complete_from" not in fields
            and int(fields["start"]) >= self.complete_from_ms
            and end_ms <= self.final_ms
            and end_ms + retain_ms > self.now_ms
        )

    def has_session(self, fields: Hash) -> bool:
        return (
            fields["state"] == "closed"
            and fields["closed_by"] == "watermark"
            and int(fields["start"]) - self.gap_ms >= self.complete_from_ms
            and int(fields["last"]) + self.gap_ms < self.final_ms
            and int(fields["last"]) + self.session_retain_ms > self.now_ms
        )


def compare(
    service: Settings, rebuilt: Settings, complete_from_ms: int, watch: Callable[[int], object] = lambda _: None
) -> Comparison:
    """Compare all values of two prefixes; `watch` gets the number of keys that were read. Raises SinkError.

    `complete_from_ms` is the event time from which the rebuilt checkpoint has all readings.
    """
    result = Comparison()
    for ours, theirs in zip(shards(service.redis), shards(rebuilt.redis), strict=True):
        with (
            reader(service.redis, ours, "the values to compare") as of_service,
            reader(rebuilt.redis, theirs, "the values to compare") as of_rebuilt,
        ):
            before, after = _side(ours, *of_service), _side(theirs, *of_rebuilt)
            if before is None or after is None:
                continue
            rules = _Rules(
                {
                    name: max(int(view["retain_ms"]), int(after.views[name]["retain_ms"]))
                    for name, view in before.views.items()
                    if name in after.views and view["window_ms"] != ENDLESS_MS
                },
                complete_from_ms,
                min(before.final_ms, after.final_ms),
                max(before.watermark_ms, after.watermark_ms),
                longest_gap_ms(service),
                service.sessions.retain_ms,
            )
            take = partial(_take, result, rules)
            _scan(before, after, partial(take, is_ours=True), watch)
            _scan(after, before, partial(take, is_ours=False), watch)
    return result


def _take(result: Comparison, rules: _Rules, name: str, mine: Hash, other: Hash, *, is_ours: bool) -> None:
    """Compare a value of the service with that of the rebuilt one; of the latter's own only those that the service lacks."""
    kind, _, rest = name.partition(":")
    has = rules.has_session if kind == "session" else partial(rules.has_window, rest.partition(":")[0])
    if not mine or not has(mine):
        return
    if not is_ours:
        if not other:
            result.add("additional", f"{name} is in the rebuilt checkpoint only: {_shown(mine)}")
    elif not other:
        result.add("lacking", f"{name} is not in the rebuilt checkpoint: {_shown(mine)}")
    elif is_alike(mine, other):
        result.add("equal")
    elif int(mine.get("revision", 0)) > int(other.get("revision", 0)):
        result.add("corrected")
    else:
        result.add("different", f"{name} is {_shown(mine)}, and {_shown(other)} in the rebuilt checkpoint")


def is_alike(one: Hash, other: Hash) -> bool:
    """Whether two hashes have the same content in the fields that both have, but for the last digits of numbers."""
    if one.get("state") != other.get("state"):
        return False
    names = (one.keys() & other.keys()) - _OWN
    return all(one[name] == other[name] or _is_close(name, one, other) for name in names)


def _is_close(name: str, one: Hash, other: Hash) -> bool:
    measure, _, statistic = name.rpartition(".")
    a, b = _number(one[name]), _number(other[name])
    if math.isnan(a) or math.isnan(b) or statistic not in _ROUNDED:
        return False
    of = f"{measure}." if measure else ""
    largest = max(abs(_number(one.get(f"{of}{bound}", "0"))) for bound in ("min", "max"))
    margin = _OF_SPREAD * largest if statistic == "stddev" else _RELATIVE * largest * int(one["count"])
    return math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=margin)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _shown(fields: Hash) -> str:
    names = ("state", "count", "sum", "mean", "last", "duration", "revision")
    return ", ".join(f"{name} {fields[name]}" for name in names if name in fields)


def _side(keys: Keys, client: Any, budget: Budget) -> _Side | None:
    progress = budget.attempt(partial(client.hmget, keys.progress, "final", "watermark"))
    text = budget.attempt(partial(client.get, keys.meta))
    if None in progress or text is None:
        return None
    views = {view["name"]: view for view in json.loads(text)["views"] if not view.get("next")}
    return _Side(keys, client, budget, int(progress[0]), int(progress[1]), views)


def _scan(side: _Side, other: _Side, take: Callable[[str, Hash, Hash], object], watch: Callable[[int], object]) -> None:
    """Call `take` once for each window and session of a prefix, with the hash of the same name of the other prefix."""
    keys, client, budget = side.keys, side.client, side.budget
    server = budget.attempt(partial(server_id, client, keys))
    read = 0
    for kind in ("window", "session"):
        cursor: int | None = None
        taken: set[bytes] = set()  # SCAN may give a key twice
        while cursor != 0:
            cursor, page = budget.attempt(
                partial(client.scan, cursor or 0, match=keys.matching(f"{kind}:*"), count=_PAGE)
            )
            names = [key[len(keys.prefix) + 1 :] for key in dict.fromkeys(page) if key not in taken]
            taken.update(page)
            mine, others = (each.budget.attempt(partial(_hashes, each, names)) for each in (side, other))
            for name, one, another in zip(names, mine, others, strict=True):
                take(name.decode("utf-8", "replace"), one, another)
            read += len(names)
            watch(read)
    if budget.attempt(partial(server_id, client, keys)) != server:
        what = f"{budget.place}: Redis was restarted or failed over during the comparison: the pages of its scan have other keys"
        raise SinkError(what, remedy="Repeat the command")


def _hashes(side: _Side, names: list[bytes]) -> list[Hash]:
    pipe = side.client.pipeline(transaction=False)
    for name in names:
        pipe.hgetall(side.keys.prefix.encode() + b":" + name)
    return [
        {field.decode(): value.decode("utf-8", "replace") for field, value in each.items()} for each in pipe.execute()
    ]
