"""Write corrected values to Redis, and read what a correction needs from Redis first."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from service import failpoint
from service.errors import SinkError
from service.micro_batch import MicroBatch, parse_offsets
from service.publication import meta
from service.publication.policy import WritePolicy
from service.publication.rows import SESSION, Call, Rows, as_of_watermark, by_shard, session_rows, window_rows
from service.publication.store import Store
from service.redis.keys import Keys, shard_of, shards, text_of
from service.redis.link import reader
from service.settings import Redis, Settings
from state.columns import Ints

_BEGINNING = "the beginning of a correction"
_AGAIN = "Nothing is lost: run it again"

_ROUNDED = frozenset({"sum", "mean", "delta", "rate"})
_NOT_COMPARED = frozenset(
    {"stddev", "start", "duration", "closed_by", "merged_into", "complete_from", "local_start", "sketch"}
)
"""Fields of no statistic, and the deviation, whose rounding has no bound relative to itself: the others tell values apart."""
_Outcomes = Mapping[bytes | None, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Written:
    """Rows by outcome: `same` were right already, `poorer` have more readings in Redis, `opened` are open there. `outcomes` has,
    by key, the verdict of publish.lua and the revision in Redis."""

    written: int = 0
    same: int = 0
    poorer: int = 0
    opened: int = 0
    outcomes: _Outcomes = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, outcomes: _Outcomes) -> "Written":
        """Count the rows of each outcome."""
        counts = Counter(verdict for verdict, _ in outcomes.values())
        return cls(counts["write"] + counts["revise"], counts["keep"], counts["older"], counts["closed"], outcomes)


@dataclass(frozen=True, slots=True)
class Values:
    """Values that were to be written. `table` has those of them that Redis has now, or that have expired there, and `revisions`
    what Redis has of these, 0 where it has none. What Redis has otherwise is not among them: outlets are to have the same."""

    written: Written
    table: pa.Table
    revisions: Ints


@dataclass(frozen=True, slots=True)
class ClosedSink(Store):
    """Write as of `micro_batch`, read from progress, under the policy of a correction, to one run of Redis.

    `began` has the id of Redis for each shard to be written, read before `micro_batch`. Raises SinkError when Redis does not
    answer, was restarted, has lost data or is being republished to by another; FencedError when another run has begun.
    """

    began: Mapping[int, str] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The number of the run, 0 for one that writes nothing."""
        return self.policy.number or 0

    def as_of_now(self) -> Self:
        """Return a sink as of the present progress, which goes on while a job computes: values expire with it.

        Raises SinkError if progress is behind that of this sink: Redis has lost data.
        """
        now = progress(self.settings, self.policy.marks)
        if (now.epoch, now.batch) < (self.micro_batch.epoch, self.micro_batch.batch):
            what = f"Redis has lost data: progress is at batch {now.batch} of epoch {now.epoch}"
            raise SinkError(what, remedy=_AGAIN)
        return replace(self, micro_batch=now)

    def write(self, rows: Sequence[Rows]) -> Written:
        """Write each shard's final windows, or closed or merged sessions, as `rows.as_of_watermark` returns them."""
        outcomes: dict[bytes | None, tuple[str, int]] = {}
        for shard, each in enumerate(rows):
            if len(each) and shard in self.began:
                outcomes |= self._write(each, shard)
        return Written.of(outcomes)

    def _write(self, rows: Rows, shard: int) -> _Outcomes:
        budget, marks = self.budget(shard, f"{rows.kind.name}s"), self.policy.marks
        replies = self.link(shard).run(self._calls(rows, marks.get(shard, "")), budget, self.began[shard])
        answers = [*chain.from_iterable(replies)]
        verdicts = zip(map(text_of, answers[::2]), map(int, answers[1::2]), strict=True)
        outcomes = dict(zip(rows.keys, verdicts, strict=True))
        opened = Written.of(outcomes).opened
        if opened and shard not in marks:  # during a republish the daemon writes open values
            msg = f"{budget.place}: {opened} are open, though progress says that they are closed"
            raise SinkError(msg, remedy=_AGAIN)
        return outcomes

    def write_values(self, windows: pa.Table, sessions: pa.Table) -> tuple[Values, Values]:
        """Write closed windows and sessions (state.windows.schema, state.layout.session_schema) that have not expired."""
        settings, watermark_ms = self.settings, self.micro_batch.watermark_ms
        ahead_ms = settings.admission.max_ahead_ms
        return (
            self._values(
                windows, lambda part, keys: window_rows(part, keys, settings.views, watermark_ms, ahead_ms=ahead_ms)
            ),
            self._values(sessions, lambda part, keys: session_rows(part, keys, settings.sessions)),
        )

    def _values(self, table: pa.Table, format_rows: Callable[[pa.Table, Keys], Rows]) -> Values:
        at, stores = (self.micro_batch.watermark_ms, self.settings.sessions.gap_ms), shards(self.settings.redis)
        parts = by_shard(table, len(stores))
        rows = [format_rows(part, keys) for keys, part in zip(stores, parts, strict=True)]
        written = self.write([as_of_watermark(each, *at)[0] for each in rows])
        found = [written.outcomes.get(key, ("", 0)) for each in rows for key in each.keys]
        keep = np.array([verdict != "older" for verdict, _ in found], np.bool_)
        revisions = np.array([revision for _, revision in found], np.int64)
        return Values(written, pa.concat_tables(parts).filter(pa.array(keep)), revisions[keep])

    def confirm(self) -> None:
        """Raise SinkError if Redis was restarted after the writes."""
        for shard, server in self.began.items():
            self.link(shard).run([], self.budget(shard, "the values"), server)

    def _calls(self, rows: Rows, mark: str) -> Iterator[Call]:
        shared = {**rows.shared, **_compared(rows), "number": str(self.number), "mark": mark}
        for number, call in enumerate(replace(rows, shared=shared).calls(self.stamp(), self.settings.redis.chunk)):
            if number:
                failpoint.hit("half_corrected")
            yield call


def servers(settings: Settings, numbers: Iterable[int] | None = None) -> dict[int, str]:
    """An id of Redis for each of some shards, all if not given; raises SinkError."""
    only = None if numbers is None else frozenset(numbers)
    return Store(settings, MicroBatch(0, 0, 0, {}, {}), policy=WritePolicy.correct(0), only=only).servers()


def progress(settings: Settings, marks: Mapping[int, str] = MappingProxyType({})) -> MicroBatch:
    """What all shards have, or those with these marks of a republish.

    Raises SinkError without it, or when they are being republished under another mark, SinkRefusedError when the prefix has
    another number of shards.
    """
    meta.require_stored(settings.redis)
    stores = shards(settings.redis)
    batches = [
        _progress(settings.redis, stores[number], marks.get(number, "")) for number in marks or range(len(stores))
    ]
    return min(batches, key=lambda batch: (batch.epoch, batch.batch))


def _progress(options: Redis, keys: Keys, mark: str) -> MicroBatch:
    with reader(options, keys, _BEGINNING) as (client, budget):
        stored = budget.attempt(lambda: client.hgetall(keys.progress))
        republishing = budget.attempt(lambda: client.get(keys.republish))
    if text_of(republishing or b"") != mark:
        msg = f"{budget.place}: values are being republished"
        raise SinkError(msg, remedy=f"Run it again when {keys.republish} is gone")
    fields = {text_of(name): text_of(value) for name, value in stored.items()}
    if not {"epoch", "batch", "watermark", "offsets"} <= fields.keys():
        msg = f"{budget.place}: there is no progress"
        raise SinkError(msg, remedy="Start the service first: it has published nothing yet")
    ends, epoch, batch = parse_offsets(fields["offsets"]), int(fields["epoch"]), int(fields["batch"])
    return MicroBatch(epoch, batch, int(fields["watermark"]), {}, ends, fields.get("reference", ""))


def _compared(rows: Rows) -> dict[str, Sequence[str]]:
    """Return the fields by which publish.lua tells corrected values apart: a correction may change any of them."""
    same = ["reason", *rows.kind.same] if rows.kind is SESSION else rows.kind.same
    names = [name for name in rows.fields if name not in {*same, *_NOT_COMPARED}]
    rounded = [name for name in names if name.rpartition(".")[2] in _ROUNDED]
    return {"same": same, "equal": [name for name in names if name not in rounded], "rounded": rounded}


def session_starts(settings: Settings, devices: Iterable[str]) -> dict[str, list[int]]:
    """The starts of the devices' open and closed sessions in Redis, in order. Raises SinkError."""
    by_shard, starts, size = defaultdict[int, list[str]](list), dict[str, list[int]](), settings.redis.chunk
    for device in sorted(set(devices)):
        by_shard[shard_of(device, settings.redis.shards)].append(device)
    for shard, some in by_shard.items():
        keys = shards(settings.redis)[shard]
        with reader(settings.redis, keys, "the sessions that there are") as (client, budget):
            for begin in range(0, len(some), size):
                part = some[begin : begin + size]
                lists = [("ZRANGE", keys.sessions_of(device), 0, -1) for device in part]
                listed = zip(part, budget.attempt(partial(_answers, client, lists)), strict=True)
                places = [(device, int(start)) for device, each in listed for start in each]
                hashes = [("HGET", keys.session(*place), "state") for place in places]
                states = budget.attempt(partial(_answers, client, hashes))
                for (device, start), state in zip(places, states, strict=True):
                    if state in {b"open", b"closed"}:
                        starts.setdefault(device, []).append(start)
    return starts


def _answers(client: Any, commands: Iterable[tuple[str | int, ...]]) -> list[Any]:
    """Return the replies to commands, which are sent together: one after the other, those of 20,000 devices take minutes."""
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    replies: list[Any] = pipe.execute()
    return replies
