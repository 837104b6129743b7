"""deploy/container/compose.yaml and the files that its services mount: they fit the specification, each other and the demo."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from load.demo import SECTIONS, VIEWS
from load.fleet import options, postgres
from load.fleet.fleet import RANGES, REFERENCE_QUERY
from load.manifests.schemas import compose_problems
from service import settings
from tidemark_dashboard import command

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "container"
FILE = FOLDER / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("devices", "fleet", "tidemark", "dashboard")


def test_the_compose_file_satisfies_the_specification() -> None:
    assert compose_problems(FILE.read_text()) == []


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [("read_only: true", "readonly: true"), ("depends_on:", "depend_on:"), ("9500:9500", "9500:x")],
)
def test_a_wrong_compose_file_is_refused(correct: str, wrong: str) -> None:
    assert compose_problems(FILE.read_text().replace(correct, wrong)) != []


def test_every_file_that_a_service_mounts_exists_and_every_volume_is_declared() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (FOLDER / source).exists(), volume


def test_every_dependency_is_a_service_whose_condition_can_come_true() -> None:
    for service in SERVICES.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition["condition"] != "service_healthy" or "healthcheck" in SERVICES[name], name


def test_images_have_versions_and_all_of_ours_are_one_without_root_or_a_writable_root() -> None:
    foreign = [service["image"] for name, service in SERVICES.items() if name not in OURS]
    assert [each for each in foreign if not each.rpartition(":")[2][0].isdecimal() and ":v" not in each] == []
    assert len({service["image"] for name, service in SERVICES.items() if name in OURS}) == 1
    for name in OURS:
        assert (SERVICES[name]["read_only"], SERVICES[name]["cap_drop"]) == (True, ["ALL"])


def test_java_can_load_native_libraries_from_the_temporary_folder() -> None:
    """Docker's default for a tmpfs is noexec: RocksDB, snappy and zstd then end with UnsatisfiedLinkError."""
    for name in OURS:
        [folder] = SERVICES[name]["tmpfs"]
        path, _, options = folder.partition(":")
        assert (path, "exec" in options.split(",")) == ("/tmp", True), name  # noqa: S108


def test_ports_are_published_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert [each for each in ports if not each.startswith("127.0.0.1:")] == []


def test_the_service_has_the_settings_of_the_demo() -> None:
    ours = settings.load(FOLDER / "demo" / "tidemark.toml")
    sections = {name: dict(section) for name, section in SECTIONS.items()}
    demo = settings.parse(
        {
            **sections,
            "service": {"checkpoint": ours.service.checkpoint},
            "kafka": {"bootstrap": "kafka:9092", "topics": ["readings"]},
            "input": {**sections["input"], "format": "json"},
            "admission": {
                **sections["admission"],
                "ranges": {name: list(RANGES[name]) for name in sections["input"]["measures"]},
            },
            "reference": {
                "url": "jdbc:postgresql://postgres/devices",
                "user": "tidemark",
                "query": REFERENCE_QUERY,
                "columns": ["type", "site", "model"],
            },
            "redis": {**sections["redis"], "url": "redis://redis:6379/0"},
            "metrics": {"address": "0.0.0.0"},  # noqa: S104
            "views": [dict(view) for view in VIEWS],
        }
    )
    assert ours.model_dump(exclude={"input": {"schemas"}}) == demo.model_dump(exclude={"input": {"schemas"}})


def test_the_generator_and_the_dashboard_accept_their_options() -> None:
    devices, fleet = (SERVICES[name]["command"] for name in ("devices", "fleet"))
    assert (devices[:3], fleet[:3]) == (
        ["python", "-m", "load.fleet.postgres"],
        ["python", "-m", "load.fleet.generator"],
    )
    table, readings = postgres.arguments(devices[3:]), options.arguments(fleet[3:])
    assert (table.devices, table.seed) == (readings.devices, readings.seed)
    line = SERVICES["dashboard"]["command"][2].replace("\\\n", "").split("tidemark-dashboard ", 1)[1]
    assert command._options(line.split()).service == "http://tidemark:9400"


def test_prometheus_and_grafana_differ_from_their_examples_in_addresses_only() -> None:
    def read(path: Path, *addresses: tuple[str, str]) -> Any:
        text = json.dumps(yaml.safe_load(path.read_text()))
        for given, address in addresses:
            text = text.replace(given, address)
        return json.loads(text)

    deploy = FOLDER.parent
    prometheus = read(deploy / "prometheus.yml", ("127.0.0.1:9400", "tidemark:9400"))
    del prometheus["alerting"]
    assert read(FOLDER / "demo" / "prometheus.yml") == prometheus
    source = read(deploy / "grafana/provisioning/datasources/tidemark.yml", ("127.0.0.1:9090", "prometheus:9090"))
    assert read(FOLDER / "demo" / "grafana-source.yml") == source
