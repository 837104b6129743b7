"""Settings: one file and the environment in, frozen models or every problem at once out."""

import math
import re
from copy import deepcopy
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from load.manifests import example
from load.site import settings_page
from service import settings
from service.errors import SettingsError
from service.settings import Settings, field_path, load, loads, parse
from service.settings.section import Positive, Section
from tests.stream.records import make_document

MINIMAL = {
    "service": {"checkpoint": "/var/lib/tidemark"},
    "kafka": {"bootstrap": "broker:9092", "topics": ["readings"]},
    "input": {"measures": {"temperature": "temperature", "humidity": "air.humidity"}},
    "views": [{"name": "device", "by": ["device"], "window": "1 m"}],
    "redis": {"url": "redis://cache:6379/0"},
}

TOML = """
[service]
checkpoint = "/var/lib/tidemark"
[kafka]
bootstrap = "broker:9092"
topics = ["readings"]
[input]
measures = {temperature = "temperature"}
[[views]]
name = "device"
by = ["device"]
window = "1 m"
[redis]
url = "redis://cache:6379/0"
"""


def document(**sections):
    """MINIMAL with sections changed key by key; a value of ... removes its key."""
    result = deepcopy(MINIMAL)
    for name, section in sections.items():
        merged = {**result.get(name, {}), **section} if isinstance(section, dict) else section
        result[name] = {k: v for k, v in merged.items() if v is not ...} if isinstance(merged, dict) else merged
    return {name: section for name, section in result.items() if section is not ...}


def problems(**sections) -> list[str]:
    """The lines of the one message that refuses these settings, without its head."""
    with pytest.raises(SettingsError) as refusal:
        parse(document(**sections), where="tidemark.toml")
    head, *lines = str(refusal.value).split("\n  ")
    assert head == f"tidemark.toml: {len(lines)} problem{'s' if len(lines) > 1 else ''}:"
    return lines


def view(**keys):
    return {"name": "v", "window": "1 m", **keys}


def load_text(folder: Path, text: str, **environment: str) -> Settings:
    file = folder / "tidemark.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, environment)


# What is taken for granted


def test_settings_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        parse(document()).kafka.bootstrap = "elsewhere:9092"


def test_durations_and_sizes_are_kept_as_integers_in_the_unit_of_their_name():
    parsed = parse(
        document(
            service={"trigger": "250 ms", "lease": 3_000},
            admission={"max_delay": "2 m", "max_ahead": "7 d", "max_bytes": "1 MiB"},
            sessions={"gap": "1.5 m", "max_duration": "1 h"},
        )
    )
    assert (parsed.service.trigger_ms, parsed.service.lease_ms) == (250, 3_000)
    assert (parsed.admission.watermark_delay_ms, parsed.admission.max_bytes) == (604_920_000, 1 << 20)
    assert (parsed.sessions.gap_ms, parsed.sessions.max_duration_ms) == (90_000, 3_600_000)


# What is refused


def test_every_problem_is_reported_in_one_message_with_key_value_and_what_is_allowed():
    lines = problems(
        service={"checkpoint": ..., "trigger": "soon", "lease": "0 s"},
        kafka={"starting": "newest", "topics": [], "max_per_batch": 0},
        input={"format": "xml", "event_time_unit": "h", "measures": {"Temp": "t"}},
        admission={"max_delay": "-1 s", "unknown_device": "drop", "max_bytes": "64 parsecs"},
        sessions={"buckets": 5_000, "gap": "367 d"},
        redis=...,
        metrics={"port": 70_000},
        quality={"every": "100 ms", "sample": 0, "suite": "x"},
    )
    assert sorted(lines) == sorted(
        [
            "service.checkpoint: is missing and has no default",
            "service.trigger = 'soon': must be a number and a unit, one of ms, s, m, min, h, d, such as '10 s'",
            "service.lease = '0 s': must be more than 0 s",
            "kafka.starting = 'newest': must be 'earliest', 'latest', a time with a zone such as 2026-11-20T08:00:00Z, "
            "or offsets such as { readings = { 0 = 1200, 1 = 900 } }",
            "kafka.topics: needs at least 1 entry, has 0",
            "kafka.max_per_batch = 0: must be more than 0",
            "quality.every = '100 ms': must be at least 1 s",
            "quality.sample = 0: must be more than 0",
            "quality.suite: unknown key. Remove it or mend its spelling",
            "input.format = 'xml': must be 'avro', 'json', 'json-schema', 'protobuf', 'senml', 'senml-cbor', 'ndjson', "
            "'csv', 'line-protocol' or 'sparkplug-b'",
            "input.event_time_unit = 'h': must be 'logical', 's', 'ms', 'us', 'ns' or 'iso'",
            "input.measures: must be a name: lower-case letters, digits and _, a letter first, at most 63",
            "admission.max_delay = '-1 s': must be a number and a unit, one of ms, s, m, min, h, d, such as '10 s'",
            "admission.unknown_device = 'drop': must be 'keep' or 'reject'",
            "admission.max_bytes = '64 parsecs': must be bytes, such as 65536 or '64 KiB'; parsecs is no unit",
            "sessions.buckets = 5000: must be at most 4096",
            "sessions.gap = '367 d': must be at most 366 d",
            "redis: is missing and has no default",
            "metrics.port = 70000: must be at most 65535",
        ]
    )


def test_an_error_of_settings_has_the_familys_code_and_exit_status():
    with pytest.raises(SettingsError) as refusal:
        parse({})
    assert (refusal.value.code, refusal.value.status) == ("SETTINGS", 2)
    assert "5 problems" in str(refusal.value)


UNKNOWN = "unknown key. Remove it or mend its spelling"
SOURCE = {"url": "jdbc:sqlite:x", "query": "q"}
FILES = {"name": "files", "kind": "parquet", "path": "x"}
TOPIC = {"name": "events", "kind": "kafka", "topic": "t", "format": "json"}
TABLE = {"name": "table", "kind": "jdbc", "url": "jdbc:postgresql://h/d", "table": "t"}


def with_view(**keys):
    return {"views": [view(**keys)]}


def with_measures(**measures):
    return {"input": {"measures": measures}}


def with_columns(**columns):
    """Columns of the record, beside the column `site` of the reference."""
    return {"input": {"columns": columns}, "reference": {**SOURCE, "columns": ["site"]}}


def with_two_folders(one: str, other: str):
    return {"outlets": [{**FILES, "path": one}, {**FILES, "name": "more", "path": other}]}


REFUSED = {
    "an unknown key is named by its place": [
        ({"kafak": {"bootstrap": "x"}}, f"kafak: {UNKNOWN}"),
        ({"kafka": {"topic": "readings"}}, f"kafka.topic: {UNKNOWN}"),
        ({"service": {"trigger_ms": 5}}, f"service.trigger_ms: {UNKNOWN}"),
        ({"views": [view(), view(name="w", window_ms=60_000)]}, f"views.1.window_ms: {UNKNOWN}"),
        ({"views": [view(), view(name="w", slid="10 s")]}, f"views.1.slid: {UNKNOWN}"),
        ({"reference": {**SOURCE, "passwort": "p"}}, f"reference.passwort: {UNKNOWN}"),
    ],
    "a section that is no table is a problem and no crash": [({"kafka": 5}, "kafka = 5: ")],
    "an address and a folder are not blank": [
        ({section: {key: text}}, f"{section}.{key} = {text!r}: must not be blank")
        for section, key in (("metrics", "address"), ("service", "checkpoint"), ("kafka", "bootstrap"))
        for text in ("", " ")
    ],
    "a lease outlives an answer of Redis": [
        (
            {"service": {"lease": 10}},
            "service.lease = 10: must be at least 100 ms, such as '10 s'; a number without a unit is",
        )
    ],
    "a topic is named once": [({"kafka": {"topics": ["a", "b", "a"]}}, "kafka.topics: a: is named twice")],
    "the rejects topic is named after its topic and is another": [
        (
            {"kafka": {"rejects": name}},
            f"kafka.rejects = {name!r}: must be {{topic}} with letters, digits, . _ or - before or after it, "
            "such as '{topic}.rejects'",
        )
        for name in (
            *("{topic}", "rejects", "", "{topic}{topic}.rejects", "{topic}.{device}", "a b {topic}", "{topic}.r\n"),
        )
    ],
    "a beginning is a time with a zone, or offsets of the topics": [
        ({"kafka": {"starting": starting}}, problem)
        for starting, problem in (
            (
                "2026-11-20T08:00:00",
                "kafka.starting = '2026-11-20T08:00:00': must be 'earliest', 'latest', a time with",
            ),
            ({}, "kafka.starting: must be 'earliest'"),
            ({"readings": 5}, "kafka.starting: must be 'earliest'"),
            ({"readings": {"0": -1}}, "kafka.starting: readings[0] = -1 is no partition with an offset of 0 or more"),
            ({"readings": {"x": 1}}, "kafka.starting: readings[x] = 1 is no partition"),
            ({"readings": {"0": 1, "00": 2}}, "kafka.starting: readings[00] = 2 is no partition"),
            ({"readings": {"1" * 5000: 1}}, "kafka.starting: readings[111"),
            ({"others": {"0": 1}}, "kafka: starting: others is not among the topics readings"),
        )
    ],
    "a measure is one of the input": [
        (
            with_view(measures=["temperature", "pressure"]),
            "views.v.measures: 'pressure' is no measure of [input]; there",
        ),
        ({"admission": {"ranges": {"voltage": [0, 1]}}}, "admission.ranges: 'voltage' is no measure of [input]; there"),
        (
            {"reference": {**SOURCE, "ranges": {"voltage": ["low", "high"]}}},
            "reference.ranges: 'voltage' is no measure of [input]; there are humidity, temperature",
        ),
    ],
    "a session is one command of Redis": [
        (with_measures(**{f"m{n}": f"m{n}" for n in range(951)}), "[input]: has 951 measures, the limit is 950")
    ],
    "a field does not lie in another": [
        (
            with_measures(a="env", b="env.t"),
            "input.measures.b: 'env.t' lies in 'env', which input.measures.a reads as a value",
        ),
        (
            with_measures(a="event_time.x * 2"),
            "input.measures.a: 'event_time.x' lies in 'event_time', which input.event_time reads as",
        ),
        (with_measures(a="`a.b`", b="`a.b`.c"), "input.measures.b: '`a.b`.c' lies in '`a.b`'"),
    ],
    "an expression reads no field that is a text": [
        (
            {"input": {"measures": {"p": "u * line"}, "columns": {"line": "line"}}},
            "input.columns.line: 'line' is read as input.measures.p, too",
        ),
        (
            with_measures(p="u * device_id"),
            "input.measures.p: the expression reads 'device_id', which is input.device_id and no number",
        ),
    ],
    "a column of the record has a name and a field of its own": [
        (with_columns(temperature="line"), "input.columns: 'temperature' is a measure of [input], too"),
        (with_columns(site="line"), "input.columns: 'site' is a column of [reference], too"),
        (with_columns(device="line"), "input.columns: 'device' is a name of Tidemark's own"),
        (with_columns(line="temperature"), "input.columns.line: 'temperature' is read as input.measures.temperature"),
        (
            with_columns(line={"path": "line", "max_values": 0}),
            "input.columns.line.max_values = 0: must be more than 0",
        ),
        (with_columns(line=3), "input.columns.line = 3: must be a path, or a table such as"),
    ],
    "a reference lives longer than a refresh": [
        ({"reference": {**SOURCE, "refresh": "1 h", "max_age": "1 h"}}, "max_age 1 h must be longer than refresh 1 h"),
        ({"reference": {**SOURCE, "max_shrink": 1.5}}, "reference.max_shrink"),
    ],
    "there is a view, and a name is that of one": [
        ({"views": []}, "views: needs at least 1 entry, has 0"),
        (
            {"views": [view(name="a"), view(name="b"), view(name="a", window="2 m")]},
            "the name 'a' is used more than once",
        ),
    ],
    "a view groups by columns that there are": [
        (with_view(by=["device", "site"]), "views.v.by: 'site' is no column to group by; there are device"),
        (
            {**with_view(by=["sight"]), "reference": {**SOURCE, "columns": ["type", "site"]}},
            "views.v.by: 'sight' is no column to group by; there are device, site, type",
        ),
    ],
    "windows are put together from slides and panes": [
        (with_view(window="10x"), "views.0.window = '10x': "),
        (
            {"views": [view(name="fine"), view(name="odd", window="1 m", slide="25 s")]},
            "views.1: window 1 m must be a whole multiple of slide 25 s: windows are put together from slides",
        ),
        (with_view(window="10 s", slide="20 s"), "window 10 s must be a whole multiple of slide 20 s"),
        (
            {"views": [view(window="10 s"), view(name="w", window="1500 ms")]},
            "have the common measure 500 ms, the limit is 1 s",
        ),
    ],
    "a calendar has whole days, weeks, months or years of a zone": [
        (with_view(**fields), problem)
        for fields, problem in (
            (
                {"window": "1 h", "time_zone": "Europe/Rome"},
                "a window of a time zone is of whole days, weeks, months or",
            ),
            ({"window": "1 h", "offset": "5 m"}, "a window of a time zone is of whole days, weeks, months or years"),
            ({"window": "1 d", "time_zone": "Rome"}, "'Rome' is no time zone of tzdata"),
            ({"window": "1 d", "time_zone": ""}, "'' is no time zone of tzdata"),
            ({"window": "1 mo", "slide": "1 d"}, "slide: windows of a time_zone do not slide, because they differ in"),
            ({"window": "1 d", "offset": "1 d"}, "offset: must be less than 1 d"),
            ({"window": "2 y"}, "views.0.window = '2 y': must be at most 366 d"),
            ({"window": "none", "time_zone": "UTC"}, "time_zone: of no window."),
            (
                {"window": "1 d", "time_zone": {"column": "zone"}},
                "time_zone: 'zone' is no attribute in by, which makes",
            ),
            (
                {"window": "1 d", "by": ["device"], "time_zone": {"column": "device"}},
                "time_zone: 'device' is no attribute in by, which makes the zone a part of each key: add it there",
            ),
            (
                {"window": "1 d", "time_zone": {"attribute": "zone"}},
                "time_zone: must be the name of a time zone, such as 'Europe/Rome', or the column that has it: { column",
            ),
            ({"window": "1 d", "by": ["zone"], "time_zone": {"column": "zone"}}, "views.v.by: 'zone' is no column to"),
        )
    ],
    "final_after is of windows, and at most max_delay": [
        (with_view(final_after="2 m"), "final_after 2 m is more than max_delay 1 m: a later reading is in no window."),
        (with_view(window="none", final_after="1 s"), "final_after: of no window."),
    ],
    "shards and clusters are refused where they cannot work": [
        ({"redis": {"url": "redis://cache:6379/0", **redis}}, problem)
        for redis, problem in (
            ({"shards": 2, "prefix": "{a}"}, "must not have braces"),
            ({"cluster": True}, 'give prefix a hash tag, such as "{tidemark}"'),
            ({"url": "redis://one:7000,two:7001"}, "set cluster = true"),
            *(
                ({"url": url, "cluster": True, "shards": 4}, "no database: a Redis Cluster has only 0")
                for url in ("redis://cache/3", "redis://cache?db=3", "unix:///run/redis.sock")
            ),
        )
    ],
    "a folder is that of one outlet, because it has one position": [
        (with_two_folders("history", "history/"), "outlets.files and outlets.more: both are 'history', which only one"),
        (
            with_two_folders("history", "./history"),
            "outlets.files and outlets.more: both are 'history', which only one",
        ),
        (
            with_two_folders("history", "history/sessions"),
            "outlets.files and outlets.more: one of 'history' and 'history/sessions' is inside the other",
        ),
    ],
    "an outlet can work": [
        ({"outlets": [outlet]}, problem)
        for outlet, problem in (
            ({**FILES, "views": ["none"]}, "outlets.files.views: 'none' is no view"),
            ({**FILES, "sessions": True, "views": ["device"]}, "an outlet takes windows or sessions, not both"),
            ({**FILES, "kind": "csv"}, "outlets.0: 'kind' is 'csv', and must be one of 'parquet', 'jdbc', 'kafka'"),
            ({"name": "files"}, "outlets.0: lacks the key 'kind', which says what the other keys are"),
            ({**FILES, "max_pending": 10}, "max_pending = 10: must be at least 65536"),
            ({**TOPIC, "format": "avro"}, "outlets.events.format: avro needs a [registry]; or choose json"),
            ({**TOPIC, "topic": "readings"}, "outlets.events.topic: 'readings' is a topic of [kafka], which is read"),
            ({**TOPIC, "user": "u"}, "bootstrap: is missing, and there is a login"),
            ({**TABLE, "url": "jdbc:mysql://h/d"}, "must be jdbc:postgresql://host:port/database"),
            ({**TABLE, "url": "jdbc:postgresql://u:secret@h/d"}, "url = ***: must be jdbc:postgresql"),
            ({**TABLE, "table": "a; drop table b"}, "must be a table, or schema.table"),
        )
    ],
}


@pytest.mark.parametrize(
    ("sections", "problem"), [pytest.param(*row, id=rule) for rule, rows in REFUSED.items() for row in rows]
)
def test_settings_that_break_a_rule_are_refused_with_the_reason(sections, problem):
    (line,) = problems(**sections)
    assert problem in line


@pytest.mark.parametrize(
    "sections",
    [
        {**with_view(by=["site", "type"]), "reference": {**SOURCE, "columns": ["type", "site"]}},
        {**with_view(by=["anything"]), "reference": SOURCE},  # the query has not said yet which columns there are
        with_two_folders("history", "sessions"),
        {"redis": {"url": "redis://one:7000,two:7001", "cluster": True, "prefix": "{a}"}},
        {"redis": {"url": "redis://one:7000,two:7001", "cluster": True, "shards": 12}},
        {"redis": {"url": "redis://cache", "shards": 3}},
        {"kafka": {"rejects": "x.{topic}_y"}},
    ],
)
def test_settings_beside_a_rule_are_taken(sections):
    assert parse(document(**sections))


@pytest.mark.parametrize("name", ["Temperature", "1st", "", "a-b", "a b", "_a", "a" * 64, "temperatur\u00e9", "a\n"])
def test_a_name_that_could_not_stand_in_a_key_is_refused(name):
    rule = "must be a name: lower-case letters, digits and _, a letter first, at most 63"
    assert problems(input={"measures": {name: "t"}}) == [f"input.measures: {rule}"]
    assert problems(views=[view(), view(name=name)]) == [f"views.1.name = {name!r}: {rule}"]
    assert problems(service={"name": name}) == [f"service.name = {name!r}: {rule}"]


@pytest.mark.parametrize("name", ["device", "bucket", "event_ms", "broker_ms", "reject"])
def test_a_measure_is_not_called_like_a_column_of_the_pass(name):
    (line,) = problems(input={"measures": {name: "t"}})
    assert line.startswith(f"input.measures: {name!r} is a name of Tidemark's own")
    assert parse(document(input={"measures": {"other": name}})).input.measures["other"].path == name


def test_a_range_is_two_numbers_in_order_that_can_be_squared():
    for low, high in [(5, 1), (float("nan"), 1), (0, float("inf")), (0, 1.001e140), (-1e150, 0)]:
        (line,) = problems(admission={"ranges": {"temperature": [low, high]}})
        assert line.startswith("admission.ranges: temperature: [")
        assert line.endswith("must be two numbers from -1e+140 to 1e+140, the lower one first")
    limits = parse(document(admission={"ranges": {"temperature": [3, 3]}})).limits
    assert limits == {"temperature": (3, 3), "humidity": (-1e140, 1e140)}


def test_a_number_of_absurd_length_is_a_problem_like_any_other(tmp_path):
    digits = "9" * 5_000
    (line,) = problems(service={"trigger": f"{digits} s"})
    assert line.endswith("such as '10 s'")
    assert problems(admission={"max_bytes": "9" * 18 + " GiB"})[0].endswith("must be at most 2147483647")
    assert problems(service={"lease": "9" * 18 + " d"})[0].endswith("must be at most 366 d")
    with pytest.raises(SettingsError, match=r"tidemark\.toml: 1 problem:\n  metrics\.port = "):
        load_text(tmp_path, TOML, TIDEMARK_METRICS__PORT=digits)
    with pytest.raises(SettingsError, match=r"tidemark\.toml: is not TOML: "):
        load_text(tmp_path, f"{TOML}[metrics]\nport = {digits}\n")


def test_outlets_of_one_service_share_a_table_or_a_topic():
    """Each has a position of its own."""
    table = {"kind": "jdbc", "url": "jdbc:postgresql://db/history", "table": "finals"}
    topic = {"kind": "kafka", "topic": "finals", "format": "json"}
    parse(document(outlets=[{**each, "name": f"{each['kind']}_{n}"} for each in (table, topic) for n in (1, 2)]))


def test_a_measure_is_a_path_or_a_path_with_a_scale_and_an_offset() -> None:
    table = {"path": "air.t", "scale": 0.1, "offset": -40}
    measures = parse(document(input={"measures": {"temperature": table, "humidity": "air.h"}})).input.measures
    assert [(each.path, each.scale, each.offset) for each in measures.values()] == [
        ("air.t", 0.1, -40),
        ("air.h", 1, 0),
    ]
    for wrong, rule in (
        ({"path": "t", "scale": 0}, ".scale = 0: must not be 0"),
        ({"path": "t", "scale": math.nan}, ".scale = nan: "),
        ({"path": "t", "offset": math.inf}, ".offset = inf: "),
        ({"scale": 2}, ".path: is missing"),
        (3, " = 3: must be a path, an expression, or a table"),
        ({"expression": "u * i", "scale": 2}, ": has an expression and other keys"),
        ("3 * 4", ""),
        ("u * 'a'", ""),
        ("u -- i - 1", ""),
        ("u * " + "1" * 1_000, ""),
    ):
        assert problems(input={"measures": {"t": wrong}})[0].startswith(f"input.measures.t{rule}"), wrong


def test_a_measure_is_a_path_or_an_expression_over_fields() -> None:
    texts: dict[str, tuple[str, ...]] = {
        "u": ("u",),
        "temp-c": ("`temp-c`",),
        "env.t": ("env.t",),
        "`tank.level`": ("`tank.level`",),
        "`tank.level`.mm": ("`tank.level`.mm",),
        "`env`.`t`": ("env.t",),
        "`Temperature (C)`": ("`Temperature (C)`",),
        "`$type`": ("`$type`",),
        "ns:temp": ("`ns:temp`",),
        "40001": ("40001",),
    }
    computed = {
        "u * i": ("u", "i"),
        "abs(env.kg - `ta-re`)": ("env.kg", "`ta-re`"),
        "-value": ("value",),
        "value/10": ("value",),
        "1/value": ("value",),
        "`tank.level` * 2": ("`tank.level`",),
        "CASE WHEN kind = 1 THEN value END": ("kind", "value"),
    }
    for text, paths in (texts | computed).items():
        measure = parse(document(input={"measures": {"m": text}})).input.measures["m"]
        assert (measure.paths, measure.expression is not None) == (paths, text in computed), text
    table = parse(document(input={"measures": {"m": {"path": "a/b (C)"}}})).input.measures["m"]
    assert (table.path, table.expression) == ("`a/b (C)`", None)


@pytest.mark.silent("1.7")
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("CASE WHEN kind = 't' THEN value END", "no text"),
        ("kind = 't'", "no text"),
        ("km/h", "is a field or a computation. Put the field in backticks: `km/h`, or blanks"),
        ("value-273.15", "is a field or a computation"),
        ("tank level", "has no operator between tank and level. A field with a blank"),
        ("(a) b", "has no operator between ) and b"),
        ("(select u)", "has no operator between select and u"),
        ("u as x", "has no operator between u and as"),
        ("a..b", "cannot be read from character 2"),
        ("a.", "cannot be read from character 2"),
        ("", "reads no field"),
        ("`a", "cannot be read from character 1"),
        ({"path": ""}, "is no path of a field"),
        ({"path": "a`b`"}, "is no path of a field"),
        ("$topic", "'$topic' cannot be a measure; it may be a path in the record, $key, $key.PATH, $header.NAME"),
        ("$offset", "'$offset' is no source; there are $key, $key.PATH, $header.NAME, $topic, $topic/PATTERN/, $part"),
        ({"path": "$headers.x", "scale": 2}, "'$headers.x' is no source"),
        ("$timestamp / 1000", "'$timestamp / 1000' is no source"),
    ],
)
def test_a_text_that_is_neither_a_path_nor_an_expression_is_refused(text: object, rule: str) -> None:
    (line,) = problems(input={"measures": {"m": text}})
    assert line.startswith("input.measures.m")
    assert rule in line


@pytest.mark.silent("1.7")
@pytest.mark.parametrize("word", ["$offset", "$headers.x", "$.id", "$keys", "$key.", "$header", "$", "$Topic"])
def test_a_word_that_is_not_supported_is_refused_by_name(word: str) -> None:
    for given, key in (
        ({"device_id": word}, "device_id"),
        ({"event_time": word}, "event_time"),
        ({"columns": {"line": word}}, "columns.line"),
        ({"columns": {"line": {"path": word}}}, "columns.line"),
    ):
        (line,) = problems(input=given)
        assert line.startswith(f"input.{key}")
        assert f"{word!r} is no source" in line
    assert parse(document(input={"device_id": "$key", "event_time": "ts.$date"})).input.event_time == "ts.`$date`"


def test_a_field_that_is_no_measure_is_never_an_expression() -> None:
    for text in ("lower(id)", "a = b", "a || 'x'", "time * 1000", "time / 1000"):
        for given in ({"device_id": text}, {"event_time": text}, {"columns": {"line": text}}):
            (line,) = problems(input=given)
            assert "only a measure may be an expression" in line
        parse(document(input={"device_id": f"`{text}`"}))
    for name in ("device-id", "device id", "`device.id`", "Gerät", "@id"):
        parse(document(input={"device_id": name}))


def test_fields_that_differ_only_in_case_have_names_of_their_own_in_the_plan() -> None:
    for measures in ({"a": "u * U"}, {"a": "`A.b`", "b": "`a.B`"}, {"b": "env.t", "a": "Env"}):
        form = parse(document(input={"measures": measures})).form
        assert form.has_twins
        found = {tuple(form.names_in_plan(field_path.parts(path))) for path in form.measure_fields}
        assert len({tuple(name.lower() for name in names) for names in found}) == 2
    form = parse(document(input={"measures": {"a": "Env.Temp", "b": "Env.Line"}})).form
    assert not form.has_twins
    assert list(form.names_in_plan(("Env", "Temp"))) == ["Env", "Temp"]
    names = ["Temp", "temp", "TEMP", "_temp", "_Temp", "__temp", "t_emp", "tEmp", "t_Emp", "t__emp"]
    assert len({field_path.without_case(name).lower() for name in names}) == len(names)


# Panes


@pytest.mark.parametrize(
    ("views", "pane_ms"),
    [
        ([view(window="1 m")], 60_000),
        ([view(window="10 m", slide="1 m")], 60_000),
        ([view(window="1 m"), view(name="w", window="10 m", slide="2 m")], 60_000),
        ([view(window="90 s"), view(name="w", window="1 m")], 30_000),
        ([view(window="7 s"), view(name="w", window="3 s")], 1_000),
        ([view(window="1 h", slide="1 h")], 3_600_000),
    ],
)
def test_the_pane_is_the_longest_interval_that_all_windows_are_made_of(views, pane_ms):
    parsed = parse(document(views=views))
    assert parsed.pane_ms == pane_ms
    for each in parsed.views:
        assert each.window_ms % parsed.pane_ms == each.step_ms % parsed.pane_ms == 0


def test_a_view_without_measures_has_all_of_them_in_the_order_of_input():
    parsed = parse(document(views=[view(), view(name="w", measures=["humidity", "temperature"]), view(name="x")]))
    assert [parsed.view_measures(each) for each in parsed.views] == [("temperature", "humidity")] * 3
    only = parse(document(views=[view(measures=["humidity"])]))
    assert only.view_measures(only.views[0]) == ("humidity",)


# The file and the environment


def test_a_file_is_read_and_its_problems_name_it(tmp_path):
    assert load_text(tmp_path, TOML).kafka.bootstrap == "broker:9092"
    with pytest.raises(SettingsError, match=r"tidemark\.toml: 1 problem:\n  kafka\.group = 5: must be text"):
        load_text(tmp_path, TOML.replace("[input]", "group = 5\n[input]"))


def test_a_file_may_begin_with_the_mark_of_an_editor(tmp_path):
    file = tmp_path / "tidemark.toml"
    file.write_text(TOML, encoding="utf-8-sig")
    assert load(file, {}) == load_text(tmp_path, TOML)


def test_a_file_that_is_not_there_says_how_to_name_one(tmp_path):
    with pytest.raises(
        SettingsError, match=r"nowhere\.toml: the settings file cannot be read \(No such file.*--config"
    ):
        load(tmp_path / "nowhere.toml", {})


@pytest.mark.parametrize("content", [b"[kafka", b"a = \xff", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path, content):
    file = tmp_path / "tidemark.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"tidemark\.toml: is not TOML: "):
        load(file, {})


def test_the_environment_overrides_scalars_of_any_section_even_one_that_the_file_lacks(tmp_path):
    loaded = load_text(
        tmp_path,
        TOML,
        TIDEMARK_REDIS__URL="redis://other:6379/1",
        TIDEMARK_KAFKA__MAX_PER_BATCH="500",
        TIDEMARK_SERVICE__TRIGGER="250 ms",
        TIDEMARK_METRICS__PORT="0",
        TIDEMARK_ADMISSION__UNKNOWN_DEVICE="reject",
        TIDEMARK_HOME="/not/a/setting",
        PATH="/bin",
    )
    assert loaded.redis.url.get_secret_value() == "redis://other:6379/1"
    assert (loaded.kafka.max_per_batch, loaded.kafka.bootstrap) == (500, "broker:9092")
    assert (loaded.service.trigger_ms, loaded.metrics.port) == (250, 0)
    assert loaded.admission.unknown_device == "reject"


def test_a_value_from_the_environment_is_validated_like_one_from_the_file(tmp_path):
    with pytest.raises(SettingsError) as refusal:
        load_text(
            tmp_path,
            TOML,
            TIDEMARK_METRICS__PORT="none",
            TIDEMARK_KAFKA__STARTING="now",
            TIDEMARK_KAFKA__TOPIK="x",
            TIDEMARK_NOWHERE__KEY="x",
        )
    text = str(refusal.value)
    assert "4 problems" in text
    assert "metrics.port = 'none': must be a whole number (set by TIDEMARK_METRICS__PORT)" in text
    assert "kafka.starting = 'now': must be 'earliest', 'latest', a time with a zone" in text
    assert f"kafka.topik: {UNKNOWN} (set by TIDEMARK_KAFKA__TOPIK)" in text
    assert f"nowhere: {UNKNOWN} (set by TIDEMARK_NOWHERE__KEY)" in text


def test_relative_paths_are_taken_from_the_files_folder(tmp_path):
    reference = '[reference]\nurl = "jdbc:sqlite:x"\nquery = "q"\nexpectations = "/etc/e.json"\npassword_file = "db"\n'
    text = TOML.replace("[input]", '[input]\nschemas = "avro"') + 'password_file = "../secret"\n' + reference
    loaded = load_text(tmp_path, text)
    assert loaded.input.schemas == tmp_path / "avro"
    assert loaded.redis.password_file == tmp_path.parent / "secret"
    assert loaded.reference is not None
    assert loaded.reference.expectations == Path("/etc/e.json")
    assert loaded.reference.password_file == tmp_path / "db"


@pytest.mark.parametrize("url", ["file:///var/lib/tidemark", "s3a://bucket/tidemark", "/var/lib/tidemark"])
def test_a_checkpoint_is_a_url_or_a_folder_relative_to_the_file(tmp_path, url):
    assert load_text(tmp_path, TOML.replace("/var/lib/tidemark", url)).service.checkpoint == url
    loaded = load_text(tmp_path, TOML.replace("/var/lib/tidemark", "state/here"))
    assert loaded.service.checkpoint == str(tmp_path / "state" / "here")
    assert load_text(tmp_path, TOML, TIDEMARK_SERVICE__CHECKPOINT="../x").service.checkpoint == str(
        tmp_path.parent / "x"
    )


# Secrets


def test_secrets_print_as_asterisks():
    parsed = parse(
        document(
            redis={"url": "redis://user:hunter2@cache:6379/0"},
            reference={"url": "jdbc:postgresql://db/devices", "query": "q", "user": "u", "password": "hunter2"},
        )
    )
    for text in (repr(parsed), str(parsed), parsed.model_dump_json(), repr(parsed.redis), repr(parsed.reference)):
        assert "hunter2" not in text
        assert "***" in text
    assert parsed.redis.url.get_secret_value() == "redis://user:hunter2@cache:6379/0"
    assert parsed.reference is not None
    assert parsed.reference.secret() == "hunter2"
    with_options = parse(document(kafka={"options": {"sasl.password": "hunter2"}}))
    assert "hunter2" not in f"{with_options!r} {with_options} {with_options.kafka!r}"


def test_a_refused_secret_is_not_in_the_message(tmp_path):
    reference = {"url": 5, "query": "q", "password": ["hunter2"]}
    lines = problems(redis={"url": ["redis://:hunter2@cache"]}, reference=reference)
    assert len(lines) == 3
    assert "hunter2" not in "".join(lines)
    assert "reference.url = ***: must be text" in lines
    for place in ("redis.url", "reference.password", "kafka.options.sasl.password"):
        section, _, key = place.partition(".")
        value = {"options": {"sasl.password": 12345}} if section == "kafka" else {key: 12345}
        more = SOURCE if section == "reference" else {}
        assert problems(**{section: {**more, **value}}) == [f"{place} = ***: must be text"]


def test_a_refused_scalar_of_redis_or_options_is_not_in_the_message(tmp_path):
    address = "redis://:hunter2@cache"
    for sections in (
        {"redis": address},
        {"redis": {"timeout": address}},
        {"redis": {"chunk": address}},
        {"reference": address},
        {"registry": "https://u:hunter2@registry"},
        {"otel": "u:hunter2@collector"},
        {"otel": {"endpoint": "https://u:hunter2@collector/v1/traces"}},
        {"otel": {"endpoint": "u:hunter2@collector:4318"}},
        {"outlets": ["jdbc:postgresql://h/d?user=u&password=hunter2"]},
        {"kafka": {"options": address}},
        {"kafka": {"options": {"sasl.jaas.config": ["hunter2"]}}},
    ):
        (line,) = problems(**sections)
        assert "hunter2" not in line
        assert "***" in line or "jaas" in line
    # What cannot be a secret is shown. "hourly" has "url" in it.
    (line,) = problems(input={"measures": {"hourly": {"path": "h", "scale": "x"}}})
    assert line == "input.measures.hourly.scale = 'x': must be a number"
    (line,) = problems(redis={"chunk": 0})
    assert line == "redis.chunk = 0: must be more than 0"
    with pytest.raises(SettingsError) as refusal:
        load_text(tmp_path, TOML, TIDEMARK_KAFKA__OPTIONS="hunter2", TIDEMARK_REDIS__CHUNK="hunter2")
    assert "2 problems" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_password_file_is_read_when_the_secret_is_needed_and_goes_before_the_password(tmp_path):
    (tmp_path / "secret").write_text("hunter2\n")
    loaded = load_text(
        tmp_path,
        TOML.replace("redis://cache", "rediss://tidemark@cache")
        + 'password_file = "secret"\n[reference]\nurl = "jdbc:sqlite:x"\nquery = "q"\npassword_file = "secret"\n'
        + 'password = "another"\n',
    )
    assert loaded.redis.password_file == tmp_path / "secret"
    assert loaded.reference is not None
    assert loaded.reference.secret() == "hunter2"
    assert "hunter2" not in repr(loaded)


def test_the_reserved_names_are_those_that_the_data_engineers_page_lists() -> None:
    page = (Path(settings.__file__).parents[2] / "docs" / "data-engineer.md").read_text(encoding="utf-8")
    sentence = page.partition("one of these names are refused:")[2].partition("The field in the record")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == settings.RESERVED_MEASURES


@pytest.mark.parametrize(
    "url",
    [
        "cache:6379", "http://cache", "redis://", "redis://cache:port", "redis://one,,two", "redis://one, two", "redis://u:hunter2@one,u:hunter2@two",
        "redis://u:hun/ter2@cache", "redis://u:hunter2#@cache", "redis://u:hunter2？@cache", "redis://u:[hunter2]x@cache",
    ],
)  # fmt: skip
def test_a_redis_url_that_cannot_be_read_is_refused_and_not_shown(url):
    (line,) = problems(redis={"url": url, "cluster": True, "shards": 4})
    assert line.startswith("redis.url = ***: must be redis://user@host:6379/0")
    assert "hunter" not in line


def test_a_beginning_may_be_written_in_the_forms_of_toml(tmp_path):
    for text, expected in (
        ("2026-11-20T08:00:00Z", 1_795_161_600),
        ('"2026-11-20T09:00:00+01:00"', 1_795_161_600),
        ("{ readings = { 0 = 7, 1 = 0 } }", {"readings": {0: 7, 1: 0}}),
    ):
        config = tmp_path / "tidemark.toml"
        config.write_text(TOML.replace('topics = ["readings"]', f'topics = ["readings"]\nstarting = {text}'))
        starting = load(config, {}).kafka.starting
        assert (starting if isinstance(expected, dict) else starting.timestamp()) == expected


def test_a_view_without_measures_counts_and_has_no_statistic_of_values():
    counted = parse(document(input={"measures": {}}, views=[view(measures=[])], admission=...)).views[0]
    assert counted.statistics == ("count", "first", "last")
    line, *_ = problems(views=[view(measures=[], statistics=["mean", "distinct"])])
    of_no_measure = "count, first, last, distinct, longest_gap, coverage"
    assert line == f"views.0: statistics: mean of no measure; with measures = [] there are {of_no_measure}"
    line, *_ = problems(input={"measures": ...})
    assert line == "views.device: [input] has no measures. Name some, or count readings with measures = []"
    lines = problems(input={"measures": {"events": "e"}}, views=[view(measures=[])])
    assert "views.v.measures: is empty, so no measure of [input] may be called 'events'" in lines


def test_a_view_without_windows_has_no_slide_and_no_end():
    parsed = parse(document(views=[view(window="none"), view(name="w", window="10 s")]))
    assert (parsed.endless, [each.name for each in parsed.closing_views]) == (
        (("v", "temperature"), ("v", "humidity")),
        ["w"],
    )
    assert parsed.pane_ms == 10_000
    assert parse(document(views=[view(window="none")])).pane_ms == parsed.views[0].window_ms
    (line,) = problems(views=[view(name="fine"), view(window="none", slide="1 m", retain="1 d")])
    assert line == (
        "views.1: slide and retain: of no window. A view with window = 'none' has one value of each key, "
        "which is kept as long as the view is in the settings"
    )


def test_a_view_of_a_zone_has_its_days_weeks_months_or_years():
    views = [
        view(window="1 d", time_zone="Europe/Rome", offset="6 h"),
        view(name="week", window="1 w"),
        view(name="month", window="1 mo", time_zone="Asia/Kathmandu"),
        view(name="year", window="1 y", offset="3 mo", retain="366 d"),
        view(name="plain", window="1 d"),
    ]
    day, week, month, year, plain = parse(document(views=views)).views
    assert [each.length for each in (day, week, month, year, plain)] == [
        "1 d of Europe/Rome",
        "1 w of UTC",
        "1 mo of Asia/Kathmandu",
        "1 y of UTC",
        "1 d",
    ]
    hour_ms = 3_600_000
    assert [each.longest_ms // hour_ms for each in (day, week, month, year, plain)] == [25, 168, 744, 8784, 24]
    assert [each.retain_ms // hour_ms for each in (day, week, month, year, plain)] == [25, 168, 744, 8784, 24]
    assert [each.step_ms // 60_000 for each in (day, week, month, year, plain)] == [60, 1440, 15, 1440, 1440]
    assert parse(document(views=views)).pane_ms == 15 * 60_000
    assert plain.calendar is None
    assert (
        len({day.identity, plain.identity, parse(document(views=[view(window="1 d", offset="6 h")])).views[0].identity})
        == 3
    )


def test_a_view_leads_by_what_its_final_after_is_less_than_max_delay():
    views = [
        view(final_after="10 s"),
        view(name="zero", final_after="0 s"),
        view(name="same", final_after="1 m"),
        view(name="none"),
    ]
    assert parse(document(views=views)).leads == {"v": 50_000, "zero": 60_000}


def test_the_path_and_the_password_of_an_outlet_are_found_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    files_and_table = make_document(tmp_path, outlets=[FILES, {**TABLE, "user": "u", "password_file": "password"}])
    files, table = parse(files_and_table, folder=tmp_path).outlets
    assert files.kind == "parquet"
    assert files.path == str(tmp_path / "x")
    assert table.secret() == "secret"
    assert "secret" not in repr(table)


def test_duplicates_are_told_by_the_device_and_something_else():
    columns = {"measures": {"temperature": "temperature", "humidity": "h"}, "columns": {"message": "id"}}
    assert parse(document()).admission.distinct == ()
    for given in ("message", ["device", "message"]):
        parsed = parse(document(input=columns, admission={"distinct": given}))
        assert (parsed.admission.distinct, parsed.distinct_columns) == (("device", "message"), ("message",))
    assert parse(document(admission={"distinct": ["device", "event_time"]})).distinct_columns == ()
    (line,) = problems(input=columns, admission={"distinct": ["device", "site"]})
    assert line == "admission.distinct: 'site' is no column of [input]; there are device, event_time, message"
    for given in (["device"], ["event_time"], ["device", "device"]):
        (line,) = problems(admission={"distinct": given})
        assert line == (
            f"admission.distinct: {given} must name 'device', and once each what tells its readings apart: "
            "'event_time' or columns of [input]"
        )


def test_the_example_is_generated_from_the_models_and_is_valid() -> None:
    text = example.EXAMPLE.read_text()
    assert text == example.text(), "write it by python -m load.manifests"
    loaded = loads(text, example.EXAMPLE, {})
    assert loaded.kafka.group == "tidemark"


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_the_example_of_a_setting_is_a_value_of_it(name: str) -> None:
    fields = settings_page.fields_of(Settings.model_fields[name].annotation)
    for field in filter(lambda each: each.examples, fields.values()):
        [value] = field.examples or ()
        marks = (field.annotation, *field.metadata)
        TypeAdapter(Annotated[marks] if field.metadata else field.annotation).validate_python(value)


class Paced(Section):
    """The example of docs/how-to-add.md: a setting is a field with its text."""

    pace_ms: Positive = Field(default=3_000, alias="pace")
    """Time between two steps."""


def test_a_setting_is_added_by_a_field_with_its_text() -> None:
    field = FieldInfo(annotation=Paced, default=Paced(), description="Steps.")
    assert list(example.section("paced", field)) == [
        "# Steps.",
        "[paced]",
        "# Time between two steps.",
        'pace = "3 s"',
        "",
    ]
    assert Paced.model_validate({"pace": "1 m"}).pace_ms == 60_000
