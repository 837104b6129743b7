"""The schema catalog: what a plan decodes, what is looked up and when, and what a replay must not learn."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest

from load.servers.schema_registry import Registry
from service import clock, settings
from service.admission import avro_types, guids, registry
from service.admission.formats import avro
from service.admission.questions import COLUMN_VALUES, UndecidedError
from service.admission.schema_catalog import MAX_REFUSED, MAX_SCHEMAS, REST_S, NewSchemaError, SchemaCatalog
from service.admission.schema_store import FOLDER, SchemaStore
from service.admission.unknown_schemas import ALL, IDS_AT_ONCE
from service.errors import CheckpointError, RegistryError, SchemaError, SettingsError, SetupError
from service.pipeline import failure
from service.settings import Settings
from service.spark.internals.offset_log import Position
from tests import minimal

INDEX = f"{FOLDER}/index.json"
FIELDS: list[dict[str, Any]] = [{"name": "device_id", "type": "string"}, {"name": "event_time", "type": "long"}]
SCHEMA = {"type": "record", "name": "Reading", "fields": [*FIELDS, {"name": "temperature", "type": "double"}]}
MEASURES = {"temperature": "temperature"}
AT = {"readings": {0: 70, 1: 5}}


def schema(name: str) -> dict[str, Any]:
    return {**SCHEMA, "name": name}


class Files:
    """A checkpoint's folder in memory."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        if name not in self.content:
            raise FileNotFoundError(name)
        return self.content[name]

    def replace(self, name: str, content: bytes) -> None:
        self.content[name] = content


def make(folder: Path, **sections: Any) -> Settings:
    given = {"schemas": str(folder), "measures": MEASURES, "reader_schema": 1}
    document = minimal.document(service={"checkpoint": str(folder / "checkpoint")})
    return settings.parse({**document, "input": given, **sections})


def put(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"{number}.avsc").write_text(json.dumps(schema(f"R{number}")))


def accept(_schema: Mapping[str, Any]) -> None:
    pass


def opened(given: Settings, files: Files, position: Position | None = None) -> SchemaCatalog:
    catalog = SchemaCatalog(given, SchemaStore(files), accept)
    catalog.open(position)
    return catalog


def test_what_is_there_at_the_beginning_is_decoded_from_the_beginning(tmp_path: Path) -> None:
    put(tmp_path, 1, 2)
    catalog = opened(make(tmp_path), Files())
    assert (list(catalog.plan.schemas), catalog.plan.reader["name"], catalog.plan.since) == ([1, 2], "R1", {})


def test_a_checkpoint_from_before_there_was_an_index_has_learned_nothing_on_the_way(tmp_path: Path) -> None:
    put(tmp_path, 1, 2)
    assert opened(make(tmp_path), Files(), Position(7, AT)).plan.since == {}


def test_an_id_that_is_found_ends_the_query_and_is_decoded_from_its_batch_on(tmp_path: Path) -> None:
    put(tmp_path, 1)
    files = Files()
    catalog = opened(make(tmp_path), files)
    put(tmp_path, 2)
    with pytest.raises(NewSchemaError, match="schema ids 2"):
        catalog.look_up([2, 3])
    catalog.open(Position(4, AT))
    assert (list(catalog.plan.schemas), catalog.plan.since) == ([1, 2], {2: AT})
    assert catalog.refused(4) == "3"
    # So it is after a restart of the process, and after a later start.
    assert opened(make(tmp_path), files, Position(9, {"readings": {0: 100}})).plan.since == {2: AT}


def test_who_only_looks_learns_nothing_and_writes_nothing(tmp_path: Path) -> None:
    put(tmp_path, 1)
    files = Files()
    assert SchemaCatalog(make(tmp_path), SchemaStore(files), accept).recorded() is None
    opened(make(tmp_path), files)
    put(tmp_path, 2)
    before = dict(files.content)
    seen = SchemaCatalog(make(tmp_path), SchemaStore(files), accept).recorded()
    assert seen is not None
    assert list(seen.schemas) == [1]
    assert files.content == before


@pytest.mark.parametrize("later_ms", [60_000, -86_400_000], ids=["after the time", "the clock is set back by a day"])
def test_an_id_that_is_not_found_is_refused_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_ms: int
) -> None:
    put(tmp_path, 1)
    catalog = opened(make(tmp_path), Files())
    assert catalog.refused(0) == ""
    catalog.look_up([8, 7])
    assert catalog.refused(0) == "7,8"
    then = clock.now_ms() + later_ms
    monkeypatch.setattr(clock, "now_ms", lambda: then)
    assert catalog.refused(1) == ""


def test_a_start_remembers_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: 1_000)
    put(tmp_path, 1)
    files, given = Files(), make(tmp_path)
    first = SchemaCatalog(given, SchemaStore(files), accept)
    first.open(None)
    first.look_up([3, 4])
    first.record_refused(1, first.refused(1))
    put(tmp_path, 4)
    second = SchemaCatalog(given, SchemaStore(files), accept)
    second.open(Position(2, AT))
    assert second.refused(2) == "3"
    monkeypatch.setattr(clock, "now_ms", lambda: 1_000 + given.input.schema_retry_ms)
    assert second.refused(3) == ""


def test_noise_is_not_looked_up_for_ever(tmp_path: Path) -> None:
    put(tmp_path, 1)
    catalog = opened(make(tmp_path), Files())
    for start in range(1_000, 1_000 + MAX_REFUSED, IDS_AT_ONCE):
        assert catalog.refused(0) != ALL
        catalog.look_up(range(start, start + IDS_AT_ONCE))
    assert catalog.refused(0) == ALL


def test_a_batch_that_was_published_is_replayed_with_the_same_schemas(tmp_path: Path) -> None:
    put(tmp_path, 1)
    files = Files()
    first = opened(make(tmp_path), files)
    first.look_up([2, 3])
    first.record_refused(4, first.refused(4))
    put(tmp_path, 2)
    # Batch 4 is to be replayed, by another process: what it has rejected, it rejects again.
    catalog = opened(make(tmp_path), files, Position(4, AT))
    assert (list(catalog.plan.schemas), catalog.refused(4)) == ([1], "2,3")
    catalog.before_batch()
    # The next batch need not begin without what is there.
    with pytest.raises(NewSchemaError, match="schema ids 2"):
        catalog.before_batch()
    catalog.open(Position(5, AT))
    assert (list(catalog.plan.schemas), catalog.plan.since, catalog.refused(5)) == ([1, 2], {2: AT}, "3")
    for _ in range(3):
        catalog.before_batch()


def test_a_batch_that_asks_once_more_has_published_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """Some ids are refused all the time; a batch that meets a new one beside them is no batch that was published."""
    put(tmp_path, 1)
    files = Files()
    catalog = opened(make(tmp_path), files)
    catalog.look_up([8])
    catalog.record_refused(4, catalog.refused(4))
    put(tmp_path, 2)
    with pytest.raises(NewSchemaError, match="schema ids 2"):
        catalog.look_up([2])
    catalog.open(Position(4, AT))
    assert (list(catalog.plan.schemas), catalog.plan.since, catalog.refused(4)) == ([1, 2], {2: AT}, "8")


def test_where_all_were_refused_none_is_learned_before_the_replay(tmp_path: Path) -> None:
    put(tmp_path, 1)
    files = Files()
    opened(make(tmp_path), files).record_refused(4, ALL)
    put(tmp_path, 2)
    catalog = opened(make(tmp_path), files, Position(4, AT))
    assert (list(catalog.plan.schemas), catalog.refused(4), catalog.refused(5)) == ([1], ALL, "")


def test_a_batch_without_refused_ids_may_learn_before_it_is_replayed(tmp_path: Path) -> None:
    put(tmp_path, 1)
    files = Files()
    first = opened(make(tmp_path), files)
    first.record_refused(3, first.refused(3))
    put(tmp_path, 2)
    assert list(opened(make(tmp_path), files, Position(4, AT)).plan.schemas) == [1, 2]


def test_a_schema_that_the_engine_cannot_use_is_refused_and_counted(tmp_path: Path) -> None:
    put(tmp_path, 1)
    counted: list[str] = []

    def refuse(given: Mapping[str, Any]) -> None:
        if given["name"] != "R1":
            raise SchemaError("no")

    catalog = SchemaCatalog(make(tmp_path), SchemaStore(Files()), refuse, counted.append)
    catalog.open(None)
    put(tmp_path, 2)
    (tmp_path / "3.avsc").write_text('"string"')
    (tmp_path / "4.avsc").write_text("{")
    catalog.look_up([2, 3, 4, 5])
    assert (catalog.refused(0), counted) == ("2,3,4,5", ["unusable"] * 3 + ["missing"])
    # At the start nobody wants to find out later.
    with pytest.raises(SchemaError, match=r"3\.avsc: must be an Avro record"):
        opened(make(tmp_path), Files())
    for number in (3, 4):
        (tmp_path / f"{number}.avsc").unlink()
    with pytest.raises(SchemaError, match=r"schema id 2 of .*: no\. Correct it, or remove it"):
        SchemaCatalog(make(tmp_path), SchemaStore(Files()), refuse).open(None)


def test_a_file_that_is_named_by_no_id_is_not_learned_while_the_query_runs(tmp_path: Path) -> None:
    put(tmp_path, 1)
    catalog = opened(make(tmp_path), Files())
    for name in ("202611281200", "²", "new"):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema("R2")))
    catalog.look_up([7])
    assert catalog.refused(0) == "7"
    with pytest.raises(SchemaError, match=r"\.avsc: a schema's file name must be its id, such as 1\.avsc"):
        opened(make(tmp_path), Files())


def test_a_reader_schema_that_is_not_there_is_named_with_the_ids_that_are(tmp_path: Path) -> None:
    put(tmp_path, 2, 3)
    with pytest.raises(
        SchemaError, match=r"reader_schema = 1: .* ids of these topics: 2, 3\. Set input\.reader_schema"
    ):
        opened(make(tmp_path), Files())
    with Registry() as empty, pytest.raises(SchemaError, match=r"none\. Check \[registry\] url and"):
        opened(make(tmp_path, registry={"url": empty.url}), Files())


def test_a_registry_that_is_away_is_left_alone_and_what_is_stored_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, counted = Files(), list[str]()
    with Registry(user="u", password="p") as running:  # noqa: S106
        given = make(
            tmp_path,
            input={"measures": MEASURES, "reader_schema": 1},
            registry={"url": running.url, "user": "u", "password": "p", "timeout": "200 ms"},
        )
        for name in ("R1", "R2"):
            running.register("readings-value", schema(name))
        catalog = SchemaCatalog(given, SchemaStore(files), accept, counted.append)
        assert list(catalog.open(None).schemas) == [1, 2]
        running.register("readings-value", schema("R3"))
        with pytest.raises(NewSchemaError):
            catalog.look_up([3])
        catalog.open(Position(1, AT))
    catalog.look_up([4, 5])
    assert (counted, catalog.refused(1)) == (["found", "failed"], "4,5")
    again = opened(given, files, Position(2, AT))
    assert (list(again.plan.schemas), again.plan.since) == ([1, 2, 3], {3: AT})
    files.content["schemas/3.avsc"] = b"{"
    with pytest.raises(CheckpointError, match=r"schemas/3\.avsc is damaged"):
        opened(given, files, Position(2, AT))
    with pytest.raises(RegistryError, match="does not answer"):
        opened(given, Files())
    # The pause ends in its time, also when the clock is set back.
    rested_s, earlier_ms = clock.monotonic_s() + REST_S, clock.now_ms() - 86_400_000
    monkeypatch.setattr(clock, "monotonic_s", lambda: rested_s)
    monkeypatch.setattr(clock, "now_ms", lambda: earlier_ms)
    catalog.look_up([6])
    assert counted == ["found", "failed", "failed"]


def test_json_schemas_are_looked_up_stored_and_used_without_the_registry(tmp_path: Path) -> None:
    files, counted = Files(), list[str]()
    with Registry() as running:
        sections = {
            "input": {"format": "json-schema", "measures": MEASURES},
            "registry": {"url": running.url, "timeout": "200 ms"},
        }
        given = make(tmp_path, **sections)
        catalog = SchemaCatalog(given, SchemaStore(files, format="json-schema"), accept, counted.append)
        assert catalog.open(None).schemas == {}, "the subject may come later"
        catalog.look_up([1])
        assert (counted, catalog.refused(1)) == (["missing"], "1")
        running.register("readings-value", schema("avro of the same subject"))
        number = running.register("readings-value", {"title": "first"}, kind="JSON")
        with pytest.raises(NewSchemaError, match=f"schema ids {number}"):
            catalog.look_up([number])
        assert catalog.open(Position(1, AT)).since == {number: AT}
        other = registry.Client(given.registry, registry.JSON_SCHEMA)  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match="is Avro, not JSON Schema"):
            other.schema(1)
    assert json.loads(files.content[f"schemas/{number}.jsonschema"]) == {"title": "first"}
    again = SchemaCatalog(given, SchemaStore(files, format="json-schema"), accept)
    assert list(again.open(Position(2, AT)).schemas) == [number]
    with pytest.raises(RegistryError, match="does not answer"):
        SchemaCatalog(given, SchemaStore(Files(), format="json-schema"), accept).open(None)


def test_ids_of_other_subjects_are_refused_however_many_there_are(tmp_path: Path) -> None:
    """A registry is shared: valid ids of others are neither decoded nor kept, and do not hide a new one of ours."""
    counted: list[str] = []
    with Registry() as running:
        given = make(
            tmp_path, input={"measures": MEASURES, "reader_schema": 1}, registry={"url": running.url, "timeout": "5 s"}
        )
        running.register("readings-value", schema("R1"))
        foreign = [running.register("elsewhere", json.dumps(schema(f"F{number}"))) for number in range(2 * MAX_REFUSED)]
        files = Files()
        catalog = SchemaCatalog(given, SchemaStore(files), accept, counted.append)
        catalog.open(None)
        for start in range(0, len(foreign), IDS_AT_ONCE):
            if catalog.refused(1) != ALL:
                catalog.look_up(foreign[start : start + IDS_AT_ONCE])
        assert (list(catalog.plan.schemas), set(counted), len(counted)) == ([1], {"missing"}, MAX_REFUSED)
        assert [name for name in files.content if name.endswith(".avsc")] == ["schemas/1.avsc"]
        assert sum(count for path, count in running.requests.items() if path.startswith("/schemas/ids/")) == 0
        ours = running.register("readings-value", schema("R2"))
        with pytest.raises(NewSchemaError, match=rf"schema ids {ours}$"):
            catalog.look_up(foreign[-1:])


def test_invented_guids_hide_no_new_version_and_the_newest_versions_fill_a_plan(tmp_path: Path) -> None:
    invented = [guids.FIRST + number for number in range(IDS_AT_ONCE)]
    with Registry() as running:
        given = make(
            tmp_path,
            input={"measures": MEASURES, "reader_schema": 1, "framing": "headers"},
            registry={"url": running.url, "timeout": "5 s"},
        )
        running.register("readings-value", schema("R1"))
        files = Files()
        catalog = opened(given, files)
        learned: set[int] = set()
        for version in range(2, 6):
            ours = running.register("readings-value", schema(f"R{version}"))
            before = set(catalog.plan.schemas)
            with pytest.raises(NewSchemaError):
                catalog.look_up(invented)
            catalog.open(Position(version, AT))
            learned = set(catalog.plan.schemas) - before
            assert {ours} < learned, "by its id and by its GUID"
            assert len(learned) == 2
        for version in range(6, MAX_SCHEMAS + 1):
            running.register("readings-value", schema(f"R{version}"))
        assert len(opened(given, Files()).plan.schemas) == 2 * MAX_SCHEMAS, "a schema with an id and a GUID is one"
        running.register("readings-value", schema(f"R{MAX_SCHEMAS + 1}"))
        ids = {each for each in opened(given, Files()).plan.schemas if each < guids.FIRST}
        assert ids == {1, *range(MAX_SCHEMAS // 2 + 2, MAX_SCHEMAS + 2)}, "the reader's, and the newest"


def test_a_plan_has_so_many_schemas_those_in_use_first_then_the_newest(tmp_path: Path) -> None:
    most, half = MAX_SCHEMAS, MAX_SCHEMAS // 2
    put(tmp_path, *range(1, 2 * most + 1))
    files, counted = Files(), list[str]()
    catalog = SchemaCatalog(make(tmp_path), SchemaStore(files), accept, counted.append)
    assert list(catalog.open(None).schemas) == [1, *range(2 * most - half + 1, 2 * most + 1)], (
        "the reader's, and the newest"
    )
    met = list(range(10, 10 + half - 1))
    with pytest.raises(NewSchemaError):
        catalog.look_up([*met, 2])
    assert (counted.count("found"), counted.count("full"), catalog.refused(1)) == (half - 1, 1, "2")
    catalog.open(Position(1, AT))
    in_use = list(catalog.plan.schemas)
    assert (len(in_use), set(met) < set(in_use)) == (most, True)
    # They stay, whatever is newer, and give way to others when the operator takes them out.
    put(tmp_path, 1_000)
    assert list(opened(make(tmp_path), files, Position(2, AT)).plan.schemas) == in_use
    for number in in_use[1:]:
        (tmp_path / f"{number}.avsc").unlink()
    (tmp_path / "2.avsc").unlink()
    again = list(opened(make(tmp_path), files, Position(3, AT)).plan.schemas)
    assert (1_000 in again, len(again)) == (True, half)


def test_what_a_task_asks_for_comes_through_as_text_and_is_the_same_type_again() -> None:
    asked = {"line": ["a  b", "\n", "é\x7f"]}
    error = UndecidedError.of(COLUMN_VALUES, asked)
    again = failure.classify(
        RuntimeError(
            'Traceback (most recent call last):\n  File "x.py", line 1, in x\n'
            f"service.admission.questions.UndecidedError: {error.what}\n\n\tat x"
        )
    )
    assert isinstance(again, UndecidedError)
    assert again.question == (COLUMN_VALUES, asked)


def test_an_index_that_is_damaged_is_named(tmp_path: Path) -> None:
    put(tmp_path, 1)
    files = Files()
    files.content[INDEX] = b'{"format": 1, "decided": "x"}'
    with pytest.raises(CheckpointError, match=r"schemas/index\.json is damaged: .*decided"):
        opened(make(tmp_path), files)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"url": "localhost:8081"}, "registry.url = ***: must be http:// or https://"),
        (
            {"url": "http://u:p@localhost:8081"},
            "registry.url = ***: must be http:// or https:// and a host, without user",
        ),
    ],
)
def test_a_registrys_address_is_one_without_secrets(tmp_path: Path, section: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match="problem") as raised:
        make(tmp_path, registry=section)
    assert text in str(raised.value)
    with pytest.raises(SettingsError, match=r"input\.reader_schema: is missing"):
        make(tmp_path, input={"measures": MEASURES}, registry={"url": "http://localhost:8081"})


def test_what_a_schema_refers_to_is_put_where_it_is_first_used() -> None:
    parts = {
        "a.Probe": {
            "type": "record",
            "name": "Probe",
            "namespace": "a",
            "fields": [{"name": "unit", "type": "b.Unit"}],
        },
        "b.Unit": {"type": "enum", "name": "Unit", "namespace": "b", "symbols": ["C"]},
    }
    fields = [
        {"name": "probe", "type": ["null", "Probe"]},
        {"name": "more", "type": {"type": "array", "items": "a.Probe"}},
        {"name": "by", "type": {"type": "map", "values": {"type": "Probe"}}},
        {"name": "n", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ]
    whole = avro_types.inline({"type": "record", "name": "R", "namespace": "a", "fields": fields}, parts)
    probe = {**parts["a.Probe"], "fields": [{"name": "unit", "type": parts["b.Unit"]}]}
    assert [each["type"] for each in whole["fields"]] == [
        ["null", probe],
        {"type": "array", "items": "a.Probe"},
        {"type": "map", "values": {"type": "Probe"}},
        fields[3]["type"],
    ]


def test_the_readers_schema_has_the_mapped_fields_alone_at_every_level(tmp_path: Path) -> None:
    unit = {"type": "enum", "name": "Unit", "symbols": ["C"]}
    probe = {
        "type": "record",
        "name": "b.Probe",
        "fields": [{"name": "unit", "type": unit}, {"name": "x", "type": "double"}, {"name": "next", "type": "Probe"}],
    }
    fields = [
        {"name": "inner", "type": {"type": "array", "items": probe}},
        {"name": "unit", "type": ["null", "b.Unit"]},
        {"name": "outer", "type": {"type": "b.Probe"}},
        {"name": "more", "type": "b.Probe"},
    ]
    paths = {"x": "outer.x", "more": "more.x", "unit": "unit"}
    given = make(tmp_path, input={"event_time": "event_time", "measures": paths}).form
    whole = {"type": "record", "name": "R", "namespace": "a", "fields": [*FIELDS, *fields]}
    kept = {each["name"]: each["type"] for each in avro.reader_schema(whole, given)["fields"]}
    assert kept["unit"] == ["null", {**unit, "namespace": "b"}]
    assert kept["outer"]["fields"] == probe["fields"][1:2]
    assert (kept["outer"]["name"], kept["outer"]["namespace"], kept["more"]) == ("b.Probe", "b", "b.Probe")
    fastavro.parse_schema(avro.reader_schema(whole, given))
    everything = {**whole, "fields": [*FIELDS, fields[0], *fields[2:]]}
    given = make(tmp_path, input={"measures": {**paths, "unit": "inner"}}).form
    assert avro.reader_schema(everything, given) == everything
    given = make(tmp_path, input={"measures": {"x": "outer.next.x", "unit": "unit"}}).form
    kept = {each["name"]: each["type"] for each in avro.reader_schema(whole, given)["fields"]}
    assert [each["name"] for each in kept["outer"]["fields"]] == ["x", "next"]
    assert kept["unit"] == ["null", {**unit, "namespace": "b"}]


@pytest.mark.parametrize(
    ("problem", "family", "remedy"),
    [
        ("IOException: No space left on device", SetupError, "disk-is-full"),
        ("Permission denied", CheckpointError, "write"),
    ],
)
def test_an_unwritable_catalog_is_an_error(tmp_path: Path, problem: str, family: type[Exception], remedy: str) -> None:
    class Full(Files):
        def replace(self, name: str, content: bytes) -> None:
            raise OSError(problem)

    put(tmp_path, 1)
    with pytest.raises(family, match=rf"index\.json cannot be written: {problem}\. .*{remedy}"):
        SchemaCatalog(make(tmp_path), SchemaStore(Full()), accept).open(None)
