"""The settings of all transcripts, and what stands for a service around them."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from load.fleet import protobuf
from load.judge.statistics import DEFAULT, ORDERED
from load.servers.schema_registry import Registry
from load.transcripts.transcript import OTHERS, SESSION_ORDER, Transcript

DATABASE = "reference.db"
MEASURES = ("temperature", "humidity")
ALL_MEASURES = (*MEASURES, "power")
IDLE_AFTER_MS = 10_000
"""Less than max_delay, so that readings can come that correct what silence has closed."""

INPUTS: tuple[Mapping[str, Any], ...] = (
    {
        "name": "readings",
        "topics": ["readings"],
        "format": "json",
        "device_id": "device_id",
        "event_time": "event_time",
        "event_time_unit": "ms",
        "measures": {name: name for name in MEASURES},
        "columns": {"line": {"path": "line", "max_values": 4}, "kind": "kind", "message": "message"},
        "where": "kind is null or kind <> 'other'",
    },
    {
        "name": "meters",
        "topics": ["meters"],
        "format": "json",
        "array": True,
        "device_id": "meter.id",
        "event_time": "at",
        "event_time_unit": "s",
        "measures": {"humidity": {"path": "rh", "scale": 100}, "power": "u * i / coalesce(f, 1)"},
        "columns": {"line": {"path": "meter.line", "max_values": 4}},
        "where": "humidity is null or humidity < 90",
    },
    *(
        {"name": name, "topics": [name], "format": form, "measures": {"temperature": "temperature"}}
        for name, form in (("documents", "json-schema"), ("messages", "protobuf"))
    ),
)
SECTIONS: Mapping[str, Any] = {
    "inputs": list(INPUTS),
    "admission": {
        "max_delay": "20 s",
        "max_ahead": "5 s",
        "idle_after": f"{IDLE_AFTER_MS} ms",
        "max_bytes": "512 B",
        "distinct": "message",
        "ranges": {"temperature": [-50.0, 150.0]},
    },
    "sessions": {
        "gap": "30 s",
        "max_duration": "10 m",
        "measure_status": True,
        "buckets": 2,
        "statistics": list(SESSION_ORDER),
        "measures": ["temperature"],
    },
}


def _view(name: str, source: str = "", **own: Any) -> Mapping[str, Any]:
    """A view of windows of a minute by device, unless `own` says otherwise; with a `source` it is a roll-up."""
    common = {"name": name, "by": ["device"], "window": "1 m", "measures": ["temperature"]}
    return {**common, **own, **({"from": source} if source else {})}


def _days(name: str, window: str = "1 d", zone: str = "", **own: Any) -> Mapping[str, Any]:
    """A view of means of humidity in long windows, of a time zone if one is given."""
    times = {"window": window, **({"time_zone": zone} if zone else {})}
    return _view(name, **{"measures": ["humidity"], "statistics": ["mean"], **times, **own})


VIEWS: tuple[Mapping[str, Any], ...] = (
    _view("device"),
    _view("humid", measures=["humidity"]),
    _view("power", measures=["power"]),
    _view("kept"),
    _view("soon", final_after="5 s"),
    _view("slide", window="2 m", slide="1 m"),
    _view("site", by=["site"]),
    _view("line", by=["line"]),
    _view("all", by=[]),
    _view("total", window="none"),
    _view("events", by=["device", "line"], measures=[]),
    _view("warm", where="temperature > 20 and site <> 'cold'"),
    _view("every", by=["site"], statistics=[*DEFAULT, *OTHERS]),
    _view("order", statistics=list(ORDERED)),
    _view("carry", statistics=list(ORDERED), carry_for="90 s"),
    _view("filled", statistics=[*DEFAULT, *OTHERS, *ORDERED], carry_for="150 s", fill="last"),
    _view(
        "crew",
        by=["site"],
        window="2 m",
        slide="1 m",
        statistics=["mean", "last_value", "time_weighted_mean", "coverage"],
        carry_for="2 m",
        fill="last",
        final_after="5 s",
    ),
    _view(
        "plant",
        by=["site"],
        statistics=["increase", "resets", "time_weighted_mean", "integral", "coverage"],
        carry_for="60 s",
    ),
    _view(
        "meter",
        statistics=["rate", "increase", "increase_rate", "resets", "integral", "linear_integral"],
        per="h",
        wraps_at=100,
    ),
    _view("five", "device", window="5 m"),
    _view("ten", "five", window="10 m"),
    _view("course", "order", window="2 m", statistics=list(ORDERED)),
    _view("sites", "every", by=["site"], window="2 m", statistics=[*DEFAULT, *OTHERS]),
    _days("rome", zone="Europe/Rome"),
    _days("york", zone="America/New_York"),
    _days("nepal", zone="Asia/Kathmandu"),
    _days("howe", zone="Australia/Lord_Howe"),
    _days("shift", zone="Europe/Rome", offset="6 h"),
    _days("week", "1 w", "Europe/Rome"),
    _days("month", "1 mo", "America/New_York"),
    _days("months", "1 mo", "America/New_York", source="york"),
    _days("quarters", "15 m"),
    _days("days", zone="Europe/Rome", source="quarters"),
    _days("kathmandu", zone="Asia/Kathmandu", source="quarters"),
    _days("year", "1 y", offset="3 mo"),
    _days("zoned", by=["device", "site"], time_zone={"column": "site"}),
    _days(
        "trip",
        by=["device", "kind"],
        statistics=["integral", "coverage"],
        time_zone={"column": "kind"},
        carry_for="2 d",
        fill="last",
    ),
    _days(
        "daily",
        zone="Europe/Rome",
        statistics=["increase", "longest_gap", "time_weighted_mean", "integral", "coverage"],
        carry_for="2 d",
        fill="last",
    ),
)
KEPT = "kept"
"""The name of the outlet."""
LEAVING = (KEPT, "soon", "filled", "crew", "five")
"""The views whose windows go to the outlet."""
STATES = "states"
"""The outlet of changes of statuses, and the name among a transcript's views of one that looks at them."""
REFERENCE: Mapping[str, Any] = {
    "query": "select device_id, type, installed, site, expects from devices",
    "columns": ["site"],
    "expected_interval": "expects",
    "max_age": "365 d",  # the clock is set on by hours
}


@contextmanager
def registry() -> Iterator[str]:
    """A registry with the schemas of the inputs, by its address: id 1 is of documents, id 2 of messages."""
    with Registry() as served:
        served.register("documents-value", {"type": "object"}, kind="JSON")
        served.register("messages-value", protobuf.schema(), kind="PROTOBUF")
        yield served.url


def sections(registry_url: str) -> dict[str, Any]:
    """The settings of all executors."""
    return {**SECTIONS, "registry": {"url": registry_url}}


def document(folder: Path, registry_url: str) -> dict[str, Any]:
    """Settings without a Kafka and a Redis that answer; the reference is what `write_reference` puts in `folder`."""
    return {
        "service": {"checkpoint": str(folder / "checkpoint")},
        "kafka": {"bootstrap": "127.0.0.1:1"},
        **sections(registry_url),
        "outlets": outlets(folder),
        "reference": {"url": f"jdbc:sqlite:{folder / DATABASE}", **REFERENCE},
        "redis": {"url": "redis://127.0.0.1:1"},
        "views": list(VIEWS),
    }


def changed(views: Iterable[Mapping[str, Any]], change: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The views after a step's `change`."""
    documents = {view["name"]: view for view in views}
    for name, fields in change.items():
        if fields is None:
            del documents[name]
        else:
            documents[name] = {"name": name, **documents.get(name, {}), **fields}
    return tuple(documents.values())


def outlets(folder: Path) -> list[dict[str, Any]]:
    """The outlets of the settings, of files in folders: the windows of views, and states."""
    kept, states = (str(folder / name) for name in ("outlet", STATES))
    return [
        {"name": KEPT, "kind": "parquet", "path": kept, "views": [*LEAVING], "when_away": "wait"},
        {"name": STATES, "kind": "parquet", "path": states, "states": True, "when_away": "wait"},
    ]


def write_reference(folder: Path, transcripts: Iterable[Transcript]) -> None:
    """Write the devices of all transcripts to an SQLite file, and one device more: a reference may not be empty."""
    path = folder / DATABASE
    path.unlink(missing_ok=True)
    rows: list[tuple[str, str, str | None]] = [("nobody", "nowhere", None)]
    for each in transcripts:
        for name in sorted({*each.sites, *each.intervals}):
            expects = f"{each.intervals[name]} s" if name in each.intervals else None
            rows.append((each.device(name), each.sites.get(name, "nowhere"), expects))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "create table devices (device_id text primary key, type text, installed text, site text, expects text)"
        )
        connection.executemany("insert into devices values (?, 'sensor', '2026-01-01', ?, ?)", rows)
