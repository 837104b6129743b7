"""Apply the chart and the overlays to a Kubernetes API server: `make kubernetes`.

    python -m load.manifests.applied

It builds the server from its Go module, which takes an hour of a core the first time. Exit status: 0 if the server takes every
document without a warning, a second time without a change, and the pods under the strictest standard; 1 otherwise.

No node is there: pods are not scheduled, volumes not bound, network policies not enforced. The Spark operator
is not on the Go module proxy, so a SparkApplication is only checked by load/manifests/schemas.py.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from load.manifests import helm
from load.manifests.render import FOLDER, OVERLAYS, Document, kubectl, render
from load.report import judged
from load.servers.api_server import ApiServer, Etcd, definitions

_DEFINED = ("monitoring.coreos.com_prometheusrules.yaml", "monitoring.coreos.com_servicemonitors.yaml")
_SPARK = "sparkoperator.k8s.io/v1beta2"
_STRICTEST = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}


def deployments() -> dict[str, list[Document]]:
    """Return the documents of each overlay, and of the chart with each set of values, by a name for a namespace."""
    found = {name: render(FOLDER / "overlays" / name) for name in OVERLAYS}
    for name, options in helm.SAME.items():
        found[f"chart-{name}"] = helm.template("tidemark", *helm.IMAGE, *options)
    return {name: [each for each in documents if each["apiVersion"] != _SPARK] for name, documents in found.items()}


def problems(server: ApiServer, name: str, documents: Sequence[Document]) -> Iterator[str]:
    """Yield what the server refuses or warns of when these documents are applied to a new namespace."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _STRICTEST}}
    moved = [{**each, "metadata": {**each["metadata"], "namespace": name}} for each in documents]
    yield from _apply(server, [namespace])
    yield from _apply(server, moved)
    before = _kept(server, moved)
    yield from _apply(server, moved)
    after = _kept(server, moved)
    yield from (f"{each} changes when it is applied again" for each in before if before[each] != after[each])
    for each in moved:
        if each["kind"] == "Deployment":
            template = each["spec"]["template"]
            metadata = {**template["metadata"], "name": each["metadata"]["name"], "namespace": name}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            yield from _apply(server, [pod], "--dry-run=server")


def _apply(server: ApiServer, documents: Sequence[Document], *options: str) -> Iterator[str]:
    arguments = ("apply", "--server-side", "--validate=strict", "--filename=-", *options)
    done = _run(server, arguments, yaml.safe_dump_all(documents))
    yield from (line for line in done.stderr.splitlines() if line.strip())


def _kept(server: ApiServer, documents: Sequence[Document]) -> dict[str, Document]:
    """Return the documents as the server keeps them, without its notes on who has written what and when."""
    done = _run(server, ("get", "--filename=-", "--output=json"), yaml.safe_dump_all(documents))
    found = {}
    for each in json.loads(done.stdout)["items"]:
        each["metadata"].pop("resourceVersion")
        found[f"{each['kind']} {each['metadata']['name']}"] = each
    return found


def _run(server: ApiServer, arguments: Sequence[str], text: str) -> "subprocess.CompletedProcess[str]":
    command = [kubectl(), *server.options, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def found() -> Iterator[str]:
    """Yield the problems of all deployments on a new server. Raises SetupError without Go, Helm or kubectl."""
    documents = deployments()
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-") as folder,
        Etcd(Path(folder)) as etcd,
        ApiServer(Path(folder), etcd) as server,
    ):
        made = definitions(Path(folder) / "definitions")
        for name in _DEFINED:
            yield from _apply(server, [yaml.safe_load((made / name).read_text())])
        for name, each in documents.items():
            yield from (f"{name}: {problem}" for problem in problems(server, name, each))


if __name__ == "__main__":
    sys.exit(judged(found, "the server takes every overlay and the chart with each set of values"))
