"""Make the confluent-kafka clients: consumers, producers and admin clients.

librdkafka's log is off: it repeats a lost connection without end, and each caller reports the failure once.
"""

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from service.errors import SettingsError, SourceError
from service.kafka.options import librdkafka
from service.settings import Kafka

TIMEOUT_S = 5.0
"""Limit of one request."""
DELIVERY_S = 30.0
"""Limit of a record's delivery, retries included."""
READ_COMMITTED = {"isolation.level": "read_committed"}
"""The default of readers in both libraries: records of aborted transactions are not read."""

Options = Mapping[str, str | int | float | bool]

_QUIET: Options = {"socket.timeout.ms": int(TIMEOUT_S * 1000), "log_level": 0}
# A request for one record's time fetches little more than that record.
_SMALL: Options = {
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 64,
    "fetch.message.max.bytes": 65_536,
}
_LARGEST = 1_000_000_000
"""librdkafka's upper limit of a record, so that only the topic's limit applies."""


def consumer(
    kafka: Kafka, *, small: bool = False, uncommitted: bool = False, options: Options | None = None
) -> Consumer:
    """Return a consumer that joins no group and reads only assigned partitions; close it after use.

    It reports the end of a partition as a message with the error _PARTITION_EOF. With `small` it fetches few records at
    a time. With `uncommitted` it also reads records of open and aborted transactions, regardless of `[kafka.options]`,
    and a partition's end is its high watermark, not its last stable offset. `options` replace all others. Raises SettingsError.
    """
    fixed = {"group.id": kafka.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    fixed |= {"enable.partition.eof": True, **({"isolation.level": "read_uncommitted"} if uncommitted else {})}
    defaults = {**_QUIET, **(_SMALL if small else {}), **READ_COMMITTED}
    try:
        return Consumer({**defaults, **librdkafka(kafka), **fixed, **(options or {})})
    except KafkaException as error:
        raise _unusable(error) from error


def producer(kafka: Kafka, name: str, options: Options | None = None) -> Producer:
    """Return an idempotent producer with acks=all; `name` is its client id. Raises SettingsError."""
    fixed = {
        "client.id": name,
        "acks": "all",
        "enable.idempotence": True,
        "delivery.timeout.ms": int(DELIVERY_S * 1000),
        "message.max.bytes": _LARGEST,
    }
    try:
        return Producer({**_QUIET, **librdkafka(kafka), **fixed, **(options or {})})
    except KafkaException as error:
        raise _unusable(error) from error


def admin(kafka: Kafka) -> AdminClient:
    """Return an admin client for one request from the main thread; keep it until the answer. Raises SettingsError.

    A request for a group that does not exist can crash the process (confluent-kafka 2.16.0): use a consumer for groups.
    """
    try:
        return AdminClient({**_QUIET, **librdkafka(kafka)})
    except KafkaException as error:
        raise _unusable(error) from error


def text(error: Exception) -> str:
    """Return the message of the broker or its client, without the wrapper's text."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or "no answer in time"


def unreachable(kafka: Kafka, error: Exception) -> SourceError:
    """Return the error for a request that Kafka did not answer."""
    what = f"Kafka at {kafka.bootstrap} does not answer: {text(error)}"
    return SourceError(
        what, remedy="Check [kafka] bootstrap, user and certificates, and that the brokers can be reached from here"
    )


def _unusable(error: KafkaException) -> SettingsError:
    """Return the error for options that librdkafka refuses, which it does before it connects."""
    what = f"[kafka]: the client refuses its options: {text(error)}"
    return SettingsError(what, remedy="[kafka.options] takes the names of librdkafka's CONFIGURATION.md")
