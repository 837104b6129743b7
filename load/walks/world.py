"""The service behind decoding, without Spark: admitted columns -> fold -> operator -> publish -> Redis, all real.

What Spark does in between is done here in its stead: rows meet by bucket, the entries of the state of an attempt that failed
are thrown away, workers keep their caches, and the driver makes the steps of service/pipeline/batch.py in their order.
"""

# ruff: noqa: S101 - these are the steps of a test

import json
import shutil
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues
from typing_extensions import override

from load.judge import published
from load.judge.expected import View
from load.judge.statistics import ORDERED
from load.walks import admitted, past, plain
from load.walks.entries import Entries
from load.walks.outlet import Memory, Watcher
from load.walks.plain import MEASURES, Fields, Reading, RecordPlace, Rules
from service import failpoint
from service.admission.arrays import NO_INDEX
from service.admission.expansion import INDEX
from service.admission.readings import COUNTED, MEETS, number_of
from service.aggregation import seen_keys, sessions
from service.checkpoint import beginnings, view_versions
from service.checkpoint.beginnings import Beginnings
from service.checkpoint.view_versions import Filled, Versions
from service.daemon import idle_closer
from service.daemon.idle_detection import Seen, Tables
from service.errors import FencedError
from service.failpoint import InjectedError, Plan, Point
from service.micro_batch import MicroBatch
from service.outlets.outbox import Outbox
from service.outlets.publication import Outlets
from service.pipeline import builder
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.publication.policy import WritePolicy
from service.recompute import fill, republish
from service.redis.link import WritesLostError
from service.reference.attributes import Index
from service.row_schemas import OUTPUT, REJECTS, TIMES
from service.settings import Settings, parse
from service.spark.batch_context import BatchContext
from service.spark.files import Local
from state import codec, windows
from state.codec import CodecError
from state.processor import STATE_NAME, STATE_SCHEMAS, BucketProcessor
from state.store import Cache, Store, restore
from state.table import present_waiting
from state.waiting import AT_ONCE, EVER, Pace
from state.watermark import EventTime, report

PREFIX = "walk"
TOPICS = ("readings", "meters")
METERS = 2
"""The partition of the walk that is the second topic, whose records have another shape: arrays of readings, too."""
WRITER = {"epoch", "batch", "updated"}
"""Fields that say who wrote a value, and when."""
BUCKETS, LOOK_MS = 2, 10_000
HOLD_MS = 1_000_000
DELIVERED_S = 60.0
COMPUTED, HALF_WRITTEN, WRITTEN, PUBLISHED = "computed", "half written", "written", "published"
STORED, LEFT = "stored for the outlet", "in the outlet"
"""Where an attempt may die: what it has done by then."""

_OUTPUT = to_arrow_schema(OUTPUT)
_ADMITTED = admitted.schema(MEASURES).append(pa.field(INDEX, pa.int32()))

Written = tuple[Sink, list[list[pa.RecordBatch]]]


def place_of(partition: int) -> tuple[str, int]:
    """Return topic and partition in Kafka of one of the walk's partitions: METERS is the only one of the second input."""
    return (TOPICS[1], 0) if partition == METERS else (TOPICS[0], partition)


def _code(partition: int) -> int:
    return number_of(*place_of(partition), TOPICS)


def bucket_of(device: str) -> int:
    """Any function of the device will do: Spark's own hash is decided in Spark."""
    return zlib.crc32(device.encode()) % BUCKETS


class _Worker(BucketProcessor):
    """The operator in a worker with a cache of its own."""

    def __init__(self, settings: Settings, cache: Cache) -> None:
        super().__init__(sessions.rules(settings), sessions.delays(settings), sessions.finals(settings))
        self._cache = cache

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = Store(handle.getMapState(STATE_NAME, *STATE_SCHEMAS), self._cache)


class _Handle(StatefulProcessorHandle):
    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    @override
    def getMapState(self, *_: Any, **__: Any) -> Entries:
        return self._entries


@dataclass
class World:
    """`after` is the (epoch, batch) that progress has reached; `frozen` is what a writer of an earlier epoch may still write.

    With `holds` open values wait in the state, until silence or a reader has them written.
    """

    client: Any
    url: str
    rules: Rules
    folder: Path

    def __post_init__(self) -> None:
        self.client.flushall()
        shutil.rmtree(self.folder, ignore_errors=True)
        seen_keys._CACHE.clear()
        self._beginnings = Beginnings(Local(self.folder))
        self._log = view_versions.Log(Local(self.folder))
        self.entries, self.caches = Entries(), [Cache(), Cache()]
        self.outlet = Memory()
        self.epoch, self.batch, self.after = 1, 0, None
        self.time = EventTime()
        self.offsets: dict[int, int] = {}
        self.rejects: dict[RecordPlace, str] = {}
        self.frozen: list[Written] = []
        self.client.set(f"{PREFIX}:epoch", self.epoch)
        self.configure(self.rules)
        self._begin()

    after: tuple[int, int] | None = None
    settled_ms: int | None = None
    versions: Versions | None = None
    _tables: Tables | None = None
    _outlets: Outlets | None = None
    _filled: dict[str, Filled] = field(default_factory=dict)
    _admitted: int = 0
    holds: bool = False
    _planned: int = -1
    """The newest batch that was begun: it has the views that it began with."""

    def configure(self, rules: Rules) -> None:
        """Settings and the reference from now on; views from the next batch on that was not begun."""
        self.rules = rules
        self.wanted = parse(_document(self.url, rules))
        self.settings = self.wanted if self.versions is None else view_versions.applied(self.wanted, self.versions)
        columns = {name: [row.get(name) for row in rules.reference.values()] for name in ("site", "gap", "interval")}
        table = {name: pa.array(column, pa.string()) for name, column in columns.items()}
        self.reference = Index(pa.table({"device": pa.array(list(rules.reference), pa.string()), **table}))

    def restart(self) -> None:
        """Another process takes over, under a new epoch."""
        self.epoch += 1
        self._beginnings = Beginnings(Local(self.folder))
        self.client.set(f"{PREFIX}:epoch", self.epoch)
        self.caches = [Cache(), Cache()]
        self._begin()

    def _begin(self) -> None:
        """A process takes over: nothing of its own is computed yet, and the checkpoint has the views."""
        self._filled = {}
        if self._planned >= 0:
            self.versions = self._log.at(self._planned)
        self._open_outlets()
        self._begin_query()

    def _begin_query(self) -> None:
        """A query starts, with other views or by another process: what republish.py finds when nothing is lost."""
        self._seen, self._tables = Seen(), None
        stored = republish.read(self._sink())
        progress = stored[0].progress
        self.after = (progress.epoch, progress.batch) if progress else None
        self.settled_ms = republish.settled_ms(stored, self.settings)

    def _open_outlets(self) -> None:
        """Have the outlet written under this epoch, with the views of the settings."""
        self.close()
        outbox = Outbox(Local(self.folder))
        outbox.begin(self.epoch)
        committed = self.batch - 1
        self._outlets = Outlets(
            self.settings, outbox, self.epoch, lambda _: self.outlet, Watcher(), committed=committed
        )
        self._outlets.start()
        self._wait_for_outlet()

    def _wait_for_outlet(self) -> None:
        """Until the outlet has all that has left."""
        assert self._outlets is not None
        assert all(delivery.lacks_at_most(0, DELIVERED_S) for delivery in self._outlets.deliveries)

    def close(self) -> None:
        """End the threads."""
        if self._outlets is not None:
            self._outlets.close()

    def attempt(
        self, readings: Sequence[Reading], unread: Collection[int], chance: Random, dies: str | None = None
    ) -> Outcome | None:
        """A batch of these readings; None when it dies."""
        kept = {key: dict(values) for key, values in self.entries.states.items()}
        outcome = self._attempt(readings, unread, chance, dies)
        if outcome is None:
            self.entries.states = kept
            return None
        self._tables = None
        self._admitted += 1  # a silence of the walk ends with every batch
        self.batch += 1
        return outcome

    def _attempt(
        self, readings: Sequence[Reading], unread: Collection[int], chance: Random, dies: str | None
    ) -> Outcome | None:
        for each in readings:
            self.offsets[each.partition] = max(each.offset + 1, self.offsets.get(each.partition, 0))
        sink, outcome, rejects = self._begin_views(), Outcome(), dict[RecordPlace, str]()
        servers = sink.servers()
        parts = self._computed(readings, unread, chance, rejects)
        self.frozen = [*self.frozen, (sink, parts)][-3:]
        if dies == COMPUTED:
            return None
        for part in parts:
            outcome += sink.write(part)
            if dies == HALF_WRITTEN:
                return None
        after = EventTime(*max([(self.time.watermark_ms, self.time.newest_ms), *outcome.event_times]))
        if dies == WRITTEN:
            return None
        sink = replace(sink, micro_batch=replace(sink.micro_batch, watermark_ms=after.watermark_ms))
        if not self._leaves(sink.micro_batch, outcome, dies):
            return None
        sink.progress(servers, outcome.waiting)
        self.after = self.epoch, self.batch
        if dies == PUBLISHED:
            return None
        self.time = after
        self.rejects |= rejects
        return outcome

    def _begin_views(self) -> Sink:
        """As service/pipeline/batch.py does. A view has all readings from the time that is the number of its first batch."""
        self._change_views()
        sink = self._sink()
        endless, fence = self.settings.endless, lambda: sink.run_in(0, "read_progress")
        for view, measures in self._beginnings.over(self.batch).items():
            is_over = self._beginnings.is_over(view, self.batch)
            sink.drop(view, measures, whole=is_over and all(name != view for name, _ in endless))
        return replace(sink, begun=self._beginnings.of_batch(self.batch, endless, lambda: self.batch, fence))

    def _leaves(self, micro_batch: MicroBatch, outcome: Outcome, dies: str | None) -> bool:
        """Give finals to the outlet; whether the attempt goes on."""
        assert self._outlets is not None
        failpoint._plan = Plan((Point("finals_stored", 1, "raise"),), None) if dies == STORED else None
        try:
            self._outlets.publish(micro_batch, outcome.finals)
        except InjectedError:
            return False
        finally:
            failpoint._plan = None
        return dies not in {STORED, LEFT}

    def _change_views(self) -> None:
        """As service/daemon/view_changes.py does."""
        if self._planned == self.batch:
            return
        self._planned, before = self.batch, self.versions
        if before is None:
            self.versions = view_versions.begun(self.wanted)
        else:
            after = view_versions.changed(view_versions.filled(before, self._filled), self.wanted, self.time.newest_ms)
            self.versions = view_versions.since(self.batch, before, after)
        self._filled = {}
        self.settings = view_versions.applied(self.wanted, self.versions)
        if self.versions != before:
            self._log.write(self.batch, self.versions)
            self._open_outlets()
            self._begin_query()

    def fill(self, admitted: Sequence[Reading]) -> None:
        """Compute the past of new views from the admitted readings, and write what is closed of it."""
        views = [view for view in (self.versions or Versions()).views if view.incomplete]
        if not views:
            return
        done = [view for view in views if self.time.watermark_ms >= fill.ends_ms(view)]
        for chosen in ([view for view in views if view not in done], done):
            settings = past.settings_of(self.settings, chosen)
            sink = replace(self._sink(), settings=settings, policy=WritePolicy.fill(is_last=chosen is done))
            sink = replace(sink, micro_batch=replace(sink.micro_batch, batch=self.batch - 1))
            past.publish(sink, chosen, self.reference, [_columns(admitted, settings)])
        self._filled |= {view.name: Filled(view.incomplete) for view in done}

    def _computed(
        self, readings: Sequence[Reading], unread: Collection[int], chance: Random, rejects: dict[RecordPlace, str]
    ) -> list[list[pa.RecordBatch]]:
        """Rows of OUTPUT by bucket, in any order. Rejects go to Kafka, before anything else: they are taken out here."""
        rows: dict[int, list[tuple[int, bytes]]] = {}
        for row in self._folded(readings, unread, chance):
            rows.setdefault(row["bucket"], []).append((row["kind"], row["payload"]))
        parts = []
        for bucket in chance.sample(sorted(rows), len(rows)):
            output = self.operate(bucket, chance.sample(rows[bucket], len(rows[bucket])), chance.choice(self.caches))
            for kind, payload in output:
                for each in codec.unpack(b"J", payload).to_pylist() if kind == REJECTS else ():
                    partition = METERS if each["topic"] == TOPICS[1] else each["partition"]
                    rejects[partition, each["offset"], each["index"]] = each["reason"]
            kinds, payloads = zip(*[row for row in output if row[0] != REJECTS], strict=True)
            arrays = [pa.array(kinds, pa.int8()), pa.array(payloads, pa.binary())]
            parts.append([pa.RecordBatch.from_arrays(arrays, schema=_OUTPUT)])
        whole = [[batch for part in parts for batch in part]]
        return parts if chance.random() < 0.5 else whole

    def _folded(self, readings: Sequence[Reading], unread: Collection[int], chance: Random) -> Iterator[dict[str, Any]]:
        fold, codes = builder.folding(self.settings, self.reference), frozenset(map(_code, unread))
        originals = [each for each in readings if each.is_replaced is not None]
        places = tuple(
            (_code(each.partition), each.offset, NO_INDEX if each.index is None else each.index, bool(each.is_replaced))
            for each in originals
        )
        context = BatchContext(self.time, codes, replaced=places, pace=self._pace())
        tasks: list[list[Reading]] = [[] for _ in range(chance.randint(1, 2))]
        if self.rules.distinct:
            seen_keys.clear(self.folder, BUCKETS, self.batch)
            floor_ms = seen_keys.floor_ms(self.time, self.settings.admission)
            context = replace(context, distinct=(str(self.folder), self.batch, self.epoch, floor_ms))
        else:
            seen_keys.forget(str(self.folder))
        if chance.random() < 0.3:
            seen_keys._CACHE.clear()
        for each in chance.sample(readings, len(readings)) if self.rules.distinct else readings:
            # Duplicates are found where all readings of a bucket are in one task.
            task = tasks[bucket_of(each.device) % len(tasks)] if self.rules.distinct else chance.choice(tasks)
            task.append(each)
        fold = replace(fold, context=lambda: context, max_rows=chance.choice([2, 1000, 1000]))
        for task in tasks:
            at = chance.randint(0, len(task))
            for batch in fold([_columns(part, self.settings) for part in (task[:at], task[at:])]):
                yield from batch.to_pylist()

    def _pace(self) -> Pace:
        """As service/pipeline/batch.py says it for the first batch of a query."""
        if not self.holds:
            return AT_ONCE
        planned_ms = HOLD_MS + self.batch
        until_ms, is_written = self._sink().closed_until()
        is_ahead = until_ms > self.time.watermark_ms
        return Pace(planned_ms, EVER if is_ahead else planned_ms - HOLD_MS, is_written)

    def write_waiting(self) -> None:
        """As service/daemon/idle_closer.py does, when the last batch is committed."""
        if not self.holds or self.after is None or self.after[1] != self.batch - 1:
            return
        micro_batch = replace(self._sink().micro_batch, batch=self.batch - 1, watermark_ms=self.time.watermark_ms)
        begun = beginnings.stored(Local(self.folder), self.settings.endless)
        sink = replace(self._sink(), micro_batch=micro_batch, policy=WritePolicy.stream(self.after), begun=begun)
        if not sink.closed_until()[1]:
            for state in self.states():
                sink.write([idle_closer._row(present_waiting(state, sessions.rules(self.settings)))])
            sink.run("written")

    def operate(self, bucket: int, rows: Sequence[tuple[int, bytes]], cache: Cache) -> list[tuple[int, bytes]]:
        """Return the operator's output for a bucket's rows, by a worker with this cache."""
        worker = _Worker(self.settings, cache)
        self.entries.key = (bucket,)
        worker.init(_Handle(self.entries))
        kinds, payloads = zip(*rows, strict=True)
        frame = pd.DataFrame({"kind": kinds, "payload": payloads})
        made = worker.handleInputRows(key=self.entries.key, rows=iter([frame]), timerValues=TimerValues(-1, -1))
        return [row for each in made for row in zip(each["kind"].tolist(), each["payload"], strict=True)]

    def be_silent(self, from_ms: int, until_ms: int, *, has_read_all: bool) -> None:
        """Looks at the topics find nothing new; what service/daemon/idle_closer.py closes then is closed at the end."""
        ends = self._ends()
        reached = ends if has_read_all else {}
        for asked_ms in (*range(from_ms, until_ms, LOOK_MS), until_ms):
            self._seen = self._seen.look(asked_ms, ends, reached, self._admitted)
        line_ms = self._seen.line_ms(plain.IDLE_AFTER_MS, self.time.watermark_ms)
        if line_ms is None or not self.batch:
            return
        self.write_waiting()
        if self._tables is None:
            states = list(self.states())
            rules = sessions.rules(self.settings)
            self._tables = Tables([replace(s, windows=windows.empty()) for s in states], rules)
            self._windows = [windows.for_silence(s.windows, rules.fills, rules.rollups) for s in states]
        micro_batch = replace(self._sink().micro_batch, batch=self.batch - 1, watermark_ms=line_ms)
        sink = replace(self._sink(), micro_batch=micro_batch, policy=WritePolicy.idle(self.after))
        for number in self._tables.due(line_ms):
            state, changes = self._tables.step(number, line_ms)
            sink.write([idle_closer._row(changes)])
            self._tables.keep(number, state)
        due = [table.filter(pc.less_equal(table["end"], line_ms)) for table in self._windows]
        as_of = replace(micro_batch, watermark_ms=self.time.watermark_ms)
        replace(sink, micro_batch=as_of).write([idle_closer._row(idle_closer.unwritten(due, self.settings.rollups))])
        sink.run("idle", watermark=str(line_ms))
        assert self._outlets is not None
        self._outlets.close_idle(sink.micro_batch, [], due)
        self._wait_for_outlet()

    def states(self) -> Iterable[Any]:
        """The states of the buckets, from what is stored."""
        return [restore([stored[key] for key in sorted(stored)]) for stored in self.entries.states.values()]

    def wake(self) -> None:
        """Writers of earlier epochs write what they had, and are refused."""
        woken, self.frozen = [each for each in self.frozen if each[0].micro_batch.epoch < self.epoch], []
        for sink, parts in woken:
            with suppress(FencedError):
                written = sum((sink.write(part) for part in parts), Outcome()).written
                assert not written, f"a writer of epoch {sink.micro_batch.epoch} wrote {written} values"
            for step in (sink.count_skewed, sink.progress):
                with suppress(FencedError):
                    step()
                    raise AssertionError(f"a writer of epoch {sink.micro_batch.epoch} was not refused")

    def damage(self, chance: Random) -> None:
        """An entry of a bucket is damaged: a worker that reads it names that, and writes nothing. Then it is mended."""
        key = chance.choice(sorted(self.entries.states))
        stored = self.entries.states[key]
        entry = chance.choice(sorted(stored))
        data = bytearray(stored[entry])
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        broken = self.entries.states[key] = {**stored, entry: chance.choice([bytes(data), bytes(data[:at])])}
        try:
            self.operate(key[0], [(TIMES, report(self.time, {}))], Cache())
        except CodecError:
            assert self.entries.states[key] == broken
            self.entries.states[key] = stored
            return
        raise AssertionError(f"bucket {key[0]}: entry {entry} was damaged, and nobody noticed")

    def lose(self, name: str) -> None:
        """Redis loses a key: what is written then is refused, and the key comes back."""
        key = f"{PREFIX}:{name}"
        data = self.client.dump(key)
        self.client.delete(key)
        try:
            self._sink().count_skewed()
        except WritesLostError:
            self.client.restore(key, 0, data)
            return
        raise AssertionError(f"a Redis without {name} was written to")

    def read(self) -> dict[str, dict[str, str]]:
        """All windows, sessions and devices, by key without the prefix, when nothing waits."""
        self.write_waiting()
        return {key.partition(":")[2]: fields for key, fields in published.hashes(self.client, PREFIX)}

    def _ends(self) -> dict[str, dict[int, int]]:
        """The offsets that were read, by topic and partition."""
        ends: dict[str, dict[int, int]] = {}
        for partition, offset in self.offsets.items():
            topic, number = place_of(partition)
            ends.setdefault(topic, {})[number] = offset
        return ends

    def _sink(self) -> Sink:
        micro_batch = MicroBatch(self.epoch, self.batch, self.time.watermark_ms, {}, self._ends(), self.rules.version)
        return Sink(
            self.settings,
            micro_batch,
            self.reference.only(["site"]),
            policy=WritePolicy.stream(self.after, self.settled_ms),
        )


def differences(actual: Mapping[str, Mapping[str, str]], wanted: Mapping[str, Fields]) -> list[str]:
    """Return the values that Redis has too many, lacks, or has with other content. Writer and time are not compared."""
    different = actual.keys() ^ wanted.keys()
    lines = [f"{key}: is {actual.get(key, 'lacking')}, not {wanted.get(key, 'there')}" for key in different]
    for key in actual.keys() & wanted.keys():
        names = (actual[key].keys() - WRITER) | wanted[key].keys()
        here = ((name, actual[key].get(name), wanted[key].get(name)) for name in names)
        lines += [f"{key}: {name} = {text!r}, not {value!r}" for name, text, value in here if not _is_same(text, value)]
    return sorted(lines)


def _is_same(text: str | None, value: str | float | None) -> bool:
    if text is None or not isinstance(value, float):
        return text == (None if value is None else str(value))
    return abs(float(text) - value) <= 1e-9 * max(1.0, abs(value))


def _columns(readings: Sequence[Reading], settings: Settings) -> pa.RecordBatch:
    filters = {view.name: view.where for view in settings.views if view.where is not None}
    rows = []
    for each in readings:
        code, (topic, partition) = _code(each.partition), place_of(each.partition)
        row: dict[str, Any] = {"broker_ms": each.broker_ms, "from_partition": code, "offset": each.offset}
        row |= {
            INDEX: each.index,
            COUNTED: each.is_counted,
            **{MEETS + name: each.meets(where) for name, where in filters.items()},
        }
        if each.poison:
            place = {"topic": topic, "partition": partition, "offset": each.offset}
            index = {} if each.index is None else {"index": each.index}
            row["reject"] = json.dumps({"reason": each.poison, **place, **index, "broker_ms": each.broker_ms})
        if not each.poison or (each.poison == "late" and settings.endless):
            row |= {"bucket": bucket_of(each.device), "device": each.device, "event_ms": each.event_ms, **each.values}
        rows.append(row)
    counted = [pa.field(COUNTED, pa.bool_())] if settings.endless else []
    schema = pa.schema([*_ADMITTED, *counted, *(pa.field(MEETS + name, pa.bool_()) for name in filters)])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def _document(url: str, rules: Rules) -> dict[str, Any]:
    def view(each: View) -> dict[str, Any]:
        times: dict[str, Any] = {"window": f"{each.window_ms} ms"}
        if each.zone_column is not None:
            times = {"window": "1 d", "time_zone": {"column": each.zone_column}}
        elif each.step_ms != each.window_ms:
            times["slide"] = f"{each.step_ms} ms"
        return {
            "name": each.name,
            "by": each.by,
            "measures": each.measures,
            "statistics": each.statistics,
            "where": each.where,
            **({} if each.carry_ms is None else {"carry_for": f"{each.carry_ms} ms"}),
            **({"fill": "last"} if each.fills else {}),
            **({"final_after": f"{plain.MAX_DELAY_MS - each.lead_ms} ms"} if each.lead_ms else {}),
            **({"window": "none"} if each.is_endless else times),
            **({} if each.source is None else {"from": each.source.name}),
        }

    gap, longest, retain = (f"{ms} ms" for ms in (rules.gap_ms, plain.MAX_DURATION_MS, plain.RETAIN_MS))
    return {
        "service": {"checkpoint": "unused"},
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "inputs": [
            {"name": TOPICS[0], "topics": [TOPICS[0]], "measures": {name: name for name in MEASURES}},
            {
                "name": TOPICS[1],
                "topics": [TOPICS[1]],
                "format": "json",
                "array": True,
                "measures": {MEASURES[1]: "value"},
            },
        ],
        "admission": {
            "max_delay": f"{plain.MAX_DELAY_MS} ms",
            "max_ahead": f"{plain.MAX_AHEAD_MS} ms",
            "idle_after": f"{plain.IDLE_AFTER_MS} ms",
            "distinct": ["device", "event_time"] if rules.distinct else [],
            "distinct_for": f"{plain.DISTINCT_FOR_MS} ms",
        },
        "reference": {
            "url": "jdbc:sqlite:unused",
            "query": "unused",
            "columns": ["site"],
            "session_gap": "gap",
            "expected_interval": "interval",
        },
        "views": [view(each) for each in rules.views],
        "outlets": [{"name": "memory", "kind": "parquet", "path": "unused", "when_away": "wait", "retry_for": "60 s"}],
        "sessions": {
            "gap": gap,
            "max_duration": longest,
            "retain": retain,
            "buckets": BUCKETS,
            "statistics": list(ORDERED),
        },
        "redis": {"url": url, "prefix": PREFIX, "chunk": 10},
    }
