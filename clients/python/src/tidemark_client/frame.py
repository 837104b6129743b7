"""Values as a DataFrame of pandas, which this package imports only here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Union

from tidemark_client.aggregate import Aggregate
from tidemark_client.errors import ArgumentError
from tidemark_client.values import Device, Session, Window

Value = Union[Window, Session, Device, Aggregate]
_TIMES = {"start", "end", "first", "last", "last_seen", "session", "complete_from", "merged_into"}
_TIMES_WITHIN = {"written.updated", "early.at", "early.until"}
_DURATION = "duration"


def to_frame(values: Iterable[Value]) -> Any:
    """A pandas.DataFrame with a row for each value, in their order, and a column for each field. Any: pandas may be absent.

    Times are UTC, a session's `duration` is a Timedelta. Columns of devices and sessions are named as in tidemark sql: `device`,
    `ref.<column>`, `<measure>`, `<measure>.at`, `<measure>.mean`. A column that no value has is left out, unless it is of times.
    Raises ArgumentError where pandas is not installed, and for a value of another class.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ArgumentError("to_frame needs pandas: pip install pandas") from error
    times: set[str] = set()
    frame: Any = pd.DataFrame([_row(each, times) for each in values])
    for name in list(frame.columns):
        if name in times - {_DURATION}:
            frame[name] = pd.to_datetime(frame[name].astype("Int64"), unit="ms", utc=True)
        elif frame[name].isna().all():
            del frame[name]
    if _DURATION in times:
        frame[_DURATION] = pd.to_timedelta(frame[_DURATION], unit="ms")
    return frame


def _row(value: Value, times: set[str]) -> dict[str, Any]:
    """The columns of a value. Names of times are added to `times`: a measure may have the name of a time."""
    if not isinstance(value, (Window, Session, Device, Aggregate)):
        raise ArgumentError(f"{value!r}: give windows, sessions, devices or aggregates")
    row: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        content = getattr(value, each.name)
        if each.name == "attributes":
            row.update({f"ref.{name}": text for name, text in content.items()})
        elif each.name == "latest":
            for name, reading in content.items():
                row[name], row[f"{name}.at"], row[f"{name}.status"] = reading.value, reading.at, reading.status
                times.add(f"{name}.at")
        elif isinstance(content, Mapping):
            row.update(
                {
                    f"{name}.{part}": number
                    for name, summary in content.items()
                    for part, number in vars(summary).items()
                }
            )
        elif dataclasses.is_dataclass(content):
            row.update({f"{each.name}.{name}": part for name, part in vars(content).items()})
            times.update({f"{each.name}.{name}" for name in vars(content)} & _TIMES_WITHIN)
        elif each.name == "id":  # a measure may have that name
            row["device"] = content
        else:
            row[each.name] = None if each.name == "last_seen" and content == 0 else content
            times.update({each.name} & {*_TIMES, _DURATION})
    return row
