"""The Helm chart, made from the base of deploy/kubernetes: both have one source.

In the files of the base a comment `# chart: TEXT` says what the chart has in place of the line's value, or as a line of its own.
`values.yaml`, the helpers and the notes are written by hand.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from load.manifests import rules
from load.manifests.render import FOLDER
from service.spark.places import ROOT

CHART = ROOT / "deploy" / "helm"
VALUES = CHART / "values.yaml"
_MADE = "# Generated from deploy/kubernetes by `python -m load.manifests`.\n"
_IF = {"dashboard": "dashboard.enabled", "network": "network.enabled", "service-monitor": "monitoring.enabled"}
"""The value that says whether the chart has a file's documents."""
_CHART = re.compile(r"^(\s*(?:- )?)((?:[\w./-]+: )?)(?:[^#\n]*\S +)?# chart: (.*)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*#.*\n", re.MULTILINE)
_NAME = re.compile(r"(?<![\w/])((?:name|claimName|serviceAccountName): )tidemark((?:-dashboard)?)(?=[,}\n])")
_RELEASE = "{{ .Release.Name }}"
"""Always between quotes: a name such as 1234 or `on` would be no text."""
_REPLACED = {
    "app.kubernetes.io/name: tidemark": f'app.kubernetes.io/name: tidemark, app.kubernetes.io/instance: "{_RELEASE}"',
    "image: tidemark\n": 'image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"\n',
    "secretName: tidemark,": "secretName: {{ .Values.secret | default .Release.Name | quote }},",
    "secretName: tidemark-dashboard,": "secretName: "
    '{{ .Values.dashboard.secret | default (printf "%s-dashboard" .Release.Name) | quote }},',
}
_CONFIG = """apiVersion: v1
kind: ConfigMap
metadata:
  name: tidemark
  labels: {app.kubernetes.io/name: tidemark}
data:
  tidemark.toml: {{ include "tidemark.settings" . | toJson }}
"""
_RULE = """{{- if not (hasPrefix "tidemark" .Release.Name) }}
{{- fail "monitoring.enabled: the alerts are about jobs whose names begin with tidemark: name the release so" }}
{{- end }}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tidemark
  labels: {{ mergeOverwrite (include "tidemark.labels" . | fromJson) .Values.monitoring.labels | toJson }}
spec: {{ .Files.Get "rules.yaml" | nindent 2 }}
"""


def texts() -> dict[Path, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = {
        "apiVersion": "v2",
        "name": "tidemark",
        "description": project["description"],
        "version": project["version"],
        "appVersion": project["version"],
    }
    base, monitoring = FOLDER / "base", FOLDER / "components" / "monitoring"
    sources = [file for file in sorted(base.glob("*.yaml")) if file.name != "kustomization.yaml"]
    templates = {file.stem: file.read_text() for file in (*sources, monitoring / "service-monitor.yaml")}
    return {
        CHART / "Chart.yaml": _MADE + yaml.safe_dump(about, sort_keys=False),
        CHART / "values.schema.json": json.dumps(_schema(yaml.safe_load(VALUES.read_text())), indent=2) + "\n",
        CHART / "tidemark.toml": (base / "tidemark.toml").read_text(),
        CHART / "rules.yaml": yaml.safe_dump(rules.document(), sort_keys=False, width=4096, allow_unicode=True),
        CHART / "templates" / "settings.yaml": _MADE + _released(_CONFIG),
        CHART / "templates" / "prometheus-rule.yaml": _MADE + _wrapped("monitoring.enabled", _released(_RULE)),
        **{CHART / "templates" / f"{name}.yaml": _template(name, text) for name, text in templates.items()},
    }


def _template(name: str, text: str) -> str:
    text = _released(_COMMENT.sub("", _CHART.sub(r"\1\2\3", text)))
    return _MADE + (_wrapped(_IF[name], text) if name in _IF else text)


def _wrapped(value: str, text: str) -> str:
    return f"{{{{- if .Values.{value} }}}}\n{text}{{{{- end }}}}\n"


def _released(text: str) -> str:
    """Return it with the release's name for that of the base, and with a release's labels."""
    text = _NAME.sub(rf'\1"{_RELEASE}\2"', text)
    for old, new in _REPLACED.items():
        text = text.replace(old, new)
    return text


def _schema(value: Any) -> dict[str, Any]:
    """Return the JSON schema of values with the types of the default ones: another name is an error. An empty object is open."""
    if not isinstance(value, dict):
        kinds = {bool: "boolean", str: "string", list: "array"}
        return {"type": kinds[type(value)]}
    members = {"properties": {key: _schema(each) for key, each in value.items()}, "additionalProperties": False}
    return {"type": "object", **(members if value else {})}
