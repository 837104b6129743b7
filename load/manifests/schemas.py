"""Check documents against the published schemas of their kinds, unknown fields included.

- Kubernetes' own kinds: JSON schemas of KUBERNETES (kubernetes-validate).
- Prometheus operator and Spark operator: models that are generated from their custom resource definitions. Pod templates
  are checked as pods.
- The compose file: the compose specification (compose-spec).

No cluster is asked, so rules that only an API server has, such as immutable fields and quotas, are not checked.
"""

import importlib
import json
from collections.abc import Iterator
from typing import Any

import yaml

from load.manifests.render import Document

KUBERNETES = "1.37"
_MODELS = {
    "monitoring.coreos.com/v1": ("cloudcoil.models.prometheus_operator.v1", ""),
    "sparkoperator.k8s.io/v1beta2": ("kubeflow_spark_api.models", "SparkV1beta2"),
}
"""apiVersion -> the module of its models, and the beginning of their names."""

_POD = {"apiVersion": "v1", "kind": "Pod"}


def problems(document: Document) -> list[str]:
    """Return what the schema of the document's kind refuses, each with the path of the field; [] for a valid document."""
    name = f"{document.get('kind')} {document.get('metadata', {}).get('name')}"
    version = document.get("apiVersion", "")
    if version not in _MODELS:
        found = _of_kubernetes(document)
    else:
        # The Spark operator's models have no text for a port, which Kubernetes' schemas of a pod do.
        templates: list[Document] = []
        found = _of_model(_without_templates(document, templates))
        found += [each for template in templates for each in _of_kubernetes({**_POD, **template})]
    return [f"{name}: {each}" for each in found]


def _without_templates(node: Any, templates: list[Document]) -> Any:
    """Return a copy without pod templates; append those to `templates`."""
    if isinstance(node, list):
        return [_without_templates(each, templates) for each in node]
    if not isinstance(node, dict):
        return node
    templates += [value for key, value in node.items() if key == "template"]
    return {key: _without_templates(value, templates) for key, value in node.items() if key != "template"}


def compose_problems(text: str) -> list[str]:
    """Return what the compose specification refuses in a compose file; [] for a valid one."""
    specification = importlib.import_module("compose_spec").PyCompose
    try:
        specification.from_json(json.dumps(yaml.safe_load(text)))  # its YAML has no merge keys
    except ValueError as error:
        return [str(error)]
    return []


def _of_kubernetes(document: Document) -> list[str]:
    package = importlib.import_module("kubernetes_validate")
    try:
        package.validate(document, KUBERNETES, strict=True)
    except package.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    except (package.SchemaNotFoundError, KeyError) as error:
        return [f"no schema for it: {error}"]
    return []


def _of_model(document: Document) -> list[str]:
    module, prefix = _MODELS[document["apiVersion"]]
    model: Any = getattr(importlib.import_module(module), prefix + document["kind"], None)
    if model is None:
        return [f"{module} has no such kind"]
    try:
        instance = model.model_validate(document)
    except ValueError as error:
        return str(error).splitlines()[1:3]
    # The models accept and drop unknown fields.
    return list(_dropped(document, instance.model_dump(mode="json", by_alias=True, exclude_unset=True), ""))


def _dropped(given: Any, kept: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}{key}: the schema has no such field"
            else:
                yield from _dropped(value, kept[key], f"{path}{key}.")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from _dropped(value, kept[number] if isinstance(kept, list) else None, f"{path}{number}.")
