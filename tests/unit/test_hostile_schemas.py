"""What whoever may register a schema can do to the service: make that schema unusable, and nothing else."""

import gzip
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from load.servers.schema_registry import Registry
from load.servers.web_server import Handler
from load.servers.web_server import answering as served
from service import clock
from service.admission import avro_types, registry
from service.admission.registry import Client
from service.admission.schema_catalog import NewSchemaError, SchemaCatalog
from service.admission.schema_store import SchemaStore
from service.commands import check_input
from service.errors import RegistryError, SchemaError
from service.settings import Registry as RegistrySettings
from service.spark.internals.offset_log import Position
from tests.unit.test_schema_catalog import AT, FIELDS, Files, make, schema

pytestmark = [pytest.mark.hostile, pytest.mark.quick]
SUBJECT = "readings-value"


def nested(depth: int) -> dict[str, Any]:
    """A record with so many records in one another."""
    inner: Any = "long"
    for number in range(depth):
        inner = {"type": "record", "name": f"N{number}", "fields": [{"name": "f", "type": inner}]}
    return {"type": "record", "name": "Outer", "fields": [*FIELDS, {"name": "deep", "type": inner}]}


def text_of(depth: int) -> str:
    """The same as text: json.dumps calls itself, too."""
    begin = "".join(
        f'{{"type": "record", "name": "N{number}", "fields": [{{"name": "f", "type": ' for number in range(depth)
    )
    fields = json.dumps(FIELDS)[1:-1]
    deep = f'{begin}"long"{"}]}" * depth}'
    return f'{{"type": "record", "name": "Outer", "fields": [{fields}, {{"name": "deep", "type": {deep}}}]}}'


def fanned_out(ours: Registry, levels: int, width: int = 2) -> tuple[str, list[dict[str, Any]]]:
    """A schema that refers twice to one that refers twice, and so on; none of them is a type of its own, so all are put in."""
    references: list[dict[str, Any]] = []
    for level in range(levels):
        content = ["long"] if not references else [references[0]["name"]] * width
        union = {"type": "array", "items": content}
        ours.register(f"part{level}", union, references)
        references = [{"name": f"a.P{level}", "subject": f"part{level}", "version": 1}] * width
    fields = [*FIELDS, {"name": "x", "type": references[0]["name"]}]
    return json.dumps({"type": "record", "name": "Fan", "fields": fields}), references


def check(schema: Mapping[str, Any]) -> None:
    avro_types.bounded(schema)


def catalog(folder: Path, ours: Registry, reader: int, counted: list[str]) -> SchemaCatalog:
    form = {"measures": {"temperature": "temperature"}, "reader_schema": reader}
    given = make(folder, registry={"url": ours.url, "timeout": "60 s"}, input=form)
    return SchemaCatalog(given, SchemaStore(Files()), check, counted.append)


def hostile(ours: Registry, kind: str) -> int:  # noqa: PLR0911
    """Register one; its id."""
    match kind:
        case "nested":
            return ours.register(SUBJECT, text_of(3_000))
        case "nested a hundred times more":
            return ours.register(SUBJECT, text_of(20_000))
        case "nested too deep for a walk":
            return ours.register(SUBJECT, text_of(90))
        case "fanned out":
            text, references = fanned_out(ours, 18)
            return ours.register(SUBJECT, text, references)
        case "fanned out in references alone":
            text, references = fanned_out(ours, 18, 20)
            return ours.register(SUBJECT, json.dumps(schema("Fan")), references)
        case "endless":
            ours.register(
                "self", {"type": "record", "name": "S", "fields": []}, [{"name": "S", "subject": "self", "version": 1}]
            )
            many = [{"name": f"R{number}", "subject": f"absent{number}", "version": 1} for number in range(3)]
            return ours.register(SUBJECT, json.dumps(schema("Endless")), many)
        case "many types that contain themselves":
            fields = [{"name": f"f{number}", "type": ["null", "T"]} for number in range(2_000)]
            inner = {"type": "record", "name": "T", "fields": fields}
            return ours.register(SUBJECT, {**schema("Big"), "fields": [*FIELDS, {"name": "t", "type": inner}]})
        case "large":
            return ours.register(SUBJECT, {**schema("Large"), "doc": "x" * 30_000_000})
        case "no record":
            return ours.register(SUBJECT, '"long"')
        case "no JSON":
            return ours.register(SUBJECT, "{")
    raise AssertionError(kind)


KINDS = (
    *("nested", "nested a hundred times more", "nested too deep for a walk", "fanned out", "endless"),
    *("many types that contain themselves", "large", "no record", "no JSON"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_that_is_registered_while_the_service_runs_is_unusable_and_the_next_is_decoded(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    with Registry() as ours:
        first = ours.register(SUBJECT, schema("R1"))
        running = catalog(tmp_path, ours, first, counted)
        running.open(None)
        bad = hostile(ours, kind)
        began = time.monotonic()
        running.look_up([bad])
        assert time.monotonic() - began < 30
        assert (counted, str(bad) in running.refused(1)) == (["unusable"], True)
        assert f"schema id {bad} is not used" in caplog.text
        good = ours.register(SUBJECT, schema("R2"))
        with pytest.raises(NewSchemaError):
            running.look_up([good])
        assert sorted(running.open(Position(4, AT)).schemas) == [first, good]


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_goes_on_without_a_schema_that_is_unusable(tmp_path: Path, kind: str) -> None:
    counted: list[str] = []
    with Registry() as ours:
        first = ours.register(SUBJECT, schema("R1"))
        bad = hostile(ours, kind)
        at_start = catalog(tmp_path, ours, first, counted)
        plan = at_start.open(None)
        assert (list(plan.schemas), plan.reader["name"], counted) == ([first], "R1", ["unusable"])
        warned = next(line for line in check_input.schemas_of(at_start.settings) if line.status == "warn")
        assert warned.detail.startswith("a schema is not used" if kind == "large" else f"schema {bad} is not used")


def test_a_record_with_our_name_for_a_union_is_a_record(tmp_path: Path) -> None:
    with Registry() as ours:
        first = ours.register(SUBJECT, schema("R1"))
        for fields in ([], [{"name": "x", "type": ["null", "long"]}]):
            number = ours.register(SUBJECT, {**schema("tidemark_union"), "fields": fields})
            named = catalog(tmp_path, ours, first, []).open(None).schemas[number]
            assert avro_types.records_of(named) == {"tidemark_union": (b"", named)}


def test_references_are_read_once_however_often_they_are_named(tmp_path: Path) -> None:
    with Registry() as ours:
        number = hostile(ours, "fanned out in references alone")
        assert list(catalog(tmp_path, ours, number, []).open(None).schemas) == [number]
        assert sum(count for path, count in ours.requests.items() if path.startswith("/subjects/part")) == 18


def test_a_schema_that_is_not_too_deep_is_decoded(tmp_path: Path) -> None:
    with Registry() as ours:
        number = ours.register(SUBJECT, nested(60))
        assert list(catalog(tmp_path, ours, number, []).open(None).schemas) == [number]


def test_types_that_contain_themselves_are_found_in_time_that_grows_with_the_types() -> None:
    """A chain of 5,000 types whose last contains itself; all of them are endless."""
    fields = [
        {"name": "f0", "type": {"type": "record", "name": "T0", "fields": [{"name": "f", "type": ["null", "T0"]}]}}
    ]
    for number in range(1, 5_000):
        inner = {"type": "record", "name": f"T{number}", "fields": [{"name": "f", "type": f"T{number - 1}"}]}
        fields.append({"name": f"f{number}", "type": inner})
    began = time.monotonic()
    with pytest.raises(SchemaError, match="more than 100000 types"):
        avro_types.bounded({"type": "record", "name": "R", "fields": fields})
    assert time.monotonic() - began < 30


@contextmanager
def answering(
    head: bytes, piece: bytes, count: int, pause: threading.Event | None = None
) -> Iterator[tuple[str, list[int]]]:
    """A registry that sends so many pieces to each request; yields its URL and how many it could send."""
    sent = [0]

    def send(request: Handler) -> None:
        with suppress(OSError):
            request.wfile.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
            for _ in range(count):
                if pause is not None:
                    pause.wait(0.05)
                request.wfile.write(piece)
                sent[0] += len(piece)

    with served(send) as url:
        yield url, sent


def test_an_answer_of_300_megabytes_is_not_read() -> None:
    size = 300 << 20
    with answering(f"Content-Length: {size}".encode(), b"x" * (1 << 20), 300) as (url, sent):
        with pytest.raises(SchemaError, match="has more than 4194304 bytes") as caught:
            Client(RegistrySettings(url=url)).schema(1)
        assert not isinstance(caught.value, RegistryError)
    assert sent[0] < 32 << 20


def test_an_answer_that_is_compressed_although_it_was_not_to_be_is_not_unpacked() -> None:
    bomb = gzip.compress(b"x" * (100 << 20))
    head = f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}".encode()
    with answering(head, bomb, 1) as (url, _), pytest.raises(SchemaError, match="is compressed"):
        Client(RegistrySettings(url=url)).schema(1)


def test_an_answer_that_never_ends_has_its_time() -> None:
    """Each byte comes in time, by itself."""
    with answering(b"Content-Length: 1000000", b" ", 1_000_000, threading.Event()) as (url, _):
        began = time.monotonic()
        with pytest.raises(RegistryError, match="takes longer than 1"):
            Client(RegistrySettings(url=url, timeout="1 s")).schema(1)
        assert time.monotonic() - began < 20


def test_an_id_with_too_large_an_answer_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_BYTES", 100_000)
    counted: list[str] = []
    with Registry() as ours:
        first = ours.register(SUBJECT, schema("R1"))
        large = ours.register(SUBJECT, {**schema("Large"), "doc": "x" * 200_000})
        other = ours.register("other", schema("R3"))
        running = catalog(tmp_path, ours, first, counted)
        running.open(None)
        running.look_up([large, other, 99])
        assert counted == ["unusable", "unusable", "missing", "missing"]
        then = clock.now_ms() + 60_000
        monkeypatch.setattr(clock, "now_ms", lambda: then)
        assert running.refused(1) == ""
