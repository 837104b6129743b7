"""Filters: the SQL predicates `where` of inputs and of views, over the device, measures, columns and attributes of a record.

Spark parses a predicate. This module allows only expressions whose value depends on nothing but the record and its attributes,
and that throw for no record: a replay and a recomputation decide the same, and no device stops the service. The lists name what
is allowed, because the engine adds functions with each version.

A predicate that is null is not met, as in a WHERE clause.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from service.admission.expressions import first_line
from service.errors import SettingsError
from service.reference.attributes import DEVICE
from service.settings import Settings
from service.spark.internals import jvm

FUNCTIONS = frozenset(
    {
        *("abs", "ceil", "ceiling", "floor", "round", "sign", "greatest", "least", "mod", "pmod", "isnan", "nanvl"),
        *("coalesce", "ifnull", "nullif", "nvl", "if", "isnull", "isnotnull", "between"),
        *("lower", "lcase", "upper", "ucase", "length", "char_length", "trim", "ltrim", "rtrim", "replace", "concat"),
        *("left", "right", "substr", "substring", "startswith", "endswith", "contains", "instr"),
    }
)
"""The functions that a predicate may call. No regular expression: its time may grow without limit with a device's text."""
_OPERATORS = frozenset(
    {
        *("And", "Or", "Not", "EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan"),
        *("GreaterThanOrEqual", "In", "IsNull", "IsNotNull", "CaseWhen", "Concat"),
        *("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "UnaryMinus", "UnaryPositive"),
    }
)
_WILDCARDS = 2
"""The most `%` in a pattern of LIKE. Spark makes it a regular expression: k of them take the text's length to the power of k."""
_TYPES = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "void"})
"""Types of literals and casts. `timestamp 'now'` is a literal, too."""
_ROW = "$row"
"""No name of a measure, a column or an attribute that a predicate may use begins with it."""
_REMEDY = f"Use operators, CASE, CAST and the functions {', '.join(sorted(FUNCTIONS))}"


def places(settings: Settings) -> dict[str, str]:
    """Return the predicates of the settings by the name of their key."""
    every = {f"{form.place}.where": form.where for form in settings.forms}
    every |= {f"views.{view.name}.where": view.where for view in settings.views}
    return {place: where for place, where in every.items() if where is not None}


def attributes(spark: SparkSession, settings: Settings) -> tuple[str, ...]:
    """Return the columns of the reference that predicates use.

    Raises SettingsError for a predicate that Spark cannot parse, with an expression that is not allowed or an unknown name.
    """
    own = {DEVICE, *settings.measures, *settings.columns}
    # An input's predicate has the names of this input, a view's those of all.
    scopes = {f"{each.form.place}.where": each for each in settings.split()}
    used = [
        name
        for place, where in places(settings).items()
        for name in _names(spark, place, where, scopes.get(place, settings))
    ]
    return tuple(dict.fromkeys(name for name in used if name not in own))


def add(frame: DataFrame, predicates: Mapping[str, str], values: Mapping[str, Column]) -> DataFrame:
    """Add a boolean column for each predicate, under its key: whether the row meets it, never null.

    `values` are the frame's columns by their names in predicates. Raises SettingsError for a predicate that is not boolean.
    """
    # A struct, because a measure may have the name of another column of the frame.
    named = frame.select(F.struct("*").alias(_ROW), *(column.alias(name) for name, column in values.items()))
    met = []
    for place, where in predicates.items():
        try:
            kind = named.select(F.expr(where)).schema[0].dataType
        except PySparkException as error:
            raise _refused(place, where, first_line(error)) from error
        if not isinstance(kind, t.BooleanType):
            raise _refused(place, where, f"is {kind.simpleString()}, not true or false")
        met.append(F.coalesce(F.expr(where), F.lit(False)).alias(place))
    return named.select(f"{_ROW}.*", *met)


def _names(spark: SparkSession, place: str, where: str, settings: Settings) -> Iterator[str]:
    """Yield the names in a predicate."""
    try:
        parsed = jvm.session(spark).sessionState().sqlParser().parseExpression(where)
    except PySparkException as error:
        raise _refused(place, where, first_line(error)) from error
    except Py4JError as error:
        # The parser's stack overflows at some thousand nested parentheses (Spark 4.1.1).
        raise _refused(place, where, "Spark's parser cannot read it; it may be nested too deeply") from error
    reference = settings.reference
    known = {DEVICE, *settings.measures, *settings.columns, *(reference.columns if reference else ())}
    for node in _nodes(parsed):
        kind = node.getClass().getSimpleName()
        if kind == "UnresolvedAttribute":
            name = node.nameParts().mkString(".")
            # Without `reference.columns` only the database has the list of columns.
            if name not in known and (reference is None or reference.columns or "." in name):
                raise _refused(place, where, f"{name!r} is no name here; there are {', '.join(sorted(known))}")
            yield str(name)
        elif kind == "UnresolvedFunction":
            name = node.nameParts().mkString(".").lower()
            if name not in FUNCTIONS or node.isDistinct() or node.filter().isDefined():
                raise _refused(place, where, f"the function {name} is not allowed")
        elif kind in {"Literal", "Cast"}:
            of = node.dataType().simpleString()
            if of not in _TYPES and not of.startswith("decimal("):
                raise _refused(place, where, f"a value of type {of} is not allowed")
        elif kind in {"Like", "ILike"}:
            if why := _fault_of_pattern(node):
                raise _refused(place, where, why)
        elif kind not in _OPERATORS:
            raise _refused(place, where, f"{kind.strip('$') or 'this expression'} is not allowed")


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    children = expression.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _fault_of_pattern(like: Any) -> str:
    """Return why a pattern of LIKE is not allowed; "" for one that is."""
    pattern, escape = like.right(), str(like.escapeChar())
    if pattern.getClass().getSimpleName() != "Literal" or pattern.dataType().simpleString() != "string":
        return "the pattern of LIKE must be a text between quotes"
    text = str(pattern.value())
    # Spark (4.1.1) throws for any other character after an escape, also if spark.sql.ansi.enabled is off.
    plain = re.sub(f"{re.escape(escape)}[%_{re.escape(escape)}]", "", text)
    if escape in plain:
        return f"in the pattern {text!r}, {escape!r} stands before something else than %, _ or {escape!r}"
    if plain.count("%") > _WILDCARDS:
        return f"the pattern {text!r} has more than {_WILDCARDS} %; use contains(), startswith() and endswith()"
    return ""


def _refused(place: str, where: str, why: str) -> SettingsError:
    return SettingsError(f"{place} = {where!r}: {why}", remedy=_REMEDY)
