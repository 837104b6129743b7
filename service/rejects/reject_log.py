"""The rejects topics, read back: each rejected record once, with its bytes as they came. No Spark; no service need run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from service.errors import SettingsError
from service.kafka import scan
from service.rejects import delivery
from service.settings import Kafka

ORIGIN = "tidemark-origin"
"""Header of a record that was sent again: the coordinates of the reject it came from, and the run's token for it."""

Headers = tuple[tuple[str, bytes | None], ...]
_PLACE = re.compile(r"^(?P<topic>[A-Za-z0-9._-]+)(\[(?P<p>\d+)\]@(?P<o>\d+)|/(?P<p2>\d+)/(?P<o2>\d+))\Z")


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """Where a record is in its input topic."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    @staticmethod
    def parse(text: str) -> "Coordinates":
        """Of `topic[partition]@offset` or `topic/partition/offset`; raises SettingsError."""
        found = _PLACE.match(text)
        if found is None:
            msg = f"{text!r} is no record's place"
            raise SettingsError(msg, remedy="Write readings[2]@1207, or readings/2/1207")
        return Coordinates(found["topic"], int(found["p"] or found["p2"]), int(found["o"] or found["o2"]))


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that was not admitted. `broker_ms` is the broker's time for it, `epoch` and `batch` who rejected it.

    `key`, `value` and `headers` are the record's own. `omitted_bytes` is its size when it did not fit the rejects topic:
    then value and headers are lacking here.
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


def read(kafka: Kafka, since_ms: int | None = None, until_ms: int | None = None) -> Iterator[Reject]:
    """Every reject whose record the broker got at `since_ms` or later, and before `until_ms`; each once. Raises SourceError.

    Order: that of the rejects topics' partitions.
    """
    seen: set[Coordinates] = set()
    # A reject is written after its record: what is older than `since_ms` there is older here, too.
    for message in scan.messages(kafka, [kafka.rejects_topic(topic) for topic in kafka.topics], since_ms=since_ms):
        own, said = delivery.split(scan.headers(message))
        if not said:
            continue  # not one of ours
        found = _reject(message.key(), message.value(), own, said)
        if since_ms is not None and found.broker_ms < since_ms:
            continue
        if (until_ms is not None and found.broker_ms >= until_ms) or found.place in seen:
            continue
        seen.add(found.place)  # delivery is at least once
        yield found


def complete(kafka: Kafka, reject: Reject) -> Reject | None:
    """The reject with the bytes that did not fit the rejects topic, from the input topic; None when they are gone, or
    when nobody can read them."""
    if reject.omitted_bytes is None:
        return reject
    if reject.reason == delivery.UNREADABLE:
        return None
    place = reject.place
    message = scan.one(kafka, place.topic, place.partition, place.offset)
    if message is None:
        return None
    return replace(
        reject, key=message.key(), value=message.value(), headers=tuple(scan.headers(message)), omitted_bytes=None
    )


def _reject(
    key: bytes | str | None,
    value: bytes | str | None,
    own: Sequence[tuple[str, bytes | None]],
    said: Mapping[str, str | int],
) -> Reject:
    number = {name: int(said[name]) for name in ("partition", "offset", "broker_ms", "epoch", "batch")}
    omitted = said.get("omitted_bytes")
    return Reject(
        Coordinates(str(said["topic"]), number["partition"], number["offset"]),
        str(said["reason"]),
        str(said["detail"]),
        number["broker_ms"],
        number["epoch"],
        number["batch"],
        key.encode() if isinstance(key, str) else key,
        value.encode() if isinstance(value, str) else value,
        tuple(own),
        None if omitted is None else int(omitted),
    )
