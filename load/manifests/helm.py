"""Render the Helm chart by Helm, and compare it with the overlays of Kustomize: `make chart`.

    python -m load.manifests.helm

It builds Helm from its Go module. Exit status: 0 if both are the same, and the chart refuses what it
should refuse; 1 otherwise.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from load.manifests.chart import CHART
from load.manifests.render import FOLDER, Document, render
from load.manifests.schemas import problems
from load.report import judged
from load.servers import go_program
from service.errors import SetupError

MODULE = "helm.sh/helm/v3/cmd/helm@v3.16.4"
IMAGE = ("--set", "image.repository=registry.example.com/tidemark")
SAME = {"single": (), "standby": ("--set", "standby=true,monitoring.enabled=true,checkpoint.storageClass=shared")}
"""The values with which the chart is an overlay."""
REFUSED = {
    "Additional property standbye": ("tidemark", "--set", "standbye=true"),
    "standby: Invalid type": ("tidemark", "--set", "standby=2"),
    "names begin with tidemark": ("telemetry", "--set", "monitoring.enabled=true"),
}
"""What Helm says, and the release and values at which it says it."""


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([go_program.built(MODULE), *arguments], check=False, capture_output=True, text=True)


def template(release: str, *options: str) -> list[Document]:
    """Return the chart's documents. Raises SetupError with Helm's message."""
    done = helm("template", release, str(CHART), "--namespace", "telemetry", *options)
    if done.returncode:
        raise SetupError(done.stderr.strip())
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def refusal(release: str, *options: str) -> str:
    """Return Helm's message, "" if it accepts the values."""
    try:
        template(release, *options)
    except SetupError as error:
        return str(error)
    return ""


def differences(name: str, options: Sequence[str]) -> list[str]:
    """Return the documents that the chart and an overlay do not share, without what only one of both can have."""
    chart, overlay = template("tidemark", *IMAGE, *options), render(FOLDER / "overlays" / name)
    found = [problem for document in chart for problem in problems(document)]
    ours, theirs = ({_name(each): _plain(each) for each in part} for part in (chart, overlay))
    found += [f"{each}: only in one of both" for each in sorted(ours.keys() ^ theirs.keys())]
    return found + [f"{each}: {ours[each]} and {theirs[each]}" for each in ours if ours[each] != theirs.get(each)]


def _name(document: Document) -> str:
    name = document["metadata"]["name"]
    return f"{document['kind']} {'tidemark' if document['kind'] == 'ConfigMap' else name}"


def _plain(node: Any) -> Any:
    """Return it without a release's labels, the namespace, and what shows that settings have changed."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    left_out = {"app.kubernetes.io/instance", "namespace", "checksum/settings", "helm.sh/resource-policy"}
    plain = {key: _plain(value) for key, value in node.items() if key not in left_out}
    if isinstance(plain.get("configMap"), dict):
        plain["configMap"] = {"name": "tidemark"}
    if plain.get("kind") == "ConfigMap":
        plain["metadata"] = {"name": "tidemark"}
    if plain.get("kind") == "ServiceMonitor":
        plain["spec"]["jobLabel"] = "app.kubernetes.io/name"
    return {key: value for key, value in plain.items() if not (key == "annotations" and not value)}


def found() -> Iterator[str]:
    """Yield what is wrong with the chart. Raises SetupError without Helm, or with its message."""
    linted = helm("lint", "--strict", str(CHART))
    if linted.returncode:
        yield linted.stdout
    for name, options in SAME.items():
        yield from (f"{name}: {each}" for each in differences(name, options))
    for text, (release, *given) in REFUSED.items():
        if text not in refusal(release, *given):
            yield f"{given} is not refused as it should be: {text}"


if __name__ == "__main__":
    sys.exit(judged(found, f"the chart is {' and '.join(SAME)}"))
