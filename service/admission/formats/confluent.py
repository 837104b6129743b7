"""Confluent's wire format: a zero byte and four bytes of schema id before the body."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from service.admission.formats.format import Dissected, Plan, Schemas

HEADER_BYTES = 5


def framing(plan: Plan) -> Column:
    """Return `undecodable` for a record without a header, `unknown_schema` for an id without a schema, or null."""
    head, since = _head(F.col("value")), plan.schemas.since
    is_known = head.isin(*[F.lit(_header(each)) for each in plan.schemas.schemas if each not in since])
    for schema_id in since:
        is_known = is_known | has_id(plan, schema_id, head)
    framed = (F.length("value") >= HEADER_BYTES) & (F.substring("value", 1, 1) == F.lit(b"\0"))
    return F.when(F.coalesce(~framed, F.lit(True)), "undecodable").when(~is_known, "unknown_schema")


def head_of(plan: Plan) -> Column:
    """Return the header of a record that is not too large, else null."""
    return _head(F.when(F.length("value") <= plan.max_bytes, F.col("value")))


def body() -> Column:
    """Return what follows the header."""
    return F.expr(f"substring(value, {HEADER_BYTES + 1})")


def has_id(plan: Plan, schema_id: int, head: Column) -> Column:
    """Whether a record has this schema id, and an offset from which on the id is decoded."""
    matches = head == F.lit(_header(schema_id))
    since = plan.schemas.since.get(schema_id)
    if since is None:
        return matches
    begins = {f"{topic}/{partition}": offset for topic, each in since.items() for partition, offset in each.items()}
    place = F.concat("topic", F.lit("/"), F.col("partition").cast("string"))
    table = F.create_map(*[F.lit(each) for pair in begins.items() for each in pair])
    return matches & F.coalesce(F.col("offset") >= F.element_at(table, place), F.lit(True))


def id_of(value: bytes) -> int:
    """Return the schema id of a record that has a header."""
    return int.from_bytes(value[1:HEADER_BYTES])


def stopped(value: bytes, schemas: Schemas) -> Dissected | None:
    """Return why a value is not decoded at all; None for one that begins with a known schema id."""
    if len(value) < HEADER_BYTES or value[0] != 0:
        return Dissected({}, {}, stop=0, why="does not begin with a zero byte and a schema id")
    number = id_of(value)
    if number not in schemas:
        why = f"schema {number} is not known; known: {', '.join(map(str, sorted(schemas)))}"
        return Dissected({}, {}, number, stop=1, why=why)
    return None


def refusal(found: Dissected) -> str:
    """Return why a value with or without a header does not decode."""
    if found.schema is None:
        return "no schema id before the value"
    return f"schema {found.schema}, which is not among the known ones" if found.stop == 1 else ""


def _head(value: Column) -> Column:
    return F.substring(value, 1, HEADER_BYTES)


def _header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")
