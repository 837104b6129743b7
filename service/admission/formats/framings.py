"""What stands before a record's body, and says which schema it was written with.

confluent       a zero byte, four bytes of schema id
apicurio        a zero byte, eight bytes of schema id (Apicurio Registry 2; version 3 writes as Confluent does)
glue            3, the compression (0 for none), the sixteen bytes of the version's UUID (AWS Glue Schema Registry)
single-object   C3 01, the schema's CRC-64-AVRO fingerprint in eight bytes (Avro 1.12, "Single object encoding")
none            nothing: all records have one schema
headers         Confluent's header of Kafka `__value_schema_id`: 0 and four bytes of schema id, or 1 and the schema's GUID.
                Its content is put before the value; a record without the header is framed as confluent

A GUID is a number in the place of the schema id (service/admission/guids.py).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from types import MappingProxyType
from typing import Any
from uuid import UUID

from fastavro.schema import fingerprint, to_parsing_canonical_form
from pyspark.sql import Column
from pyspark.sql import functions as F

from service.admission import guids
from service.admission.formats.format import FILTERED, FRAMED, Dissected, Plan, Schemas
from service.settings import Input

HEADER_BYTES = 5
"""Of Confluent's framing."""
HEADER = "__value_schema_id"
"""The header of Kafka that has a record's schema, by Confluent's HeaderSchemaIdSerializer."""


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
    """What stands before records: one of the `heads`. Without one all records have one schema."""

    heads: tuple[Head, ...] = ()

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
            return first.prefix + bytes.fromhex(_fingerprint(json.dumps(schema)))
        version = form.schema_versions.get(schema_id)
        return None if version is None else first.prefix + UUID(version).bytes

    def framing(self, plan: Plan, others: Collection[int] = ()) -> Column:
        """Return `undecodable` for a record without a header, `unknown_schema` for an id without a schema, or null.

        Of a record whose schema is one of `others`, FILTERED.
        """
        if not self.heads:
            return F.when(F.col("value").isNull(), "undecodable")
        value, since = self.value(plan), plan.schemas.since
        head = self._head(value)
        headers = {each: self.header(plan.form, each, schema) for each, schema in plan.schemas.schemas.items()}
        framed = reduce(or_, [(F.length(value) >= each.size) & _begins(value, each) for each in self.heads])
        reason = F.when(F.coalesce(~framed, F.lit(True)), "undecodable")
        for schema_id in others:
            reason = reason.when(self.has_id(plan, schema_id, head), FILTERED)
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
        return F.col(FRAMED + plan.name if plan.form.framing == "headers" else "value")

    def head_of(self, plan: Plan) -> Column:
        """Return the header of a record that is not too large, else null."""
        return self._head(F.when(F.length("value") <= plan.max_bytes, self.value(plan)))

    def body(self, plan: Plan) -> Column:
        """Return what follows the header."""
        value = "value" if plan.form.framing != "headers" else f"`{FRAMED}{plan.name}`"
        if not self.heads:
            return F.col("value")
        *others, last = [F.expr(f"substring({value}, {each.size + 1})") for each in self.heads]
        return _choice(self.value(plan), self.heads, [*others, last])

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
        "headers": Framing((Head(b"\0", HEADER_BYTES, 1), Head(b"\1", 17, compared=8))),
        "apicurio": Framing((Head(b"\0" * 5, 9, 5),)),  # an id has at most 31 bits
        "glue": Framing((Head(b"\3\0", 18),)),
        "single-object": Framing((Head(b"\xc3\1", 10),)),
        "none": Framing(),
    }
)
_BEGINS = {
    "confluent": "a zero byte and a schema id",
    "headers": f"a schema id or a GUID, in the header {HEADER} or before the value",
    "apicurio": "a zero byte and eight bytes of schema id",
    "glue": "3, 0 and the UUID of a schema version; compressed values are not read",
    "single-object": "C3 01 and the fingerprint of a schema",
}


def of(form: Input) -> Framing:
    """Return the framing of an input's records."""
    return FRAMINGS[form.framing]


def key_begin(form: Input) -> int:
    """Return the byte at which the body of an Avro key begins: it is framed as values are, with an id before it."""
    heads = of(form).heads
    return heads[0].size if heads else 0


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
    value = F.col("value") if form.framing != "headers" else with_header()
    # As guids.py has it: a 1 before the seven bytes of a GUID.
    ids = [F.hex(F.substring(value, each.id_at + 1, 4)) for each in framing.heads if each.id_at is not None]
    guids = [F.concat(F.lit("1"), F.hex(F.substring(value, 2, 7))) for each in framing.heads if each.compared]
    return _choice(value, framing.heads, [*ids, *guids])


def with_header() -> Column:
    """Return the content of Confluent's header before the value: then it is framed as the value alone is without a header."""
    mine = f"try_element_at(filter(headers, header -> header.key = '{HEADER}'), -1).value"
    return F.expr(f"concat(coalesce({mine}, X''), value)")


def framed(value: bytes, headers: Headers, form: Input) -> bytes:
    """Return the same of one record: of another framing the value."""
    if form.framing != "headers":
        return value
    return next((each or b"" for name, each in reversed(headers) if name == HEADER), b"") + value


@lru_cache(maxsize=128)
def _fingerprint(schema: str) -> str:
    return fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO")
