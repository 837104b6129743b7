"""The PrometheusRule of the Prometheus operator, made from deploy/alerts.yml."""

import yaml

from load.manifests.render import FOLDER
from service.spark.places import ROOT

SOURCE = ROOT / "deploy" / "alerts.yml"
TARGET = FOLDER / "components" / "monitoring" / "prometheus-rule.yaml"
_HEAD = "# Generated from alerts.yml by `python -m load.manifests`. Change alerts.yml, not this file.\n"


def text() -> str:
    """Return the content of the manifest."""
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tidemark", "labels": {"app.kubernetes.io/name": "tidemark"}},
        "spec": yaml.safe_load(SOURCE.read_text(encoding="utf-8")),
    }
    return _HEAD + yaml.safe_dump(document, sort_keys=False, width=4096, allow_unicode=True)
