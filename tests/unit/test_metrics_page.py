"""docs/metrics.md is the list of what /metrics exports: names, labels, kinds and units."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.monitoring.metrics import Metrics
from tests.served import served

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
ROWS = re.findall(r"^\| (`tidemark_[^|]+`) \| (\w+) \| ([^|]+) \| ([^|]+) \|", PAGE, re.MULTILINE)
ENDINGS = {"counter": "_total", "info": "_info"}
UNITS = {"_bytes": "bytes", "_timestamp_seconds": "s since 1970", "_seconds": "s", "_ratio": "0 to 1"}


def listed() -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Name, labels, kind and unit of each metric on the page."""
    for names, kind, unit, _ in ROWS:
        for name, labels in re.findall(r"`(tidemark_\w+)(?:\{([\w,]+)\})?`", names):
            yield name, tuple(labels.split(",")) if labels else (), kind, unit


def exported() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The same of a registry, without the unit. Only the object that makes a series has the labels of one without a sample."""
    registry: Any = Metrics().registry
    for collector in registry._collector_to_names:
        for family in collector.collect():
            labels = tuple(getattr(collector, "_labelnames", ()))
            if family.type != "info":
                yield family.name + ENDINGS.get(family.type, ""), labels, family.type
            else:
                yield family.name + ENDINGS[family.type], (), family.type


def test_the_page_lists_every_metric_with_its_labels_and_kind_once() -> None:
    assert sorted(row[:3] for row in listed()) == sorted(exported())


def test_a_name_ends_with_its_unit() -> None:
    for name, _, _, unit in listed():
        base = name.removesuffix("_total")
        expected = next((unit for ending, unit in UNITS.items() if base.endswith(ending)), unit)
        assert unit == expected, name


def test_the_endpoint_serves_no_metric_that_the_page_lacks() -> None:
    with served() as service:
        text = service.get("/metrics")[1]
    names = {family.name for family in text_string_to_metric_families(text)}
    assert names == {name.removesuffix("_total") for name, *_ in listed()}


@pytest.mark.parametrize("heading", re.findall(r"^## (.+)$", PAGE, re.MULTILINE))
def test_every_metric_that_the_text_names_is_in_a_table(heading: str) -> None:
    text = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"tidemark_[a-z_]+", text)) <= {name for name, *_ in listed()}
