"""The example of the settings, made from their models: deploy/tidemark.example.toml.

A key has the description and the example of its field. A key that is not given by default is a comment.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from load.site.settings_page import described, models_of, written
from service.settings.section import Client
from service.settings.settings import Settings
from service.spark.places import ROOT

EXAMPLE = ROOT / "deploy" / "tidemark.example.toml"
_HEAD = """\
# Every setting of Tidemark. A value is the default, unless its line says that it must be given. What is behind # may be left out.
#
# Durations are a number and a unit: "250 ms", "10 s", "5 m", "1 h", "7 d". Sizes: "512 B", "64 KiB", "1 MB".
# A plain whole number is milliseconds, or bytes. An unknown key is refused, and all problems are reported together.
# Relative paths are resolved against this file's folder, but not the path in a jdbc:sqlite URL.
# The environment replaces a single value: TIDEMARK_<SECTION>__<KEY>, such as TIDEMARK_REDIS__URL. Lists, tables and
# [[views]] can only be given here.
# `tidemark check --config <this file>` tries all of it.
# Generated from service/settings/ by `python -m load.manifests`.
"""
_GIVEN = {"input", "input.measures", "views.by"}
"""Sections and keys that are no comments although they may be left out: without them the example would compute nothing."""


def texts() -> dict[Path, str]:
    return {EXAMPLE: text()}


def text() -> str:
    """Return the example: all sections, lists that may be left out at the end. Required keys come first, a login last."""
    fields = sorted(described(Settings).items(), key=lambda each: each[1].default == ())
    return "\n".join([_HEAD, *(line for name, field in fields for line in section(name, field))])


def section(name: str, field: FieldInfo) -> Iterator[str]:
    """Yield the lines of a section, of each of its models if it is a choice of several."""
    is_given = name in _GIVEN or field.is_required() or isinstance(field.default, BaseModel)
    title = f"[[{name}]]" if get_origin(field.annotation) is tuple else f"[{name}]"
    yield from _comment(field)
    # What the table before has shown is not repeated: other kinds of outlets, and [[inputs]], which are [input] with more keys.
    seen = set(next(models_of(Settings.model_fields["input"].annotation)).model_fields) if name == "inputs" else set()
    for model in models_of(field.annotation):
        keys = {key: each for key, each in described(model).items() if key not in seen or each.is_required()}
        keys = dict(sorted(keys.items(), key=lambda each: (not each[1].is_required(), each[0] in Client.model_fields)))
        tables = [
            key for key, each in keys.items() if f"{name}.{key}" in _GIVEN and get_origin(each.annotation) is Mapping
        ]
        yield title if is_given else f"# {title}"
        for key, each in keys.items():
            if key not in tables:
                yield from _comment(each)
                yield _line(each, key, is_comment=not is_given or (_is_absent(each) and f"{name}.{key}" not in _GIVEN))
        yield ""
        for key in tables:
            yield from _comment(keys[key])
            yield f"[{name}.{key}]"
            yield from (f"{each} = {_toml(value)}" for each, value in _example(keys[key]).items())
            yield ""
        seen |= set(keys)


def _comment(field: FieldInfo) -> list[str]:
    words = " ".join((field.description or "").split())
    return textwrap.wrap(words, 120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _line(field: FieldInfo, name: str, *, is_comment: bool) -> str:
    value = _toml(_example(field)) if field.is_required() or _is_absent(field) else written(field, name)
    line = f"{'# ' if is_comment else ''}{field.alias or name} = {value}"
    return f"{line:46}  # must be given" if field.is_required() else line


def _is_absent(field: FieldInfo) -> bool:
    """Return whether a key that is left out has no value: none, or an empty list or table."""
    return not field.is_required() and field.get_default(call_default_factory=True) in (None, (), {})


def _example(field: FieldInfo) -> Any:
    [example] = field.examples or get_args(field.annotation)  # a Literal of one value has no other example
    return example


def _toml(value: Any) -> str:
    """Return a value as TOML: JSON, but for tables."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_name(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _name(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key)
