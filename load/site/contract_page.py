"""Generates the reference of the keys and fields in Redis from schemas/redis.json."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def page(root: Path) -> str:
    """Return the page: every kind of key with its name, type and expiry, and the fields of hashes."""
    contract = json.loads((root / "schemas" / "redis.json").read_text())
    lines = [
        "# All keys in Redis",
        "",
        "Generated from `schemas/redis.json`. The [contract](../../schemas/redis.md) explains",
    ]
    lines += ["the keys. Names are regular expressions behind the prefix. Every value is a text.", ""]
    for kind, key in contract["keys"].items():
        lines += [f"## {kind}", "", f"`{key['pattern']}`", ""]
        lines += [f"Type: {key['type']}. The key {'expires' if key.get('expires') else 'does not expire'}.", ""]
        if "fields" in key:
            lines += [*_fields(key["fields"], contract["$defs"]), ""]
    return "\n".join(lines) + "\n"


def _fields(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    yield "| field | always there | value |"
    yield "| --- | --- | --- |"
    required = set(schema.get("required", ()))
    for group in ("properties", "patternProperties"):
        for name, value in schema.get(group, {}).items():
            yield f"| {_code(name)} | {'yes' if name in required else ''} | {_value(value, definitions)} |"


def _value(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return a definition's name with its pattern or its values."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    definition = definitions.get(name, schema)
    if "enum" in definition:
        return ", ".join(_code(each) if each else "empty" for each in definition["enum"])
    if "const" in definition:
        return _code(definition["const"])
    pattern = definition.get("pattern", "")
    return f"{name} {_code(pattern)}".strip() if pattern else name or "text"


def _code(text: object) -> str:
    """Return code for a cell of a table: no bar ends the cell, and no bracket begins a link."""
    shown = str(text)
    for mark in "|[]*_\\":
        shown = shown.replace(mark, f"&#{ord(mark)};")
    return f"<code>{shown}</code>"
