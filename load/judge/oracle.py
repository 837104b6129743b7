"""The oracle: reads the topics again with its own consumer and decoders and says what Redis and the rejects must hold.

It shares nothing with the service but the settings file and the words: it imports nothing from service/ or state/, has
its own reading of the TOML (load/judge/rules.py) and its own decoders (load/judge/decoders.py: fastavro, json), and decides about
records one by one. What follows from the admitted readings is computed in load/judge/expected.py.

    expected = oracle.expected("tidemark.toml", watermark_ms=1_700_000_000_000)
"""

import hashlib
import math
import time
import unicodedata
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from load.judge import arrays
from load.judge.decoders import (
    BLANKS,
    UNDECODABLE,
    UNITS,
    Avro,
    Json,
    JsonSchema,
    Pack,
    Protobuf,
    RejectedError,
    as_column,
    as_device,
    as_number,
    at,
    to_ms,
)
from load.judge.expected import OTHER_VALUES, Device, Readings, Session, Windows, devices, sessions, windows
from load.judge.predicates import Formula, Predicate
from load.judge.rules import Reference, Rules, Shape, amount, read_reference, read_rules

Offsets = Mapping[str, Mapping[int, int]]
Coordinate = tuple[str, int, int] | tuple[str, int, int, int]
"""topic, partition, offset, and the index of a reading in a record that is an array"""
Digest = tuple[int, bytes] | None
"""A value's length and 16 bytes of its hash; None for a null value."""

Fill = Callable[["Ledger", Reference], None]

FILTERED = "filtered"
_SILENCE_S = 60.0
_LARGEST = 1e140  # what a measure without a range may be
_LONGEST_ID = 256  # bytes
_ENDS_A_LINE = {"Cc", "Zl", "Zp"}
_TURNS_TEXT = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_MARKS = {"ARABIC LETTER MARK", "LEFT-TO-RIGHT MARK", "RIGHT-TO-LEFT MARK"}
_LATEST_MS = 1 << 42  # the year 2109: what an event time may be, whatever a record's own timestamp says


class Record(NamedTuple):
    """A Kafka record; `broker_ms` is its timestamp, whatever the topic says it is."""

    topic: str
    partition: int
    offset: int
    broker_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(slots=True)
class Partition:
    """What became of a partition's records with `start` <= offset < `end`.

    `consumed` = `admitted` + `rejected` + `filtered` - `further`, which counts the readings of arrays but the first of each.
    """

    start: int
    end: int
    consumed: int = 0
    admitted: int = 0
    rejected: int = 0
    filtered: int = 0
    further: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """Values that must exist once everything up to the partitions' ends is published under `watermark_ms`.

    `statistics` are those of each view, `measures` those of all inputs. `values` is the length and a digest of each rejected
    record's value, None for a null one.
    """

    watermark_ms: int
    statistics: Mapping[str, Collection[str]]
    windows: Windows
    sessions: Mapping[tuple[str, int], Session]
    devices: Mapping[str, Device]
    rejects: Mapping[Coordinate, str]
    values: Mapping[Coordinate, Digest]
    partitions: Mapping[tuple[str, int], Partition]
    measures: Collection[str]


def expected(
    settings_path: Path | str,
    bootstrap: str | None = None,
    *,
    watermark_ms: int,
    idle_ms: int = -1,
    ends: Offsets | None = None,
    starts: Offsets | None = None,
    reference: Reference | None = None,
    archive: Iterable[Record] = (),
    corrected: Collection[Coordinate] = (),
    refused: Mapping[Coordinate, str] = MappingProxyType({}),
    partly: Mapping[Coordinate, int] = MappingProxyType({}),
    fill: "Fill | None" = None,
) -> Expected:
    """Recompute everything from the topics, from the oldest record (or `starts`) to the newest (or `ends`, exclusive).

    `idle_ms` is the event time up to which silence has closed what is open, -1 for none.
    `archive` are records that were read before, all older than `starts`, for topics that have lost some since.
    `reference` is device -> column -> text; by default it is what the reference's database holds now.
    `corrected` are records that were rejected as late and that windows and sessions, not devices, hold all the same. `partly`
    are those that only the views hold in which all their windows end before a time, and sessions.
    `refused` are readings that admission has rejected for what only the service knows: that they came behind the watermark
    (`late`), or were of a device too many. `fill` gives the ledger the topics' records, in place of this process alone.
    Raises ValueError for settings it cannot follow, KafkaException when the topics cannot be read and TimeoutError when
    they give nothing for 60 s.
    """
    rules = read_rules(Path(settings_path))
    reference = read_reference(rules) if reference is None else reference
    ledger = Ledger(rules, reference, corrected, refused, partly)
    if fill is not None:
        fill(ledger, reference)
        return ledger.close(watermark_ms, idle_ms)
    there = records(rules, rules.topics, bootstrap, ends=ends, starts=starts, partitions=ledger.partitions)
    for record in chain(archive, there):
        ledger.take(record)
    return ledger.close(watermark_ms, idle_ms)


@lru_cache(1 << 16)
def may_be_named(device: str) -> bool:
    """Whether a device may have this id: not too long, and nothing in it that leaves its place in a line."""
    return len(device.encode()) <= _LONGEST_ID and not any(
        unicodedata.category(each) in _ENDS_A_LINE
        or unicodedata.bidirectional(each) in _TURNS_TEXT
        or unicodedata.name(each, "") in _MARKS
        for each in device
    )


def digest(value: bytes | None) -> Digest:
    """Return the digest of a record's value, so that rejects of any size can be kept in memory."""
    return None if value is None else (len(value), hashlib.blake2b(value, digest_size=16).digest())


def records(
    rules: Rules,
    topics: Sequence[str],
    bootstrap: str | None = None,
    *,
    ends: Offsets | None = None,
    starts: Offsets | None = None,
    partitions: MutableMapping[tuple[str, int], Partition] | None = None,
) -> Iterator[Record]:
    """All records of the topics, partitions interleaved, up to the ends they had when this began (or `ends`).

    Fills in `partitions` before the first record. A topic that does not exist has none.
    """
    consumer = Consumer(
        {
            **{name: value for name, value in rules.options.items() if not name.startswith("sasl.jaas")},
            "bootstrap.servers": bootstrap or rules.bootstrap,
            "group.id": "tidemark-oracle",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",  # what a transaction has taken back never was
            "queued.max.messages.kbytes": 65_536,
        }
    )
    try:
        open_ends: dict[tuple[str, int], int] = {}
        plan = []
        known = consumer.list_topics(timeout=30).topics
        for topic, partition in ((t, p) for t in topics if t in known for p in known[t].partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            start = max(low, (starts or {}).get(topic, {}).get(partition, low))
            end = high if ends is None else ends.get(topic, {}).get(partition, 0)
            if partitions is not None:
                counts = partitions.setdefault((topic, partition), Partition(start, start))
                counts.end = max(counts.end, end)
            if start < min(end, high):
                open_ends[topic, partition] = end
                plan.append(TopicPartition(topic, partition, start))
        consumer.assign(plan)
        yield from _until(consumer, open_ends)
    finally:
        consumer.close()


def _until(consumer: Consumer, open_ends: dict[tuple[str, int], int]) -> Iterator[Record]:
    heard = time.monotonic()
    while open_ends:
        messages = consumer.consume(10_000, timeout=0.1)  # it waits that long for the last of them
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SILENCE_S:
            raise TimeoutError(f"no record for {_SILENCE_S:.0f} s, still to come: {open_ends} (topic, partition: end)")
        for message in messages:
            topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if topic is None or partition is None or offset is None or (topic, partition) not in open_ends:
                continue
            end = open_ends[topic, partition]
            # The end of a partition is also reached where its last offsets hold no record (transactions, compaction).
            if error is not None or offset >= end - 1:
                del open_ends[topic, partition]
            if error is None and offset < end:
                headers: Any = message.headers() or ()
                yield Record(topic, partition, offset, message.timestamp()[1], message.key(), message.value(), headers)


class _Columns:
    """Readings, growing."""

    def __init__(self, measures: Iterable[str], columns: Mapping[str, int], filtered: Iterable[str] = ()) -> None:
        self.meets = {view: array("b") for view in filtered}
        self.texts: dict[str, list[str | None]] = {name: [] for name in columns}
        self._known: dict[str, set[str]] = {name: set() for name in columns}
        self._limits = columns
        self.codes: dict[str, int] = {}
        self.device, self.event_ms = array("i"), array("q")
        self.values = {name: array("d") for name in measures}

    def add(
        self,
        device: str,
        event_ms: int,
        values: Mapping[str, float | None],
        texts: Mapping[str, str | None],
        meets: Mapping[str, bool],
    ) -> None:
        for view, flags in self.meets.items():
            flags.append(meets[view])
        for name, each in self.texts.items():
            each.append(self._key(name, texts[name]))
        self.device.append(self.codes.setdefault(device, len(self.codes)))
        self.event_ms.append(event_ms)
        for name, column in self.values.items():
            number = values[name]
            column.append(math.nan if number is None else number)

    def _key(self, column: str, text: str | None) -> str | None:
        """What a key has of a column's text: only the values that come first have a key of their own."""
        known = self._known[column]
        if text is None or text in known:
            return text
        if not may_be_named(text) or len(known) >= self._limits[column]:
            return OTHER_VALUES
        if text != OTHER_VALUES:
            known.add(text)
        return text

    def readings(self) -> Readings:
        return Readings(
            list(self.codes),
            np.array(self.device, np.int32),
            np.array(self.event_ms, np.int64),
            {name: np.array(column, np.float64) for name, column in self.values.items()},
            self.texts,
            {view: np.array(flags, np.bool_) for view, flags in self.meets.items()},
        )

    def join(self, readings: Readings) -> None:
        """Add the readings of another process, which has no columns of the record."""
        codes = np.array([self.codes.setdefault(device, len(self.codes)) for device in readings.names], np.int32)
        self.device.frombytes(codes[readings.device].tobytes())
        self.event_ms.frombytes(readings.event_ms.tobytes())
        for name, column in self.values.items():
            column.frombytes(readings.values[name].tobytes())
        for view, flags in self.meets.items():
            flags.frombytes(readings.meets[view].astype(np.int8).tobytes())


class Taken(NamedTuple):
    """Decisions of a ledger about the records of some partitions."""

    admitted: Readings
    endless: Readings
    rejects: Mapping[Coordinate, str]
    digests: Mapping[Coordinate, Digest]
    partitions: Mapping[tuple[str, int], Partition]


class _Read(NamedTuple):
    """Content of a record; `values` and `texts` have every measure and column, null where its shape lacks one."""

    device: str
    event_ms: int | None
    values: Mapping[str, float | None]
    texts: Mapping[str, str | None]


PACKS = ("senml", "senml-cbor", "csv", "line-protocol", "sparkplug-b")
"""The formats of Pack: a record's size is not looked at before its readings."""
_DECODERS: Mapping[str, Callable[[Shape], Avro | Json | Pack | Protobuf]] = {
    "avro": Avro,
    "json": lambda _shape: Json(),
    "json-schema": JsonSchema,
    "protobuf": Protobuf,
    **dict.fromkeys(PACKS, Pack),
}


class _Reader:
    """Reads the records of one shape."""

    def __init__(self, shape: Shape, measures: Iterable[str], columns: Iterable[str]) -> None:
        decoder = _DECODERS[shape.format](shape)
        self._read = decoder.read
        self._unit = decoder.time_unit or shape.event_time_unit
        if self._unit not in {*UNITS, "iso"}:
            msg = f"input.event_time_unit = {self._unit!r}: {shape.event_time} has no timestamp logical type"
            raise ValueError(msg)
        self.shape = shape
        self._texts = {name: path.split(".") for name, path in shape.columns.items()}
        self._paths = {name: path.split(".") for name, path in shape.measures.items()}
        self._derived = {name: Formula(text) for name, text in shape.derived.items()}
        self._device_path, self._time_path = shape.device_id.split("."), shape.event_time.split(".")
        self._measures, self._columns = dict.fromkeys(measures), dict.fromkeys(columns)

    def read(self, key: bytes | None, value: bytes | None) -> _Read:
        """Raises RejectedError."""
        if value is None:
            raise RejectedError(UNDECODABLE)
        record = self._read(value)
        device = as_device(key if self.shape.device_id == "$key" else at(record, self._device_path))
        event_ms = to_ms(at(record, self._time_path), self._unit)
        values = {name: as_number(at(record, path)) for name, path in self._paths.items()}
        for name, (scale, offset) in self.shape.units.items():
            if (number := values[name]) is not None:
                values[name] = number * scale + offset
        for name, formula in self._derived.items():
            values[name] = formula({path: as_number(at(record, path.split("."))) for path in formula.fields})
        texts = {name: as_column(at(record, path)) for name, path in self._texts.items()}
        return _Read(device, event_ms, {**self._measures, **values}, {**self._columns, **texts})


class Ledger:
    """Takes records one by one; keeps the admitted readings as columns and, of the others, the reasons."""

    def __init__(
        self,
        rules: Rules,
        reference: Reference,
        corrected: Collection[Coordinate] = (),
        refused: Mapping[Coordinate, str] = MappingProxyType({}),
        partly: Mapping[Coordinate, int] = MappingProxyType({}),
    ) -> None:
        self.watermark_ms = 0
        """What is below it is late."""
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._rules = rules
        self._reference = reference
        self._limits = {name: limit for shape in rules.shapes for name, limit in shape.max_values.items()}
        readers = [_Reader(shape, rules.measures, self._limits) for shape in rules.shapes]
        self._readers = {topic: reader for reader in readers for topic in reader.shape.topics}
        self._only = readers[0] if len(readers) == 1 else None
        self._corrected, self._refused, self._partly = frozenset((*corrected, *partly)), refused, partly
        grouped = {c: n for c, n in self._limits.items() if any(c in view.by for view in rules.views)}
        self._filters = {view.name: self._predicate(view.where) for view in rules.views if view.where}
        self._wanted = {
            topic: self._predicate(reader.shape.where) for topic, reader in self._readers.items() if reader.shape.where
        }
        self._has_endless = any(view.is_endless for view in rules.views)
        self._parted = [view.name for view in rules.views if view.name in self._filters or partly]
        self._admitted, self._with_late, self._endless = (
            _Columns(rules.measures, grouped, self._parted) for _ in range(3)
        )
        self._rejects: dict[Coordinate, str] = {}
        self._seen: dict[tuple[str | int, ...], int] = {}
        self._copies: list[tuple[Coordinate, tuple[str | int, ...]]] = []
        self._digests: dict[Coordinate, Digest] = {}

    def take(self, record: Record) -> str | None:
        """Decide about one record, and keep it; the reason when it is rejected, None also when it is filtered.

        Of a record with several readings, the last reason.
        """
        return next((reason for _, reason in reversed(self.take_all(record)) if reason), None)

    def take_all(self, record: Record) -> list[tuple[int | None, str | None]]:
        """As `take`, for each reading of a record: its index in an array, None for a record without several, and the reason."""
        place = (record.topic, record.partition)
        count = self.partitions.setdefault(place, Partition(record.offset, record.offset))
        count.consumed += 1
        count.end = max(count.end, record.offset + 1)
        reader = self._only or self._readers.get(record.topic)
        at_place = (*place, record.offset)
        if record.value is None and reader is not None and reader.shape.ignores_tombstones:
            return [(None, self._keep(record, count, at_place, FILTERED))]
        if reader is None or not reader.shape.array_bytes or record.value is None:
            return [(None, self._take(record, count, at_place))]
        key_bytes = len(record.key or b"")
        try:
            found = arrays.readings(record.value, reader.shape.array_bytes, key_bytes)
            text = arrays.text_of(record.value, reader.shape.array_bytes)
        except arrays.NoReadingsError as fault:
            return [(None, self._keep(record, count, at_place, str(fault) or FILTERED))]
        if found is None:
            return [(None, self._take(record, count, at_place, text))]
        if key_bytes > self._rules.max_bytes:
            return [(None, self._keep(record, count, at_place, "oversized"))]
        count.further += len(found) - 1
        return [
            (index, self._take(record._replace(value=each), count, (*at_place, index)))
            for index, each in enumerate(found)
        ]

    def _take(self, record: Record, count: Partition, at_place: Coordinate, text: bytes | None = None) -> str | None:
        """Decide about one reading; `text` is what its record unpacks to."""
        is_corrected, refused = at_place in self._corrected, self._refused.get(at_place, "")
        read = record if text is None else record._replace(value=text)
        reason = self._decide(read, at_place, is_corrected=is_corrected, refused=refused)
        return self._keep(record, count, at_place, reason)

    def _keep(self, record: Record, count: Partition, at_place: Coordinate, reason: str | None) -> str | None:
        if reason is None:
            count.admitted += 1
        elif reason == FILTERED:
            count.filtered += 1
            return None
        else:
            count.rejected += 1
            self._rejects[at_place] = reason
            self._digests[at_place] = digest(record.value)
        return reason

    def taken(self, ends: Offsets) -> Taken:
        """Return the decisions on the partitions of `ends`, for a ledger in another process."""
        partitions = {
            (topic, partition): self.partitions[topic, partition]
            for topic, of_topic in ends.items()
            for partition in of_topic
        }
        return Taken(self._admitted.readings(), self._endless.readings(), self._rejects, self._digests, partitions)

    def join(self, taken: Taken) -> None:
        """Add the decisions of a ledger in another process."""
        self._admitted.join(taken.admitted)
        self._endless.join(taken.endless)
        self._rejects.update(taken.rejects)
        self._digests.update(taken.digests)
        self.partitions.update(taken.partitions)

    @property
    def admitted(self) -> Readings:
        """The readings that were admitted, in the order in which they were taken."""
        return self._admitted.readings()

    @property
    def with_late(self) -> Readings:
        """The readings that views without windows count, in the order in which they were taken."""
        return self._endless.readings()

    @property
    def newest_ms(self) -> int | None:
        """The latest event time that was admitted."""
        return max(self._admitted.event_ms, default=None)

    def close(self, watermark_ms: int, idle_ms: int = -1) -> Expected:
        """Everything that follows from what was taken."""
        for place, key in self._copies:
            if key not in self._seen:
                del self._rejects[place]  # of no admitted reading: no duplicate
        self._copies = []
        rules, admitted = self._rules, self._admitted.readings()
        readings = self._with_late.readings() if self._corrected else admitted
        longest = rules.max_duration_ms
        gaps = {device: min(gap, longest) for device, gap in self._durations(rules.own_gap).items()}
        expected_sessions = sessions(readings, rules.gap_ms, longest, watermark_ms, idle_ms, gaps, rules.session_order)
        shown = (rules.reference or {}).get("columns")
        attributes = {
            device: {name: text for name, text in row.items() if not shown or name in shown}
            for device, row in self._reference.items()
        }
        line_ms, intervals = max(watermark_ms, idle_ms), self._durations(rules.expected_interval)
        if rules.status_delay_ms is not None and self.newest_ms is not None:
            line_ms = max(line_ms, self.newest_ms - rules.status_delay_ms)
        return Expected(
            watermark_ms,
            {view.name: view.statistics for view in rules.views},
            windows(
                rules.views,
                readings,
                self._reference,
                watermark_ms,
                idle_ms,
                self._endless.readings() if self._has_endless else None,
            ),
            expected_sessions,
            devices(
                admitted,
                expected_sessions,
                attributes,
                line_ms,
                intervals,
                lambda device: gaps.get(device, rules.gap_ms),
                by_measure=rules.measure_status,
            ),
            self._rejects,
            self._digests,
            self.partitions,
            rules.measures,
        )

    def _durations(self, column: str | None) -> dict[str, int]:
        """The durations in ms that the reference has in this column, by device."""
        texts = {device: row.get(column) for device, row in self._reference.items()} if column else {}
        return {device: amount(text) for device, text in texts.items() if text is not None}

    def _range(self, device: str, measure: str) -> tuple[float, float]:
        low, high = self._rules.ranges.get(measure, (-_LARGEST, _LARGEST))
        if measure in self._rules.own_ranges:
            row = self._reference.get(device, {})
            own = [row.get(column) for column in self._rules.own_ranges[measure]]
            low, high = (given if text is None else float(text) for text, given in zip(own, (low, high), strict=True))
        return low, high

    def _decide(
        self,
        record: Record,
        place: Coordinate,
        *,
        is_corrected: bool = False,
        refused: str = "",
    ) -> str | None:
        """The reason of the first rule that applies; a record without one is kept, and one that is corrected and only late."""
        rules = self._rules
        broker_ms = record.broker_ms
        reader = self._only or self._readers.get(record.topic)
        is_pack = reader is not None and reader.shape.format in PACKS
        if not is_pack and max(len(record.value or b""), len(record.key or b"")) > rules.max_bytes:
            return "oversized"
        try:
            reader = self._only or self._readers[record.topic]
            device, event_ms, values, texts = reader.read(record.key, record.value)
        except RejectedError as rejected:
            return str(rejected)
        keyed = {name: text if text is None or may_be_named(text) else OTHER_VALUES for name, text in texts.items()}
        meets: dict[str, bool] = {}
        if self._wanted or self._filters:
            named = {
                **self._reference.get(device, {}),
                **values,
                "device": (device.strip(BLANKS) and device) or None,
                **keyed,
            }
            wanted = self._wanted.get(reader.shape.topics[0])
            if wanted is not None and not wanted(named):
                return FILTERED
            meets = {view: predicate(named) for view, predicate in self._filters.items()}
        if self._partly:
            meets = {**dict.fromkeys(self._parted, True), **meets}
        if event_ms is None or self._stranger(device):
            return self._stranger(device) or "no_time"
        reasons = list(self._reasons(device, event_ms, broker_ms, values))
        if not reasons:
            key = self._key(device, event_ms, keyed) if rules.distinct else ()
            reasons = self._unlike_others(place, key, event_ms, refused)
        if not reasons:
            self._admitted.add(device, event_ms, values, texts, meets)
        if self._corrected and (not reasons or (is_corrected and reasons in (["late"], ["behind"]))):
            in_views = meets
            if (until_ms := self._partly.get(place)) is not None and reasons:
                ends = {view.name: view.last_end(event_ms) for view in rules.views if not view.is_endless}
                in_views = {view: met and ends.get(view, 0) < until_ms for view, met in meets.items()}
            self._with_late.add(device, event_ms, values, texts, in_views)
        is_counted = any(name == "tidemark-counted" for name, _ in record.headers)
        if self._has_endless and reasons in ([], ["late"], ["behind"]) and event_ms >= 0 and not is_counted:
            self._endless.add(device, event_ms, values, texts, meets)
        return reasons[0] if reasons else None

    def _key(self, device: str, event_ms: int, texts: Mapping[str, str | None]) -> tuple[str | int, ...]:
        """Return the values of `admission.distinct` of a reading; () if it lacks one of them."""
        known: Mapping[str, str | int | None] = {"device": device, "event_time": event_ms, **texts}
        key = tuple(each for name in self._rules.distinct if (each := known[name]) not in {None, OTHER_VALUES})
        return tuple(each for each in key if each is not None) if len(key) == len(self._rules.distinct) else ()

    def _unlike_others(
        self, at_place: Coordinate, key: tuple[str | int, ...], event_ms: int, refused: str
    ) -> list[str]:
        """Return the reasons to reject a reading that came after others: it is behind them, or the same as one of them."""
        if refused == "duplicate":
            self._copies.append((at_place, key))
        if refused or event_ms < self.watermark_ms:
            return [refused or "behind"]
        # A key is remembered until the watermark passes it.
        if key and self._seen.get(key, -1) >= self.watermark_ms:
            return ["duplicate"]
        if key:
            self._seen[key] = event_ms
        return []

    def _predicate(self, where: str) -> Predicate:
        rules = self._rules
        of_reference = next(iter(self._reference.values()), {})
        return Predicate(where, ("device", *rules.measures, *self._limits, *of_reference))

    def _stranger(self, device: str) -> str | None:
        """Return the reason to reject all readings of a device, None if there is none."""
        if not device.strip(BLANKS):
            return "no_device"
        if not may_be_named(device):
            return "bad_device"
        return "unknown_device" if self._rules.reject_unknown and device not in self._reference else None

    def _reasons(self, device: str, event_ms: int, broker_ms: int, values: Mapping[str, float | None]) -> Iterator[str]:
        """Return the other reasons to reject a reading, in order."""
        rules = self._rules
        if not all(math.isfinite(number) for number in values.values() if number is not None):
            yield "not_finite"
        for name, number in values.items():
            low, high = self._range(device, name)
            if number is not None and not low <= number <= high:
                yield "out_of_range"
        if event_ms > broker_ms + rules.max_ahead_ms or event_ms >= _LATEST_MS:
            yield "early"
        if event_ms < broker_ms - rules.max_delay_ms or event_ms < 0:
            yield "late"
