"""Decode a sample of Kafka records without settings of their fields: JSON objects, or Avro with a schema id."""

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fastavro
from confluent_kafka import Message

from service.commands.dissect import HEADER_BYTES
from service.errors import SchemaError
from service.kafka.offsets import place_of
from service.proposal.columns import Seen
from service.settings import Admission

MAX_BYTES = int(Admission().max_bytes)


@dataclass
class Decoded:
    """The decoded records, and how many of the others there are by reason. `ids` counts the schema ids."""

    sample: list[Seen] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    ids: Counter[int] = field(default_factory=Counter)

    def refuse(self, why: str) -> None:
        self.refused[why] += 1


def is_framed(messages: Sequence[Message]) -> bool:
    """Whether most of the records begin as Confluent's wire format does: a zero byte and a schema id."""
    values = [value for message in messages if (value := message.value())]
    return sum(value[0] == 0 and len(value) >= HEADER_BYTES for value in values) > len(values) / 2


def ids(messages: Sequence[Message]) -> Counter[int]:
    """Count the schema ids of framed records."""
    values = (message.value() or b"" for message in messages)
    return Counter(int.from_bytes(v[1:HEADER_BYTES]) for v in values if len(v) >= HEADER_BYTES and v[0] == 0)


def decode(messages: Sequence[Message], schemas: Mapping[int, Mapping[str, Any]] | None) -> Decoded:
    """Decode records with the writers' schemas by id, or as JSON if `schemas` is None."""
    decoded = Decoded()
    parsed = {number: _parsed(number, schema) for number, schema in (schemas or {}).items()}
    for message in messages:
        value = message.value()
        if value is None:
            decoded.refuse("no value")
        elif len(value) > MAX_BYTES:
            decoded.refuse(f"larger than {MAX_BYTES} bytes (admission.max_bytes)")
        else:
            record = _json(value, decoded) if schemas is None else _avro(value, parsed, decoded)
            if record is not None:
                decoded.sample.append(Seen(record, _key(message), int(message.timestamp()[1]), place_of(message)))
    return decoded


def _parsed(number: int, schema: Mapping[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(dict(schema))
    except Exception as error:  # fastavro raises errors of many classes
        msg = f"schema {number} is no Avro schema: {error}"
        raise SchemaError(msg, remedy="Correct it, or remove it if no producer writes with it") from error


def _avro(value: bytes, schemas: Mapping[int, Any], decoded: Decoded) -> Mapping[str, Any] | None:
    if value[:1] != b"\0" or len(value) < HEADER_BYTES:
        decoded.refuse("no schema id before the value")
        return None
    number = int.from_bytes(value[1:HEADER_BYTES])
    decoded.ids[number] += 1
    if number not in schemas:
        decoded.refuse(f"schema {number}, which is not among the known ones")
        return None
    try:
        record: Any = fastavro.schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), schemas[number], None)
    except Exception:  # fastavro raises errors of many classes for a device's bytes
        decoded.refuse(f"does not fit schema {number}")
        return None
    return dict(record)


def _json(value: bytes, decoded: Decoded) -> Mapping[str, Any] | None:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        decoded.refuse("no JSON")
        return None
    if not isinstance(document, Mapping):
        decoded.refuse("JSON, but no object")
        return None
    return document


def _key(message: Message) -> str | None:
    key: Any = message.key()
    try:
        return (key or b"").decode() or None
    except (UnicodeDecodeError, AttributeError):
        return None
