"""Decode a sample of Kafka records without settings of their fields: JSON, or Avro, JSON and Protobuf behind a schema id."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from service.admission import arrays, avro_types, formats
from service.admission.formats import framings
from service.admission.schema_sources import Schemas
from service.commands import dissect, metadata
from service.kafka.offsets import place_of
from service.proposal import readings_within
from service.proposal.columns import Seen
from service.proposal.names import is_readable
from service.settings import Admission, Input, field_path

MAX_BYTES = int(Admission().max_bytes)
_LOOKED_AT = 200
_ASKED = ("format", "framing", "record_type")
_MOST_WORDS, _DEEPEST = 32, 3
"""Names of a key's object and headers that are looked at, and levels of a key."""
_LARGEST_ARRAY = int(Input().max_array_bytes)


@dataclass
class Decoded:
    """The decoded records, and how many of the others there are by reason."""

    sample: list[Seen] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def refuse(self, why: str) -> None:
        self.refused[why] += 1


def framing_of(messages: Sequence[Message]) -> str | None:
    """Return how most of the records begin, as `input.framing` has it; None for records that name no schema."""
    values: list[Any] = [value for message in messages if (value := message.value())]
    in_header = sum(framings.HEADER in dict(message.headers() or ()) for message in messages if message.value())
    if in_header > len(values) / 2:
        return "headers"
    # Apicurio's begin as Confluent's would with the id 0.
    for name in ("apicurio", "confluent", "single-object", "glue", "glue-zlib"):
        shape = Input.model_validate({"framing": name})
        heads = (framings.of(shape).head_at(framings.framed(value, (), shape)) for value in values)
        if sum(head is not None for head in heads) > len(values) / 2:
            return name
    return None


def format_of(messages: Sequence[Message]) -> str | None:
    """Return the format that most of the records look like, of those that are neither plain JSON nor behind a header."""
    values: list[Any] = [value for message in messages if (value := message.value())][:_LOOKED_AT]
    for name, each in formats.FORMATS.items():
        if sum(each.looks_alike(value) for value in values) > len(values) / 2:
            return name
    return None


def sample_line(messages: Sequence[Message]) -> str:
    """Return the beginning of the first record, for people."""
    return next((repr(value[:60]) for message in messages if (value := message.value())), "")


def ids(messages: Sequence[Message], framing: str = "confluent", schemas: Schemas | None = None) -> Counter[int]:
    """Count the schema ids of framed records; with a framing without ids, those of the `schemas`."""
    shape = Input.model_validate({"framing": framing})
    found = (framings.of(shape).id_of(_framed(message, shape), shape, schemas or {}) for message in messages)
    return Counter(each for each in found if each is not None)


def types(messages: Sequence[Message], framing: str, schemas: Schemas) -> Counter[str]:
    """Count the records of each type of those Avro schemas that are a union."""
    shape, found = Input.model_validate({"framing": framing}), Counter[str]()
    for message in messages:
        value = _framed(message, shape)
        schema = schemas.get(framings.of(shape).id_of(value, shape, schemas) or 0, {})
        if avro_types.union_of(schema) is not None:
            begin = framings.of(shape).begin(value)
            found.update(
                name for name, (before, _) in avro_types.records_of(schema).items() if value.startswith(before, begin)
            )
    return found


def array_of(messages: Sequence[Message]) -> bool | str:
    """Return `input.array` for most of the records: True for arrays of JSON, also empty ones, and JSON compressed by gzip.

    The path of the readings within the records, where all numbers of a record but times are.
    """
    values: list[Any] = [value for message in messages if (value := message.value())]
    if sum(_readings(value) is not None for value in values) > len(values) / 2:
        return True
    paths = Counter(path for value in values[:_LOOKED_AT] if (path := readings_within.path_of(value)) is not None)
    path, count = paths.most_common(1)[0] if paths else ("", 0)
    return path if count > min(len(values), _LOOKED_AT) / 2 else False


def decode(messages: Sequence[Message], form: Mapping[str, Any], schemas: Schemas | None) -> Decoded:
    """Decode records with the writers' schemas by id, None for JSON without ids; `form` are settings of [input]."""
    decoded, shape = Decoded(), Input.model_validate({name: form[name] for name in _ASKED if name in form})
    known = schemas or {}
    for number, schema in known.items():
        formats.of(shape).check_sample(number, schema)
    for message in messages:
        value: Any = message.value()
        if value is None:
            decoded.refuse("no value, which is a tombstone")
            continue
        found = _readings(value) if form.get("array") is True else _within(value, form, int(message.timestamp()[1]))
        value = _framed(message, shape)
        for each in [value] if found is None else found:
            if len(each) > MAX_BYTES:
                decoded.refuse(f"larger than {MAX_BYTES} bytes (admission.max_bytes)")
            elif (record := _record(each, shape, known, decoded)) is not None:
                words = _words(message)
                decoded.sample.append(
                    Seen(record, _key(message), int(message.timestamp()[1]), place_of(message), words)
                )
    return decoded


def _framed(message: Message, shape: Input) -> bytes:
    headers: Any = message.headers()
    return framings.framed(message.value() or b"", headers or (), shape)


def _within(value: bytes, form: Mapping[str, Any], broker_ms: int) -> list[bytes] | None:
    shape = Input.model_validate({name: form[name] for name in ("format", "array") if name in form})
    try:
        return formats.of(shape).cut(value, shape, broker_ms).each if shape.is_cut else None
    except arrays.UnreadableArrayError as error:
        return [] if error.reason == arrays.EMPTY else None


def _readings(value: bytes) -> list[bytes] | None:
    """The readings of a record that is an array, or an object compressed by gzip; None for another one."""
    try:
        text = arrays.unpacked(value, _LARGEST_ARRAY)
        found = arrays.elements(text)
        return [text] if found is None and text != value else found
    except arrays.UnreadableArrayError as error:
        return [] if error.reason == arrays.EMPTY else None


def _record(value: bytes, shape: Input, schemas: Schemas, decoded: Decoded) -> Mapping[str, Any] | None:
    found = dissect.fields(value, shape, schemas)
    format_ = formats.of(shape)
    if found.whole:
        return format_.proposed(found, value, shape, schemas)
    decoded.refuse(format_.refusal(found))
    return None


def _words(message: Message) -> dict[str, str]:
    """Return the values of fields of a JSON key, of headers, and the topic, by their sources."""
    found = {"$topic": message.topic() or ""}
    key: Any = message.key()

    def walk(node: Mapping[str, Any], above: tuple[str, ...]) -> None:
        for name, value in itertools.islice(node.items(), _MOST_WORDS):
            names = (*above, name)
            if isinstance(value, Mapping) and len(names) < _DEEPEST:
                walk(value, names)
            elif is_readable(names) and isinstance(value, str | int) and not isinstance(value, bool):
                found[f"$key.{field_path.spelled(names)}"] = str(value)

    document = metadata.document(key if isinstance(key, bytes) else None)
    if isinstance(document, Mapping):
        walk(document, ())
    headers: Any = message.headers() or ()
    for name, value in itertools.islice(headers, _MOST_WORDS):
        with contextlib.suppress(UnicodeDecodeError):
            if isinstance(value, bytes) and is_readable((name,)):
                found[f"$header.{field_path.spelled((name,))}"] = value.decode()
    return found


def _key(message: Message) -> str | None:
    key: Any = message.key()
    try:
        return (key or b"").decode() or None
    except (UnicodeDecodeError, AttributeError):
        return None
