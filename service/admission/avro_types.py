"""Find the named types of an Avro schema: it defines a record, an enum or a fixed once, and refers to it by name after that.

A name without a dot is in the namespace of the type around it (Avro 1.12, "Names").
"""

from collections.abc import Collection, Mapping
from typing import Any

TIMESTAMPS = frozenset({"timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"})
"""Logical types of which Spark makes a timestamp (4.1.1); decode.py reads those without a zone as UTC."""
NUMBERS = frozenset({"int", "long", "float", "double", "decimal"})
"""Types that are measures; of a decimal Spark makes a number, where its bytes or fixed have the logical type."""
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_COMPLEX = _NAMED | {"array", "map"}


def definitions(schema: Any) -> dict[str, Any]:
    """Return the types that a schema defines, by full name. Each has its namespace, so that it is the same at another place."""
    found: dict[str, Any] = {}

    def walk(node: Any, namespace: str) -> None:
        if isinstance(node, list):
            for each in node:
                walk(each, namespace)
        if not isinstance(node, dict):
            return
        if is_definition(node):
            name = full_name(node, namespace)
            namespace = namespace_of(name)
            found[name] = {**node, "namespace": namespace}
        for each in node.get("fields", ()):
            walk(each.get("type"), namespace)
        for key in ("items", "values", "type"):
            walk(node.get(key), namespace)

    walk(schema, "")
    return found


def inline(schema: Any, parts: Mapping[str, Any]) -> Any:
    """Return `schema` with the schemas `parts` put in where it refers to them: each in full once, after that by name."""
    defined: set[str] = set()

    def walk(node: Any, namespace: str) -> Any:
        if isinstance(node, list):
            return [walk(each, namespace) for each in node]
        if isinstance(node, str):
            name = referred(node, namespace, parts)
            return node if name is None or name in defined else walk(parts[name], "")
        if not isinstance(node, dict):
            return node
        if is_definition(node):
            name = full_name(node, namespace)
            namespace = namespace_of(name)
            if name in defined and parts.get(name) == {**node, "namespace": namespace}:  # as a part, or within one
                return name
            defined.add(name)
        elif isinstance(node.get("type"), str) and node["type"] not in _COMPLEX:
            inner = walk(node["type"], namespace)
            return node if isinstance(inner, str) else inner  # {"type": "Name"} is the name
        changed = dict(node)
        if isinstance(node.get("fields"), list):
            changed["fields"] = [{**each, "type": walk(each["type"], namespace)} for each in node["fields"]]
        for key in ("items", "values", "type"):
            if key in node and not (isinstance(node[key], str) and node[key] in _COMPLEX):
                changed[key] = walk(node[key], namespace)
        return changed

    return walk(schema, "")


def is_definition(node: Mapping[str, Any]) -> bool:
    """Whether a schema defines a named type."""
    return "name" in node and isinstance(node.get("type"), str) and node["type"] in _NAMED


def full_name(node: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a definition within a type of this namespace."""
    return _full(node["name"], node.get("namespace", namespace))


def namespace_of(name: str) -> str:
    """Return the namespace of a full name."""
    return name.rpartition(".")[0]


def referred(name: str, namespace: str, types: Collection[str]) -> str | None:
    """Return the full name of the type that a name refers to within a type of this namespace, None without one."""
    return next((each for each in (_full(name, namespace), name) if each in types), None)


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
