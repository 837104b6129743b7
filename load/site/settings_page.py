"""Generates the reference of the settings from their models and from the comments of the example."""

import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from load.site.pages import FILES
from service.settings.settings import Settings
from service.units import format_duration

EXAMPLE = "deploy/tidemark.example.toml"
_SECTION = re.compile(r"^(?:# )?\[\[?([a-z_.]+)\]\]?\s*$")
_KEY = re.compile(r"^(?:# )?\"?([a-z_]+)\"? = ")
_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path",
    SecretStr: "text, secret",
}
_WORDS |= {ByteSize: "size"}


def page(root: Path) -> str:
    """Return the page: a section for each table of the file, with key, type, default and description."""
    comments = _comments((root / EXAMPLE).read_text())
    lines = ["# All settings", "", "Generated from the models in `service/settings/` and the comments of the"]
    lines += [f"[example](../../{FILES}/{EXAMPLE}.md).", ""]
    for name, field in Settings.model_fields.items():
        lines += [f"## {f'[[{name}]]' if get_origin(field.annotation) is tuple else f'[{name}]'}", ""]
        lines += ["The section may be left out.", ""] if field.default is None else []
        for key, each in fields_of(field.annotation).items():
            lines += _entry(name, each.alias or key, each, key, comments)
    return "\n".join(lines) + "\n"


def _entry(
    section: str, key: str, field: FieldInfo, name: str, comments: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    yield f"### {section}.{key} {{ #{section}-{key.replace('_', '-')} }}"
    yield ""
    yield f"{_type(field.annotation, name)}; {_default(field, name)}."
    yield ""
    if text := comments.get((section, key)):
        yield text
        yield ""


def _comments(example: str) -> dict[tuple[str, str], str]:
    """Return the comment of each key, by section and key: of lines above it, otherwise the one behind its value.

    Keys that follow each other without a comment between them share the one above the first.
    """
    descriptions: dict[tuple[str, str], str] = {}
    section, block, is_open = "", list[str](), False
    for line in example.splitlines():
        if match := _SECTION.match(line):
            if "." in match[1]:
                descriptions.setdefault(tuple(match[1].split(".", 1)), " ".join(block))
            section, block = match[1], []
        elif match := _KEY.match(line):
            if text := " ".join(block) or _behind(line):
                descriptions.setdefault((section, match[1]), text)
            is_open = False
        elif line.startswith("# "):
            block = [*block, line.removeprefix("# ")] if is_open else [line.removeprefix("# ")]
            is_open = True
        else:
            block, is_open = [], False
    return {place: text.replace("<", "&lt;") for place, text in descriptions.items() if text}


def _behind(line: str) -> str:
    """Return what the comment behind a value says in addition to the default."""
    comment = line.removeprefix("# ").partition(" # ")[2].strip()
    return re.sub(r"^(no default|default:? ?(none|\"[^\"]*\"|\S+))[,;]? ?", "", comment)


def fields_of(annotation: Any) -> dict[str, FieldInfo]:
    """Return the fields of a section, which may be optional, or one of several models: then a choice has that of all."""
    fields: dict[str, FieldInfo] = {}
    for model in _models(annotation):
        for name, field in model.model_fields.items():
            known = fields.setdefault(name, field)
            if get_origin(field.annotation) is Literal and known is not field:
                choices = *get_args(known.annotation), *get_args(field.annotation)
                fields[name] = FieldInfo(annotation=Literal[tuple(dict.fromkeys(choices))], default=field.default)
    return fields


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for each in get_args(annotation):
        yield from _models(each)


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


def _default(field: FieldInfo, name: str) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or value in ((), {}):
        return "default: none"
    if name.endswith("_ms"):
        return f"default `{format_duration(value)}`"
    return f"default `{str(value).lower() if isinstance(value, bool) else value}`"
