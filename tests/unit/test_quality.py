"""Expectations of readings: drawn from a sample, held against samples, shown as metrics and as a page."""

import html
import json
import re
from collections import Counter
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.fleet.payloads import PAGE
from service.commands import check
from service.errors import SchemaError, SetupError, SourceError
from service.monitoring.home_page import Quality
from service.monitoring.metrics import Metrics
from service.quality import sample, validation
from service.quality import suite as suites
from service.quality.profile import draw
from service.quality.suite import pattern
from service.settings import Kafka
from tests import minimal
from tests.examples import examples

MEASURES = ["temperature", "humidity"]
REMEDY = "draw one"


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """A sample of rows with `device`, `ahead`, `reason` and measures; of a rejected one only the reason counts."""
    lists: dict[str, list[Any]] = {name: [] for name in ("device", *MEASURES, sample.AHEAD, sample.REASON)}
    for row in rows:
        is_admitted = row.get("reason") is None
        values = {**row, sample.AHEAD: row.get("ahead", 0.0)} if is_admitted else {sample.REASON: row["reason"]}
        for name, column in lists.items():
            column.append(values.get(name))
    columns = {
        sample.DEVICE: pa.array(lists["device"], pa.string()),
        **{name: pa.array(lists[name], pa.float64()) for name in MEASURES},
        sample.AHEAD: pa.array(lists[sample.AHEAD], pa.float64()),
        sample.OF_DEVICE: pa.array([0] * len(rows), pa.int64()),
        sample.ADMITTED: pa.array([float(reason is None) for reason in lists[sample.REASON]], pa.float64()),
        sample.REASON: pa.array(lists[sample.REASON], pa.string()),
    }
    return sample.counted(pa.table(columns))


def good(count: int, *, shift: float = 0.0) -> pa.Table:
    return table(
        [
            {"device": f"pump-{n % 40:03}", "temperature": 20 + n % 7 + shift, "humidity": n % 50 / 10, "ahead": -n % 3}
            for n in range(count)
        ]
    )


def unmet(records: pa.Table, suite: Path) -> list[str]:
    return sorted(each["label"] for each in validation.validate(records, suite)[0] if not each["met"])


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "readings.expectations.json"
    suites.write(path, draw(good(800), MEASURES, 200), replace=False)
    return path


# Drawing

ROWS = st.fixed_dictionaries(
    {
        "device": st.sampled_from(["pump-1", "pump-22", "valve 3", "ü(4)", "X_5", "a.b", "0"]) | st.uuids().map(str),
        "temperature": st.none() | st.floats(-1e140, 1e140) | st.floats(-50, 50),
        "humidity": st.none() | st.just(5.0),
        "ahead": st.floats(-3600, 60),
        "reason": st.none() | st.none() | st.sampled_from(["late", "undecodable"]),
    }
)


@examples(60)
@given(st.lists(ROWS, min_size=1, max_size=40), st.integers(1, 50))
def test_a_sample_and_each_of_its_pieces_meet_what_was_drawn_from_it(rows: list[dict[str, Any]], piece: int) -> None:
    records = table(rows)
    if all(row["reason"] for row in rows):
        with pytest.raises(SchemaError, match=f"none of {len(rows)} records is admitted: [0-9]+ "):
            draw(records, MEASURES, piece)
        return
    suite = draw(records, MEASURES, piece)
    assert suite == draw(records, MEASURES, piece)
    for start, length in [(0, len(rows)), *((start, piece) for start in range(0, len(rows) - piece + 1, piece))]:
        part = sample.counted(records.slice(start, length))
        assert [item for item in suite["expectations"] if not holds(item, part)] == []


def holds(item: dict[str, Any], part: pa.Table) -> bool:
    """The oracle: what an expectation means, in plain Python. Of nothing, anything holds."""
    kwargs, kind = item["kwargs"], item["type"].removeprefix("expect_")
    rows = part.to_pylist()
    if "row_condition" in kwargs:
        rows = [row for row in rows if row["device"] is not None]
    everything = [row[kwargs["column"]] for row in rows]
    values = [value for value in everything if value is not None]
    low, high, mostly = kwargs.get("min_value", -1e308), kwargs.get("max_value", 1e308), kwargs.get("mostly", 1.0)
    if not values:
        return kind != "column_values_to_not_be_null" or not everything or mostly == 0
    if kind == "column_values_to_not_be_null":
        return len(values) >= mostly * len(everything)
    if kind == "column_values_to_be_between":
        return sum(low <= value <= high for value in values) >= mostly * len(values)
    if kind == "column_values_to_match_regex":
        return all(re.match(kwargs["regex"], value) for value in values)
    observed = {
        "column_mean_to_be_between": lambda: sum(value / len(values) for value in values),
        "column_max_to_be_between": lambda: max(values),
        "column_proportion_of_unique_values_to_be_between": lambda: len(set(values)) / len(values),
    }[kind]()
    return bool(low <= observed <= high)


def test_what_is_drawn_is_what_the_sample_has(suite: Path) -> None:
    items = json.loads(suite.read_text())["expectations"]
    condition = {"row_condition": {"type": "nullity", "column": {"name": "device"}, "is_null": False}}
    ahead = {"column": "seconds ahead", "min_value": -1.0, "max_value": 3.0, "mostly": 0.99}
    assert [(item["type"].removeprefix("expect_"), item["kwargs"]) for item in items] == [
        ("column_values_to_not_be_null", {"column": "temperature", "mostly": 0.98, **condition}),
        (
            "column_values_to_be_between",
            {"column": "temperature", "min_value": 18.8, "max_value": 27.2, "mostly": 0.99},
        ),
        ("column_mean_to_be_between", {"column": "temperature", "min_value": 21.9, "max_value": 24.1}),
        ("column_values_to_not_be_null", {"column": "humidity", "mostly": 0.98, **condition}),
        ("column_values_to_be_between", {"column": "humidity", "min_value": -0.98, "max_value": 5.88, "mostly": 0.99}),
        ("column_mean_to_be_between", {"column": "humidity", "min_value": 1.72, "max_value": 3.18}),
        ("column_values_to_match_regex", {"column": "device", "regex": "^pump-[0-9]+$", "mostly": 0.99}),
        (
            "column_proportion_of_unique_values_to_be_between",
            {"column": "device", "min_value": 0.025, "max_value": 0.4},
        ),
        ("column_max_to_be_between", {"column": "readings of device", "min_value": 1, "max_value": 40}),
        ("column_values_to_be_between", ahead),
        ("column_mean_to_be_between", {"column": "is admitted", "min_value": 0.95}),
    ]


def test_nothing_is_expected_of_a_measure_that_was_never_there() -> None:
    items = draw(table([{"device": "a", "temperature": 1.0}]), MEASURES, 10)["expectations"]
    assert {item["kwargs"]["column"] for item in items}.isdisjoint({"humidity"})


def test_device_ids_have_a_shape() -> None:
    assert pattern(["pump-1", "pump-22", "v3"]) == "^(?:pump-[0-9]+|v[0-9]+)$"
    assert pattern(["a.1", "a.2"]) == r"^a\.[0-9]+$"
    assert pattern(["a1b", "b2c", "c3d", "d4e", "e5f", "f6-"]) == r"^[0-9a-z\-]+$"
    assert pattern([chr(0x4E00 + n) for n in range(20)]) == ""


def test_a_file_is_never_written_over_unasked(tmp_path: Path) -> None:
    path = tmp_path / "readings.json"
    suite = draw(good(10), MEASURES, 5)
    suites.write(path, suite, replace=False)
    first = path.read_text()
    with pytest.raises(SetupError, match=r"readings\.json cannot be written \(File exists\)"):
        suites.write(path, {**suite, "name": "other"}, replace=False)
    assert path.read_text() == first
    suites.write(path, {**suite, "name": "other"}, replace=True)
    assert json.loads(path.read_text())["name"] == "other"
    assert [each.name for each in tmp_path.iterdir()] == ["readings.json"]
    with pytest.raises(SetupError, match=r"cannot be written \(No such file or directory\)"):
        suites.write(tmp_path / "none" / "x.json", suite, replace=False)


def test_what_was_drawn_is_shown_one_line_each() -> None:
    lines = list(suites.shown(draw(good(800), MEASURES, 200)))
    assert lines[0].split() == ["temperature", "not", "null", "mostly", "0.98"]
    assert lines[2].endswith("min_value 21.9, max_value 24.1")


def test_records_are_taken_from_all_partitions_as_evenly_as_can_be() -> None:
    available = {("r", 0): 1_000, ("r", 1): 3, ("r", 2): 0, ("s", 0): 50}
    assert sample.spread(available, 100) == {("r", 2): 0, ("r", 1): 3, ("s", 0): 49, ("r", 0): 48}
    assert sample.spread(available, 10_000) == available
    assert sample.spread({}, 5) == {}
    assert sum(sample.spread({("r", n): 100 for n in range(7)}, 100).values()) == 100


# Holding


def test_a_good_sample_meets_all_and_a_drifted_one_is_named(suite: Path) -> None:
    assert unmet(good(200), suite) == []
    assert unmet(good(200, shift=6), suite) == ["temperature between", "temperature mean between"]
    assert unmet(good(200, shift=1.15), suite) == ["temperature mean between"]


def test_a_fault_of_each_kind_is_named(suite: Path) -> None:
    rows = good(200).to_pylist()
    rejected = [{"reason": "late"}] * 20
    late = [{**row, "ahead": -50} for row in rows]
    assert unmet(table([*rows, *rejected]), suite) == ["is admitted mean between"]
    assert unmet(table(late), suite) == ["seconds ahead between"]
    assert unmet(table([{**row, "humidity": None} if n % 20 == 0 else row for n, row in enumerate(rows)]), suite) == [
        "humidity not null"
    ]
    busy = [{**row, "device": "pump-001"} if n % 3 == 0 else row for n, row in enumerate(rows)]
    assert unmet(table(busy), suite) == ["readings of device max between"]
    strange = [{**row, "device": row["device"].upper()} if n % 20 == 0 else row for n, row in enumerate(rows)]
    assert unmet(table(strange), suite) == ["device match regex"]
    assert "is admitted mean between" in unmet(table(rejected), suite)


def test_the_report_is_great_expectations_own_and_fetches_nothing(suite: Path) -> None:
    outcome, page = validation.validate(good(200, shift=6), suite)
    assert "Data documentation compiled by Great Expectations" in page
    assert "a sample of 200 records" in page
    assert "values must be greater than or equal to" in page
    assert re.findall(r"<(?:link|script|img|iframe|object)\b", page) == []
    assert re.findall(r"url\(|@import", page) == []
    [failed] = [each["text"] for each in outcome if each["label"] == "temperature between"]
    assert failed.startswith("temperature: expect_column_values_to_be_between (")


class _Active(HTMLParser):
    """Collects what a browser would run or fetch."""

    TAGS = frozenset(
        {
            *("script", "img", "svg", "iframe", "object", "embed", "form", "input"),
            *("details", "meta", "base", "video", "source", "marquee", "body"),
        }
    )

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += tag in self.TAGS
        for name, value in attrs:
            target = (value or "").strip().lower()
            self.counts[name] += name.startswith("on") or target.startswith(("javascript:", "data:"))


@pytest.mark.parametrize("start", range(0, len(PAGE), 10))
def test_no_text_of_a_device_is_active_in_the_report(suite: Path, start: int) -> None:
    rows = good(200).to_pylist()
    plain = _Active(validation.validate(table([*rows, {**rows[0], "device": "strange"}]), suite)[1]).counts
    payloads = PAGE[start : start + 10]
    _, page = validation.validate(table([*rows, *({**rows[0], "device": each} for each in payloads)]), suite)
    assert [each for each in payloads if html.escape(each) not in page] == []
    counts = _Active(page).counts
    assert +counts == +plain
    assert [name for name, count in counts.items() if count and name.startswith("on")] == []


def test_labels_are_short_and_different() -> None:
    between = "expect_column_values_to_be_between"
    labels = validation.labels(
        [
            (between, {"column": "t"}),
            (between, {"column": "t"}),
            ("expect_table_row_count_to_be_between", {}),
            ("expect_column_values_to_not_be_null", {"column": "is admitted"}),
        ]
    )
    assert labels == ["t between", "t between 2", "row count between", "is admitted not null"]


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"none\.json: the expectations file cannot be read .*tidemark profile"):
        validation.validate(good(2), tmp_path / "none.json")


def test_check_says_what_will_be_checked_and_what_cannot(suite: Path, tmp_path: Path) -> None:
    def lines(path: Path | None) -> list[str]:
        parsed = minimal.settings(quality={"expectations": path and str(path)})
        return [str(line) for line in check._quality(parsed)]

    assert lines(None) == ["ok   quality: no expectations of the readings in the settings"]
    assert lines(suite) == [f"ok   quality: {suite}: 11 expectations of 5000 records, every 5 m"]
    broken = tmp_path / "broken.json"
    broken.write_text('{"expectations": [{"type": "expect_peace"}]}')
    with pytest.raises(
        SchemaError, match=r"broken\.json: these expectations cannot be used:\n  expectations\[0\] \(exp"
    ):
        lines(broken)


# Showing


def test_metrics_are_those_of_the_last_check() -> None:
    metrics = Metrics()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"tidemark_quality_{name}", labels)

    assert str(value("expectations_met_ratio")) == "nan"
    assert value("checked_timestamp_seconds") == 0
    metrics.quality.checks({"a": True, "b": False}, 30, 1_000.5)
    assert (value("expectations_met_ratio"), value("checked_timestamp_seconds"), value("sampled_readings")) == (
        0.5,
        1_000.5,
        30,
    )
    assert (value("expectation_met", expectation="a"), value("expectation_met", expectation="b")) == (1, 0)
    metrics.quality.checks({"b": True}, 40, 1_001.0)
    assert (value("expectation_met", expectation="a"), value("expectation_met", expectation="b")) == (None, 1)
    assert value("failures_total") == 0


def test_the_page_says_why_there_is_none() -> None:
    assert Quality(is_on=False).answer()[0] == HTTPStatus.NOT_FOUND
    assert b"tidemark profile" in Quality(is_on=False).answer()[1]
    page = Quality(is_on=True)
    assert (page.answer()[0], page.answer()[1][:36]) == (503, b"No sample has been checked yet: the ")
    page.failed("the file is gone")
    assert (page.answer()[0], page.answer()[1]) == (503, b"No sample could be checked yet: the file is gone\n")
    page.show(b"<html>")
    page.failed("again")
    assert page.answer() == (200, b"<html>", "text/html; charset=utf-8")


def test_many_topics_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Kafka] = []
    kafka = Kafka(bootstrap="127.0.0.1:1", topics=tuple(f"t{number}" for number in range(100)))

    def describe(_client: object, kafka: Kafka) -> list[str]:
        asked.append(kafka)
        return [*kafka.topics[1:]]

    monkeypatch.setattr(sample.topics, "describe", describe)
    with pytest.raises(SourceError, match="t0 does not exist"):
        sample.require_newest(kafka, 10, "look at")
    assert len(asked) == 1
