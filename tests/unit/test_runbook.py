"""The runbook has an answer to everything that the service can end with and that the alert rules can raise."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service import errors
from service.errors import TidemarkError
from service.monitoring.metrics import Metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RUNBOOK = (DEPLOY / "runbook.md").read_text()
RULES = [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


FAMILIES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TidemarkError)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_way_to_end_has_its_row(family: type[TidemarkError]) -> None:
    assert re.search(rf"^\| {family.status} \| `{family.code}` \|", RUNBOOK, re.MULTILINE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_its_row_and_asks_for_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert f"\n| `{rule['alert']}` |" in RUNBOOK
    asked = set(re.findall(r"tidemark_\w+", rule["expr"]))
    assert asked
    assert asked <= exposed()


def test_every_row_has_its_alert() -> None:
    assert set(re.findall(r"^\| `(Tidemark\w+)` \|", RUNBOOK, re.MULTILINE)) == {rule["alert"] for rule in RULES}


def exposed() -> set[str]:
    """Names of samples, also those that have none yet."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
    kinds = [(family.name, family.type) for family in Metrics().registry.collect()]
    return {name + ending for name, kind in kinds for ending in endings.get(kind, ("",))}
