"""Send rejected records to `<topic>.rejects`, byte for byte, with the reason in their headers.

schemas/reject.json is the form of the headers. Delivery is at least once: a replayed batch sends its rejects again, with equal
(tidemark.topic, tidemark.partition, tidemark.offset, tidemark.index).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from pydantic import ByteSize

from service.admission import arrays, formats
from service.errors import SourceError, SourceRefusedError
from service.kafka import clients
from service.kafka.clients import DELIVERY_S, Kept
from service.micro_batch import MicroBatch
from service.rejects import fetch
from service.rejects.fetch import Headers, Record
from service.settings import Input, Kafka

HEADER = "tidemark."
UNREADABLE = "unreadable"
"""The reason of records that no process can read and that an operator has skipped (`tidemark skip`). The pass never uses it."""
_TIMES = [HEADER + name for name in ("event_ms", "watermark_ms")]
"""Headers of early and late rejects, in this order, before the others: older versions take them for the record's own."""
_TIMES_OF = {"early": 1, "late": 1, "behind": 2}
"""How many of them the rejects of a reason have."""
_NAMES = [HEADER + name for name in ("reason", "detail", "topic", "partition", "offset", "broker_ms", "epoch", "batch")]
_INDEX, _OMITTED = HEADER + "index", HEADER + "omitted_bytes"
"""Headers that not every reject has, in this order, after the others."""
_NUMBERS = {"event_ms", "watermark_ms", "partition", "offset", "broker_ms", "epoch", "batch", "index", "omitted_bytes"}
HEADERS_OF_A_READING = 1 << 10
"""The most bytes of a record's own headers that each reject of one of its readings has: an array may have 100,000."""
_LARGEST = 64 << 20
"""Bytes of the largest record that is sent, whatever limit its topic has. A larger one is sent without its bytes."""
_QUEUE_KIB = 2 * _LARGEST >> 10
_REQUEST = 64 << 10
ARRAY = Input(format="json", array=True, max_array_bytes=ByteSize(arrays.LARGEST_ARRAY))
"""An input whose records are arrays, for rejects of an input that the settings do not have any more."""
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}


def headers(reject: Mapping[str, Any], micro_batch: MicroBatch) -> Headers:
    """Return Tidemark's headers for a reject, which is a row of row_schemas.REJECT_TYPE. Each is encoded on its own: a batch may
    have millions."""
    values = (
        reject["reason"].encode(),
        (reject["detail"] or "").encode(),
        reject["topic"].encode(),
        b"%d" % reject["partition"],
        b"%d" % reject["offset"],
        b"%d" % reject["broker_ms"],
        b"%d" % micro_batch.epoch,
        b"%d" % micro_batch.batch,
    )
    index = reject.get("index")
    more = [] if index is None else [(_INDEX, b"%d" % index)]
    if reject.get("event_ms") is None:
        return [*zip(_NAMES, values, strict=True), *more]
    times = zip(_TIMES, (reject["event_ms"], reject.get("watermark_ms")), strict=True)
    return [*[(name, b"%d" % ms) for name, ms in times if ms is not None], *zip(_NAMES, values, strict=True), *more]


def of_reading(record: Record, index: int, form: Input = ARRAY, broker_ms: int | None = None) -> Record | None:
    """Return the record with only its reading `index`, NO_INDEX for all of it; None if it has no such reading.

    Headers of more than HEADERS_OF_A_READING bytes are left out.
    """
    if index == arrays.NO_INDEX:
        return record
    found = _readings(record.value or b"", _shape(form), broker_ms)
    if index >= len(found):
        return None
    size = sum(len(name) + len(value or b"") for name, value in record.headers)
    return Record(record.key, found[index], record.headers if size <= HEADERS_OF_A_READING else [])


def _shape(form: Input) -> str:
    """Return the settings that decide about the readings of a record, as a text: CSV leaves some fields as texts."""
    asked = {name: {"path": each.path, "where": each.where} for name, each in form.measures.items() if each.where}
    columns = {name: {"path": each.path} for name, each in form.columns.items()}
    shape = {"format": form.format, "array": form.array, "device_id": form.device_id}
    return json.dumps({**shape, "columns": columns, "measures": asked})


@lru_cache(maxsize=1)
def _readings(value: bytes, shape: str, broker_ms: int | None) -> list[bytes]:
    """The readings of a record; rejects of a record come one after the other. The limits of then may have been others."""
    form = Input.model_validate({**json.loads(shape), "max_array_bytes": arrays.LARGEST_ARRAY})
    form = form if form.is_cut else ARRAY
    try:
        return formats.of(form).cut(value, form, broker_ms).readings or []
    except arrays.UnreadableArrayError:
        return []


def forms(record: Record | None, added: Headers) -> Iterator[Record]:
    """Yield the forms of a reject for a topic that refuses large records, the largest first: all of it, without the value, with
    Tidemark's headers alone."""

    def without(omitted: int) -> Headers:
        return [*added, (_OMITTED, b"%d" % omitted)]

    if record is None:
        yield Record(None, None, without(0))
        return
    yield Record(record.key, record.value, [*record.headers, *added])
    if record.value:
        yield Record(record.key, None, [*record.headers, *without(len(record.value))])
    yield Record(None, None, without(record.size))


def parse(message_headers: Iterable[tuple[str, bytes | None]] | None) -> dict[str, str | int]:
    """Return Tidemark's headers of a message of a rejects topic, as schemas/reject.json describes them; {} if it has none."""
    return split(message_headers)[1]


def split(message_headers: Iterable[tuple[str, bytes | None]] | None) -> tuple[Headers, dict[str, str | int]]:
    """Return a record's own headers, and those of Tidemark as `parse` returns them. Tidemark's are the last ones, because a
    device may give its own headers any name."""
    everything = list(message_headers or ())
    more: list[str] = []
    for name in (_OMITTED, _INDEX):
        last = len(everything) - len(more)
        if last > 0 and everything[last - 1][0] == name:
            more.insert(0, name)
    names = [*_NAMES, *more]
    own, added = everything[: -len(names)], everything[-len(names) :]
    if [name for name, _ in added] != names:
        return everything, {}
    try:
        texts = {name.removeprefix(HEADER): (value or b"").decode() for name, value in added}
        # Rejects of earlier versions have the times in their detail, and perhaps headers of these names of the record's own.
        names = [] if texts["detail"] else _TIMES[: _TIMES_OF.get(texts["reason"], 0)]
        if names and [name for name, _ in own[-len(names) :]] == names:
            own, times = own[: -len(names)], own[-len(names) :]
            texts |= {name.removeprefix(HEADER): (value or b"").decode() for name, value in times}
        return own, {name: int(text) if name in _NUMBERS else text for name, text in texts.items()}
    except ValueError:
        return everything, {}


class RejectProducer:
    """Sends rejects until the broker has acknowledged them. Use it from one thread.

    It queues at most _QUEUE_KIB; `send` waits while the queue is full.
    """

    def __init__(self, settings: Kafka) -> None:
        self._settings = settings
        options: dict[str, str | int] = {
            "linger.ms": 5,
            # The wait for an unknown topic; the default is 30 s.
            "topic.metadata.propagation.max.ms": 5_000,
            "message.max.bytes": _LARGEST,
            "queue.buffering.max.kbytes": _QUEUE_KIB,
            # A broker refuses all records of a request with one that is too large, so requests are small.
            "batch.size": _REQUEST,
            # What was acknowledged is no longer in the queue.
            "delivery.report.only.error": True,
        }
        self._producer = clients.producer(settings, "tidemark-rejects", options)
        self._failed = 0
        self._too_large: list[tuple[str, Record | None, Headers]] = []
        self._error: KafkaError | None = None

    def send(self, reject: Mapping[str, Any], record: Record | None, micro_batch: MicroBatch) -> None:
        """Queue one reject with its record, None if Kafka no longer has it. `flush` confirms the delivery. Raises SourceError."""
        topic, added = self._settings.rejects_topic(reject["topic"]), headers(reject, micro_batch)
        self._produce(topic, next(forms(record, added)), partial(self._too_large.append, (topic, record, added)))
        if self._too_large or self._error is not None:
            self.flush(micro_batch)

    def flush(self, micro_batch: MicroBatch) -> None:
        """Wait until the broker has acknowledged every reject since the last flush, or raise SourceError."""
        self._producer.flush(DELIVERY_S)
        # A record that is too large must not stop the service: it is sent alone, in ever smaller forms.
        too_large, self._too_large = self._too_large, []
        for each in too_large:
            if self._error is None:
                self._shrink(*each)
        missing = len(self._producer) + self._failed
        error, self._error, self._failed = self._error, None, 0
        if error is not None or missing:
            reason = error.str() if error is not None else f"no answer within {DELIVERY_S:.0f} s"
            msg = (
                f"Kafka at {self._settings.bootstrap}, batch {micro_batch.batch} of epoch {micro_batch.epoch}: "
                f"{missing} rejects were not delivered: {reason}"
            )
            remedy = "Create the rejects topic (kafka.rejects), check the brokers; the batch is replayed"
            raise SourceError(msg, remedy=remedy)

    def purge(self) -> None:
        """Drop the queued records."""
        self._producer.purge()

    def _shrink(self, topic: str, record: Record | None, added: Headers) -> None:
        refusals: list[Record] = []
        for number, form in enumerate(forms(record, added)):
            self._produce(topic, form, partial(refusals.append, form))
            self._producer.flush(DELIVERY_S)
            if len(refusals) == number:
                return
        what = f"The rejects topic {topic} refuses a reject with Tidemark's own headers alone as too large"
        raise SourceRefusedError(what, remedy="Raise max.message.bytes of the rejects topic")

    def _produce(self, topic: str, form: Record, too_large: Callable[[], object]) -> None:
        def failed(error: KafkaError | None, _: object) -> None:
            if error is None:
                return  # it was delivered
            if error.code() in _TOO_LARGE:
                too_large()
            else:
                self._error = error
                self._failed += 1

        record = {"value": form.value, "key": form.key, "headers": [*form.headers]}
        try:
            clients.produce(self._producer, topic, **record, on_delivery=failed)
        except KafkaException as problem:
            failed(problem.args[0], None)
        else:
            self._producer.poll(0)


_producers: dict[tuple[object, ...], Kept[RejectProducer]] = {}


@contextmanager
def sender(settings: Kafka) -> Iterator[RejectProducer]:
    """Return this process's producer for these settings. It is kept between batches and dropped after a failure, so that its
    queued records are not delivered after those of a later batch."""
    identity = fetch.identity(settings)
    # A former one has nothing in its queue between two batches.
    producer = _producers.setdefault(identity, Kept(settings, partial(RejectProducer, settings))).get()
    try:
        yield producer
    except BaseException:
        del _producers[identity]
        producer.purge()
        raise


def copy(
    settings: Kafka,
    rejects: Iterable[Mapping[str, Any]],
    micro_batch: MicroBatch,
    inputs: Mapping[str, Input] = MappingProxyType({}),
) -> None:
    """Queue rows of row_schemas.REJECT_TYPE with their records, read from Kafka. Raises SourceError.

    `inputs` are those of the topics: their records are cut into readings as they say, others as arrays of JSON.
    """
    with sender(settings) as producer, closing(fetch.records(settings, rejects)) as pairs:
        for reject, record in pairs:
            sent = record
            if record is not None and (index := reject.get("index")) is not None:
                sent = of_reading(record, index, inputs.get(reject["topic"], ARRAY), reject["broker_ms"])
            producer.send(reject, sent, micro_batch)


def flush(settings: Kafka, micro_batch: MicroBatch) -> None:
    """Wait until the broker has acknowledged every reject queued since the last flush. Raises SourceError."""
    with sender(settings) as producer:
        producer.flush(micro_batch)
