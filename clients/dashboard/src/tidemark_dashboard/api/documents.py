"""Values of the client as JSON: the fields of its classes. What is None is left out, as numbers are that JSON lacks."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any


def document(value: Any) -> Any:
    """A value as JSON has it. Times stay milliseconds since 1970."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: document(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return {name: content for name, content in fields.items() if content is not None}
    if isinstance(value, Mapping):
        return {str(name): document(content) for name, content in value.items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return [document(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def text(value: Any) -> str:
    """A document as text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Schemas:
    """The JSON Schemas of the client's classes, by name: those that were referred to."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type; a class is referred to."""
        plain = {int: "integer", float: "number", str: "string", bool: "boolean"}
        if kind in plain:
            return {"type": plain[kind]}
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in {types.UnionType, typing.Union}:
            return self.of(next(each for each in arguments if each is not type(None)))
        if dataclasses.is_dataclass(kind):
            return self._class(typing.cast("type", kind))
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in {tuple, list}:
            return {"type": "array", "items": self.of(arguments[0])}
        return {}

    def _class(self, kind: type) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.by_name:
            self.by_name[name] = {}  # ends a circle
            hints = typing.get_type_hints(kind)
            fields = [each.name for each in dataclasses.fields(kind)]
            self.by_name[name] = {
                "type": "object",
                "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
                "properties": {each: self.of(hints[each]) for each in fields},
                # A number that is infinite is left out, as what is None is.
                "required": [each for each in fields if type(None) not in typing.get_args(hints[each])],
            }
        return {"$ref": f"#/components/schemas/{name}"}
