"""The confluent-kafka clients: every consumer, producer and admin client is made here.

librdkafka's own log is off: it repeats a lost connection without end, and each caller reports the failure once.
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
"""What readers of topics get by default, of both libraries: an aborted transaction's records do not count."""

_QUIET: Mapping[str, str | int | float | bool] = {"socket.timeout.ms": int(TIMEOUT_S * 1000), "log_level": 0}
# Of a request for one record's time, little more than that record is fetched.
_SMALL: Mapping[str, str | int | float | bool] = {
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 64,
    "fetch.message.max.bytes": 65_536,
}
_LARGEST = 1_000_000_000
"""librdkafka's own upper limit of a record: the topic decides what is too large."""

Options = Mapping[str, str | int | float | bool]


def consumer(
    kafka: Kafka, *, small: bool = False, uncommitted: bool = False, options: Options | None = None
) -> Consumer:
    """A consumer that joins no group, and reads only what is assigned to it; to be closed.

    It reports the end of a partition as a message with the error _PARTITION_EOF. With `small` it fetches few records at
    a time. With `uncommitted` it also reads records of open and aborted transactions, whatever `[kafka.options]` says,
    and a partition's end is its high watermark, not its last stable offset. `options` go before all others. Raises SettingsError.
    """
    fixed = {"group.id": kafka.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    isolation = {"isolation.level": "read_uncommitted"} if uncommitted else {}
    try:
        return Consumer(
            {
                **_QUIET,
                **(_SMALL if small else {}),
                **READ_COMMITTED,
                **librdkafka(kafka),
                **fixed,
                **isolation,
                "enable.partition.eof": True,
                **(options or {}),
            }
        )
    except KafkaException as error:
        raise _unusable(error) from error


def producer(kafka: Kafka, name: str, options: Options | None = None) -> Producer:
    """An idempotent producer that all replicas in sync acknowledge; `name` is its client id. Raises SettingsError."""
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
    """An admin client, for one question on the main thread; keep it until the question is answered. Raises SettingsError.

    Asked for a group that does not exist, one has crashed the process (confluent-kafka 2.16.0): ask a consumer instead.
    """
    try:
        return AdminClient({**_QUIET, **librdkafka(kafka)})
    except KafkaException as error:
        raise _unusable(error) from error


def text(error: Exception) -> str:
    """What the broker or its client says, without the client's wrapping."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or "no answer in time"


def unreachable(kafka: Kafka, error: Exception) -> SourceError:
    """The error for a request that Kafka did not answer."""
    what = f"Kafka at {kafka.bootstrap} does not answer: {text(error)}"
    return SourceError(
        what, remedy="Check [kafka] bootstrap, user and certificates, and that the brokers can be reached from here"
    )


def _unusable(error: KafkaException) -> SettingsError:
    """librdkafka refuses options when a client is made: before it connects to anything."""
    what = f"[kafka]: the client refuses its options: {text(error)}"
    return SettingsError(what, remedy="[kafka.options] takes the names of librdkafka's CONFIGURATION.md")
