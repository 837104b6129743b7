"""A question in SQL: which tables and columns it uses, and which rows of them its predicates allow.

DuckDB parses the text and gives the tree as JSON. Conditions of a WHERE that are joined by AND restrict what is read of a table,
where they compare one of its bounded columns with a value. DuckDB evaluates all predicates again, so the bounds need not be
exact: a condition that is not understood is left out, and more rows are read.

Bounds may be taken from any WHERE: no row that a condition excludes can be in the answer, also in an outer join, because none of
these comparisons is true for a null.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import duckdb

from service.errors import QuestionError
from tidemark_client.arguments import EARLIEST_MS, LATEST_MS

Tree = Mapping[str, Any]

TEXTS: Mapping[str, tuple[str, ...]] = {
    "windows": ("view", "measure", "key"),
    "sessions": ("device",),
    "devices": ("device",),
    "history": ("view", "measure", "key"),
    "state": (),
}
"""The bounded columns of text, by table."""
TIMES: Mapping[str, tuple[str, ...]] = {
    "windows": ("start", "end"),
    "sessions": ("start",),
    "devices": (),
    "history": ("start", "end"),
    "state": (),
}
"""The bounded columns of time, by table."""
_TIME_TYPES = ("TIMESTAMP", "DATE", "VARCHAR")
_NO_VALUES = {
    "COLUMN_REF",
    "STAR",
    "SUBQUERY",
    "PARAMETER",
    "WINDOW",
    "LAMBDA",
    "LAMBDA_REF",
    "POSITIONAL_REFERENCE",
    "COLLATE",
}
"""Classes of expressions that are no values before the statement runs, or are equal to other texts, too."""
_QUERIES = {"query", "query_table", "json_execute_serialized_sql"}
"""Functions whose arguments name tables, of which the tree has none."""
_ALL_COLUMNS = {"STAR", "POSITIONAL_REFERENCE"}
_MIRRORED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}


@dataclass(frozen=True)
class Bounds:
    """The rows of one use of a table: `texts` has allowed values by column, `since` and `until` the first and last time in ms."""

    texts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)

    def __and__(self, other: "Bounds") -> "Bounds":
        texts = dict(self.texts)
        for name, values in other.texts.items():
            texts[name] = texts[name] & values if name in texts else values
        since = {name: max(time, self.since.get(name, time)) for name, time in other.since.items()}
        until = {name: min(time, self.until.get(name, time)) for name, time in other.until.items()}
        return Bounds(texts, {**self.since, **since}, {**self.until, **until})


@dataclass(frozen=True)
class Statement:
    """`uses` are the tables, each with the bounds of each of its uses. `columns` are the names in use, None for all."""

    text: str
    uses: Mapping[str, tuple[Bounds, ...]]
    columns: frozenset[str] | None
    listing: Literal["", "tables", "columns"] = ""
    """What SHOW TABLES and DESCRIBE without a name ask for, of all tables."""
    is_described: bool = False
    """Whether only the columns of the answer are asked for (DESCRIBE): no row is read."""

    def needs(self, column: str) -> bool:
        """Whether a column is in use."""
        return self.columns is None or column.lower() in self.columns


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Statement:
    """Return the statement of a text. Raises QuestionError unless it is one SELECT, SHOW or DESCRIBE.

    In a text that SQL does not take as it is, the column `end` is quoted where it ends no CASE.
    """
    try:
        return _parsed(connection, text)
    except RecursionError as error:
        what = "The question is nested too deeply"
        raise QuestionError(what, remedy="Write fewer operators and brackets within one another") from error


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> Statement:
    tree = _tree(connection, text)
    if tree.get("error", True) and (quoted := _with_end_quoted(text)) != text:
        other = _tree(connection, quoted)
        text, tree = (text, tree) if other.get("error", True) else (quoted, other)
    if tree.get("error", True):
        if tree.get("error_type") == "not implemented":
            what = "The question is no SELECT, or a PIVOT without a list of values"
            remedy = "Values can be read here, and nothing can be written or set"
        else:
            what, remedy = _place(text, tree), "See `tidemark sql --help` for examples"
        raise QuestionError(what, remedy=remedy)
    if len(tree["statements"]) != 1:
        raise QuestionError(f"The text has {len(tree['statements'])} statements", remedy="Ask one question at a time")
    found = _Walk(connection)
    found.walk(tree["statements"])
    source = tree["statements"][0]["node"].get("from_table") or {}
    is_shown = source.get("type") == "SHOW_REF"
    if is_shown and source.get("query") is None:
        return Statement(text, {}, None, "tables" if "__" not in source["table_name"] else "columns")
    hidden = found.hidden & found.uses.keys()
    uses = {name: (Bounds(),) if name in hidden else tuple(each) for name, each in found.uses.items()}
    is_described = is_shown and source.get("show_type") != "SUMMARY"
    return Statement(text, uses, None if found.is_all else frozenset(found.columns), is_described=is_described)


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    [answer] = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone() or ("{}",)
    tree: dict[str, Any] = json.loads(answer)
    return tree


_WORD = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\w+", re.DOTALL)


def _with_end_quoted(text: str) -> str:
    depth = 0

    def quoted(found: "re.Match[str]") -> str:
        nonlocal depth
        word = found[0].lower()
        if word == "case":
            depth += 1
        elif word == "end" and depth:
            depth -= 1
        elif word == "end":
            return f'"{found[0]}"'
        return found[0]

    return _WORD.sub(quoted, text)


def _place(text: str, tree: Tree) -> str:
    position = int(tree.get("position") or 0)
    return (
        f"SQL at character {position + 1} ({text[position : position + 20].strip()!r}): {tree.get('error_message', '')}"
    )


class _Walk:
    """One walk over the tree. `hidden` are names of tables that the statement gives to tables of its own (WITH)."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.uses: dict[str, list[Bounds]] = {}
        self.columns: set[str] = set()
        self.hidden: set[str] = set()
        self.is_all = False
        self._connection = connection
        self._relations: set[str] = set()
        self._bounded: set[int] = set()
        volatile = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability = 'VOLATILE'"
        self._volatile = {name for (name,) in connection.execute(volatile).fetchall()}

    def walk(self, tree: Any) -> None:
        self._visit(tree)
        self.is_all |= bool(self._relations & self.columns)  # a table's name in place of a column is its row

    def _visit(self, tree: Any) -> None:
        if isinstance(tree, list):
            for each in tree:
                self._visit(each)
            return
        if not isinstance(tree, dict):
            return
        kind = tree.get("type")
        if kind == "SELECT_NODE":
            self._select(tree)
        if kind == "BASE_TABLE" and id(tree) not in self._bounded:
            self._use(tree, Bounds())
        if tree.get("class") == "FUNCTION" and (name := tree["function_name"].lower()) in _QUERIES:
            what = f"{name}() names its tables when it runs, and they would be read as empty"
            raise QuestionError(what, remedy="Name the tables in FROM")
        if tree.get("class") == "COLUMN_REF":
            self.columns.update(name.lower() for name in tree["column_names"])
        if "using_columns" in tree:
            self.columns.update(name.lower() for name in tree["using_columns"])
        is_renamed = kind == "BASE_TABLE" and bool(tree["column_name_alias"])
        is_whole = is_renamed or kind in ("PIVOT", "SHOW_REF") or tree.get("ref_type") == "NATURAL"
        self.is_all |= is_whole or tree.get("class") in _ALL_COLUMNS
        if "cte_map" in tree:
            self.hidden.update(each["key"].lower() for each in tree["cte_map"]["map"])
        for each in tree.values():
            self._visit(each)

    def _select(self, tree: Tree) -> None:
        relations = list(_relations(tree.get("from_table")))
        for relation in relations:
            if relation.get("type") == "BASE_TABLE":
                self._bounded.add(id(relation))
                self._use(relation, self._of_where(tree.get("where_clause"), relation, is_alone=len(relations) == 1))

    def _use(self, relation: Tree, bounds: Bounds) -> None:
        name = relation["table_name"].lower()
        self._relations |= {name, relation["alias"].lower()}
        if name in TEXTS:
            self.uses.setdefault(name, []).append(bounds)

    def _of_where(self, where: Tree | None, relation: Tree, *, is_alone: bool) -> Bounds:
        name = relation["table_name"].lower()
        if name not in TEXTS or relation["column_name_alias"] or where is None:
            return Bounds()
        own = {relation["alias"].lower() or name}

        def column(tree: Tree) -> str:
            if tree.get("class") != "COLUMN_REF":
                return ""
            *table, last = (each.lower() for each in tree["column_names"])
            is_own = table[0] in own if len(table) == 1 else is_alone and not table
            return last if is_own and last in (*TEXTS[name], *TIMES[name]) else ""

        return reduce(Bounds.__and__, (self._bound(each, column) for each in _conditions(where)), Bounds())

    def _bound(self, tree: Tree, column: Any) -> Bounds:
        kind = tree.get("type")
        if kind in _MIRRORED:
            for one, other, how in (
                (tree["left"], tree["right"], kind),
                (tree["right"], tree["left"], _MIRRORED[kind]),
            ):
                if name := column(one):
                    return self._compared(name, how, other)
        if kind == "COMPARE_BETWEEN" and (name := column(tree["input"])):
            low = self._compared(name, "COMPARE_GREATERTHANOREQUALTO", tree["lower"])
            return low & self._compared(name, "COMPARE_LESSTHANOREQUALTO", tree["upper"])
        if kind == "COMPARE_IN" and (name := column(tree["children"][0])):
            texts = [self._text(each) for each in tree["children"][1:]]
            known = frozenset(each for each in texts if each is not None)
            return Bounds({name: known}) if len(known) == len(set(texts)) and not _is_time(name) else Bounds()
        return Bounds()

    def _compared(self, name: str, how: str, value: Tree) -> Bounds:
        if not _is_time(name):
            text = self._text(value) if how == "COMPARE_EQUAL" else None
            return Bounds() if text is None else Bounds({name: frozenset({text})})
        time_us = self._time_us(value)
        if time_us is None or not EARLIEST_MS <= time_us // 1000 < LATEST_MS:  # calendars end with the year 9999
            return Bounds()
        floor, ceiling = time_us // 1000, -(-time_us // 1000)
        since = {"COMPARE_EQUAL": ceiling, "COMPARE_GREATERTHAN": floor + 1, "COMPARE_GREATERTHANOREQUALTO": ceiling}
        until = {"COMPARE_EQUAL": floor, "COMPARE_LESSTHAN": ceiling - 1, "COMPARE_LESSTHANOREQUALTO": floor}
        return Bounds(
            since={name: since[how]} if how in since else {}, until={name: until[how]} if how in until else {}
        )

    def _text(self, value: Tree) -> str | None:
        """Return the text of a value of the type VARCHAR; others are compared with text in another way."""
        if value.get("class") == "CONSTANT":  # without a query of its own: a list may have thousands
            constant = value["value"]
            return constant["value"] if constant["type"]["id"] == "VARCHAR" and not constant["is_null"] else None
        found = self._evaluated(value, "v")
        return found[1] if found is not None and found[0] == "VARCHAR" else None

    def _time_us(self, value: Tree) -> int | None:
        found = self._evaluated(value, "epoch_us(v::TIMESTAMPTZ)")
        return found[1] if found is not None and found[0].startswith(_TIME_TYPES) else None

    def _evaluated(self, value: Tree, how: str) -> tuple[str, Any] | None:
        """Return the type of a value and its result, None for one that is not the same for all rows, or is null."""
        if not self._is_constant(value):
            return None
        select = json.loads(_one(self._connection, "SELECT json_serialize_sql('SELECT 1')"))
        select["statements"][0]["node"]["select_list"] = [value]
        try:
            text = _one(self._connection, "SELECT json_deserialize_sql(?)", json.dumps(select))
            row = self._connection.execute(f"SELECT typeof(v), {how} FROM ({text}) AS t(v)").fetchone()  # noqa: S608
        except duckdb.Error:
            return None
        return None if row is None or row[1] is None else (row[0], row[1])

    def _is_constant(self, tree: Any) -> bool:
        if isinstance(tree, list):
            return all(map(self._is_constant, tree))
        if not isinstance(tree, dict):
            return True
        is_volatile = tree.get("class") == "FUNCTION" and tree["function_name"].lower() in self._volatile
        return not is_volatile and tree.get("class") not in _NO_VALUES and self._is_constant(list(tree.values()))


def _is_time(name: str) -> bool:
    return any(name in names for names in TIMES.values())


def _relations(tree: Tree | None) -> Iterator[Tree]:
    """Yield the tables, subqueries and functions of a FROM."""
    if tree is None:
        return
    if tree.get("type") == "JOIN":
        yield from _relations(tree["left"])
        yield from _relations(tree["right"])
    else:
        yield tree


def _conditions(tree: Tree) -> Iterator[Tree]:
    if tree.get("type") == "CONJUNCTION_AND":
        for each in tree["children"]:
            yield from _conditions(each)
    else:
        yield tree


def _one(connection: duckdb.DuckDBPyConnection, sql: str, *values: str) -> str:
    row = connection.execute(sql, list(values)).fetchone()
    return str(row[0]) if row is not None else ""
