"""Read numbers from texts.

A text is a decimal number: a sign, digits with at most one point, an exponent, in this order; blanks may stand around it. An
empty or blank text is no value. `true` and `false` are 1 and 0. Any other text is NaN, which admission rejects as `not_finite`:
the reject names the measure. With a table of values only the texts of the table are numbers.
"""

import math
import re
from collections.abc import Mapping

from service.admission import kafka_columns

_BLANKS = " \t\n\v\f\r"
_FOREIGN = r"[^-+.eE0-9 \t\n\x0B\f\r]"
"""A character that no number has. Without one, what Java and Python read as a number is the same."""
_OTHERS = {"true": 1.0, "false": 0.0}


def sql(text: str, values: Mapping[str, float] | None = None) -> str:
    """Return SQL for the number of a text, a double: null for an empty or blank text, NaN for a text that is no number.

    `text` is SQL, and is repeated.
    """
    cases = "".join(
        f" WHEN {text} = {kafka_columns.literal(each)} THEN {value!r}D" for each, value in (values or _OTHERS).items()
    )
    blanks = kafka_columns.literal(_BLANKS)
    other = f"CASE{cases} WHEN trim(BOTH {blanks} FROM {text}) <> '' THEN double('NaN') END"
    if values is not None:
        return other
    return f"coalesce(CASE WHEN NOT {text} RLIKE r'{_FOREIGN}' THEN try_cast({text} AS DOUBLE) END, {other})"


def of_text(text: str, values: Mapping[str, float] | None = None) -> float | None:
    """Return the same of one text."""
    if values is None and not re.search(_FOREIGN, text):
        try:
            return float(text)
        except ValueError:
            pass
    others = _OTHERS if values is None else values
    if text in others:
        return others[text]
    return math.nan if text.strip(_BLANKS) else None
