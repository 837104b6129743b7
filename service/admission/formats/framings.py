"""What stands before a record's body, and says which schema it was written with.

confluent       a zero byte, four bytes of schema id
apicurio        a zero byte, eight bytes of schema id (Apicurio Registry 2; version 3 writes as Confluent does)
glue            3, the compression (0 for none), the sixteen bytes of the version's UUID (AWS Glue Schema Registry)
single-object   C3 01, the schema's CRC-64-AVRO fingerprint in eight bytes (Avro 1.12, "Single object encoding")
none            nothing: all records have one schema
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from uuid import UUID

from fastavro.schema import fingerprint, to_parsing_canonical_form
from pyspark.sql import Column
from pyspark.sql import functions as F

from service.admission.formats.format import Dissected, Plan, Schemas
from service.settings import Input

HEADER_BYTES = 5
"""Of Confluent's framing."""


@dataclass(frozen=True, slots=True)
class Framing:
    """A header of `size` bytes that begins with `prefix`; `id_at` is where its four bytes of schema id begin, if it has one."""

    prefix: bytes
    size: int
    id_at: int | None = None

    def header(self, form: Input, schema_id: int, schema: Mapping[str, Any]) -> bytes | None:
        """Return the header of a schema's records, None if none has this schema."""
        if self.id_at is not None:
            return self.prefix + schema_id.to_bytes(4, "big")
        if form.framing == "single-object":
            return self.prefix + bytes.fromhex(_fingerprint(json.dumps(schema)))
        version = form.schema_versions.get(schema_id)
        return None if version is None else self.prefix + UUID(version).bytes

    def framing(self, plan: Plan) -> Column:
        """Return `undecodable` for a record without a header, `unknown_schema` for an id without a schema, or null."""
        if not self.size:
            return F.when(F.col("value").isNull(), "undecodable")
        head, since = self._head(F.col("value")), plan.schemas.since
        headers = {each: self.header(plan.form, each, schema) for each, schema in plan.schemas.schemas.items()}
        is_known = head.isin(
            *[F.lit(each) for number, each in headers.items() if each is not None and number not in since]
        )
        for schema_id in since:
            is_known = is_known | self.has_id(plan, schema_id, head)
        begin = F.substring("value", 1, len(self.prefix)) == F.lit(self.prefix)
        framed = (F.length("value") >= self.size) & begin
        # The driver looks up an unknown id. It cannot look up what is no id.
        unknown = "unknown_schema" if self.id_at is not None else "undecodable"
        return F.when(F.coalesce(~framed, F.lit(True)), "undecodable").when(~is_known, unknown)

    def head_of(self, plan: Plan) -> Column:
        """Return the header of a record that is not too large, else null."""
        return self._head(F.when(F.length("value") <= plan.max_bytes, F.col("value")))

    def body(self) -> Column:
        """Return what follows the header."""
        return F.expr(f"substring(value, {self.size + 1})") if self.size else F.col("value")

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

    def id_of(self, value: bytes, form: Input, schemas: Schemas) -> int | None:
        """Return the schema id of a record, None for one without a header, or with one of no schema."""
        if not self.size:
            return reader_id(form, schemas)
        if len(value) < self.size or not value.startswith(self.prefix):
            return None
        if self.id_at is not None:
            return int.from_bytes(value[self.id_at : self.size])
        headers = {self.header(form, number, schema): number for number, schema in schemas.items()}
        return headers.get(value[: self.size])

    def stopped(self, value: bytes, form: Input, schemas: Schemas) -> Dissected | None:
        """Return why a value is not decoded at all; None for one that begins with a known header."""
        number = self.id_of(value, form, schemas)
        if number is None and value.startswith(self.prefix) and len(value) >= self.size:
            what = "fingerprint" if form.framing == "single-object" else f"version in {form.place}.schema_versions"
            return Dissected({}, {}, stop=0, why=f"begins as {form.framing} does, and no schema has this {what}")
        if number is None:
            return Dissected({}, {}, stop=0, why=f"does not begin with {_BEGINS[form.framing]}")
        if number not in schemas:
            why = f"schema {number} is not known; known: {', '.join(map(str, sorted(schemas)))}"
            return Dissected({}, {}, number, stop=1, why=why)
        return None

    def _head(self, value: Column) -> Column:
        return F.substring(value, 1, self.size)


FRAMINGS: Mapping[str, Framing] = MappingProxyType(
    {
        "confluent": Framing(b"\0", HEADER_BYTES, 1),
        "apicurio": Framing(b"\0" * 5, 9, 5),  # an id has at most 31 bits
        "glue": Framing(b"\3\0", 18),
        "single-object": Framing(b"\xc3\1", 10),
        "none": Framing(b"", 0),
    }
)
CONFLUENT = FRAMINGS["confluent"]
_BEGINS = {
    "confluent": "a zero byte and a schema id",
    "apicurio": "a zero byte and eight bytes of schema id",
    "glue": "3, 0 and the UUID of a schema version; compressed values are not read",
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
    return f"schema {found.schema}, which is not among the known ones" if found.stop == 1 else ""


def id_column(form: Input) -> Column:
    """Return the schema id of a record in hexadecimal; null for a framing without ids."""
    at = of(form).id_at
    return F.lit(None).cast("string") if at is None else F.hex(F.substring("value", at + 1, 4))


@lru_cache(maxsize=128)
def _fingerprint(schema: str) -> str:
    return fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO")
