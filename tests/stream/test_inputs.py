"""Several inputs on real Spark: each record is decoded as its topic's input says, and all else is one pass over one state."""

import json
import re

import pytest

from service import settings as service_settings
from service.admission import readings
from service.aggregation import task_counters
from service.errors import SchemaError, SettingsError
from service.quality import sample
from service.settings.kafka import MOST_TOPICS
from tests.stream.records import BASE_MS, SCHEMA, Record, avro, make_document, make_settings
from tests.stream.script import KAFKA, Add, Check, Expect, Restart, run
from tests.stream.test_pass import executed_plan

pytestmark = pytest.mark.spark

VIEWS = [
    {"name": "device", "by": ["device"], "window": "1 m"},
    {"name": "line", "by": ["line"], "window": "1 m", "measures": ["power"]},
]


def inputs(folder, **more):
    """Temperature in Avro on one topic; power, in another shape, in JSON on two others."""
    avro_input = {"name": "climate", "topics": ["climate"], "measures": {"temperature": "temperature"}}
    schemas = {"schemas": make_document(folder)["input"]["schemas"]}
    power = {
        "name": "power",
        "topics": ["meters", "plugs"],
        "format": "json",
        "device_id": "id",
        "event_time": "at.s",
        "event_time_unit": "s",
        "measures": {"power": {"path": "p", "scale": 0.001}, "temperature": "t"},
        "columns": {"line": "line"},
    }
    return [{**avro_input, **schemas, **more.get("climate", {})}, {**power, **more.get("power", {})}]


def settings(folder, views=VIEWS, given=None, **sections):
    document = make_document(folder, views=views, **sections)
    del document["input"], document["kafka"]["topics"]
    return service_settings.parse({**document, "inputs": given or inputs(folder)})


def climate(device, seconds, temperature=20.0, topic="climate"):
    value = avro(device_id=device, event_time=BASE_MS + seconds * 1000, temperature=temperature, humidity=None)
    return Record(value, BASE_MS + seconds * 1000, topic=topic)


def power(device, seconds, watts=None, topic="meters", **more):
    fields = {"id": device, "at": {"s": BASE_MS // 1000 + seconds}, "p": watts, **more}
    return Record(json.dumps(fields).encode(), BASE_MS + seconds * 1000, topic=topic)


def test_hundreds_of_topics_are_numbered_by_one_expression(spark):
    topics = [f"plant-{n}" for n in range(MOST_TOPICS)]
    places = [(topics[n], n % 7) for n in (0, 1, 30, 900, MOST_TOPICS - 1)]
    frame = spark.createDataFrame(places, "topic string, partition int")
    codes = [row[0] for row in frame.select(readings.partition_code(topics)).collect()]
    assert codes == [readings.number_of(*place, topics) for place in places]
    assert [readings.partition_of(code, topics) for code in codes] == places
    assert frame.select(readings.partition_code(topics)).dtypes[0][1] == "int"


def test_a_device_on_two_topics_is_one_device_with_one_session(spark, tmp_path):
    run(
        spark,
        settings(tmp_path),
        tmp_path,
        [
            Add(climate("a", 0, 20.0), power("a", 5, 1500.0, line="l1"), power("a", 10, 500.0, "plugs", t=30.0)),
            Expect(
                windows={
                    ("device", "temperature", "a", 0): (2, 25.0),
                    ("device", "power", "a", 0): (2, 1.0),
                    ("line", "power", "l1", 0): (1, 1.5),
                    ("line", "power", "(none)", 0): (1, 0.5),
                },
                sessions={("a", 0): "open"},
                rejects=[],
            ),
            Restart(),
            Add(power("a", 20, 1000.0)),
            Expect(sessions={("a", 0): "open"}),
        ],
    )


def test_a_record_of_another_inputs_shape_is_rejected_with_the_words_of_its_topics_input(spark, tmp_path):
    wrong = [
        climate("a", 0, topic="meters"),  # Avro where JSON is expected
        Record(b'{"id": "a", "at": {"s": 1}}', BASE_MS, topic="climate"),
        Record(b'{"at": {"s": 1790000040}}', BASE_MS, topic="plugs"),
        Record(b'{"id": "a"}', BASE_MS, topic="meters"),
        Record(avro(schema_id=7, device_id="a", event_time=BASE_MS), BASE_MS, topic="climate"),
    ]

    def check(world):
        named = {(each["topic"], each["reason"]): each["detail"] for each in world.rejects}
        assert set(named) == {
            ("meters", "undecodable"),
            ("climate", "undecodable"),
            ("plugs", "no_device"),
            ("meters", "no_time"),
            ("climate", "unknown_schema"),
        }
        assert named["plugs", "no_device"] == "id: missing or blank"
        assert named["meters", "no_time"] == "at.s: missing, or not a time (s)"
        assert world.counted(task_counters.ADMITTED) == 2

    run(spark, settings(tmp_path), tmp_path, [Add(climate("a", 1), *wrong, power("b", 1, 1.0)), Check(check)])


def test_the_filter_of_an_input_is_asked_about_its_own_records_only(spark, tmp_path):
    given = inputs(tmp_path, power={"where": "power > 1 or line = 'l1'"})
    views = [*VIEWS, {"name": "warm", "window": "1 m", "measures": ["temperature"], "where": "temperature > 25"}]

    def check(world):
        assert world.counted(task_counters.FILTERED) == 1
        assert world.counted(task_counters.ADMITTED) == 4
        assert [row["count"] for (view, *_), row in world.windows.items() if view == "warm"] == [2]

    records = [
        climate("a", 0, 20.0),
        climate("a", 1, 30.0),
        power("a", 2, 500.0, t=40.0),
        power("a", 3, 2000.0),
        power("a", 4, line="l1", t=50.0),
    ]
    run(spark, settings(tmp_path, views, given), tmp_path, [Add(*records), Check(check)])


@pytest.mark.timeout(180)
def test_a_sample_of_filtered_inputs_is_planned_at_once(spark, tmp_path):
    # A condition on what admission decides had the expressions of all inputs in each of its parts: the plan took gigabytes.
    array = {"array": True, "columns": {"line": {"path": "line", "max_values": 1000}}, "where": "power > 1"}
    records = [climate("a", 0, 20.0), power("a", 2, 500.0), power("a", 3, 2000.0), power("b", 4, 3000.0, id=None)]
    frame = spark.createDataFrame([each.row() for each in records], KAFKA)
    rows = sample.of(frame, settings(tmp_path, given=inputs(tmp_path, power=array))).to_pylist()
    assert [(row["device"], row["power"], row["reject reason"]) for row in rows] == [
        ("a", None, None),
        ("a", 2.0, None),
        (None, None, "no_device"),
    ]


def test_a_filter_of_an_input_has_the_names_of_that_input(spark, tmp_path):
    given = inputs(tmp_path, climate={"where": "power > 1"})
    with pytest.raises(SettingsError, match=r"inputs\.climate\.where = 'power > 1': 'power' is no name here"):
        readings.admit(spark.createDataFrame([], KAFKA), settings(tmp_path, given=given))


def test_a_schema_that_lacks_a_field_is_named_with_its_input(spark, tmp_path):
    given = inputs(tmp_path, climate={"measures": {"pressure": "pressure"}})
    with pytest.raises(SchemaError, match=r"reader's schema of inputs\.climate has no field pressure"):
        readings.admit(spark.createDataFrame([], KAFKA), settings(tmp_path, given=given))


def test_two_inputs_with_the_same_schema_ids_keep_their_schemas_apart(spark, tmp_path):
    other = {**SCHEMA, "fields": [{"name": "sensor", "type": "string"}, *SCHEMA["fields"][1:]]}
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "1.avsc").write_text(json.dumps(other))
    more = {"name": "more", "topics": ["more"], "device_id": "sensor", "measures": {"t": "temperature"}}
    given = [inputs(tmp_path)[0], {**more, "schemas": str(folder)}]
    value = avro(schema=other, sensor="b", event_time=BASE_MS, temperature=7.0, humidity=None)
    run(
        spark,
        settings(tmp_path, [VIEWS[0]], given),
        tmp_path,
        [
            Add(climate("a", 0, 20.0), Record(value, BASE_MS, topic="more")),
            Expect(
                windows={("device", "temperature", "a", 0): (1, 20.0), ("device", "t", "b", 0): (1, 7.0)}, rejects=[]
            ),
        ],
    )


def test_one_input_has_the_plan_of_the_only_input(spark, tmp_path):
    frame = spark.createDataFrame([], KAFKA)

    def plan(given):
        text = readings.admit(frame, given)._jdf.queryExecution().executedPlan().toString()
        return re.sub(r"#\d+L?", "", text)

    document = make_document(tmp_path)
    alone = {**document["input"], "name": "climate", "topics": ["readings"]}
    named = settings(tmp_path, views=[VIEWS[0]], given=[alone])
    assert plan(named) == plan(make_settings(tmp_path))
    two = plan(settings(tmp_path))
    assert "record_1" in two
    assert "record_1" not in plan(named)


def test_with_several_inputs_there_is_one_scan_one_shuffle_and_one_operator(spark, tmp_path):
    def check(world):
        plan = executed_plan(world)
        physical = plan[plan.index("Physical Plan") :] if "Physical Plan" in plan else plan
        once = ("MapInArrow", "Exchange", "TransformWithState")
        assert {name: len(re.findall(rf"\b{name}", physical)) for name in once} == dict.fromkeys(once, 1)
        assert "Union" not in physical
        assert [p.numInputRows for p in world.progress() if p.numInputRows] == [2]

    run(spark, settings(tmp_path), tmp_path, [Add(climate("a", 0), power("a", 1, 1.0)), Check(check)])
