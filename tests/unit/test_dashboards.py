"""The files for Grafana, Prometheus and Alertmanager: their structure, and that queries ask for metrics and labels that exist.

`make observe` runs every query against a Prometheus that scrapes the service. Here promtool parses them, where it is installed.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from load.observe.dashboards import queries
from service.pipeline.outcome import LATENCY_BOUNDS_MS
from service.settings.settings import Metrics
from tests.unit.test_metrics_page import listed
from tests.unit.test_runbook import RULES, RUNBOOK, exposed

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
SCREEN_ROWS = 24
"""Rows of Grafana's grid (38 pixels each) on a screen of 1080 pixels."""


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def cells(panel: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """The cells of the grid that a panel covers."""
    place = panel["gridPos"]
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_has_panels_that_do_not_overlap_and_each_says_what_it_shows(path: Path) -> None:
    document = load(path)
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 0
    covered = [cell for panel in panels for cell in cells(panel)]
    assert len(set(covered)) == len(covered)
    assert max(x for x, _ in covered) < 24
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    assert [each["name"] for each in document["templating"]["list"]] == ["datasource", "job", "instance"]


def test_dashboards_have_ids_of_their_own_and_the_overview_fits_one_screen() -> None:
    documents = {path.stem: load(path) for path in DASHBOARDS}
    assert len({each["uid"] for each in documents.values()}) == len(DASHBOARDS) == 3
    assert max(y for panel in documents["overview"]["panels"] for _, y in cells(panel)) < SCREEN_ROWS


def test_queries_ask_for_metrics_and_labels_that_exist() -> None:
    labels = {name: set(labels) | {"job", "instance", "le"} for name, labels, *_ in listed()}
    labels["tidemark_build_info"] |= {"version", "spark"}
    for query in queries():
        asked = set(re.findall(r"tidemark_\w+", query.expr))
        assert asked <= exposed(), query
        for name, matchers in re.findall(r"(tidemark_\w+)\{([^}]*)\}", query.expr):
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert set(re.findall(r"(\w+)=", matchers)) <= labels[family], query


def test_every_metric_but_limits_and_totals_of_the_page_is_on_a_dashboard_or_in_an_alert() -> None:
    shown = " ".join([*(query.expr for query in queries()), *(rule["expr"] for rule in RULES)])
    missing = {name for name, *_ in listed() if name not in shown}
    assert missing <= {
        "tidemark_disk_size_bytes",
        "tidemark_jvm_gc_collections_total",
        "tidemark_lag_timestamp_seconds",
        "tidemark_python_workers",
        "tidemark_quality_checked_timestamp_seconds",
        "tidemark_quality_sampled_readings",
        "tidemark_reference_info",
        "tidemark_reference_rows",
        "tidemark_reject_marks",
        "tidemark_topics_unread",
    }


def test_promtool_parses_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    rules = [{"record": f"q{number}", "expr": query.concrete("15s")} for number, query in enumerate(queries())]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    checked = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    configured = subprocess.run(
        [promtool, "check", "config", str(DEPLOY / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert configured.returncode == 0, configured.stdout + configured.stderr


def test_prometheus_scrapes_the_default_port_and_loads_the_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    [job] = config["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"127.0.0.1:{Metrics().port}"]
    assert config["alerting"]["alertmanagers"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_the_link_of_its_part_of_the_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "deploy/runbook.md"
    headings = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", RUNBOOK, re.MULTILINE)}
    assert anchor in headings
    assert anchor == (rule["alert"].lower() if rule["alert"].lower() in headings else "alerts")


@pytest.mark.parametrize("median_s", [0.08, 0.3, 1.0, 4.0, 20.0])
def test_the_latency_panels_are_within_ten_per_cent_of_the_readings_quantiles(median_s: float, tmp_path: Path) -> None:
    """Latencies of a log-normal distribution, in the buckets of the metric; promtool evaluates the panels' own queries."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    latencies = np.random.default_rng(7).lognormal(np.log(median_s), 0.4, 20_000)
    bounds = [each / 1000 for each in LATENCY_BOUNDS_MS]
    series = [
        {
            "series": f'tidemark_event_to_redis_seconds_bucket{{job="a", instance="1", le="{bound}"}}',
            "values": f"0+{int((latencies <= (np.inf if bound == '+Inf' else bound)).sum())}x4",
        }
        for bound in (*bounds, "+Inf")
    ]
    panels = [query.concrete("2m") for query in queries() if "event_to_redis" in query.expr]
    assert [re.findall(r"quantile\(([\d.]+)", panel) for panel in panels] == [["0.5"], ["0.99"]]
    tests = [
        {
            "expr": f"abs({panel} / {np.quantile(latencies, share)} - 1) < bool 0.1",
            "eval_time": "4m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for panel, share in zip(panels, (0.5, 0.99), strict=True)
    ]
    file = tmp_path / "latency.yml"
    file.write_text(yaml.safe_dump({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]}))
    checked = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
