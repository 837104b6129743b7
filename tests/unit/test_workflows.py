"""The workflows of GitHub run the commands of the Makefile, with rights to read alone."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def document(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def steps(file: Path) -> list[Any]:
    return [step for job in document(file)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_runs_commands_that_exist_and_takes_no_text_into_a_shell(file: Path) -> None:
    commands = [step["run"] for step in steps(file) if "run" in step]
    assert commands
    for command in commands:
        program, *words = command.split()
        if program == "make":
            assert re.search(rf"^(\.PHONY: .*\b{words[0]}\b|{words[0]}:)", MAKEFILE, re.MULTILINE), command
        else:
            assert (ROOT / program).stat().st_mode & 0o111, command
        assert "${{" not in command, "an input becomes a variable of the environment first"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_may_only_read_and_keeps_no_credentials(file: Path) -> None:
    found = document(file)
    assert found["permissions"] == {"contents": "read"}
    assert all("permissions" not in job and job["timeout-minutes"] for job in found["jobs"].values())
    checkouts = [step["with"] for step in steps(file) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(found["jobs"])
    assert all(each == {"fetch-depth": 0, "persist-credentials": False} for each in checkouts)
    pythons = {step["with"]["python-version"] for step in steps(file) if "setup-python" in step.get("uses", "")}
    assert pythons == {"3.11"}, "the version of requirements.lock"


def test_the_long_checks_to_choose_from_are_those_of_make_verify() -> None:
    names = re.search(r"^VERIFY +:= (.*)$", MAKEFILE, re.MULTILINE)
    assert names is not None
    found = document(ROOT / ".github" / "workflows" / "verify.yml")
    assert found[True]["workflow_dispatch"]["inputs"]["what"]["options"] == names[1].split()  # YAML 1.1: on is true
