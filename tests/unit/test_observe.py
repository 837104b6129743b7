"""make observe: the rules that it plays are those of deploy/, with shorter times; its page has a row for each of them."""

import re
from pathlib import Path

import pytest

from load.observe.receiver import Receiver, problem
from load.observe.rules import RUNBOOK, anchors, environment, rules
from load.observe.scenes import SCENES
from service.monitoring import alert_rules
from tests.alerts import RULES


def test_every_rule_is_brought_about_in_one_scene(tmp_path: Path) -> None:
    scenes = [scene(tmp_path) for scene in SCENES]
    alerts = [alert for scene in scenes for group in scene.groups() for cause in group for alert in cause.alerts]
    assert sorted(alerts) == sorted(RULES)


def test_only_times_differ_from_the_rules_and_each_difference_is_named() -> None:
    for name, rule in rules().items():
        original, document = RULES[name], dict(rule.document)
        assert {**document, "expr": "", "for": ""} == {**original, "expr": "", "for": ""}, "alerts.yml is the table's"
        longer = f"{original['expr']} for {original.get('for')}"
        for time, became in rule.shortened.items():
            assert re.search(rf"\b{time}\b", longer), (name, time)
            longer = re.sub(rf"\b{time}\b", became, longer)
        assert f"{document['expr']} for {document.get('for')}" == longer


def test_no_time_of_a_played_rule_is_longer_than_ten_minutes() -> None:
    for name, rule in rules().items():
        times = [*re.findall(r"\[(\w+)", rule.document["expr"]), rule.document.get("for", "0s")]
        if name != "TidemarkAbsent":
            assert max(int(time[:-1]) * {"s": 1, "m": 60, "h": 3600}[time[-1]] for time in times) <= 600, name


def test_every_runbook_link_has_its_heading() -> None:
    for rule in rules().values():
        assert rule.played.anchor in anchors()


def test_the_service_evaluates_the_rules_of_the_run(tmp_path: Path) -> None:
    variables = environment(rules(), tmp_path / "run" / "rules.json")
    assert list(alert_rules.rules(variables)) == [rule.played for rule in rules().values()]


def notification(receiver: str, runbook: str, summary: str) -> dict[str, object]:
    labels = {"alertname": "TidemarkStuck", "job": "a"}
    annotations = {"runbook_url": runbook, "summary": summary}
    return {"receiver": receiver, "alerts": [{"status": "firing", "labels": labels, "annotations": annotations}]}


@pytest.mark.parametrize(
    ("receiver", "runbook", "summary", "wrong"),
    [
        ("page", "deploy/runbook.md#tidemarkstuck", "A batch", ""),
        ("warn", "deploy/runbook.md#tidemarkstuck", "A batch", "page was sent to the receiver warn"),
        ("page", "deploy/runbook.md#" + "stuck", "A batch", "the runbook has no"),
        ("page", "deploy/runbook.md#tidemarkstuck", "<no value> is stuck", "the summary is"),
    ],
)
def test_a_notification_has_all_its_parts(receiver: str, runbook: str, summary: str, wrong: str) -> None:
    webhook = Receiver()
    webhook._keep(notification(receiver, runbook, summary))
    [notified] = webhook.of("a", "TidemarkStuck")
    told = problem(notified, rules()["TidemarkStuck"])
    assert told.startswith(wrong)
    assert bool(told) == bool(wrong)


def test_the_page_in_docs_has_every_rule() -> None:
    text = (RUNBOOK.parents[1] / "docs" / "operator" / "alerts.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| .* \| [\d.]+ \| [\d.]+ \|", text, re.MULTILINE)) == set(RULES)
