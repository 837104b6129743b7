"""Find the named types of an Avro schema: it defines a record, an enum or a fixed once, and refers to it by name after that.

A name without a dot is in the namespace of the type around it (Avro 1.12, "Names").
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any

from service.errors import SchemaError
from service.settings import field_path

TIMESTAMPS = frozenset({"timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"})
"""Logical types of which Spark makes a timestamp (4.1.1); decode.py reads those without a zone as UTC."""
NUMBERS = frozenset({"int", "long", "float", "double", "decimal"})
"""Types that are measures; of a decimal Spark makes a number, where its bytes or fixed have the logical type."""
MAX_LEVELS = 128
"""The most records in one another, in a type that contains itself."""
TOO_DEEP = "tidemark.too_deep"
"""The type of the level after MAX_LEVELS: its field is a union without branches, so that no bytes can be decoded."""
MAX_NODES = 100_000
"""Types and names of types in a schema once its references are in it, and its endless types have their levels."""
MAX_NESTED = 200
"""Lists and objects in one another, in the JSON of a schema. json and the walks through a schema call themselves for each."""
_UNION = "tidemark_union"
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
    """Return `schema` with the schemas `parts` put in where it refers to them: each in full once, after that by name.

    Raises SchemaError for more than MAX_NODES.
    """
    defined: set[str] = set()
    count = _Budget()

    def walk(node: Any, namespace: str) -> Any:
        count.take()
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


def projection(schema: Mapping[str, Any], paths: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Return a record's schema with the fields on the paths, at every level, and without all others.

    A path leads through records, also in a union with null, and through the values of maps. The type at its end stays complete.
    So does a type that a path does not lead through: an array, a union of several types, a record without the field.
    """
    parts = definitions(schema)
    kept: dict[str, set[str]] = {}
    complete: set[str] = set()

    def keep(node: Any, namespace: str) -> None:
        if isinstance(node, list):
            for each in node:
                keep(each, namespace)
        elif isinstance(node, str):
            if (name := referred(node, namespace, parts)) is not None:
                keep(parts[name], "")
        elif is_definition(node):
            name = full_name(node, namespace)
            if name not in complete:
                complete.add(name)
                kept[name] = {field["name"] for field in node.get("fields", ())}
                for field in node.get("fields", ()):
                    keep(field["type"], namespace_of(name))
        else:
            for key in ("items", "values", "type"):
                keep(node.get(key, []), namespace)

    def follow(node: Any, path: Sequence[str], namespace: str) -> None:
        if isinstance(node, list) and len(others := [each for each in node if each != "null"]) == 1:
            follow(others[0], path, namespace)
        elif isinstance(node, str) and (name := referred(node, namespace, parts)) is not None:
            follow(parts[name], path, "")
        elif not path or not isinstance(node, dict) or node["type"] in {"array", "enum", "fixed"}:
            keep(node, namespace)
        elif node["type"] == "map":
            follow(node["values"], path[1:], namespace)
        elif not is_definition(node):
            follow(node["type"], path, namespace)
        elif field := next((each for each in node["fields"] if each["name"] == path[0]), None):
            name = full_name(node, namespace)
            kept.setdefault(name, set()).add(path[0])
            follow(field["type"], path[1:], namespace_of(name))
        else:
            keep(node, namespace)

    def cut(node: Any, namespace: str) -> Any:
        if isinstance(node, list):
            return [cut(each, namespace) for each in node]
        if not isinstance(node, dict):
            return node
        changed = dict(node)
        if is_definition(node):
            name = full_name(node, namespace)
            namespace = namespace_of(name)
            if "fields" in node:
                changed["fields"] = [
                    {**each, "type": cut(each["type"], namespace)}
                    for each in node["fields"]
                    if each["name"] in kept.get(name, ())
                ]
            return changed
        return changed | {key: cut(node[key], namespace) for key in ("items", "values", "type") if key in node}

    for path in paths:
        follow(schema, path, "")
    cut_schema: dict[str, Any] = inline(cut(schema, ""), {name: cut(part, "") for name, part in parts.items()})
    return cut_schema


def without_case(schema: Any) -> Any:
    """Return a reader's schema whose fields have names that differ also where case is ignored, and their own as aliases."""
    if isinstance(schema, list):
        return [without_case(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: without_case(schema[key]) for key in ("items", "values", "type") if key in schema}
    fields = [
        {
            **each,
            "name": field_path.without_case(each["name"]),
            "aliases": [each["name"], *each.get("aliases", ())],
            "type": without_case(each["type"]),
        }
        for each in schema.get("fields", ())
    ]
    return {**schema, **changed, **({"fields": fields} if fields else {})}


def wrapped(union: Sequence[Any]) -> dict[str, Any]:
    """Return the schema of records of a union's types, as a record with one field: Avro writes both alike."""
    return {"type": "record", "name": _UNION, "fields": [{"name": _UNION, "type": union}]}


def union_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the union of a schema that `wrapped` has made, None for another one, also one of this name."""
    union = schema["fields"][0]["type"] if schema.get("name") == _UNION and schema["fields"] else None
    return union if isinstance(union, list) and schema == wrapped(union) else None


def records_of(schema: Mapping[str, Any]) -> dict[str, tuple[bytes, Mapping[str, Any]]]:
    """Return the schemas of the records that a schema is for, by full name, with the bytes that stand before each of them.

    They are one, and nothing before it, unless the schema is a union.
    """
    union = union_of(schema)
    if union is None:
        return {full_name(schema, ""): (b"", schema)}
    parts = definitions(union)
    return {
        full_name(each, ""): (_zigzag(number), inline(each, parts))
        for number, each in enumerate(union)
        if isinstance(each, dict)
    }


def others_of(schema: Mapping[str, Any], before: bytes) -> list[bytes]:
    """Return what stands before the other types of a union than the one with these bytes."""
    return [each for number in range(len(union_of(schema) or ())) if (each := _zigzag(number)) != before]


def _zigzag(number: int) -> bytes:
    """Return a number that is not negative as Avro writes it."""
    number, made = number << 1, bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def bounded(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a writer's schema for records of at most MAX_LEVELS records in one another; the schema itself if it allows no more.

    Avro's reader in the JVM skips fields by recursion: 13,000 levels, which 65 KB hold, end the process with a StackOverflowError
    (Avro 1.12). A type that contains itself gets a name for each level, but for the outermost, and TOO_DEEP after the last level.
    Raises SchemaError for more than MAX_NODES.
    """
    parts = definitions(schema)
    endless = _endless(
        {name: {*_named_in(part.get("fields", ()), namespace_of(name), parts)} for name, part in parts.items()}
    )
    if not endless:
        return schema
    defined: set[str] = set()
    outermost: dict[str, int] = {}
    count = _Budget()

    def walk(node: Any, namespace: str, level: int) -> Any:
        count.take()
        if isinstance(node, list):
            return [walk(each, namespace, level) for each in node]
        if isinstance(node, str):
            name = referred(node, namespace, parts)
            return node if name is None else walk(parts[name], "", level)
        if not is_definition(node):
            changed = {key: walk(node[key], namespace, level) for key in ("items", "values") if key in node}
            if node["type"] in {"array", "map"}:
                return {**node, **changed}
            inner = walk(node["type"], namespace, level)
            return {**node, "type": inner} if isinstance(inner, str) else inner
        name = full_name(node, namespace)
        label = name
        if name in endless and level > MAX_LEVELS:
            node, label = {"type": "record", "fields": [{"name": "none", "type": []}]}, TOO_DEEP
        elif name in endless and outermost.setdefault(name, level) != level:
            label = f"{name}__{level}"
        if label in defined:
            return label
        defined.add(label)
        changed = {"name": label, "namespace": namespace_of(label)}
        if "fields" in node:
            space = namespace_of(name)
            changed["fields"] = [{**each, "type": walk(each["type"], space, level + 1)} for each in node["fields"]]
        return {**node, **changed}

    outer: Mapping[str, Any] = walk(schema, "", 0)
    return outer


def require_shallow(document: Any) -> None:
    """Raise SchemaError for a document of JSON with more than MAX_NESTED lists and objects in one another."""
    level = [document]
    for _ in range(MAX_NESTED):
        level = [each for node in level for each in (node.values() if isinstance(node, dict) else node)]
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return
    raise SchemaError(TOO_NESTED)


TOO_NESTED = f"it has more than {MAX_NESTED} lists and objects in one another"


class _Budget:
    """Counts what a walk through a schema visits."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def take(self) -> None:
        """Raises SchemaError after MAX_NODES."""
        self._left -= 1
        if self._left < 0:
            raise SchemaError(f"it has more than {MAX_NODES} types with all that it refers to")


def _endless(below: Mapping[str, Collection[str]]) -> set[str]:
    """Return the types that lead to a type that contains itself; `below` has the types that each one has directly."""
    sorter = TopologicalSorter(below)
    left = set(below)
    with suppress(CycleError):  # it goes on as far as cycles let it
        sorter.prepare()
    while ready := sorter.get_ready():
        left.difference_update(ready)
        sorter.done(*ready)
    return left


def _named_in(node: Any, namespace: str, parts: Collection[str]) -> Iterable[str]:
    """Yield the full names of the types that fields or a type refer to or define."""
    if isinstance(node, str):
        if (name := referred(node, namespace, parts)) is not None:
            yield name
    elif isinstance(node, Mapping) and is_definition(node):
        yield full_name(node, namespace)
    elif isinstance(node, Mapping):
        for key in ("items", "values", "type"):
            yield from _named_in(node.get(key, ()), namespace, parts)
    else:
        for each in node:
            yield from _named_in(each, namespace, parts)


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
