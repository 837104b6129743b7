"""Generates the reference of the settings from their models."""

import ast
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo

from load.site.pages import FILES
from service.settings.settings import Settings
from service.units import format_duration

_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path",
    SecretStr: "text, secret",
    ByteSize: "size",
}
_BOUNDS = {Ge: "at least", Gt: "more than", Le: "at most"}
_SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def page() -> str:
    """Return the page: a section for each table of the file, with key, type, limits, default and description."""
    lines = ["# All settings", "", "Generated from `service/settings/`. The"]
    lines += [f"[example](../../{FILES}/deploy/tidemark.example.toml.md) is a file of them.", ""]
    for name, field in described(Settings).items():
        lines += [f"## {f'[[{name}]]' if get_origin(field.annotation) is tuple else f'[{name}]'}", ""]
        lines += [_text(field), ""]
        for key, each in fields_of(field.annotation).items():
            place = f"{name}.{each.alias or key}"
            lines += [f"### {place} {{ #{place.replace('.', '-').replace('_', '-')} }}", ""]
            lines += [f"{_summary(each, key)}.", "", _text(each), ""]
            if get_origin(each.annotation) is Mapping and (parts := fields_of(get_args(each.annotation)[1])):
                lines += [f"- `{part}`: {_summary(info, part)}. {_text(info)}" for part, info in parts.items()] + [""]
    return "\n".join(lines) + "\n"


def _text(field: FieldInfo) -> str:
    return (field.description or "").replace("<", "&lt;")


def _summary(field: FieldInfo, name: str) -> str:
    limits = [
        f"{words} {_value(getattr(mark, kind.__name__.lower()), name, field.annotation)}"
        for mark in field.metadata
        for kind, words in _BOUNDS.items()
        if isinstance(mark, kind) and not name.endswith("_ms")
    ]
    default = "must be given" if field.is_required() else f"default `{written(field, name)}`"
    return "; ".join([_type(field.annotation, name), *limits, default]).replace("default `none`", "no default")


def written(field: FieldInfo, name: str) -> str:
    """Return the default as a settings file has it; "none" for a key that is not given."""
    value = field.get_default(call_default_factory=True)
    return "none" if value in (None, (), {}) else _value(value, name, field.annotation)


def _value(value: Any, name: str, annotation: Any) -> str:
    if name.endswith("_ms"):
        return json.dumps(format_duration(value) if value else "0 s")
    if annotation is ByteSize:
        unit = next(unit for unit, size in _SIZES.items() if value % size == 0)
        return f'"{value // _SIZES[unit]} {unit}"' if value else "0"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def fields_of(annotation: Any) -> dict[str, FieldInfo]:
    """Return the fields of a section, which may be optional, or one of several models: then a choice has that of all."""
    fields: dict[str, FieldInfo] = {}
    for model in models_of(annotation):
        for name, field in described(model).items():
            known = fields.setdefault(name, field)
            if get_origin(field.annotation) is Literal and known.annotation != field.annotation:
                choices: Any = Literal[(*get_args(known.annotation), *get_args(field.annotation))]
                text = f"{known.description} {field.description}"
                fields[name] = FieldInfo(annotation=choices, default=field.default, description=text)
    return fields


@cache
def described(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of a model, each with the text behind it in the source as its description.

    Pydantic would read the source in each process that has settings, which takes 0.08 s (2.14).
    """
    for each in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        tree = ast.parse(inspect.getsource(each)).body[0]
        for field, text in pairwise(getattr(tree, "body", [])):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    if name in model.model_fields:
                        model.model_fields[name].description = inspect.cleandoc(words)
    return model.model_fields


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a type is made of: of a section, of a list of sections, of a choice of several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for each in get_args(annotation):
        yield from models_of(each)


def _type(annotation: Any, name: str) -> str:
    """Return a type of the models in words; a name that ends in `_ms` is a duration."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    words = _WORDS.get(annotation, str(annotation))
    if name.endswith("_ms"):
        words = "duration"
    elif origin is Literal:
        words = "one of " + ", ".join(f"`{each}`" for each in arguments)
    elif origin in {Union, types.UnionType}:
        words = _type(next(each for each in arguments if each is not type(None)), name)
    elif origin is tuple:
        words = f"list of {_type(arguments[0], name)}"
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        words = f"table of {_type(arguments[1], name)}"
    elif hasattr(annotation, "__metadata__"):
        words = _type(arguments[0], name)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        words = annotation.__name__.lower()
    return words
