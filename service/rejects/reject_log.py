"""Read the rejects topics: each rejected record once, with its original bytes. Needs neither Spark nor a running service."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import Message

from service.admission.arrays import NO_INDEX
from service.checkpoint.skips import Span
from service.errors import SettingsError
from service.kafka import scan
from service.kafka.offsets import place_of
from service.rejects import delivery, fetch
from service.settings import Input, Kafka

ORIGIN = "tidemark-origin"
"""Header of a replayed record: the coordinates of its reject, and the run's token for it."""

_TIMES = re.compile(r"event time (-?\d+) ms(?: is behind the watermark, (-?\d+) ms)?")
"""Begins the detail of early and late rejects of version 0.2.0 and before, which have no headers for the numbers."""

Headers = tuple[tuple[str, bytes | None], ...]
MOST_PLACES = 10_000
"""Places in a range."""


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """The place of a record in its input topic, and the number of a reading in a record with an array, NO_INDEX in another."""

    topic: str
    partition: int
    offset: int
    index: int = NO_INDEX

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.number}"

    @property
    def number(self) -> str:
        """The offset, with the number of the reading if it has one: `1207`, or `1207#3`."""
        return str(self.offset) if self.index == NO_INDEX else f"{self.offset}#{self.index}"

    @staticmethod
    def parse(text: str) -> "list[Coordinates]":
        """Parse offsets as `Span.parse` does, or `topic[partition]@offset#index`, a reading of an array; raises SettingsError,
        also for more than MOST_PLACES.
        """
        place, mark, index = text.partition("#")
        span = Span.parse(place)
        if mark and not (index.isdecimal() and span.offsets == 1):
            what = f"{text!r} does not name a reading of a record"
            raise SettingsError(what, remedy="Write readings[2]@1207#3 for element 3 of its array")
        if span.offsets > MOST_PLACES:
            what = f"{text!r} names {span.offsets:,} offsets"
            raise SettingsError(what, remedy=f"Name at most {MOST_PLACES:,}: readings[2]@1207-1210 for four of them")
        number = int(index) if mark else NO_INDEX
        return [Coordinates(span.topic, span.partition, offset, number) for offset in range(span.begin, span.end)]


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that was not admitted, or a reading of a record with an array.

    `broker_ms` is the record's broker time, `epoch` and `batch` are of the batch that rejected it. `key`, `value` and `headers`
    are the record's own, but the `value` of a reading of an array is that element. `omitted_bytes` is the size of the bytes that
    did not fit the rejects topic, None if it has all of them; see `complete`. An early or late reading has an `event_ms`, one
    behind the watermark a `watermark_ms`. `at` is where the reject is: rejects topic, partition, offset.
    """

    place: Coordinates
    reason: str
    detail: str
    broker_ms: int
    epoch: int
    batch: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    omitted_bytes: int | None = None
    event_ms: int | None = None
    watermark_ms: int | None = None
    at: tuple[str, int, int] = ("", -1, -1)


def read(
    kafka: Kafka,
    since_ms: int | None = None,
    until_ms: int | None = None,
    watch: scan.Watch | None = None,
    *,
    without: Callable[[Reject], bool] = lambda _: False,
) -> Iterator[Reject]:
    """Yield each reject once that the rejects topic got at `since_ms` or later, and before `until_ms`. Raises SourceError.

    This is the time at which the record was rejected: of a backlog, or of a topic that keeps the time of the producer, the
    broker's time of the record may be hours earlier. They come in the order of the rejects topics' partitions.
    Those that `without` holds of are left out, and a later reject of the same record is not.
    """
    seen: set[Coordinates] = set()
    names = [kafka.rejects_topic(topic) for topic in kafka.topics]
    for message in scan.messages(kafka, names, since_ms=since_ms, watch=watch):
        own, values = delivery.split(scan.headers(message))
        if not values:
            continue  # not a reject of Tidemark's
        reject = _reject(message, own, values)
        rejected_ms = message.timestamp()[1]
        is_outside = (since_ms is not None and rejected_ms < since_ms) or (
            until_ms is not None and rejected_ms >= until_ms
        )
        if is_outside or reject.place in seen or without(reject):
            continue
        seen.add(reject.place)  # delivery is at least once
        yield reject


def complete(kafka: Kafka, rejects: Iterable[Reject], inputs: Mapping[str, Input]) -> list[Reject | None]:
    """Return the rejects with their omitted bytes, read from the input topics; None for one whose bytes are gone or unreadable.

    `inputs` has the input of each topic, which says how a record is cut into readings. Raises SourceError.
    """
    found: list[Reject | None] = list(rejects)
    omitted: dict[tuple[str, int, int], list[tuple[int, Reject]]] = {}
    for number, reject in enumerate(found):
        if reject is not None and reject.omitted_bytes is not None:
            found[number] = None
            if reject.reason != delivery.UNREADABLE:
                place = reject.place
                omitted.setdefault((place.topic, place.partition, place.offset), []).append((number, reject))
    rows = [dict(zip(("topic", "partition", "offset"), place, strict=True)) for place in omitted]
    for row, record in fetch.records_once(kafka, rows) if rows else ():
        if record is None:
            continue
        for number, reject in omitted[row["topic"], row["partition"], row["offset"]]:
            found[number] = _with_bytes(reject, record, inputs.get(row["topic"], delivery.ARRAY))
    return found


def _with_bytes(reject: Reject, record: fetch.Record, form: Input) -> Reject | None:
    cut = delivery.of_reading(record, reject.place.index, form, reject.broker_ms)
    if cut is None:
        return None
    return replace(reject, key=cut.key, value=cut.value, headers=tuple(cut.headers), omitted_bytes=None)


def _reject(message: Message, own: Sequence[tuple[str, bytes | None]], values: Mapping[str, str | int]) -> Reject:
    key, value = message.key(), message.value()
    number = {name: int(values[name]) for name in ("partition", "offset", "broker_ms", "epoch", "batch")}
    omitted = values.get("omitted_bytes")
    reason, detail = str(values["reason"]), str(values["detail"])
    times = [None if (ms := values.get(name)) is None else int(ms) for name in ("event_ms", "watermark_ms")]
    if reason in {"early", "late"} and (text := _TIMES.match(detail)):
        times = [None if ms is None else int(ms) for ms in text.groups()]
        reason = reason if times[1] is None else "behind"
    return Reject(
        Coordinates(str(values["topic"]), number["partition"], number["offset"], int(values.get("index", NO_INDEX))),
        reason,
        detail,
        number["broker_ms"],
        number["epoch"],
        number["batch"],
        key.encode() if isinstance(key, str) else key,
        value.encode() if isinstance(value, str) else value,
        tuple(own),
        None if omitted is None else int(omitted),
        times[0],
        times[1] if len(times) > 1 else None,
        (*place_of(message), int(message.offset() or 0)),
    )
