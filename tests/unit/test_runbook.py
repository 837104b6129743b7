"""The runbook has an answer to everything that the alert rules can raise, the operator reference to every exit status."""

import re
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml

from service import errors
from service.errors import TidemarkError
from service.monitoring.metrics import Metrics
from service.pipeline import failure
from service.redis.link import EpochLostError, WritesLostError

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
REFERENCE = (DEPLOY.parent / "docs" / "operator-reference.md").read_text()
RUNBOOK = (DEPLOY / "runbook.md").read_text()
RULES = [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


FAMILIES: list[type[TidemarkError]] = [
    *(each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TidemarkError)),
    EpochLostError,
    WritesLostError,
]
STATUSES = re.findall(r"^\| (\d+) \| `(\w+)` \| [^|]+ \| (yes|no)\b", REFERENCE, re.MULTILINE)
"""Status, code and whether the process retries: the rows of the one table of exit statuses."""


def test_the_table_of_exit_statuses_is_that_of_the_errors() -> None:
    expected = {(str(each.status), each.code, "yes" if failure.transient(each("what")) else "no") for each in FAMILIES}
    assert set(STATUSES) == expected
    assert len(STATUSES) == len(expected)


def test_systemd_leaves_the_statuses_that_want_a_person_and_gives_up_on_an_end_that_comes_at_once() -> None:
    rows = re.findall(r"^\| (\d+) \| `\w+` \|.*\| ([^|]+) \|$", REFERENCE, re.MULTILINE)
    again = {status: [advice for each, advice in rows if each == status] for status, _ in rows}
    wanting = {status for status, advices in again.items() if all(each.startswith("after a ") for each in advices)}
    unit = (DEPLOY / "systemd" / "tidemark.service").read_text()
    [left] = re.findall(r"^RestartPreventExitStatus=(.+)$", unit, re.MULTILINE)
    assert set(left.split()) == wanting
    assert re.findall(r"^StartLimit\w+=(.+)$", unit, re.MULTILINE) == ["1h", "20"]


def test_every_code_has_a_line_that_says_what_to_do() -> None:
    lines = re.findall(r"^- (`.+?`): ", REFERENCE, re.MULTILINE)
    assert {code for line in lines for code in re.findall(r"`(\w+)`", line)} == {code for _, code, _ in STATUSES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_its_row_and_asks_for_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert f"\n| `{rule['alert']}` |" in RUNBOOK
    asked = set(re.findall(r"tidemark_\w+", rule["expr"]))
    assert asked
    assert asked <= exposed()


def test_every_row_has_its_alert() -> None:
    assert set(re.findall(r"^\| `(Tidemark\w+)` \|", RUNBOOK, re.MULTILINE)) == {rule["alert"] for rule in RULES}


def test_logrotate_rotates_the_drivers_two_logs_and_none_of_their_copies() -> None:
    [line] = re.findall(r"^    (/\S+/work/driver-.*) \{$", RUNBOOK, re.MULTILINE)
    folder = "/var/lib/tidemark/work/driver-20261120212803-0000"

    def rotated(name: str) -> bool:
        return any(PurePath(f"{folder}/{name}").match(pattern) for pattern in line.split())

    names = ("stdout", "stderr", "stdout.1", "stderr.1", "stderr.1.gz", "stderr-20261126")
    assert [name for name in names if rotated(name)] == ["stdout", "stderr"]


def exposed() -> set[str]:
    """Names of samples, also those that have none yet."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
    kinds = [(family.name, family.type) for family in Metrics().registry.collect()]
    return {name + ending for name, kind in kinds for ending in endings.get(kind, ("",))}
