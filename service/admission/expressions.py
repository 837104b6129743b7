"""Derived measures: SQL expressions over fields of the record, such as `u * i`.

Every field and every number is a double, so that what overflows is an infinity, which admission rejects. What is true or false is
1 or 0: `power > 5` is a measure whose `integral` is the time for which that held. The value depends on
the record alone: service/settings/expression.py reads no text, no cast and no query, and FUNCTIONS has all allowed functions.

A field that is null makes the value null, as in SQL: the reading lacks the measure. Where all fields have values, a null (of a
division by 0) becomes NaN, which admission rejects, unless the expression may be null by intent: CASE, IF, NULLIF, NULL.
"""

from collections.abc import Callable, Collection
from functools import reduce
from operator import and_, or_

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from service.admission import numbers
from service.errors import SettingsError
from service.settings import Measure, Settings

FUNCTIONS = frozenset(
    {
        *("abs", "sign", "greatest", "least", "mod", "pmod", "sqrt", "pow", "power", "exp", "ln"),
        *("isnan", "nanvl", "coalesce", "ifnull", "nullif", "nvl", "if", "isnull", "isnotnull"),
    }
)
"""The functions that an expression may call: of doubles, and with the same result on every machine. Rounding makes integers."""


def check(spark: SparkSession, settings: Settings) -> None:
    """Raise SettingsError for an expression that Spark cannot parse, that calls another function, or that is no number."""
    for form in settings.forms:
        for name, measure in form.measures.items():
            if measure.expression is not None and (why := _fault(spark, measure)):
                what = f"{form.place}.measures.{name} = {measure.expression!r}: {why}"
                raise SettingsError(
                    what, remedy=f"Use operators, CASE and the functions {', '.join(sorted(FUNCTIONS))}"
                )


def value(measure: Measure, field: Callable[[str], str], texts: Collection[str] = ()) -> Column:
    """Return the value of a measure with an expression, a double; `field` is SQL for the field at a path.

    Of the fields in `texts` it reads the numbers; a text that is no number makes the value NaN.
    """
    parsed = measure.parsed

    def double(path: str) -> str:
        return numbers.sql(field(path)) if path in texts else f"CAST({field(path)} AS DOUBLE)"

    # A comparison is 1 or 0.
    computed = F.expr(parsed.sql(double)).cast("double")
    if compared := {*texts, *(parsed.fields if parsed.compares else ())}:
        # Spark takes NaN for the largest number: a comparison would make a number of it.
        is_none = reduce(or_, (F.isnan(F.expr(double(path))) for path in sorted(compared)))
        computed = F.when(F.coalesce(is_none, F.lit(False)), F.lit(float("nan"))).otherwise(computed)
    if parsed.may_leave_out:
        return computed
    has_all = reduce(and_, (F.expr(double(path)).isNotNull() for path in parsed.fields))
    return F.when(has_all, F.coalesce(computed, F.lit(float("nan")))).otherwise(computed)


def _fault(spark: SparkSession, measure: Measure) -> str:
    """Return why an expression is not allowed; "" for one that is."""
    parsed = measure.parsed
    if others := [name for name in parsed.functions if name not in FUNCTIONS]:
        return f"the function {others[0]} is not allowed"
    names = {path: f"f{number}" for number, path in enumerate(parsed.fields)}
    frame = spark.range(0).select(*(F.lit(0.0).alias(name) for name in names.values()))
    try:
        kind = frame.select(F.expr(parsed.sql(names.__getitem__))).schema[0].dataType
    except PySparkException as error:
        return first_line(error)
    except Py4JError:
        return "Spark's parser cannot read it; it may be nested too deeply"
    return "" if isinstance(kind, t.DoubleType | t.BooleanType) else f"is {kind.simpleString()}, not a number"


def first_line(error: PySparkException) -> str:
    """Return what is wrong with SQL, in Spark's words."""
    line = next((each.strip() for each in str(error).splitlines() if each.strip()), type(error).__name__)
    return line.partition(" SQLSTATE")[0].rstrip(".")
