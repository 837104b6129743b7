"""Durations: what people write, and the integers that come of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from service.units import Duration, format_duration, parse_duration_ms

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250 ms", 250),
        ("10 s", 10_000),
        ("5 m", 300_000),
        ("5 min", 300_000),
        ("1 h", 3_600_000),
        ("7 d", 604_800_000),
        ("0 s", 0),
        ("10s", 10_000),
        ("  10   S  ", 10_000),
        ("1.5 h", 5_400_000),
        ("0.25 s", 250),
        ("1.001 s", 1_001),  # in binary 1.001 * 1000 is below 1001
        (1234, 1234),
    ],
)
def test_a_duration_is_a_number_and_a_unit_or_milliseconds(text, ms):
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        "10",
        "s",
        "ten s",
        "-1 s",
        "+1 s",
        "1e3 s",
        "1,5 s",
        ".5 s",
        "10 s 5 ms",
        "10 weeks",
        "10 KiB",
        "9" * 5_000 + " s",
    ],
)
def test_what_is_no_duration_is_refused_with_the_units_and_an_example(value):
    with pytest.raises(ValueError, match=r"^must be a number and a unit, one of ms, s, m, min, h, d, such as '10 s'$"):
        parse_duration_ms(value)


@pytest.mark.parametrize("value", [True, False, 1.5, None, [], {}])
def test_only_text_and_integers_are_quantities(value):
    with pytest.raises(ValueError, match="a number and a unit"):
        parse_duration_ms(value)


def test_a_part_of_the_smallest_unit_is_refused():
    with pytest.raises(ValueError, match="must be a whole number of milliseconds"):
        parse_duration_ms("0.5 ms")


@given(st.integers(0, 10**15), st.sampled_from(list(UNITS_MS)), st.text(" \t", max_size=3))
def test_a_whole_number_of_any_unit_is_exact(number, unit, blanks):
    if number * UNITS_MS[unit] < 1 << 53:
        assert parse_duration_ms(f"{blanks}{number}{blanks}{unit}{blanks}") == number * UNITS_MS[unit]


@given(st.integers(0, 366 * 86_400_000))
def test_what_is_formatted_parses_to_the_same(ms):
    assert parse_duration_ms(format_duration(ms)) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (1, "1 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (60_000, "1 m"),
        (90_000, "90 s"),
        (3_600_000, "1 h"),
        (86_400_000, "1 d"),
        (86_400_001, "86400001 ms"),
    ],
)
def test_a_duration_is_formatted_in_the_largest_unit_that_is_exact(ms, text):
    assert format_duration(ms) == text


def test_the_types_are_for_pydantic_models():
    assert TypeAdapter(Duration).validate_python("2 m") == 120_000
    with pytest.raises(ValidationError, match="a number and a unit"):
        TypeAdapter(Duration).validate_python("2 parsecs")
