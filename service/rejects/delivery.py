"""Rejects: what was not admitted goes to `<topic>.rejects`, byte for byte, with the reason in its headers.

The record's form is schemas/reject.json. Delivery is at least once: a batch that is replayed sends its rejects again,
and (tidemark.topic, tidemark.partition, tidemark.offset) tells that they are the same.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from service.cut import Cut
from service.errors import SourceError
from service.kafka import clients
from service.kafka.clients import DELIVERY_S
from service.settings import Kafka

HEADER = "tidemark."
_OMITTED = HEADER + "omitted_bytes"
_Headers = list[tuple[str, str | bytes | None]]


def headers(reject: Mapping[str, Any], cut: Cut) -> _Headers:
    """The record's own headers, then ours: `reject` is a row of frames.REJECT_TYPE."""
    own = [(header["key"], header["value"]) for header in reject["headers"] or ()]
    omitted = reject.get("omitted")
    return own + _ours(reject, cut) + ([] if omitted is None else [(_OMITTED, b"%d" % omitted)])


def _ours(reject: Mapping[str, Any], cut: Cut) -> _Headers:
    said = {
        "reason": reject["reason"],
        "detail": reject["detail"] or "",
        "topic": reject["topic"],
        "partition": reject["partition"],
        "offset": reject["offset"],
        "broker_ms": reject["broker_ms"],
        "epoch": cut.epoch,
        "batch": cut.batch,
    }
    return [(HEADER + name, str(value).encode()) for name, value in said.items()]


def parse(message_headers: Iterable[tuple[str, bytes | None]] | None) -> dict[str, str | int]:
    """Our headers of a message of a rejects topic as the record that schemas/reject.json describes."""
    found = {k.removeprefix(HEADER): (v or b"").decode() for k, v in message_headers or () if k.startswith(HEADER)}
    numbers = {"partition", "offset", "broker_ms", "epoch", "batch", "omitted_bytes"}
    return {name: int(text) if name in numbers else text for name, text in found.items()}


class Rejects:
    """Sends rejects and knows which of them the broker has acknowledged. Not for two threads at a time."""

    def __init__(self, settings: Kafka) -> None:
        self._settings = settings
        # An unknown topic is an error after `topic.metadata.propagation.max.ms`: 30 s by default.
        options = {"linger.ms": 5, "topic.metadata.propagation.max.ms": 5_000}
        self._producer = clients.producer(settings, "tidemark-rejects", options)
        self._sent = 0
        self._delivered = 0
        self._too_large: list[tuple[Mapping[str, Any], Cut]] = []
        self._error: KafkaError | None = None

    def send(self, reject: Mapping[str, Any], cut: Cut) -> None:
        """Queue one reject; its delivery is known after `flush`."""
        self._produce(reject, cut, reject["value"], headers(reject, cut))

    def flush(self, cut: Cut) -> None:
        """Wait until the broker has acknowledged every reject since the last flush, or raise SourceError."""
        self._wait()
        # A record that fits the input topic may not fit the rejects topic. It must not stop the service for ever, so it
        # is announced without its bytes: topic, partition and offset say where they are.
        while self._too_large and self._error is None:
            reject, its_cut = self._too_large.pop()
            size = len(reject["value"] or b"")
            self._produce(reject, its_cut, None, [*_ours(reject, its_cut), (_OMITTED, b"%d" % size)])
            self._wait()
        missing = self._sent - self._delivered
        error, self._error, self._sent, self._delivered = self._error, None, 0, 0
        if error is not None or missing:
            self._too_large.clear()
            said = error.str() if error is not None else f"no answer within {DELIVERY_S:.0f} s"
            msg = (
                f"Kafka at {self._settings.bootstrap}, batch {cut.batch} of epoch {cut.epoch}: "
                f"{missing} rejects were not delivered: {said}"
            )
            remedy = "Create the rejects topic (kafka.rejects), check the brokers; the batch is replayed"
            raise SourceError(msg, remedy=remedy)

    def _produce(self, reject: Mapping[str, Any], cut: Cut, value: bytes | None, with_headers: _Headers) -> None:
        topic = self._settings.rejects_topic(reject["topic"])

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is None:
                self._delivered += 1
            elif error.code() in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE} and value is not None:
                self._delivered += 1
                self._too_large.append((reject, cut))
            else:
                self._error = error

        self._sent += 1
        while True:
            try:
                self._producer.produce(
                    topic, value=value, key=reject["key"], headers=with_headers, on_delivery=delivered
                )
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: deliver some first
            except KafkaException as problem:
                delivered(problem.args[0], None)
                return
            else:
                self._producer.poll(0)
                return

    def _wait(self) -> None:
        self._producer.flush(DELIVERY_S)


_producers: dict[tuple[object, ...], Rejects] = {}


def _identity(settings: Kafka) -> tuple[object, ...]:
    return os.getpid(), settings.model_dump_json()


def rejects(settings: Kafka) -> Rejects:
    """This process's producer for these settings, kept between batches."""
    identity = _identity(settings)
    if identity not in _producers:
        _producers[identity] = Rejects(settings)
    return _producers[identity]


def discard(settings: Kafka) -> None:
    """Forget this process's producer after a failure: what it still holds must not be delivered after a later batch."""
    _producers.pop(_identity(settings), None)
