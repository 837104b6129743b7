"""What a format has: its framing, its decoder as Spark columns, its decoder for a single record, and the check of its schemas.

The service decodes in Spark. A single record is decoded for people, by the commands. Both give the same reading and the same
reason for a reject: tests/stream/test_decoders.py compares the two for every format.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import types as t

from service.admission import json_record
from service.admission.arrays import EMPTY, Cut
from service.admission.schema_sources import SchemaSet
from service.settings import Input

END = "tidemark_end"
"""The end mark: the field of a decoded record that shows that it was decoded to its last byte. See Format.mark."""
CORRUPT = "tidemark_corrupt"
FILTERED = EMPTY
"""Takes the place of a reason in a record that its input does not let in."""
TEXT, FRAMED, KEY = "text_", "framed_", "key_"
"""Prefixes of the columns with the JSON text of a record, with the header and the value, and with an Avro key."""

Schemas = Mapping[int, Mapping[str, Any]]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the columns of one input are made of.

    `name` is that of the column with the decoded record. `fields` returns the types of the mapped fields in JSON.
    """

    form: Input
    schemas: SchemaSet
    max_bytes: int
    name: str
    fields: Callable[[], t.StructType]


@dataclass(frozen=True, slots=True)
class Dissected:
    """The decoded part of a record.

    `fields` are the decoded fields by name, in the record's order. `spans` has the bytes of each, as far as they are known.
    `stop` is the byte at which decoding stopped, for the reason `why`; None when the complete record decodes. Then `read` has the
    mapped fields as the service reads them, and `problems` a line for each of them that it cannot read.
    """

    fields: Mapping[str, Any]
    spans: Mapping[str, Span]
    schema: int | None = None
    stop: int | None = None
    why: str = ""
    read: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return self.stop is None

    @property
    def used(self) -> Mapping[str, Any]:
        """The fields as the service reads them, those that decode of a record that it cannot read."""
        return self.fields if self.read is None else self.read

    def at(self, path: str) -> Any:
        """The value at a path with dots, None without it."""
        return json_record.at(self.used, path)


class Format(ABC):
    """One format. Objects have no state."""

    suffix: ClassVar[str] = ""
    """Of the files in which the checkpoint keeps copies of schemas."""
    has_escapes: ClassVar[bool] = False
    """Whether a text of the record may hold an escape for half of a character."""

    # In Spark. No content of a record raises an error.

    @abstractmethod
    def framing(self, plan: Plan) -> Column:
        """Return the reason not to decode a record: `undecodable`, `unknown_schema` or null."""

    def text(self, _plan: Plan, _is_mine: Column | None) -> Column | None:
        """Return what a record is decoded from, for the column TEXT + the plan's name: the JSON text, or what Python has decoded.

        None for a format that is decoded from the value. `_is_mine` is whether the record is of this input, None with one input.
        The text has a column, so that it is made once.
        """
        return None

    @abstractmethod
    def record(self, plan: Plan) -> Column:
        """Return the decoded record, a struct; null or a struct of nulls when the value cannot be decoded."""

    @abstractmethod
    def mark(self) -> Column:
        """Return the value of END in a record that was decoded to its last byte."""

    # Records with several readings.

    def cut(self, value: bytes, _form: Input, _broker_ms: int | None = None) -> Cut:
        """Return the readings of a record, each a JSON text. Raises UnreadableArrayError.

        Only for inputs with `is_cut`. The number of a reading is part of its place: the cuts must stay the same for ever.
        `_broker_ms` is the time of the record in Kafka, for readings without a time of their own.
        """
        return Cut(value)

    def looks_alike(self, _value: bytes) -> bool:
        """Whether a record seems to be of this format, for `init`. JSON and what has a header are found otherwise."""
        return False

    # A single record, for people.

    @abstractmethod
    def fields(self, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        """Decode as much as possible of a value, for settings that may map no fields: `read` and `problems` are empty."""

    @abstractmethod
    def read(self, found: Dissected, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        """Add `read` and `problems` to a value that decodes."""

    @abstractmethod
    def text_problems(self, texts: Mapping[str, str], value: bytes, form: Input, schemas: Schemas) -> Iterator[str]:
        """Yield a line for the device id and columns, by path, that the service cannot take as text."""

    @abstractmethod
    def encode(self, value: bytes, record: Mapping[str, Any], form: Input, schemas: Schemas) -> bytes:
        """Return a record in the place of `value`'s, of the same schema. ValueError says what does not fit."""

    def proposed(self, found: Dissected, _value: bytes, _form: Input, _schemas: Schemas) -> Mapping[str, Any]:
        """Return the fields that `init` looks at, of a value that decodes."""
        return found.fields

    @abstractmethod
    def refusal(self, found: Dissected) -> str:
        """Return why a value does not decode, without its own content: the reasons are counted."""

    # Schemas.

    def check(self, schema: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], None]) -> None:
        """Raise SchemaError for a schema that a query cannot have; `parse` is that of Avro in the JVM."""
        return

    def check_sample(self, _number: int, _schema: Mapping[str, Any]) -> None:
        """Raise SchemaError for a schema that no single record can be decoded with."""
        return

    def stored(self, schema: Mapping[str, Any], _place: str) -> dict[str, Any]:
        """Return a schema that the checkpoint has kept. Raises SchemaError."""
        return dict(schema)

    def describes(self, _schema: Mapping[str, Any], _path: Sequence[str], _form: Input) -> bool:
        """Whether a schema may have a field."""
        return True
