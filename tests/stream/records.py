"""Kafka records for tests: encoded readings, and frames that look like what Spark's Kafka source gives."""

import io
import itertools
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro

from service import settings

BASE_MS = 1_790_000_040_000
"""A multiple of ten minutes would hide mistakes of alignment; this is one of a minute."""

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "namespace": "tidemark",
    "fields": [
        {"name": "device_id", "type": "string"},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temperature", "type": ["null", "double"], "default": None},
        {"name": "humidity", "type": ["null", "double"], "default": None},
    ],
}

_offsets = itertools.count()


@dataclass(frozen=True)
class Record:
    """One record: `value` as on the wire, `at` the broker's time in ms."""

    value: bytes | None
    at: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    offset: int = field(default_factory=lambda: next(_offsets))
    topic: str = "readings"

    def row(self) -> tuple[Any, ...]:
        timestamp = datetime.fromtimestamp(self.at / 1000, UTC)
        return (self.key, self.value, self.topic, 0, self.offset, timestamp, list(self.headers) or None)


def avro(schema_id: int = 1, schema: Mapping[str, Any] = SCHEMA, **fields: Any) -> bytes:
    """A value in the Confluent wire format."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema)), fields)
    return b"\0" + struct.pack(">i", schema_id) + out.getvalue()


def reading(
    device: str, seconds: float, temperature: float | None = 20.0, *, at: float | None = None, **more: Any
) -> Record:
    """A reading at BASE_MS + `seconds`; the broker has it at the same time unless `at` (seconds) says otherwise."""
    event_ms = BASE_MS + round(seconds * 1000)
    value = avro(device_id=device, event_time=event_ms, temperature=temperature, **more)
    return Record(value, event_ms if at is None else BASE_MS + round(at * 1000), device.encode())


def write_schemas(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.avsc").write_text(json.dumps(SCHEMA))
    return folder


def make_document(folder: Path, **sections: Any) -> dict[str, Any]:
    """The settings document of a service in `folder`; sections given replace the ones here key by key."""
    document: dict[str, Any] = {
        "service": {"checkpoint": str(folder / "checkpoint")},
        "kafka": {"bootstrap": "127.0.0.1:1", "topics": ["readings"]},
        "input": {"schemas": str(write_schemas(folder / "schemas")), "measures": {"temperature": "temperature"}},
        "admission": {"max_delay": "20 s", "max_ahead": "5 s"},
        "views": [{"name": "device", "by": ["device"], "window": "1 m"}],
        "sessions": {"gap": "30 s", "buckets": 4},
        "redis": {"url": "redis://127.0.0.1:1"},
    }
    for name, section in sections.items():
        document[name] = {**document.get(name, {}), **section} if isinstance(section, dict) else section
    return document


def make_settings(folder: Path, **sections: Any) -> settings.Settings:
    """The settings of `make_document`."""
    return settings.parse(make_document(folder, **sections))


def rows(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    return [record.row() for record in records]
