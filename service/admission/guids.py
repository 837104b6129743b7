"""GUIDs of schemas, which Confluent's serializers write into a header, as numbers in the place of schema ids.

The first seven bytes of a GUID make the number. So it is kept, looked up, asked about and rejected as an id is.
"""

from uuid import UUID

from service.errors import SchemaError

FIRST = 1 << 56
"""Added to the seven bytes: no schema id is as large."""


def number_of(guid: str) -> int:
    """Return the number that stands for a GUID. Raises SchemaError for a text that is none."""
    try:
        return FIRST + int.from_bytes(UUID(guid).bytes[:7])
    except (ValueError, AttributeError) as error:
        raise SchemaError(f"{guid!r} is no GUID") from error


def shown(number: int) -> str:
    """Return a schema id for people; of a GUID the begin."""
    return str(number) if number < FIRST else f"{number - FIRST:014x}..."
