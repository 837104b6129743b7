"""What outlets hold, read by clients of their own, against what the oracle expects: missing, twice, different.

Only what is closed is compared: of each key the row with most readings, and of several that with the largest revision. A row that
the oracle does not call closed is a difference, unless silence had closed the value: later readings may have opened it again.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds

from load.judge.decoders import Json
from load.judge.expected import Session, WindowValue
from load.judge.hashes import RELATIVE, statistics_of
from load.judge.oracle import Expected, records
from load.judge.rules import Rules
from load.judge.statistics import tolerance
from load.judge.verdict import Verdict

Row = Mapping[str, Any]
Key = tuple[Any, ...]


def check_outlets(right: Expected, rules: Rules, outlets: list[Mapping[str, Any]], verdict: Verdict) -> None:
    """Compare every outlet of the settings; a difference is counted as `outlet.<what>`."""
    closed = {key: value for key, value in right.windows.items() if value.closed_by} if outlets else {}
    for outlet in outlets:
        name = str(outlet["name"])
        rows = [_plain(row) for row in read(outlet, rules)]
        if outlet.get("states"):
            _check_states(name, rows, right, verdict)
            continue
        if outlet.get("sessions"):
            wanted: Mapping[Key, Any] = {key: value for key, value in right.sessions.items() if value.closed_by}
            names: tuple[str, ...] = ("device", "start")
        else:
            views = outlet.get("views") or [view.name for view in rules.views]
            wanted = {key: value for key, value in closed.items() if key[0] in views}
            names = ("view", "measure", "key", "start")
        verdict.compared[f"outlet {name}"] = len(wanted)
        _check(name, wanted, rows, names, right, verdict)


def read(outlet: Mapping[str, Any], rules: Rules) -> Iterator[Row]:
    """Yield all rows of an outlet of the settings."""
    kind = outlet["kind"]
    if kind == "parquet":
        path = Path(outlet["path"])
        if path.exists():
            yield from ds.dataset(path, format="parquet", partitioning="hive").to_table().to_pylist()
    elif kind == "jdbc":
        address = str(outlet["url"]).removeprefix("jdbc:")
        with psycopg.connect(address, user=outlet["user"], password=outlet["password"]) as connection:
            cursor = connection.execute(f"select * from {outlet['table']}".encode())  # noqa: S608 - of our own settings
            columns = [column.name for column in cursor.description or ()]
            for row in cursor:
                yield dict(zip(columns, row, strict=True))
    else:
        decoder = Json()
        for record in records(rules, [outlet["topic"]], outlet.get("bootstrap")):
            yield decoder.read(record.value or b"")


def _check_states(name: str, rows: Sequence[Row], right: Expected, verdict: Verdict) -> None:
    """Each row begins with the status of the one before, and the last one is the status that is expected."""
    wanted = {(device, "status"): known.status for device, known in right.devices.items()}
    wanted |= {
        (device, f"{measure}.status"): status
        for device, known in right.devices.items()
        for measure, status in known.statuses.items()
    }
    last: dict[Key, str] = {}
    for row in sorted(rows, key=lambda row: (int(row["epoch"]), int(row["batch"]), int(row["at"]))):
        key = row["device"], row["field"]
        was = row.get("was")
        if was != last.get(key, was) or was == row["status"]:
            verdict.add("outlet.differences", f"{name}: {key}: {dict(row)} does not follow {last.get(key)}")
        last[key] = row["status"]
    verdict.compared[f"outlet {name}"] = len(wanted)
    for key in wanted.keys() | last.keys():
        if last.get(key) != wanted.get(key):
            kind = "outlet.missing" if key in wanted else "outlet.differences"
            verdict.add(kind, f"{name}: {key} is {last.get(key)}, expected {wanted.get(key)}")


def _check(
    name: str, wanted: Mapping[Key, Any], rows: Sequence[Row], names: tuple[str, ...], right: Expected, verdict: Verdict
) -> None:
    times = Counter((*(row[each] for each in names), row["revision"]) for row in rows)
    for key, count in times.items():
        if count > 1:
            verdict.add("outlet.duplicates", f"{name}: {key} is there {count} times")
    newest: dict[Key, Row] = {}
    for row in sorted(rows, key=lambda row: (int(row["count"]), int(row["revision"]))):
        newest[tuple(row[each] for each in names)] = row
    for key, value in wanted.items():
        actual = newest.pop(key, None)
        if actual is None:
            verdict.add("outlet.missing", f"{name}: {key} is not there")
        elif problem := _session(value, actual) if isinstance(value, Session) else _window(key, value, actual, right):
            verdict.add("outlet.differences", f"{name}: {key}: {problem}")
    for key, row in newest.items():
        if row["closed_by"] == "watermark":
            verdict.add("outlet.differences", f"{name}: {key}: nothing that is closed; is {dict(row)}")


def _window(key: Key, value: WindowValue, row: Row, right: Expected) -> str:
    for each, text in (("end", value.end), ("local_start", value.local_start or None)):
        if row.get(each) != text:
            return f"{each} is {row.get(each)}, expected {text}"
    for each, number, error in statistics_of(value, right.statistics[key[0]]):
        if not _is_close(row.get(each), number, error):
            return f"{each} is {row.get(each)}, expected {number}"
    return ""


def _is_close(actual: float | None, expected: float | None, error: float) -> bool:
    """Whether a number is the expected one, or as close as its rounding; an `error` of 0 has none."""
    if actual is None or expected is None:
        return actual is expected
    return math.isclose(actual, expected, rel_tol=RELATIVE if error else 0.0, abs_tol=error)


def _session(value: Session, row: Row) -> str:
    for each in ("last", "count", "state", "reason"):
        if row[each] != getattr(value, each):
            return f"{each} is {row[each]}, expected {getattr(value, each)}"
    for measure, of in value.measures.items():
        if (row.get(f"{measure}_count") or 0) != of.count:
            return f"{measure}_count is {row.get(f'{measure}_count')}, expected {of.count}"
        numbers = {each: getattr(of, each) if of.count else None for each in ("mean", "min", "max")}
        error = RELATIVE * max(abs(of.min), abs(of.max))
        for each, number in {**numbers, **of.others}.items():
            actual = row.get(f"{measure}_{each}")
            if not _is_close(actual, number, error if each == "mean" else tolerance(each, number or 0.0)):
                return f"{measure}_{each} is {actual}, expected {number}"
    return ""


def _plain(row: Row) -> dict[str, Any]:
    """The row with times in ms."""
    return {
        name: round(value.timestamp() * 1000) if isinstance(value, datetime) else value for name, value in row.items()
    }


def outlets_of(settings: Path) -> list[Mapping[str, Any]]:
    """Return the tables [[outlets]] of a settings file."""
    found: list[Mapping[str, Any]] = tomllib.loads(settings.read_text(encoding="utf-8")).get("outlets", [])
    return found
