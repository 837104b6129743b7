"""The manifests of deploy/kubernetes: rendered by Kustomize for three sets of values, checked by the schemas of their kinds.

No cluster runs here. Schemas find fields and types that Kubernetes would refuse; the other tests find names, paths and ports that
do not fit each other.
"""

import copy
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from load.manifests import chart, rules
from load.manifests.render import FOLDER, OVERLAYS, Document, render
from load.manifests.schemas import problems
from service import settings
from service.monitoring import server

SECRETS = "/etc/tidemark-secrets"
USER = 10001


@cache
def rendered(overlay: str) -> tuple[Document, ...]:
    return tuple(render(FOLDER / "overlays" / overlay))


def only(overlay: str, kind: str, name: str = "tidemark") -> Document:
    """A copy of the overlay's one document of that kind and name."""
    [document] = [each for each in rendered(overlay) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return copy.deepcopy(document)


def pods(overlay: str) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Labels and specification of every pod that the documents of an overlay lead to."""
    for document in rendered(overlay):
        if document["kind"] == "Deployment":
            template = document["spec"]["template"]
            yield template["metadata"]["labels"], template["spec"]
        if document["kind"] == "SparkApplication":
            for role in ("driver", "executor"):
                part = document["spec"][role]
                yield part["labels"], part["template"]["spec"]


def spark_pods(overlay: str) -> Iterator[dict[str, Any]]:
    """Specifications of the pods with driver or executors."""
    for labels, spec in pods(overlay):
        if labels["app.kubernetes.io/component"] in {"service", "executor"}:
            yield spec


def containers(overlay: str) -> Iterator[dict[str, Any]]:
    for _, spec in pods(overlay):
        yield from spec["containers"]


def test_there_are_three_sets_of_values() -> None:
    assert OVERLAYS == ("executors", "single", "standby")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_document_of_an_overlay_satisfies_the_schema_of_its_kind(overlay: str) -> None:
    assert [problem for document in rendered(overlay) for problem in problems(document)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_kubectl_of_this_machine_renders_the_same(overlay: str) -> None:
    """Users have older versions of Kustomize than the locked one: that of kubectl 1.32 crashed."""
    folders = {str(Path(folder).resolve()) for folder in os.get_exec_path()}
    programs = [found for folder in folders if (found := shutil.which("kubectl", path=folder))]
    if not programs:
        pytest.skip("no kubectl on the PATH")
    for kubectl in programs:
        assert render(FOLDER / "overlays" / overlay, kubectl) == list(rendered(overlay)), kubectl


def test_a_file_has_one_patch() -> None:
    """The Kustomize of kubectl 1.32 (5.5.0) crashes at a file with two `$patch: delete`."""
    for file in FOLDER.rglob("kustomization.yaml"):
        for patch in yaml.safe_load(file.read_text()).get("patches", []):
            if "path" in patch:
                assert len(list(yaml.safe_load_all((file.parent / patch["path"]).read_text()))) == 1, patch["path"]


def edited(overlay: str, kind: str, path: str, value: object) -> Document:
    """A document with one field set; numbers in the path are places in lists."""
    document = node = only(overlay, kind)
    *parents, last = path.split(".")
    for name in parents:
        node = node[int(name)] if isinstance(node, list) else node[name]
    node[last] = value
    return document


@pytest.mark.parametrize(
    ("overlay", "kind", "path", "value"),
    [
        ("single", "Deployment", "spec.strategie", {}),
        ("single", "Deployment", "spec.replicas", "one"),
        ("single", "Deployment", "spec.template.spec.containers.0.livenessProbe.httpGet.url", "/healthz"),
        ("single", "NetworkPolicy", "spec.egres", []),
        ("standby", "ServiceMonitor", "spec.endpoints.0.every", "10s"),
        ("standby", "ServiceMonitor", "spec.endpoints.0.port", 9400),
        ("standby", "PrometheusRule", "spec.groups.0.rules.0.severity", "page"),
        ("executors", "SparkApplication", "spec.restartPolicy.kind", "Always"),
        ("executors", "SparkApplication", "spec.driver.cores", "two"),
        ("executors", "SparkApplication", "spec.driver.template.spec.readOnly", True),
        ("executors", "SparkApplication", "spec.executor.template.spec.containers.0.ports", "9400"),
    ],
)
def test_a_wrong_field_is_a_problem_that_names_the_document(overlay: str, kind: str, path: str, value: object) -> None:
    found = problems(edited(overlay, kind, path, value))
    assert found
    assert [each for each in found if not each.startswith(f"{kind} tidemark: ")] == []


def test_an_unknown_kind_is_a_problem() -> None:
    assert problems({"apiVersion": "apps/v1", "kind": "Deploiment"}) != []
    assert problems({"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitors"}) != []


def test_the_chart_is_generated_from_the_base_and_uses_the_values_that_there_are() -> None:
    texts = chart.texts()
    for file, text in texts.items():
        assert file.read_text() == text, "run `python -m load.manifests`"
    values = yaml.safe_load(chart.VALUES.read_text())
    used = set(re.findall(r"\.Values\.([\w.]+)", "".join(each.read_text() for each in chart.CHART.glob("templates/*"))))
    for name in used:
        node = values
        for part in name.split("."):
            node = node[part]
    assert {name.partition(".")[0] for name in used} == set(values)


def test_a_name_that_the_chart_is_given_is_a_text_whatever_it_is() -> None:
    """Without quotes YAML makes a truth value of the release `on`, a number of the namespace 9991103: clusters refuse them."""
    safe = re.compile(r"quote|toJson|ternary|sha256sum|nindent|tidemark\.apart|^\.Values\.checkpoint\.size$")
    values = [
        each
        for file in chart.CHART.glob("templates/*.yaml")
        for each in re.findall(r"(?:: |- )\{\{ (.+?) \}\}", file.read_text())
    ]
    assert len(values) > 10
    assert [each for each in values if not safe.search(each)] == []


def test_both_files_of_rules_are_generated_from_the_table() -> None:
    for file, text in rules.texts().items():
        assert file.read_text() == text, "run `python -m load.manifests`"
    assert yaml.safe_load(rules.ALERTS.read_text()) == rules.document()
    assert only("standby", "PrometheusRule")["spec"] == rules.document()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_settings_of_an_overlay_are_accepted_and_serve_outside_the_pod(overlay: str) -> None:
    [config] = [each for each in rendered(overlay) if each["kind"] == "ConfigMap"]
    parsed = settings.parse(tomllib.loads(config["data"]["tidemark.toml"]))
    assert (parsed.metrics.address, parsed.metrics.port) == ("0.0.0.0", 9400)  # noqa: S104
    mounts = {mount["mountPath"] for each in containers(overlay) for mount in each["volumeMounts"]}
    assert any(parsed.service.checkpoint.startswith(f"{mount}/") for mount in mounts)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_is_root_writes_to_its_image_or_has_capabilities(overlay: str) -> None:
    for _, spec in pods(overlay):
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, USER)
    assert [each["securityContext"] for each in containers(overlay)] == len(list(containers(overlay))) * [
        {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    ]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_files_and_none_is_in_a_manifest(overlay: str) -> None:
    assert [each for each in rendered(overlay) if each["kind"] == "Secret"] == []
    variables = [variable for each in containers(overlay) for variable in each.get("env", [])]
    assert [each for each in variables if "valueFrom" in each or "PASSWORD" in each["name"]] == []
    [config] = [each for each in rendered(overlay) if each["kind"] == "ConfigMap"]
    named = re.findall(r'^(?:password_file|ca_file|key) = "([^"]+)"', config["data"]["tidemark.toml"], re.MULTILINE)
    assert named
    assert [path for path in named if not path.startswith(f"{SECRETS}/")] == []
    for each in containers(overlay):
        assert {"name": "secrets", "mountPath": SECRETS, "readOnly": True} in each["volumeMounts"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_of_the_service_leaves_a_lost_node_after_half_a_minute(overlay: str) -> None:
    tolerations = [spec.get("tolerations", []) for spec in spark_pods(overlay)]
    found = [{each["key"]: each["tolerationSeconds"] for each in part} for part in tolerations]
    wanted = {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}
    assert found
    assert [each for each in found if each != wanted] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_of_the_service_logs_json_from_the_start_of_its_jvm(overlay: str) -> None:
    """The JVM of a driver starts before the settings are read, and an executor's JVM never reads them."""
    found = [each.get("env", []) for spec in spark_pods(overlay) for each in spec["containers"]]
    assert found
    assert [each for each in found if {"name": "TIDEMARK_LOG", "value": "json"} not in each] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_volume_and_account_that_a_pod_names_exists(overlay: str) -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in rendered(overlay)}
    for _, spec in pods(overlay):
        volumes = {each["name"]: each for each in spec["volumes"]}
        mounted = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
        assert mounted == set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
        if "serviceAccountName" in spec:
            assert ("ServiceAccount", spec["serviceAccountName"]) in names


def test_the_spark_application_names_the_image_the_accounts_and_restarts_always() -> None:
    spec = only("executors", "SparkApplication")["spec"]
    accounts = {each["metadata"]["name"] for each in rendered("executors") if each["kind"] == "ServiceAccount"}
    assert {spec["driver"]["serviceAccount"], spec["executor"]["serviceAccount"]} == accounts
    assert spec["restartPolicy"]["type"] == "Always"
    assert spec["image"] == "registry.example.com/tidemark:0.5.0"
    assert [each for each in rendered("executors") if each["kind"] in {"PodDisruptionBudget"}] == []
    names = [each["metadata"]["name"] for each in rendered("executors") if each["kind"] == "Deployment"]
    assert names == ["tidemark-dashboard"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_selector_selects_a_pod(overlay: str) -> None:
    labels = [each for each, _ in pods(overlay)]

    def selects(selector: dict[str, Any]) -> bool:
        wanted = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
        wanted |= {each["key"]: each["values"] for each in selector.get("matchExpressions", [])}
        return any(all(pod.get(key) in values for key, values in wanted.items()) for pod in labels)

    for document in rendered(overlay):
        spec = document.get("spec", {})
        if document["kind"] == "Service":
            assert selects({"matchLabels": spec["selector"]})
        if document["kind"] in {"PodDisruptionBudget", "Deployment"}:
            assert selects(spec["selector"])
        if document["kind"] == "NetworkPolicy":
            peers = [peer for rule in spec["ingress"] + spec["egress"] for peer in rule.get("from", rule.get("to", []))]
            inside = [peer["podSelector"] for peer in peers if "podSelector" in peer]
            assert [each for each in [spec["podSelector"], *inside] if not selects(each)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_dashboard_reaches_redis_the_service_and_prometheus(overlay: str) -> None:
    rules = only(overlay, "NetworkPolicy", "tidemark-dashboard")["spec"]["egress"]
    peers = {port["port"]: rule.get("to") for rule in rules for port in rule["ports"]}
    assert peers.keys() == {53, 6379, 9400, 9090}
    assert peers[9090] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_the_service_monitor_selects_the_service_and_its_port() -> None:
    monitor, service = only("standby", "ServiceMonitor")["spec"], only("standby", "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in [each["name"] for each in service["spec"]["ports"]]
    assert monitor["jobLabel"] in service["metadata"]["labels"]


def relabelled(labels: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, str]:
    """Labels after rules of the action `replace`, as Prometheus applies them."""
    for rule in rules:
        value = rule.get("separator", ";").join(labels.get(name, "") for name in rule["sourceLabels"])
        match = re.fullmatch(rule.get("regex", "(.*)"), value)
        if match is not None:
            replacement = rule.get("replacement", "$1").replace("$", "\\")
            labels = {**labels, rule["targetLabel"]: match.expand(replacement)}
    return labels


def scraped(namespace: str, pipeline: str | None) -> dict[str, str]:
    """The labels of a metric of a pod that the ServiceMonitor selects; None for a process with one pipeline."""
    monitor, service = only("standby", "ServiceMonitor")["spec"], only("standby", "Service")
    [endpoint] = monitor["endpoints"]
    # The Prometheus operator sets these two before the relabelings of an endpoint.
    target = {"namespace": namespace, "job": service["metadata"]["labels"][monitor["jobLabel"]], "instance": "pod"}
    labels = relabelled(target, endpoint.get("relabelings", []))
    own = {"pipeline": pipeline} if pipeline is not None else {}
    return relabelled({**labels, **own}, endpoint.get("metricRelabelings", []))


def test_each_pipeline_of_each_namespace_has_a_job_of_its_own() -> None:
    assert [scraped(*each)["job"] for each in (("a", None), ("b", None), ("b", "hours"), ("b", "minutes"))] == [
        "a/tidemark",
        "b/tidemark",
        "b/tidemark/hours",
        "b/tidemark/minutes",
    ]


def test_the_service_monitor_joins_the_pipeline_to_the_job_as_prometheus_yml_does() -> None:
    [job] = yaml.safe_load((FOLDER.parent / "prometheus.yml").read_text())["scrape_configs"]
    [endpoint] = only("standby", "ServiceMonitor")["spec"]["endpoints"]
    camel = [
        {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in rule.items()}
        for rule in job["metric_relabel_configs"]
    ]
    assert endpoint["metricRelabelings"] == camel


def test_an_alert_names_the_namespace_and_the_pipeline_that_it_is_about(tmp_path: Path) -> None:
    """One of two pipelines does not run, and the only one of another namespace: the others hide neither."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    values = {("a", None): 1, ("b", None): 0, ("c", "hours"): 0, ("c", "minutes"): 1}
    # Prometheus notes `up` by target: it has no pipeline.
    series = [{"series": f'up{{job="{space}/tidemark", instance="i"}}', "values": "1x60"} for space in "abc"]
    for where, value in values.items():
        labels = ", ".join(f'{name}="{text}"' for name, text in (scraped(*where) | {"instance": "i"}).items())
        partition = f'{labels}, topic="r", partition="0"'
        series += [
            {"series": f"tidemark_query_running{{{labels}}}", "values": f"{value}x60"},
            {"series": f"tidemark_build_info{{{labels}}}", "values": "1x60"},
            # Both pipelines of `c` read one topic: the expression of TidemarkRetention joins by job and topic.
            {"series": f"tidemark_retention_headroom_seconds{{{partition}}}", "values": f"{10 + value * 1000}x60"},
            {"series": f'tidemark_retention_seconds{{{labels}, topic="r"}}', "values": "1000x60"},
        ]
    expected = [
        {"labels": f'{{job="{job}", alertname="{alert}"}}', "value": 1}
        for job in ("b/tidemark", "c/tidemark/hours")
        for alert in ("TidemarkNotRunning", "TidemarkRetention")
    ]
    query = 'group by (job, alertname) (ALERTS{alertstate="firing"})'
    test = {
        "interval": "10s",
        "input_series": series,
        "promql_expr_test": [{"expr": query, "eval_time": "9m", "exp_samples": expected}],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules.ALERTS)], "evaluation_interval": "10s", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_pages_of_the_server(overlay: str) -> None:
    pages = set(re.findall(r'"(/\w+)"', Path(server.__file__).read_text()))
    for each in containers(overlay):
        ports = {port["name"]: port["containerPort"] for port in each.get("ports", [])}
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            if name in each:
                get = each[name]["httpGet"]
                assert get["path"] in pages
                assert get["port"] in ports


def test_one_pod_is_recreated_and_of_two_one_is_replaced_while_the_other_may_lead() -> None:
    single, pair = (only(each, "Deployment")["spec"] for each in ("single", "standby"))
    assert (single["replicas"], single["strategy"]) == (1, {"type": "Recreate"})
    assert (pair["replicas"], pair["strategy"]["rollingUpdate"]) == (2, {"maxSurge": 0, "maxUnavailable": 1})
    # A standby is never ready by /readyz: with it, no rollout would end.
    paths = [each["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] for each in (single, pair)]
    assert paths == ["/readyz", "/healthz"]
    modes = [only(each, "PersistentVolumeClaim")["spec"]["accessModes"] for each in OVERLAYS]
    assert dict(zip(OVERLAYS, modes, strict=True)) == {
        "executors": ["ReadWriteMany"],
        "single": ["ReadWriteOnce"],
        "standby": ["ReadWriteMany"],
    }
