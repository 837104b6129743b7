"""Patterns of times: what they read, and what is refused."""

import pytest

from service.admission import times
from service.settings import Input
from service.settings.time_pattern import parse
from tests.stream.test_times import PATTERNS, ms


@pytest.mark.parametrize(("pattern", "zone", "text", "expected"), PATTERNS)
def test_a_text_is_read_by_its_pattern(pattern: str, zone: str, text: str, expected: str | None) -> None:
    assert times.of_text(text, zone, parse(pattern)) == ms(expected)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("%d.%m.%Y", "d is no part of a time|lacks|strftime"),
        ("dd.mm.yyyy HH:mm", "mm is a part that the pattern has twice"),
        ("dd.MM.YYYY", "YYYY is no part of a time"),
        ("dd.MM.yyyy hh:mm", "lacks AM or PM, a"),
        ("dd.MM.yyyy HH:mm a", "lacks hours of 1 to 12, hh"),
        ("dd.MM.yyyy HH:ss", "lacks minutes, mm"),
        ("dd.MM.yyyy HH:mm.SSS", "lacks seconds, ss"),
        ("dd.MM.yyyy mm", "lacks an hour, HH"),
        ("HH:mm:ss", "lacks a year, yyyy or yy, a month, MM or MMM, a day, dd"),
        ("dd.MM.yyyy yy", "has a year twice"),
        ("dd.MM.yyyy'T", "has no end"),
        ("dd.MM.yyyyTHH:mm", "T is no part of a time"),
        ("", "lacks a year"),
        ("d" * 101, "limit 100"),
        ("dd.MM.yyyy \U0001f321", "a sign that no text of a time has"),
    ],
)
def test_a_pattern_that_reads_no_time_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Input.model_validate({"event_time_pattern": pattern})


def test_a_pattern_is_for_texts() -> None:
    form = Input.model_validate({"event_time_pattern": "dd.MM.yyyy"})
    assert (form.event_time_unit, form.time_form) == ("iso", "dd.MM.yyyy")
    assert Input.model_validate(form.model_dump(by_alias=True)) == form
    with pytest.raises(ValueError, match="event_time_pattern: is for texts"):
        Input.model_validate({"event_time_pattern": "dd.MM.yyyy", "event_time_unit": "s"})
