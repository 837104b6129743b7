"""What stands before a record's body, and says which schema it was written with.

confluent       a zero byte, four bytes of schema id
apicurio        a zero byte, eight bytes of schema id (Apicurio Registry 2; version 3 writes as Confluent does)
glue            3, 0, the sixteen bytes of the version's UUID (AWS Glue Schema Registry)
glue-zlib       the same, or 3, 5 and the UUID before a body that zlib has compressed: Python unpacks it
single-object   C3 01, the schema's CRC-64-AVRO fingerprint in eight bytes (Avro 1.12, "Single object encoding")
none            nothing: all records have one schema
headers         Confluent's header of Kafka `__value_schema_id`: 0 and four bytes of schema id, or 1 and the schema's GUID.
                Its content is put before the value; a record without the header is framed as confluent. Of the key,
                `__key_schema_id`

A GUID is a number in the place of the schema id (service/admission/guids.py).
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form
from pyspark.sql import Column
from pyspark.sql import functions as F

from service.admission import avro_types, guids
from service.admission.formats.format import FILTERED, FRAMED, Dissected, Plan, Schemas
from service.settings import Input

HEADER_BYTES = 5
"""Of Confluent's framing."""
HEADER, KEY_HEADER = "__value_schema_id", "__key_schema_id"
"""The headers of Kafka that have the schemas of a record's value and key, by Confluent's HeaderSchemaIdSerializer."""
_COMPRESSED = b"\3\5"
_PART_BYTES = 4 << 20
"""Bytes of values from which a part of a batch is handed on."""

Headers = Sequence[tuple[str, bytes | None]]
"""Headers of a record of Kafka."""


@dataclass(frozen=True, slots=True)
class Head:
    """A header of `size` bytes that begins with `prefix`, and of which `compared` bytes tell the schema.

    `id_at` is where its bytes of schema id begin, if it has an id that a registry finds.
    """

    prefix: bytes
    size: int
    id_at: int | None = None
    compared: int = 0

    def number(self, value: bytes) -> int:
        """Return the schema id of a record with this header, of one that has ids."""
        if self.id_at is None:
            return guids.FIRST + int.from_bytes(value[1:8])
        return int.from_bytes(value[self.id_at : self.id_at + 4])

    @property
    def known_by(self) -> int:
        """The bytes that tell the schema, of the header's first ones."""
        return self.compared or self.size


@dataclass(frozen=True, slots=True)
class Framing:
    """What stands before records: one of the `heads`. Without one all records have one schema.

    `is_made` is whether a value is made before it is decoded (`made`).
    """

    heads: tuple[Head, ...] = ()
    is_made: bool = False

    @property
    def has_ids(self) -> bool:
        """Whether a header has an id that a registry finds."""
        return any(each.id_at is not None for each in self.heads)

    def header(self, form: Input, schema_id: int, schema: Mapping[str, Any]) -> bytes | None:
        """Return what tells the schema of a record, None if no record has this schema."""
        first = self.heads[0]
        if schema_id >= guids.FIRST:
            return self.heads[-1].prefix + (schema_id - guids.FIRST).to_bytes(7)
        if first.id_at is not None:
            return first.prefix + schema_id.to_bytes(4, "big")
        if form.framing == "single-object":
            return first.prefix + bytes.fromhex(_fingerprint(json.dumps(avro_types.union_of(schema) or schema)))
        version = form.schema_versions.get(schema_id)
        return None if version is None else first.prefix + UUID(version).bytes

    def framing(self, plan: Plan, others: Mapping[int, Column | None] = MappingProxyType({})) -> Column:
        """Return `undecodable` for a record without a header, `unknown_schema` for an id without a schema, or null.

        Of a record whose schema is one of `others`, and for which the condition of the schema holds, FILTERED.
        """
        if not self.heads:
            bare = F.when(F.col("value").isNull(), "undecodable")
            return reduce(
                lambda found, each: found if each is None else found.when(each, FILTERED), others.values(), bare
            )
        value, since = self.value(plan), plan.schemas.since
        head = self._head(value)
        headers = {each: self.header(plan.form, each, schema) for each, schema in plan.schemas.schemas.items()}
        framed = reduce(or_, [(F.length(value) >= each.size) & _begins(value, each) for each in self.heads])
        reason = F.when(F.coalesce(~framed, F.lit(True)), "undecodable")
        for schema_id, condition in others.items():
            has_id = self.has_id(plan, schema_id, head)
            reason = reason.when(has_id if condition is None else has_id & condition, FILTERED)
        is_known = head.isin(
            *[F.lit(each) for number, each in headers.items() if each is not None and number not in since]
        )
        for schema_id in since:
            is_known = is_known | self.has_id(plan, schema_id, head)
        # The driver looks up an unknown id. It cannot look up what is no id.
        unknown = "unknown_schema" if self.has_ids else "undecodable"
        return reason.when(~is_known, unknown)

    def value(self, plan: Plan) -> Column:
        """Return the header and what follows it."""
        return F.col(FRAMED + plan.name if self.is_made else "value")

    def head_of(self, plan: Plan) -> Column:
        """Return the header of a record that is not too large, else null."""
        return self._head(F.when(F.length("value") <= plan.max_bytes, self.value(plan)))

    def body(self, plan: Plan) -> Column:
        """Return what follows the header."""
        return self.after(f"`{FRAMED}{plan.name}`" if self.is_made else "value")

    def after(self, value: str) -> Column:
        """Return what follows the header of a value, which SQL gives."""
        if not self.heads:
            return F.expr(value)
        bodies = [F.expr(f"substring({value}, {each.size + 1})") for each in self.heads]
        return _choice(F.expr(value), self.heads, bodies)

    def has_id(self, plan: Plan, schema_id: int, head: Column) -> Column:
        """Whether a record has this schema id, and an offset from which on the id is decoded."""
        header = self.header(plan.form, schema_id, plan.schemas.schemas[schema_id])
        matches = F.lit(False) if header is None else head == F.lit(header)
        since = plan.schemas.since.get(schema_id)
        if since is None:
            return matches
        begins = {f"{topic}/{part}": offset for topic, each in since.items() for part, offset in each.items()}
        place = F.concat("topic", F.lit("/"), F.col("partition").cast("string"))
        table = F.create_map(*[F.lit(each) for pair in begins.items() for each in pair])
        return matches & F.coalesce(F.col("offset") >= F.element_at(table, place), F.lit(True))

    def head_at(self, value: bytes) -> Head | None:
        """Return the header of a record, None for a record without one."""
        for each in self.heads:
            if len(value) >= each.size and value.startswith(each.prefix):
                return each
        return None

    def begin(self, value: bytes) -> int:
        """Return the byte of a record with a header, or of one that needs none, at which its body begins."""
        head = self.head_at(value)
        return 0 if head is None else head.size

    def id_of(self, value: bytes, form: Input, schemas: Schemas) -> int | None:
        """Return the schema id of a record, None for one without a header, or with one of no schema."""
        if not self.heads:
            return reader_id(form, schemas)
        head = self.head_at(value)
        if head is None or self.has_ids:
            return None if head is None else head.number(value)
        headers = {self.header(form, number, schema): number for number, schema in schemas.items()}
        return headers.get(value[: head.size])

    def stopped(self, value: bytes, form: Input, schemas: Schemas) -> Dissected | None:
        """Return why a value is not decoded at all; None for one that begins with a known header."""
        number = self.id_of(value, form, schemas)
        if number is None and self.head_at(value) is not None:
            what = "fingerprint" if form.framing == "single-object" else f"version in {form.place}.schema_versions"
            return Dissected({}, {}, stop=0, why=f"begins as {form.framing} does, and no schema has this {what}")
        if number is None:
            return Dissected({}, {}, stop=0, why=f"does not begin with {_BEGINS[form.framing]}")
        if number not in schemas:
            why = f"schema {guids.shown(number)} is not known; known: {', '.join(map(guids.shown, sorted(schemas)))}"
            return Dissected({}, {}, number, stop=1, why=why)
        return None

    def _head(self, value: Column) -> Column:
        return _choice(value, self.heads, [F.substring(value, 1, each.known_by) for each in self.heads])


def begins(value: Column, names: Sequence[bytes]) -> Column:
    """Whether a value begins with one of some bytes."""
    by_size = ([name for name in names if len(name) == size] for size in sorted({*map(len, names)}))
    found = [F.substr(value, F.lit(1), F.lit(len(each[0]))).isin(*map(F.lit, each)) for each in by_size]
    return reduce(or_, found, F.lit(False))


def _begins(value: Column, head: Head) -> Column:
    return F.substring(value, 1, len(head.prefix)) == F.lit(head.prefix)


def _choice(value: Column, heads: Sequence[Head], choices: Sequence[Column]) -> Column:
    """Return the choice of the header that a value begins with, of the last one without."""
    *others, result = choices
    for head, each in zip(heads, others, strict=False):
        result = F.when(_begins(value, head), each).otherwise(result)
    return result


FRAMINGS: Mapping[str, Framing] = MappingProxyType(
    {
        "confluent": Framing((Head(b"\0", HEADER_BYTES, 1),)),
        "headers": Framing((Head(b"\0", HEADER_BYTES, 1), Head(b"\1", 17, compared=8)), is_made=True),
        "apicurio": Framing((Head(b"\0" * 5, 9, 5),)),  # an id has at most 31 bits
        "glue": Framing((Head(b"\3\0", 18),)),
        "glue-zlib": Framing((Head(b"\3\0", 18),), is_made=True),
        "single-object": Framing((Head(b"\xc3\1", 10),)),
        "none": Framing(),
    }
)
_BEGINS = {
    "confluent": "a zero byte and a schema id",
    "headers": f"a schema id or a GUID, in the header {HEADER} or before the value",
    "apicurio": "a zero byte and eight bytes of schema id",
    "glue": "3, 0 and the UUID of a schema version; values that begin with 3, 5 are compressed: set framing = 'glue-zlib'",
    "glue-zlib": "3, 0 and the UUID of a schema version, nor with 3, 5, the UUID and what zlib unpacks within max_array_bytes",
    "single-object": "C3 01 and the fingerprint of a schema",
}


def of(form: Input) -> Framing:
    """Return the framing of an input's records."""
    return FRAMINGS[form.framing]


def reader_id(form: Input, schemas: Schemas) -> int:
    """Return the id of the reader's schema."""
    return max(schemas) if form.reader_schema is None else form.reader_schema


def refusal(found: Dissected) -> str:
    """Return why a value with or without a header does not decode."""
    if found.schema is None:
        return "no schema id before the value"
    return f"schema {guids.shown(found.schema)}, which is not among the known ones" if found.stop == 1 else ""


def id_column(form: Input) -> Column:
    """Return the schema id of a record in hexadecimal; null for a framing without ids."""
    framing = of(form)
    if not framing.has_ids:
        return F.lit(None).cast("string")
    value = F.expr(_with_header(HEADER, "value") if form.framing == "headers" else "value")
    # As guids.py has it: a 1 before the seven bytes of a GUID.
    ids = [F.hex(F.substring(value, each.id_at + 1, 4)) for each in framing.heads if each.id_at is not None]
    guids = [F.concat(F.lit("1"), F.hex(F.substring(value, 2, 7))) for each in framing.heads if each.compared]
    return _choice(value, framing.heads, [*ids, *guids])


def made(form: Input) -> Column:
    """Return the value that is decoded in the place of a record's, for a framing with `is_made`.

    It is the value behind the content of Confluent's header, or unpacked.
    """
    if form.framing == "headers":
        return F.expr(_with_header(HEADER, "value"))
    limit = int(form.max_array_bytes)

    def unpack(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for values in batches:
            yield from unpacked_parts(values, limit)

    unpacked: Column = F.arrow_udf(unpack, "binary").asNondeterministic()(F.col("value"))  # type: ignore[attr-defined]
    return unpacked


def unpacked_parts(values: pa.Array, limit: int) -> Iterator[pa.Array]:
    """Yield the values of Glue uncompressed, in arrays of a few megabytes and one value: 2 MB of zeros unpack to 2 GB."""
    part, size = list[bytes | None](), 0
    for each in values.to_pylist():
        part.append(None if each is None else _unpacked(each, limit))
        size += len(part[-1] or b"")
        if size >= _PART_BYTES:
            yield pa.array(part, pa.binary())
            part, size = [], 0
    yield pa.array(part, pa.binary())


def framed(value: bytes, headers: Headers, form: Input, header: str = HEADER) -> bytes:
    """Return the same of one record: of another framing the value. With `header = KEY_HEADER` of the record's key."""
    if form.framing == "headers":
        return next((each or b"" for name, each in reversed(headers) if name == header), b"") + value
    is_unpacked = form.framing == "glue-zlib" and header == HEADER
    return _unpacked(value, int(form.max_array_bytes)) if is_unpacked else value


def key_body(form: Input) -> Column:
    """Return the body of an Avro key: it is framed as values are."""
    return of(form).after(_with_header(KEY_HEADER, "key") if form.framing == "headers" else "key")


def _with_header(header: str, column: str) -> str:
    """Return SQL for the content of Confluent's header before a value: then it is framed as the value is without a header."""
    mine = f"try_element_at(filter(headers, header -> header.key = '{header}'), -1).value"
    return f"concat(coalesce({mine}, X''), {column})"


def _unpacked(value: bytes, limit: int) -> bytes:
    """Return a value of Glue uncompressed; the value itself where it cannot be unpacked to at most `limit` bytes."""
    if not value.startswith(_COMPRESSED):
        return value
    packed = zlib.decompressobj()
    try:
        body = packed.decompress(value[18:], limit + 1)
    except zlib.error:
        return value
    is_complete = packed.eof and not packed.unused_data and len(body) <= limit
    return b"\3\0" + value[2:18] + body if is_complete else value


@lru_cache(maxsize=128)
def _fingerprint(schema: str) -> str:
    return fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO")
