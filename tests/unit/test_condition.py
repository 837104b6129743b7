"""Conditions of measures: what is one, and what settings refuse."""

from typing import Any

import pytest

from service.errors import SettingsError
from service.settings import condition, parse
from service.settings.condition import Condition
from tests import minimal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metric = 'temperature'", [Condition("metric", ("temperature",))]),
        (" a.metric='it''s' ", [Condition("a.metric", ("it's",))]),
        ("metric IN ('t', 'temp') and unit = 'C'", [Condition("metric", ("t", "temp")), Condition("unit", ("C",))]),
        (
            "`metric name` = '' AND ^.unit = 'x and y'",
            [Condition("`metric name`", ("",)), Condition("^.unit", ("x and y",))],
        ),
        *((text, None) for text in ("", "metric", "metric = 5", "metric = 't' or unit = 'C'", "metric in ()", "= 't'")),
        *((text, None) for text in ("metric = 't' and", "metric = 't' unit = 'C'", "metric > 't'", "$key = 't'")),
    ],
)
def test_a_condition_is_a_field_and_its_texts(text: str, expected: list[Condition] | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match=r"is no condition|is no path|no field of the record"):
            condition.parse(text)
    else:
        assert [*condition.parse(text)] == expected


def of(**given: Any) -> Any:
    return parse({**minimal.SECTIONS, "input": {"format": "json", **given}})


def test_measures_from_is_a_measure_for_each_name() -> None:
    form = of(measures_from={"name": "m", "value": "v", "only": ["temperature", "a_b"]}).input
    assert {name: (each.path, each.where) for name, each in form.measures.items()} == {
        "temperature": ("v", "m = 'temperature'"),
        "a_b": ("v", "m = 'a_b'"),
    }
    named = of(measures_from={"name": "m", "value": "v", "only": {"t": "it's [C]"}}).input
    assert [each.conditions for each in named.measures.values()] == [(Condition("m", ("it's [C]",)),)]
    assert named.is_long
    assert not of(measures={"t": {"path": "v", "where": "m = 't'"}, "h": "h"}).input.is_long


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measures_from": {"name": "m", "value": "v", "only": ["Temp C"]}}, "must be a name"),
        ({"measures_from": {"name": "m", "value": "v", "only": []}}, "at least 1"),
        ({"measures_from": {"name": "m", "value": "v"}}, "only"),
        (
            {"measures_from": {"name": "m", "value": "v", "only": ["t", "h"]}, "measures": {"t": "x"}},
            "measures_from.only: t is in measures, too. Give each name once",
        ),
        ({"measures": {"t": {"path": "v", "where": "m > 5"}}}, "is no condition"),
        ({"measures": {"t": {"path": "v", "decimal_scale": 23}}}, "must be at most 22"),
        (
            {"measures": {"t": {"path": "v", "decimal_scale": 2, "values": {"a": 1}}}},
            "input.measures.t: has decimal_scale and values. Give one of them",
        ),
        (
            {"measures": {"t": {"path": "v", "decimal_scale": 2}, "u": "v"}},
            "input.measures.u: 'v' is a decimal of input.measures.t, and is read otherwise here",
        ),
        (
            {"measures": {"t": {"path": "v", "decimal_scale": 2}, "u": "v * 2"}},
            "input.measures.u: 'v' is a decimal of input.measures.t, and is read otherwise here",
        ),
        (
            {"event_time": "v", "measures": {"t": {"path": "v", "decimal_scale": 2}}},
            "input.event_time: 'v' is a decimal of input.measures.t, and is read otherwise here",
        ),
        (
            {"format": "avro", "measures": {"t": {"path": "v", "decimal_scale": 2}}},
            "input.measures.t.decimal_scale: is for fields of JSON",
        ),
        (
            {"measures": {"t": {"path": "$header.v", "decimal_scale": 2}}},
            "input.measures.t.decimal_scale: is for fields of JSON",
        ),
        (
            {"event_time": "$timestamp", "event_time_unit": "s", "event_time_part": "ns", "measures": {"t": "v"}},
            "input.event_time_part: is not read with event_time = '$timestamp'",
        ),
        (
            {"event_time": "$timestamp", "event_time_unit": "iso", "time_zone": "Europe/Rome", "measures": {"t": "v"}},
            "input.time_zone: is not read with event_time = '$timestamp'",
        ),
        (
            {"measures": {"t": {"path": "v", "where": "m = 't'"}, "all": "v"}},
            "'v' is read as input.measures.all, too, without a condition",
        ),
        (
            {"measures": {"t": {"path": "v", "where": "v = 't'"}}},
            "'v' is read as input.measures.t, a number; a condition is about a text",
        ),
        ({"measures": {"t": "^.t"}}, "is a field around a reading: set input.array to the path of the readings"),
        ({"array": "^.values", "measures": {"t": "t"}}, "begins at the record"),
        ({"array": "a..b", "measures": {"t": "t"}}, "is no path of a field"),
        ({"format": "json-schema", "array": "values", "measures": {"t": "t"}}, "needs format = 'json'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        of(**given)
    assert message in str(error.value)
