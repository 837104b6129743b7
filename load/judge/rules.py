"""The settings as the oracle reads them: its own reading of the TOML file, of only the keys that decide about values.

What the service refuses is not refused here: the oracle is for settings with which a service runs.
"""

import os
import re
import sqlite3
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from load.judge.calendars import Calendar
from load.judge.expected import ENDLESS_MS, EVENTS, NO_ORDER, SessionOrder, View
from load.judge.statistics import DEFAULT, ORDERED

Reference = Mapping[str, Mapping[str, str | None]]
"""device -> column -> text"""

_AMOUNTS = {
    "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip


_PER_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Shape:
    """An input: how the records of its topics are read.

    `measures` maps a measure to its path in a record, `units` to the scale and offset of one that has them, and `derived` to the
    expression of one that is computed. `columns` maps a column of the record to its path, and `max_values` to the number of its
    values that are keys. `where` is the input's filter. A record may be an array of at most `array_bytes`, 0 for none.
    """

    topics: tuple[str, ...]
    format: str
    schemas: Path
    registry: str
    subjects: tuple[str, ...]
    reader_schema: int | None
    device_id: str
    event_time: str
    event_time_unit: str
    measures: Mapping[str, str]
    units: Mapping[str, tuple[float, float]]
    derived: Mapping[str, str]
    columns: Mapping[str, str]
    max_values: Mapping[str, int]
    where: str | None
    array_bytes: int
    ignores_tombstones: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Durations in ms, sizes in bytes, paths absolute. `measures` are those of all `shapes`.

    The last three of the rules are columns of the reference: what is null there is as the settings say.
    """

    bootstrap: str
    shapes: tuple[Shape, ...]
    measures: tuple[str, ...]
    rejects: str
    options: Mapping[str, str]
    max_delay_ms: int
    max_ahead_ms: int
    max_bytes: int
    ranges: Mapping[str, tuple[float, float]]
    reject_unknown: bool
    distinct: tuple[str, ...]
    views: tuple[View, ...]
    gap_ms: int
    max_duration_ms: int
    own_ranges: Mapping[str, tuple[str, str]]
    own_gap: str | None
    expected_interval: str | None
    reference: Mapping[str, Any] | None
    redis_url: str
    redis_cluster: bool
    prefix: str
    shards: int
    measure_status: bool = False
    status_delay_ms: int | None = None
    session_order: SessionOrder = NO_ORDER

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of all shapes."""
        return tuple(topic for shape in self.shapes for topic in shape.topics)


def views_of(documents: Iterable[Mapping[str, Any]], measures: tuple[str, ...], max_delay_ms: int) -> tuple[View, ...]:
    """The views of [[views]], for the measures of all inputs."""
    of_name = {each["name"]: each for each in documents}

    def view(document: Mapping[str, Any]) -> View:
        made = _view(document, measures, max_delay_ms)
        return replace(made, source=view(of_name[document["from"]])) if "from" in document else made

    return tuple(map(view, of_name.values()))


def amount(value: object) -> int:
    """Milliseconds or bytes of a number and a unit, such as "10 s" or "64 KiB"; a plain number is taken as it is."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", str(value))
    if match is None or (match[2] and match[2].lower() not in _AMOUNTS):
        raise ValueError(f"{value!r} is neither a duration nor a size")
    return int(float(match[1]) * _AMOUNTS.get(match[2].lower(), 1))


def read_rules(path: Path, environ: Mapping[str, str] = os.environ) -> Rules:
    """Read the settings file; TIDEMARK_<SECTION>__<KEY> in the environment wins, as it does for the service."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    for variable, value in environ.items():
        section, _, key = variable.lower().removeprefix("tidemark_").partition("__")
        if variable.startswith("TIDEMARK_") and key:
            document.setdefault(section, {})[key] = value
    kafka, redis = document["kafka"], document["redis"]
    inputs = document.get("inputs") or [{**document["input"], "topics": kafka["topics"]}]
    admission, session = document.get("admission", {}), document.get("sessions", {})
    folder = path.absolute().parent
    reference = document.get("reference")
    registry = document.get("registry", {})
    shapes = tuple(_shape(given, {"subjects": given.get("subjects"), **registry}, folder) for given in inputs)
    measures = tuple(dict.fromkeys(measure for shape in shapes for measure in (*shape.measures, *shape.derived)))
    return Rules(
        bootstrap=kafka["bootstrap"],
        shapes=shapes,
        measures=measures,
        rejects=kafka.get("rejects", "{topic}.rejects"),
        options=kafka.get("options", {}),
        max_delay_ms=amount(admission.get("max_delay", "60 s")),
        max_ahead_ms=amount(admission.get("max_ahead", "10 s")),
        max_bytes=amount(admission.get("max_bytes", "64 KiB")),
        ranges={measure: (low, high) for measure, (low, high) in admission.get("ranges", {}).items()},
        reject_unknown=reference is not None and admission.get("unknown_device", "keep") == "reject",
        distinct=_distinct(admission.get("distinct", ())),
        views=views_of(document["views"], measures, amount(admission.get("max_delay", "60 s"))),
        gap_ms=amount(session.get("gap", "5 m")),
        max_duration_ms=amount(session.get("max_duration", "1 d")),
        own_ranges={m: (low, high) for m, (low, high) in (reference or {}).get("ranges", {}).items()},
        own_gap=(reference or {}).get("session_gap"),
        expected_interval=(reference or {}).get("expected_interval"),
        reference=None if reference is None else {**reference, "folder": folder},
        redis_url=_with_password(redis["url"], redis.get("password_file"), folder),
        redis_cluster=str(redis.get("cluster", False)).lower() in {"true", "1", "yes", "on"},
        prefix=redis.get("prefix", "tidemark"),
        shards=int(redis.get("shards", 1)),
        measure_status=bool(session.get("measure_status", False)),
        status_delay_ms=amount(session["status_delay"]) if "status_delay" in session else None,
        session_order=_session_order(session, measures),
    )


def _session_order(session: Mapping[str, Any], measures: tuple[str, ...]) -> SessionOrder:
    ordered = tuple(name for name in ORDERED if name in session.get("statistics", ()))
    chosen = tuple(name for name in measures if ordered and name in session.get("measures", measures))
    return SessionOrder(ordered, chosen, _PER_S[session.get("per", "s")], session.get("wraps_at"))


def read_reference(rules: Rules) -> Reference:
    """Return all columns of the reference's database, SQLite or PostgreSQL by its JDBC URL; {} without a [reference].

    Rows without a key are left out. Raises ValueError for another database.
    """
    if rules.reference is None:
        return {}
    reference = rules.reference
    url = str(reference["url"]).removeprefix("jdbc:")
    if url.startswith("sqlite:"):
        place = url.removeprefix("sqlite:").removeprefix("file:").partition("?")[0]
        with closing(sqlite3.connect(f"{(reference['folder'] / place).as_uri()}?mode=ro", uri=True)) as connection:
            cursor = connection.execute(reference["query"])
            names, rows = [column[0] for column in cursor.description], cursor.fetchall()
    elif url.startswith("postgresql:"):
        password = reference.get("password")
        if reference.get("password_file"):
            password = (reference["folder"] / reference["password_file"]).read_text(encoding="utf-8").strip()
        with psycopg.connect(url, user=reference.get("user"), password=password) as database:
            answer = database.execute(reference["query"].encode())
            names, rows = [column.name for column in answer.description or []], answer.fetchall()
    else:
        msg = f"reference.url: the oracle reads jdbc:sqlite and jdbc:postgresql, not {url.partition(':')[0]}"
        raise ValueError(msg)
    key = reference.get("key", "device_id")
    kept = [name for name in names if name != key]
    table = [dict(zip(names, row, strict=True)) for row in rows]
    return {str(row[key]): {name: as_text(row[name]) for name in kept} for row in table if row[key] is not None}


def as_text(value: object) -> str | None:
    """A reference value as text, as SQL casts it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _shape(given: Mapping[str, Any], registry: Mapping[str, Any], folder: Path) -> Shape:
    reader, measures = given.get("reader_schema"), given.get("measures", {})
    columns = {c: {"path": each} if isinstance(each, str) else each for c, each in given.get("columns", {}).items()}
    return Shape(
        topics=tuple(given["topics"]),
        format=given.get("format", "avro"),
        registry=registry.get("url", ""),
        subjects=tuple(registry.get("subjects") or (f"{topic}-value" for topic in given["topics"])),
        schemas=folder / given.get("schemas", "schemas/avro"),
        reader_schema=None if reader is None else int(reader),
        device_id=given.get("device_id", "device_id"),
        event_time=given.get("event_time", "event_time"),
        event_time_unit=given.get("event_time_unit", "ms"),
        measures={
            m: each if isinstance(each, str) else each["path"] for m, each in measures.items() if not _derived(each)
        },
        units={m: _unit(each) for m, each in measures.items() if isinstance(each, dict) and "path" in each},
        derived={m: text for m, each in measures.items() if (text := _derived(each))},
        columns={c: each["path"] for c, each in columns.items()},
        max_values={c: int(each.get("max_values", 10_000)) for c, each in columns.items()},
        where=given.get("where"),
        array_bytes=amount(given.get("max_array_bytes", "8 MiB")) if given.get("array") else 0,
        ignores_tombstones=given.get("tombstones") == "ignore",
    )


def _derived(measure: Any) -> str:
    """The expression of a measure; "" of one with a path. The settings of these programs have blanks around operators."""
    if isinstance(measure, str):
        return measure if " " in measure or "(" in measure else ""
    return str(measure.get("expression", ""))


def _unit(measure: Mapping[str, Any]) -> tuple[float, float]:
    return float(measure.get("scale", 1)), float(measure.get("offset", 0))


def _distinct(given: Any) -> tuple[str, ...]:
    return ("device", given) if isinstance(given, str) else tuple(given)


def _view(view: Mapping[str, Any], measures: tuple[str, ...], max_delay_ms: int) -> View:
    calendar = Calendar.of(view["window"], view.get("time_zone"), view.get("offset"))
    length = ENDLESS_MS if view["window"] == "none" else 0 if calendar is not None else amount(view["window"])
    counts = view.get("measures") == []
    chosen = view.get("measures") or measures
    default = ("count", "first", "last") if counts else DEFAULT
    return View(
        name=view["name"],
        by=tuple(view.get("by", ())),
        window_ms=length,
        step_ms=amount(view.get("slide", length)),
        measures=(EVENTS,) if counts else tuple(measure for measure in measures if measure in chosen),
        where=view.get("where"),
        fills=view.get("fill") == "last",
        carry_ms=amount(view["carry_for"]) if "carry_for" in view else None,
        per_s=_PER_S[view.get("per", "s")],
        wraps_at=view.get("wraps_at"),
        calendar=calendar,
        zone_column=view["time_zone"]["column"] if isinstance(view.get("time_zone"), dict) else None,
        lead_ms=max_delay_ms - amount(view["final_after"]) if "final_after" in view else 0,
        statistics=tuple(dict.fromkeys((*view.get("statistics", default), "count", "last"))),
    )


def _with_password(url: str, password_file: str | None, folder: Path) -> str:
    if not password_file:
        return url
    password = (folder / password_file).read_text(encoding="utf-8").strip()
    parts = urlsplit(url)
    user = parts.username or ""
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{password}@{host}").geturl()
