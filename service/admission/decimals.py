"""Read decimals of Kafka Connect in JSON: base64 of the bytes of a whole number, its scale in the connector's schema.

    "AYY="    01 86, that is 390, and 3.90 with two digits behind the point
    "/w=="    FF, that is -1, and -0.01

Connect's JSON converter writes this, and Debezium with decimal.handling.mode = precise. A number of JSON is taken as it is, an
empty or blank text is no value, and anything else is NaN, as in numbers.py. A whole number has at most eight bytes.
"""

import base64
import math
import re
from typing import Any

from service.admission import json_record, kafka_columns

_BLANKS = " \t\n\v\f\r"
_GROUP = "[A-Za-z0-9+/]{4}"
_REST = "(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)"
_EIGHT_BYTES = rf"^(?:(?:{_GROUP})?(?:{_GROUP}|{_REST})|(?:{_GROUP}){{2}}{_REST})\z"
_OF_PYTHON = re.compile(_EIGHT_BYTES.replace(r"\z", r"\Z"))


def sql(field: str, scale: int) -> str:
    """Return SQL for the number of a variant, a double; `field` is SQL, and is repeated."""
    text, kind = f"try_variant_get({field}, '$', 'string')", f"schema_of_variant({field})"
    digits = f"hex(unbase64({text}))"
    # Sixteen digits with the sign carried on are a signed number of 64 bits.
    whole = f"conv(lpad({digits}, 16, CASE WHEN {digits} >= '8' THEN 'F' ELSE '0' END), 16, -10)"
    of_text = (
        f"CASE WHEN {text} RLIKE r'{_EIGHT_BYTES}' THEN CAST({whole} AS DOUBLE) / {float(10**scale)!r}D"
        f" WHEN trim(BOTH {kafka_columns.literal(_BLANKS)} FROM {text}) <> '' THEN double('NaN') END"
    )
    is_number = f"{kind} IN ('BIGINT', 'DOUBLE', 'FLOAT') OR {kind} LIKE 'DECIMAL%'"
    of_number = f"CAST(try_variant_get({field}, '$', 'double') AS DOUBLE)"
    return (
        f"CASE WHEN {field} IS NULL OR {kind} = 'VOID' THEN NULL WHEN {kind} = 'STRING' THEN {of_text}"
        f" WHEN {is_number} THEN {of_number} ELSE double('NaN') END"
    )


def of_value(value: Any, scale: int) -> float | None:
    """Return the same of one value of JSON."""
    if not isinstance(value, str):
        try:
            return json_record.as_number(value)
        except TypeError:
            return math.nan
    if not _OF_PYTHON.match(value):
        return math.nan if value.strip(_BLANKS) else None
    return int.from_bytes(base64.b64decode(value), signed=True) / float(10**scale)
