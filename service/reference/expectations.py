"""Validate reference data: invariants, and a suite of expectations.

The invariants hold for any reference: the query has the columns that the settings name, every row has a key, and keys are unique.
The suite is optional. It is a JSON file `{"name": ..., "expectations": [{"type": "expect_...", "kwargs": {...}}, ...]}` with
the query's column names. All values are text, so a suite has patterns, lengths and sets, but no numeric ranges. One message has
all failures.

Great Expectations is imported on first use: it takes 3 s and 142 MB (1.24.1), which executors and services without reference data
do not need.
"""

import importlib
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from service.errors import ReferenceDataError, SchemaError
from service.reference import limits
from service.reference.attributes import DEVICE, HASH, ROW

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame

    from service.settings import Reference

OWN = frozenset({DEVICE, "known"})
"""Columns that the service adds to the attributes: an attribute of the same name would be ambiguous."""
EXAMPLES = 5
_EXAMPLE_LENGTH = 60
_ON_USE = ("scipy.stats", "altair")
"""What Great Expectations imports for distributions of numbers and for charts: a third of the CPU of its import (1.24.1)."""
_COLUMN = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def validate(table: pa.Table, reference: "Reference", former_rows: int | None = None) -> None:
    """Raise ReferenceDataError for a table that breaks an invariant or an expectation, or has many rows less than the last one.

    `table` is what `database.fetch` returns: `device` and the query's other columns, all strings. The error has every failure:
    column, expectation, its arguments, how many values do not meet it, and up to five of them. Raises SchemaError for an
    expectations file that is missing or malformed, or has an expectation that does not exist.
    """
    failures = broken_invariants(table, reference.key)
    if reference.expectations is not None:
        failures += failed_expectations(table, reference, reference.expectations)
    failures += limits.faults(table, reference)
    if former_rows is not None:
        failures += shrunk(table.num_rows, former_rows, reference.max_shrink)
    if failures:
        faults = "1 fault" if len(failures) == 1 else f"{len(failures)} faults"
        msg = f"the reference data has {faults}:\n  " + "\n  ".join(failures)
        remedy = "Correct the data of [reference] query"
        if reference.expectations is not None:
            remedy += f", or the expectation in {reference.expectations}"
        raise ReferenceDataError(msg, remedy=remedy)


def check_columns(columns: Sequence[str], reference: "Reference", where: str) -> None:
    """Raise ReferenceDataError with every problem of a query's columns: missing, repeated, invalid, or names of our own."""
    lowered = [name.lower() for name in columns]
    problems = []
    if reference.key not in columns:
        problems.append(f"key {reference.key!r} is not among them")
    problems += [f"columns: {name!r} is not among them" for name in reference.columns if name not in columns]
    problems += [f"limits: {name!r} is not among them" for name in reference.limit_columns if name not in columns]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    problems += [f"{name!r} is there more than once (capitals do not count)" for name in twice]
    for name in columns:
        if name == reference.key:
            continue
        used = not reference.columns or name in (*reference.columns, *reference.limit_columns)
        if name.lower() == DEVICE or name in (HASH, ROW) or (used and name.lower() in OWN):
            problems.append(f"{name!r} is a name of our own")
        elif used and not _COLUMN.match(name):
            problems.append(f"{name!r} cannot be used: a name is letters, digits and _, no digit first")
    if problems:
        msg = f"{where}: [reference] query has the columns {', '.join(columns)}; " + "; ".join(problems)
        remedy = "Rename a column with AS in the query, or correct [reference] key and columns"
        raise ReferenceDataError(msg, remedy=remedy)


def require_columns(table: pa.Table, names: Iterable[str]) -> None:
    """Raise ReferenceDataError if the table lacks one of the columns."""
    if lacking := [repr(name) for name in names if name not in table.column_names]:
        msg = f"the reference data has no column {', '.join(lacking)}; it has {', '.join(table.column_names)}"
        remedy = "Add it to [reference] query, or stop using it in views and [reference] columns"
        raise ReferenceDataError(msg, remedy=remedy)


def broken_invariants(table: pa.Table, key: str) -> list[str]:
    """Return one line for rows without a key, and one for keys with more than one row."""
    keys = table.column(DEVICE).to_pandas()
    blank = int(keys.fillna("").str.strip().eq("").sum())
    failures = []
    if blank:
        failures.append(f"{key}: a key must not be null or blank: {blank} of {len(keys)} rows have none")
    repeated = keys[keys.duplicated() & keys.notna()].unique()
    if len(repeated):
        shown = _examples(repeated[:EXAMPLES].tolist())
        failures.append(f"{key}: a key must be unique: {len(repeated)} are not, such as {shown}")
    return failures


def shrunk(rows: int, former: int, max_shrink: float) -> list[str]:
    """Return one line if the table has fewer rows than `max_shrink` allows; no other check sees that half a table is missing."""
    least = math.ceil(round(former * (1 - max_shrink), 6))
    if rows >= least:
        return []
    means = "if this is meant, set TIDEMARK_REFERENCE__MAX_SHRINK=1 for one start"
    return [
        f"table: {rows} rows, the last snapshot had {former}, and max_shrink = {max_shrink} allows {least}; {means}"
    ]


def failed_expectations(table: pa.Table, reference: "Reference", suite: "Path") -> list[str]:
    """Return one line for each expectation that is not met (0.1 s for 1,000 rows, 1.5 s for a million)."""
    names = [reference.key if name == DEVICE else name for name in table.column_names]
    frame = table.rename_columns(names).to_pandas()
    remedy = "Name the file in [reference] expectations; `tidemark profile --reference` writes one"
    outcome = evaluate(frame, suite, asset="reference", remedy=remedy)
    return sorted(described(result) for result in outcome.results if is_failure(result))


def evaluate(frame: "DataFrame", path: "Path", *, asset: str, remedy: str) -> Any:
    """Validate a frame with Great Expectations; return its ExpectationSuiteValidationResult, with one of `results` for each.

    Raises SchemaError for a file that cannot be used; `remedy` is for a missing file.
    """
    gx = _great_expectations()
    context = gx.get_context(mode="ephemeral")  # an expectation cannot be built without one
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    suite = _suite(gx, path, remedy)
    source = context.data_sources.add_pandas("tidemark").add_dataframe_asset(asset)
    batch = source.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    examples = {"result_format": "SUMMARY", "partial_unexpected_count": 4 * EXAMPLES}
    try:
        return batch.validate(suite, result_format=examples)
    except Exception as error:  # of arguments that an expectation takes, and refuses when it is evaluated (1.24.1)
        what = f"{path}: an expectation cannot be evaluated: {' '.join(str(error).split())}"
        raise SchemaError(what, remedy="Correct its arguments, or remove it") from error


def usable(path: "Path", *, remedy: str) -> int:
    """Return the number of expectations in a file; raises SchemaError when one cannot be used."""
    gx = _great_expectations()
    gx.get_context(mode="ephemeral")
    return len(_suite(gx, path, remedy).expectations)


def is_failure(result: Any) -> bool:
    """Whether the expectation of a result is not met, or could not be evaluated."""
    return not result.success or bool(_exception(result.exception_info))


def described(result: Any) -> str:
    """Return a failure as one line: column, expectation, arguments, observed values."""
    configuration = result.expectation_config
    arguments = {k: v for k, v in configuration.kwargs.items() if k not in ("column", "batch_id")}
    expected = ", ".join(f"{name} {json.dumps(value, default=str)}" for name, value in arguments.items())
    place = configuration.kwargs.get("column", "table")
    rule = f"{configuration.type} ({expected})" if expected else configuration.type
    return f"{place}: {rule}: {_observed(result)}"


class _OnUse(ModuleType):
    """Stands for a module until one of its attributes is read. The module is imported then."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for these
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _great_expectations() -> ModuleType:
    # Read at import. Without it the library reports every validation to its makers.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    for name in _ON_USE:
        sys.modules.setdefault(name, _OnUse(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1.24.1 imports modules that Python 3.11 deprecates
        return importlib.import_module("great_expectations")


def _suite(gx: ModuleType, path: "Path", remedy: str) -> Any:
    """Return the file as a suite. Its constructor would drop invalid expectations, so each one is added separately."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SchemaError(f"{path}: the expectations file cannot be read ({error.strerror})", remedy=remedy) from error
    except ValueError as error:
        raise SchemaError(f"{path}: the expectations file is not JSON: {error}") from error
    items = document.get("expectations") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise SchemaError(f'{path}: the expectations file must be an object with a list "expectations"')
    suite = gx.ExpectationSuite(name=str(document.get("name") or path.stem))
    problems = []
    for number, item in enumerate(items):
        try:
            configuration = gx.expectations.expectation_configuration.ExpectationConfiguration(**item)
            suite.add_expectation(configuration.to_domain_obj())
        except (TypeError, ValueError, gx.exceptions.GreatExpectationsError) as error:
            kind = item.get("type", "no type") if isinstance(item, dict) else "not an object"
            problems.append(f"expectations[{number}] ({kind}): {' '.join(str(error).split())}")
    if problems:
        msg = f"{path}: these expectations cannot be used:\n  " + "\n  ".join(problems)
        raise SchemaError(msg)
    return suite


def _observed(result: Any) -> str:
    if message := _exception(result.exception_info):
        return f"cannot be evaluated: {message}"
    values: Mapping[str, Any] = result.result
    if "unexpected_count" in values:
        shown = _examples(values.get("partial_unexpected_list", ()))
        return f"{values['unexpected_count']} of {values['element_count']} values are not so, such as {shown}"
    details = f" {json.dumps(values['details'], default=str)}" if values.get("details") else ""
    return f"observed {json.dumps(values.get('observed_value'), default=str)}{details}"


def _exception(info: Mapping[str, Any] | None) -> str:
    """Return the first exception's message: `info` is one record, or a record per metric if a metric failed (1.24.1)."""
    if not info:
        return ""
    records = [info] if "raised_exception" in info else [r for r in info.values() if isinstance(r, Mapping)]
    raised = [r for r in records if r.get("raised_exception")]
    return " ".join(str(raised[0].get("exception_message")).split()) if raised else ""


def _examples(values: Sequence[Any]) -> str:
    """Return up to five different values, shortened; a null is `null`."""
    nulls = [value is None or (isinstance(value, float) and math.isnan(value)) for value in values]
    shown = list(dict.fromkeys("null" if null else repr(value) for null, value in zip(nulls, values, strict=True)))
    return ", ".join(s if len(s) <= _EXAMPLE_LENGTH else f"{s[:_EXAMPLE_LENGTH]}..." for s in shown[:EXAMPLES])
