"""Recognise records of JSON that hold several readings at a path: `input.array`."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from service.admission.nested import EACH
from service.proposal import times
from service.proposal.names import is_readable
from service.settings import field_path

_DEEPEST = 4
"""The most names in a path."""


def path_of(value: bytes) -> str | None:
    """Return the path of a record's readings; None where the record has numbers of its own, which may be one reading's.

    Times are no such numbers. The path leads to the innermost objects that have all other numbers: the elements of an array,
    or the members of an object whose keys are names.
    """
    try:
        record = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    paths = (each for each in _paths(record, ()) if field_path.AROUND not in each)
    names = next((each for each in paths if is_readable([name for name in each if name != EACH])), None)
    return None if names is None else field_path.spelled(names)


def _paths(node: dict[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths below an object that has no number of its own, the longest first."""
    parts = {name: each for name, each in node.items() if _has_number(each)}
    if len(names) >= _DEEPEST or not parts or not all(isinstance(each, dict | list) for each in parts.values()):
        return
    if len(parts) > 1 and all(isinstance(each, list) and _are_objects(each) for each in parts.values()):
        yield (*names, EACH)
    elif len(parts) == 1:
        ((name, inner),) = parts.items()
        if isinstance(inner, dict):
            yield from _paths(inner, (*names, name))
        elif _are_objects(inner):
            first = next(each for each in inner if _has_number(each))
            yield from _paths(first, (*names, name))
            yield (*names, name)


def _are_objects(values: Sequence[Any]) -> bool:
    return all(isinstance(each, dict) for each in values)


def _has_number(value: Any, depth: int = 6) -> bool:
    """Whether a value has a number below it that is no time."""
    if isinstance(value, dict):
        return depth > 0 and any(_has_number(each, depth - 1) for each in value.values())
    if isinstance(value, list):
        return depth > 0 and any(_has_number(each, depth - 1) for each in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and times.unit_of([value]) is None
