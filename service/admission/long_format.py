"""Records that name what their value is: `{"metric": "temperature", "value": 21.5}`. A measure has conditions on other fields.

The value is read as a number only where a condition of one of its measures holds: another metric's value may be a text. A record
of an input whose measures all have conditions, and of which none holds, is filtered: it is counted, and has no other effect.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from service.settings import Input, Measure

_TEXTS = ("STRING", "BIGINT", "BOOLEAN")
_NUMBERS = ("BIGINT", "DOUBLE", "FLOAT", "VOID")


def holds(measure: Measure, text: Callable[[str], Column], kind: Callable[[str], Column] | None) -> Column:
    """Whether the conditions of a measure hold; never null.

    `text` is that of a field, and `kind` its type in JSON, None for a format that is not read as JSON.
    """
    parts = []
    for each in measure.conditions:
        has = text(each.path).isin(*each.texts)
        parts.append(F.coalesce(has if kind is None else has & kind(each.path).isin(*_TEXTS), F.lit(False)))
    return reduce(and_, parts)


def are_numbers(form: Input, text: Callable[[str], Column], kind: Callable[[str], Column]) -> Column | None:
    """Whether the values of JSON whose conditions hold are numbers; never null. None for an input without conditions."""
    by_path = dict[str, Column]()
    for measure in form.measures.values():
        if measure.conditions and measure.path not in form.text_fields:
            here = holds(measure, text, kind)
            by_path[measure.path] = by_path[measure.path] | here if measure.path in by_path else here
    parts = []
    for path, is_read in by_path.items():
        is_number = kind(path).isin(*_NUMBERS) | kind(path).startswith("DECIMAL")
        parts.append(~is_read | F.coalesce(is_number, F.lit(True)))
    return reduce(and_, parts) if parts else None


def is_listed(form: Input, text: Callable[[str], Column], kind: Callable[[str], Column] | None) -> Column | None:
    """Whether a record has one of the measures; never null. None for an input that filters no record for that."""
    return reduce(or_, [holds(each, text, kind) for each in form.measures.values()]) if form.is_long else None


def holds_for(measure: Measure, at: Callable[[str], Any]) -> bool:
    """Whether the conditions of a measure hold in a record without Spark; `at` is the value of a field."""
    return all(_text(at(each.path)) in each.texts for each in measure.conditions)


def wrong_values(form: Input, at: Callable[[str], Any], quoted: Callable[[Any], str]) -> Iterator[str]:
    """Yield a line for each value of JSON that is no number, although a condition of its measure holds."""
    paths = {each.path for each in form.measures.values() if each.conditions and holds_for(each, at)}
    for path in sorted(paths - set(form.text_fields)):
        value = at(path)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield f"{path} = {quoted(value)}: expected a number"


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else None
