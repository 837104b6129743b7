"""Checks of arguments, before anything is asked: a wrong type is an ArgumentError that names the argument and its value."""

from __future__ import annotations

import operator
from typing import Any

from tidemark_client.errors import ArgumentError


def times(**values: Any) -> None:
    """Check times, which are whole milliseconds, or None."""
    for name, value in values.items():
        if value is not None and not _is_whole(value):
            msg = f"{name} = {value!r}: give whole milliseconds since 1970 as an int, such as int(time.time() * 1000)"
            raise ArgumentError(msg)


def counts(**values: Any) -> None:
    """Check numbers of answers, which are whole."""
    for name, value in values.items():
        if not _is_whole(value):
            msg = f"{name} = {value!r}: give a whole number as an int"
            raise ArgumentError(msg)


def texts(**values: Any) -> None:
    """Check names, which are text, or None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            msg = f"{name} = {value!r}: give text, a str"
            raise ArgumentError(msg)


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
