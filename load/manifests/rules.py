"""The rules for Prometheus, made from service/monitoring/alert_rules.py: deploy/alerts.yml, and the operator's PrometheusRule."""

import json
from pathlib import Path
from typing import Any

import yaml

from load.manifests.render import FOLDER
from service.monitoring.alert_rules import RULES, Rule
from service.spark.places import ROOT

ALERTS = ROOT / "deploy" / "alerts.yml"
MANIFEST = FOLDER / "components" / "monitoring" / "prometheus-rule.yaml"
_MADE = "Generated from service/monitoring/alert_rules.py by `python -m load.manifests`"


def texts() -> dict[Path, str]:
    return {ALERTS: alerts(), MANIFEST: manifest()}


def document() -> dict[str, Any]:
    return {"groups": [{"name": "tidemark", "rules": [rule.document() for rule in RULES]}]}


def alerts() -> str:
    head = [
        "# Prometheus rules for any number of deployments of Tidemark: one scrape job each, whose name begins with `tidemark`,",
        "# with one or more instances, of which one is the leader. What to do about each: runbook.md. Limits that follow from",
        "# settings are metrics (tidemark_*_seconds). The service evaluates the same rules for /conditions.",
        f"# {_MADE}.",
        "groups:",
        "  - name: tidemark",
        "    rules:",
    ]
    return "\n".join([*head, *(line for rule in RULES for line in _lines(rule)), ""])


def manifest() -> str:
    whole = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tidemark", "labels": {"app.kubernetes.io/name": "tidemark"}},
        "spec": document(),
    }
    return f"# {_MADE}.\n" + yaml.safe_dump(whole, sort_keys=False, width=4096, allow_unicode=True)


def _lines(rule: Rule) -> list[str]:
    return [
        f"      - alert: {rule.alert}",
        f"        expr: {_text(rule.expr) if ': ' in rule.expr or ' #' in rule.expr else rule.expr}",
        *([f"        for: {rule.for_}"] if rule.for_ else []),
        f"        labels: {{severity: {rule.severity}}}",
        "        annotations:",
        f"          summary: {_text(rule.summary)}",
        f"          runbook_url: {_text(rule.runbook)}",
    ]


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
