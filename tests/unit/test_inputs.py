"""[[inputs]]: what the settings of several inputs are, what is refused by name, and what their catalogs remember."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.admission.catalogs import Catalogs
from service.admission.schema_catalog import NewSchemaError
from service.admission.unknown_schemas import ALL
from service.commands import compatibility
from service.commands.dissect import Dissector
from service.commands.explain import explain
from service.commands.metadata import Metadata
from service.errors import SettingsError
from service.rejects.reject_log import Coordinates, Reject
from service.settings import Settings, load, parse
from service.spark.files import Local
from service.spark.internals.offset_log import Position

FIELDS: list[dict[str, Any]] = [{"name": "device_id", "type": "string"}, {"name": "event_time", "type": "long"}]
CLIMATE = {"name": "climate", "topics": ["climate"], "measures": {"temperature": "t"}}
POWER = {
    "name": "power",
    "topics": ["meters", "plugs"],
    "format": "json",
    "device_id": "id",
    "measures": {"power": "p", "temperature": "env.t"},
    "columns": {"line": "line"},
}


def document(*inputs: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    return {
        "service": {"checkpoint": "c"},
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "inputs": list(inputs),
        "views": [{"name": "device", "by": ["device"], "window": "1 m"}],
        "redis": {"url": "redis://127.0.0.1:1"},
        **sections,
    }


def problems(*inputs: Mapping[str, Any], **sections: Any) -> list[str]:
    with pytest.raises(SettingsError) as refusal:
        parse(document(*inputs, **sections))
    return str(refusal.value).split("\n  ")[1:]


def test_inputs_are_one_set_of_topics_measures_and_columns() -> None:
    given = parse(document(CLIMATE, POWER))
    assert given.kafka.topics == ("climate", "meters", "plugs")
    assert (given.measures, given.columns) == (("temperature", "power"), {"line": 10_000})
    assert given.view_measures(given.views[0]) == ("temperature", "power")
    assert [form.place for form in given.forms] == ["inputs.climate", "inputs.power"]


def test_settings_of_a_topic_have_its_input_alone() -> None:
    climate, power = {**CLIMATE, "reader_schema": 1}, {**POWER, "subjects": ["s"]}
    given = parse(document(climate, power, registry={"url": "http://r"}))
    of_plugs = given.of_topic("plugs")
    assert (of_plugs.form.device_id, of_plugs.measures) == ("id", ("power", "temperature"))
    assert of_plugs.kafka.topics == ("meters", "plugs")
    assert of_plugs.registry is not None
    assert of_plugs.registry.subjects == ("s",)
    assert given.form_of("plugs") is given.inputs[1], "a list of rejects asks for each record: nothing is copied"
    assert given.of_topic("climate").registry.subjects == ()  # type: ignore[union-attr]


def test_settings_with_one_input_are_left_as_they_are() -> None:
    alone = {name: section for name, section in document().items() if name != "inputs"}
    given = parse({**alone, "kafka": {"bootstrap": "b", "topics": ["readings"]}, "input": {"measures": {"t": "t"}}})
    assert given.split() == (given,)
    assert given.split()[0] is given
    assert given.of_topic("readings") is given
    assert given.form.place == "input"


@pytest.mark.parametrize(
    ("inputs", "sections", "problem"),
    [
        (
            (CLIMATE, {**POWER, "topics": ["meters", "climate"]}),
            {},
            "inputs.power.topics: 'climate' is a topic of inputs.climate, too",
        ),
        ((CLIMATE, {**POWER, "name": "climate"}), {}, "inputs: the name 'climate' is used more than once"),
        (
            (CLIMATE, {**POWER, "columns": {"temperature": "x"}, "measures": {"power": "p"}}),
            {},
            "inputs.power.columns: 'temperature' is a measure of [[inputs]], too",
        ),
        (
            ({**CLIMATE, "columns": {"line": {"path": "l", "max_values": 5}}}, POWER),
            {},
            "inputs.power.columns.line: max_values is 10000, and 5 in inputs.climate. "
            "A column has one list of values: give both the same",
        ),
        (
            (CLIMATE, POWER),
            {"kafka": {"bootstrap": "b", "topics": ["readings"]}},
            "kafka.topics: is given beside [[inputs]]. Remove it: each input has topics",
        ),
        (
            (CLIMATE, POWER),
            {"input": {"measures": {"t": "t"}}},
            "input: is given beside [[inputs]]. Make it one of them, with a name and topics",
        ),
        (
            ({**CLIMATE, "reader_schema": 1}, POWER),
            {"registry": {"url": "http://r", "subjects": ["s"]}},
            "registry.subjects: is given beside [[inputs]]. Give each input its subjects",
        ),
        (
            (CLIMATE, POWER),
            {"registry": {"url": "http://r"}},
            "inputs.climate.reader_schema: is missing. With a [registry] name the id whose schema the records are read with",
        ),
        ((CLIMATE, {**POWER, "subjects": ["s"]}), {}, "inputs.power.subjects: needs a [registry]"),
        (
            (CLIMATE, POWER),
            {"admission": {"ranges": {"volts": [0, 1]}}},
            "admission.ranges: 'volts' is no measure of [[inputs]]; there are power, temperature",
        ),
        ((CLIMATE, {**POWER, "topics": []}), {}, "inputs.1.topics: needs at least 1 entry, has 0"),
        ((), {}, "input: is missing and has no default"),
        (
            ({**CLIMATE, "columns": {"x": "t"}},),
            {},
            "inputs.climate.columns.x: 't' is read as inputs.climate.measures.temperature, too; a column is a text of its own",
        ),
    ],
)
def test_inputs_that_cross_and_none_are_refused_by_name(
    inputs: tuple[Mapping[str, Any], ...], sections: dict[str, Any], problem: str
) -> None:
    assert problem in problems(*inputs, **sections)


def test_paths_of_an_input_are_those_of_the_file(tmp_path: Path) -> None:
    text = """
[service]
checkpoint = "c"
[kafka]
bootstrap = "b:1"
[[inputs]]
name = "climate"
topics = ["climate"]
schemas = "avro"
measures = { t = "t" }
[[views]]
name = "device"
window = "1 m"
[redis]
url = "redis://r"
"""
    (tmp_path / "tidemark.toml").write_text(text)
    assert load(tmp_path / "tidemark.toml", {}).inputs[0].schemas == tmp_path / "avro"


def test_a_reject_is_explained_with_the_input_of_its_topic(tmp_path: Path) -> None:
    given = parse(document({**CLIMATE, "schemas": str(tmp_path)}, POWER))
    dissector = Dissector(given)
    value = b'{"id": "a", "env": {"t": "warm"}}'
    seen = dissector("plugs", value)
    reject = Reject(Coordinates("plugs", 0, 1), "undecodable", "", 0, 0, 0, None, value, ())
    assert explain(reject, seen, given) == 'env.t = "warm": expected a number'
    assert dissector.device(seen, Metadata(topic="plugs")) == "a"


def test_schemas_check_asks_for_the_input(tmp_path: Path) -> None:
    given = parse(document(CLIMATE, POWER))
    sample = tmp_path / "sample.json"
    sample.write_text('{"id": "a", "event_time": 1, "p": 2, "env": {"t": 3}, "line": "l"}')
    assert [line.status for line in compatibility.check(given, [sample], "power")] == ["ok"]
    with pytest.raises(SettingsError, match="--input: there are climate, power"):
        compatibility.check(given, [sample])
    with pytest.raises(SettingsError, match="--input: 'heat' is none of climate, power"):
        compatibility.check(given, [sample], "heat")


# The catalogs


def put(folder: Path, *numbers: int) -> Path:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        schema = {"type": "record", "name": f"R{number}", "fields": [*FIELDS, {"name": "t", "type": "double"}]}
        (folder / f"{number}.avsc").write_text(json.dumps(schema))
    return folder


def two(tmp_path: Path) -> Settings:
    heat = {"name": "heat", "topics": ["heat"], "measures": {"heat": "t"}, "schemas": str(put(tmp_path / "heat", 1))}
    return parse(document({**CLIMATE, "schemas": str(put(tmp_path / "climate", 1))}, heat))


def opened(given: Settings, folder: Path, batch: int = 0) -> Catalogs:
    made = Catalogs.of(given, Local(folder), lambda _schema: None)
    made.open(Position(batch, {"climate": {0: 10 * batch}, "heat": {0: 10 * batch}}) if batch else None)
    return made


def test_an_id_that_one_source_has_is_learned_for_its_input_and_refused_for_the_other(tmp_path: Path) -> None:
    given, checkpoint = two(tmp_path), tmp_path / "checkpoint"
    made = opened(given, checkpoint)
    put(tmp_path / "heat", 2)
    with pytest.raises(NewSchemaError, match="schema ids 2"):
        made.look_up([2, 3])
    assert sorted(made.refused(0).split(",")) == ["2", "3", "3"]  # 2 for climate, 3 for both
    made.open(Position(5, {"climate": {0: 50}, "heat": {0: 50}}))
    assert list(made.plan["inputs.heat"].schemas) == [1, 2]
    assert list(made.plan["inputs.climate"].schemas) == [1]
    assert made.plan["inputs.heat"].since == {2: {"climate": {0: 50}, "heat": {0: 50}}}
    again = opened(given, checkpoint, batch=9)
    assert again.plan == made.plan


def test_an_input_of_json_has_no_part_in_the_look_up_of_an_id(tmp_path: Path) -> None:
    given = parse(document({**CLIMATE, "schemas": str(put(tmp_path / "climate", 1))}, POWER))
    made = opened(given, tmp_path / "checkpoint")
    made.look_up([999])
    assert made.refused(0) == "999"


def test_an_id_that_stays_unknown_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = parse(document({**CLIMATE, "schemas": str(put(tmp_path / "climate", 1))}, POWER))
    made = opened(given, tmp_path / "checkpoint")
    for ids in ([999], [999], [998, 999]):
        made.look_up(ids)
    shown = [line.partition(":")[0] for line in caplog.messages if "unknown_schema" in line]
    assert shown == ["schema ids 999", "schema ids 998"]


def test_all_unknown_ids_are_refused_when_one_catalog_refuses_all(tmp_path: Path) -> None:
    made = opened(two(tmp_path), tmp_path / "checkpoint")
    made.look_up(range(10, 10 + 256))
    assert made.refused(0) == ALL


def test_a_service_that_gets_a_second_input_keeps_where_it_learned_a_schema(tmp_path: Path) -> None:
    given, checkpoint = two(tmp_path), tmp_path / "checkpoint"
    section = {"schemas": str(tmp_path / "climate"), "measures": {"temperature": "t"}}
    single = parse(document(input=section, kafka={"bootstrap": "b", "topics": ["climate"]}))
    opened(single, checkpoint)
    put(tmp_path / "climate", 2)
    before = opened(single, checkpoint, batch=4).plan["input"]
    assert before.since == {2: {"climate": {0: 40}, "heat": {0: 40}}}
    after = opened(given, checkpoint, batch=7)
    assert after.plan["inputs.climate"].since == before.since
    assert after.plan["inputs.heat"].since == {}
    assert not (checkpoint / "schemas" / "index.json").exists()
    assert (checkpoint / "schemas" / "heat" / "index.json").exists()
    back = opened(single, checkpoint, batch=8)
    assert not (checkpoint / "schemas" / "heat" / "index.json").exists()
    assert list(back.plan["input"].schemas) == [1, 2]
