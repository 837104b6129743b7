"""Make the confluent-kafka clients: consumers, producers and admin clients.

librdkafka's log is off: it repeats a lost connection without end, and each caller reports the failure once. A request fails with
"Broker transport failure", whatever the reason is: the client gives the reason to a callback, which keeps it for `unreachable`.
"""

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from service.errors import SecretFileError, SettingsError, SourceError, SourceLoginError, SourceTrustError
from service.kafka.options import librdkafka, stamp
from service.settings import Kafka

TIMEOUT_S = 5.0
"""Limit of one request."""
DELIVERY_S = 30.0
"""Limit of a record's delivery, retries included."""
READ_COMMITTED = {"isolation.level": "read_committed"}
"""The default of readers in both libraries: records of aborted transactions are not read."""

Options = Mapping[str, str | int | float | bool]
T = TypeVar("T")

_QUIET: Options = {"socket.timeout.ms": int(TIMEOUT_S * 1000), "log_level": 0}
# A request for one record's time fetches little more than that record.
_SMALL: Options = {"queued.min.messages": 1, "queued.max.messages.kbytes": 64, "fetch.message.max.bytes": 65_536}
_REASONS = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._RESOLVE)
"""Codes of errors that say why no broker answers, the most telling first."""
_CERTIFICATE = re.compile(r"certificate|unknown ca|bad_certificate", re.IGNORECASE)
TOKENS = re.compile(r"OAUTHBEARER token|token endpoint response|retrieving token from callback handler")
"""What both libraries say when a token endpoint has not given a token; the brokers have no part in that."""
_OF_CLIENT = re.compile(
    r"invalid_(client|grant|scope|request)|unauthorized_client|unsupported_grant_type|response code 40[013]"
)
_OF_A_FILE = re.compile(r"ssl\.(ca|certificate|key)\.|[Pp]rivate key check failed|key values mismatch")
"""What librdkafka says of files of TLS that it cannot use (2.16.0)."""
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
"""The system's certificates on Debian, Fedora and SUSE. librdkafka's wheel only has Fedora's, for a token endpoint (2.16.0)."""
_reasons: dict[str, list[KafkaError]] = {}
"""What the clients of the brokers have told since the last one was made, by [kafka] bootstrap."""
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
        return Consumer({**defaults, **_common(kafka), **fixed, **(options or {})})
    except KafkaException as error:
        raise _unusable(error) from error


@contextmanager
def reading(kafka: Kafka, *, small: bool = True, uncommitted: bool = False) -> Iterator[Consumer]:
    """Give a `consumer` and close it after the block. A KafkaException of the block is raised as SourceError: `unreachable`."""
    client = consumer(kafka, small=small, uncommitted=uncommitted)
    try:
        yield client
    except KafkaException as error:
        raise unreachable(kafka, error, client) from error
    finally:
        client.close()


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
        return Producer({**_QUIET, **_common(kafka), **fixed, **(options or {})})
    except KafkaException as error:
        raise _unusable(error) from error


def produce(producer: Producer, topic: str, **record: Any) -> None:
    """Queue a record for delivery. While the queue is full, wait for deliveries. Raises KafkaException."""
    while True:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(0.1)
        else:
            return


def admin(kafka: Kafka) -> AdminClient:
    """Return an admin client for one request from the main thread; keep it until the answer. Raises SettingsError.

    A request for a group that does not exist can crash the process (confluent-kafka 2.16.0): use a consumer for groups.
    """
    try:
        return AdminClient({**_QUIET, **_common(kafka)})
    except KafkaException as error:
        raise _unusable(error) from error


def text(error: Exception) -> str:
    """Return the message of the broker or its client, without the wrapper's text."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or "no answer in time"


def unreachable(kafka: Kafka, error: Exception, client: Any = None) -> SourceError:
    """Return the error for a request that Kafka did not answer, with the reason that the client of the request has.

    A broker that refuses the login is a SourceLoginError, and one whose certificate is refused a SourceTrustError.
    """
    if client is not None:
        client.poll(0)  # librdkafka calls back only here
    told = _reasons.pop(kafka.bootstrap, [])
    reason = min(told, key=lambda each: _REASONS.index(each.code()), default=None)
    said = text(error) if reason is None else reason.str()
    what = f"Kafka at {kafka.bootstrap} does not answer: {said}"
    if TOKENS.search(said):
        return without_token(kafka, said)
    # A broker that goes away during a login is an error of the login, too: "SaslAuthenticateRequest failed: Local: ...".
    if reason is not None and reason.code() == KafkaError._AUTHENTICATION and ": Local: " not in said:
        what = f"Kafka at {kafka.bootstrap} refuses the login: {said}"
        return SourceLoginError(what, remedy="Check [kafka] user and password, and sasl.mechanism in [kafka.options]")
    if reason is not None and reason.code() == KafkaError._SSL and _CERTIFICATE.search(said):
        what = f"Kafka at {kafka.bootstrap} and this client do not trust each other: {_verdict(kafka) or said}"
        remedy = "Check [kafka] ca_file, certificate and key, the brokers' certificates, and the clock of both machines"
        return SourceTrustError(what, remedy=remedy)
    if reason is None and _speaks_tls(kafka):
        what = (
            f"Kafka at {kafka.bootstrap} does not answer: it speaks TLS, and [kafka.options] security.protocol does not"
        )
        return SourceError(
            what, remedy="Set ca_file, or security.protocol, or name the port without TLS in [kafka] bootstrap"
        )
    if reason is not None and (reason.code() == KafkaError._SSL or "SSL_HANDSHAKE" in said):
        remedy = (
            "Check that the port in [kafka] bootstrap is for TLS if security.protocol has it, and for no TLS otherwise"
        )
        return SourceError(what, remedy=remedy)
    return SourceError(
        what, remedy="Check [kafka] bootstrap, user and certificates, and that the brokers can be reached from here"
    )


def without_token(kafka: Kafka, said: str) -> SourceError:
    """Return the error for a token endpoint that has not given a token, by what either library says of it."""
    endpoint = kafka.options.get("sasl.oauthbearer.token.endpoint.url", "of [kafka.options]")
    what = f"The token endpoint {endpoint} gives no token: {said}"
    if _CERTIFICATE.search(said) or "trust anchors" in said:
        remedy = 'Name the PEM file of the endpoint\'s authority as "https.ca.location" in [kafka.options]'
        return SourceTrustError(what, remedy=remedy)
    if _OF_CLIENT.search(said):
        remedy = "Check [kafka] user and password, which are the client's id and its secret, and sasl.oauthbearer.scope"
        return SourceLoginError(what, remedy=remedy)
    return SourceError(what, remedy="Check that the endpoint answers, on this host and on those of the executors")


def _verdict(kafka: Kafka) -> str:
    """Return why the certificate of the first broker is refused, "" if it is not: librdkafka has one text for all reasons."""
    options = librdkafka(kafka)
    try:
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
        context.check_hostname = options.get("ssl.endpoint.identification.algorithm") != "none"
        _shake_hands(kafka, context)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        return ""
    return ""


def _speaks_tls(kafka: Kafka) -> bool:
    """Whether the first broker's port is for TLS and the settings are not: librdkafka has no reason for that failure (2.16.0)."""
    protocol = str(librdkafka(kafka).get("security.protocol", "plaintext"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, ValueError):
        if "plaintext" in protocol.lower():
            _shake_hands(kafka, context)
            return True
    return False


def _shake_hands(kafka: Kafka, context: ssl.SSLContext) -> None:
    """Begin a connection by TLS with the first broker, and end it; nothing is sent on it."""
    host, _, port = kafka.bootstrap.partition(",")[0].strip().rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as connection:
        context.wrap_socket(connection, server_hostname=host.strip("[]")).close()


class Kept(Generic[T]):
    """A client that its owner keeps. It goes on with the password and the certificates that it was made with, so another one is
    made when a file of these was replaced."""

    def __init__(self, kafka: Kafka, make: Callable[[], T], close: Callable[[T], object] = lambda _: None) -> None:
        self._kafka, self._make, self._close = kafka, make, close
        self.client: T | None = None
        self._stamp: tuple[object, ...] = ()

    def get(self) -> T:
        """Return the client of the present files. Raises SettingsError if they are no pair; `client` is then the former one."""
        now = stamp(self._kafka)
        if self.client is None or now != self._stamp:
            made = self._make()
            if self.client is not None:
                self._close(self.client)
            self.client, self._stamp = made, now
        return self.client

    def close(self) -> None:
        """Close the client, if there is one; `get` makes another one."""
        client, self.client = self.client, None
        if client is not None:
            self._close(client)


def _common(kafka: Kafka) -> dict[str, Any]:
    """Return the options of the settings, and a callback that keeps the reasons why no broker answers."""
    _reasons.pop(kafka.bootstrap, None)
    options = librdkafka(kafka)
    if options.get("sasl.mechanism") == "OAUTHBEARER" and not any(name.startswith("https.ca.") for name in options):
        options |= next(({"https.ca.location": each} for each in _AUTHORITIES if Path(each).exists()), {})
    return {**options, "error_cb": lambda error: _note(kafka.bootstrap, error)}


def _note(bootstrap: str, error: KafkaError) -> None:
    if error.code() in _REASONS:
        _reasons.setdefault(bootstrap, [])[:] = [*_reasons.get(bootstrap, [])[-8:], error]


def _unusable(error: KafkaException) -> SettingsError:
    """Return the error for options that librdkafka refuses, which it does before it connects."""
    what = f"[kafka]: the client refuses its options: {text(error)}"
    if _OF_A_FILE.search(what):  # also while a certificate is replaced and its key is not yet
        return SecretFileError(what, remedy="Check that [kafka] ca_file, certificate and key are PEM files of one pair")
    return SettingsError(what, remedy="[kafka.options] takes the names of librdkafka's CONFIGURATION.md")
