"""The outlet of kind `kafka`: one record for each final value, in Avro or JSON.

    key      <view>:<measure>:<key>:<start>, or <device>:<start>; start in ms: the end of the key that Redis has for the value;
             of a state <device>:<field>
    value    the columns of service/outlets/tables.py; Avro in Confluent's form, or JSON without the fields that are null, and
             without numbers that are not finite, which JSON does not have

One transaction has the records of an entry and the position, so that readers with `isolation.level = read_committed` see an
entry in full or not at all, and once. The position is in a topic of its own, `<topic>.position`. `open` begins a new session of
the transactional producer, which aborts what an older one has begun and refuses its next transaction.
"""

import io
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from service.admission import registry
from service.errors import (
    OutletError,
    OutletLoginError,
    OutletRefusedError,
    SchemaError,
    SecretFileError,
    SourceError,
    SourceLoginError,
    SourceRefusedError,
    SourceTrustError,
)
from service.kafka import clients, scan, topics
from service.kafka.clients import DELIVERY_S, TIMEOUT_S
from service.outlets import outlet, tables
from service.outlets.outlet import Entry, Position
from service.settings import Kafka as KafkaSettings
from service.settings import KafkaOutlet, Settings
from state.columns import TIME

_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_OF_LOGIN = {KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION}
_WIRE = struct.Struct(">bI")
_TYPES: Mapping[Any, Any] = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.float64(): "double",
    TIME: {"type": "long", "logicalType": "timestamp-millis"},
}
_JUDGED, _NONE = "the registry says that it is not compatible", "there is no [registry]"
_LOGIN = ("user", "password", "password_file", "ca_file", "certificate", "key", "options")


class Kafka:
    """A topic of Kafka."""

    def __init__(self, options: KafkaOutlet, settings: Settings, *_: object) -> None:
        self._options, self._settings = options, settings
        self._kafka = brokers(options, settings.kafka)
        self._content = tables.CONTENTS[options.content]
        self._schema = self._content.schema(settings.session_statistics)
        self._subject = options.subject or f"{options.topic}-value"
        self._positions = f"{options.topic}.position"
        self._id = outlet.identity(options.name, settings)
        self._place = f"The outlet {options.name}, topic {options.topic} at {self._kafka.bootstrap}"
        self._epoch = 0
        self._producer: Producer | None = None
        self._avro: tuple[int, Any] | None = None

    def check(self) -> str:
        with self._named():
            self._create(dry_run=True)
            if self._options.format == "json":
                return f"{self._options.topic} at {self._kafka.bootstrap}, JSON"
            client = registry.connect(self._registry())
            try:
                if self._subject in client.get_subjects() and not client.test_compatibility(
                    self._subject, self._document()
                ):
                    raise self._incompatible(_JUDGED)
            finally:
                client.close()
            return f"{self._options.topic} at {self._kafka.bootstrap}, Avro, subject {self._subject}"

    def open(self, epoch: int) -> Position | None:
        with self._named():
            self._create()
            if self._options.format == "avro":
                self._avro = self._registered(), fastavro.parse_schema(avro_schema(self._schema, self._content.name))
            more: clients.Options = {
                "transactional.id": f"tidemark.{self._id}",
                "transaction.timeout.ms": 60_000,
                "linger.ms": 5,
            }
            producer = clients.producer(self._kafka, f"tidemark-outlet-{self._options.name}", more)
            producer.init_transactions(DELIVERY_S)
            self._producer = producer
            reached = self._read_position()
            outlet.require_newest(reached, epoch, self._place)
            self._epoch = epoch
            self._commit((), (reached or Position(0, -1)).by(epoch))
            return outlet.written(reached)

    def write(self, entry: Entry) -> int:
        with self._named():
            pairs = list(zip(keys(entry.rows, self._content.record_key), self._values(entry.rows), strict=True))
            self._commit(pairs, entry.position)
            return sum(len(key) + len(value) for key, value in pairs)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge()
                producer.abort_transaction(TIMEOUT_S)

    def _commit(self, pairs: Sequence[tuple[bytes, bytes]], position: Position) -> None:
        producer = self._producer
        if producer is None:
            raise OutletError(f"{self._place}: is not open")
        producer.begin_transaction()
        for key, value in pairs:
            clients.produce(producer, self._options.topic, value=value, key=key)
        clients.produce(producer, self._positions, value=position.to_json().encode(), key=self._id.encode())
        # It waits for the deliveries, and fails if one of them failed.
        producer.commit_transaction(DELIVERY_S)

    def _read_position(self) -> Position | None:
        reached = None
        for message in scan.messages(self._kafka, [self._positions]):
            if message.key() == self._id.encode():
                reached = outlet.parse(message.value() or b"", self._place)
        return reached

    def _create(self, *, dry_run: bool = False) -> None:
        client = clients.admin(self._kafka)
        existing = client.list_topics(timeout=TIMEOUT_S).topics
        compacted = {"cleanup.policy": "compact"}
        wanted = {
            self._options.topic: (self._options.partitions, compacted if self._options.compacted else {}),
            self._positions: (1, compacted),
        }
        for name, (partitions, configuration) in wanted.items():
            if name not in existing:
                problem = topics.create(client, {name: partitions}, dry_run=dry_run, configuration=configuration)
                if problem is not None:
                    raise problem

    def _values(self, rows: pa.Table) -> Iterator[bytes]:
        documents = _plain(rows).to_pylist()
        if self._avro is None:
            for row in documents:
                present = {name: value for name, value in row.items() if _is_in_json(value)}
                yield json.dumps(present, ensure_ascii=False, separators=(",", ":")).encode()
            return
        number, schema = self._avro
        head = _WIRE.pack(0, number)
        for row in documents:
            sink = io.BytesIO()
            sink.write(head)
            fastavro.schemaless_writer(sink, schema, row)
            yield sink.getvalue()

    def _registry(self) -> Any:
        if self._settings.registry is None:  # refused by the settings
            raise self._incompatible(_NONE)
        return self._settings.registry

    def _document(self) -> Any:
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - half a second of imports

        return Schema(json.dumps(avro_schema(self._schema, self._content.name)), "AVRO")

    def _registered(self) -> int:
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        client = registry.connect(self._registry())
        try:
            return int(client.register_schema(self._subject, self._document()))
        except SchemaRegistryError as error:
            if error.http_status_code in {409, 422, 401, 403}:
                raise self._incompatible(str(error)) from error
            raise
        finally:
            client.close()

    def _incompatible(self, why: str) -> OutletRefusedError:
        what = f"{self._place}: the schema of the values cannot be registered as {self._subject}: {why}"
        return OutletRefusedError(what, remedy="Give the outlet another subject, or change the subject's compatibility")

    @contextmanager
    def _named(self) -> Iterator[None]:
        remedy = f"Check the outlet {self._options.name}, its user's rights, and that the brokers can be reached"
        try:
            yield
        except KafkaException as error:
            code = error.args[0].code()
            refusal = OutletLoginError if code in _OF_LOGIN else OutletRefusedError
            what = f"{self._place}: {clients.text(error)}"
            raise (refusal if code in _REFUSALS else OutletError)(what, remedy=remedy) from error
        except (SourceError, SchemaError, SecretFileError) as error:
            family = OutletRefusedError if isinstance(error, SourceRefusedError) else OutletError
            if isinstance(error, SourceLoginError | SourceTrustError | SecretFileError):
                family = OutletLoginError
            raise family(f"{self._place}: {error.what}", remedy=error.remedy or remedy) from error
        except OutletError:
            raise
        except Exception as error:
            # The registry's client raises those of httpx, and of files.
            module = type(error).__module__
            if not isinstance(error, OSError) and not module.startswith(("httpx", "confluent_kafka", "authlib")):
                raise
            what = f"{self._place}: {' '.join(str(error).split()) or type(error).__name__}"
            raise OutletError(what, remedy=remedy) from error


def brokers(options: KafkaOutlet, kafka: KafkaSettings) -> KafkaSettings:
    """Return the settings of the outlet's brokers: those of [kafka], or the outlet's own.

    Only committed records are read, whatever the options say: a position of an aborted transaction is of rows that were not
    written.
    """
    own = {} if options.bootstrap is None else {name: getattr(options, name) for name in ("bootstrap", *_LOGIN)}
    kafka = kafka.model_copy(update=own)
    return kafka.model_copy(update={"options": {**kafka.options, **clients.READ_COMMITTED}})


def avro_schema(schema: pa.Schema, name: str) -> dict[str, Any]:
    """Return the Avro record of a table. A new field of a later version has the default null, so that both read the other's."""
    fields: list[dict[str, Any]] = []
    for field in schema:
        kind = _TYPES[field.type]
        if field.nullable:
            fields.append({"name": field.name, "type": ["null", kind], "default": None})
        else:
            fields.append({"name": field.name, "type": kind})
    return {"type": "record", "name": name, "namespace": "tidemark", "fields": fields}


def keys(rows: pa.Table, names: Sequence[str]) -> list[bytes]:
    """Return the keys of records: the values of these columns with colons between, times in ms."""
    columns = [_plain(rows.select(list(names)))[name].cast(pa.string()).to_pylist() for name in names]
    return [":".join(values).encode() for values in zip(*columns, strict=True)]


def _is_in_json(value: str | float | None) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def _plain(rows: pa.Table) -> pa.Table:
    """Rows with times as ms since the epoch."""
    fields = [field.with_type(pa.int64()) if field.type == TIME else field for field in rows.schema]
    return rows.cast(pa.schema(fields))
