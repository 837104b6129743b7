"""make observe: the rules that it plays are those of deploy/, with shorter times; its page has a row for each of them."""

import re
from pathlib import Path

import pytest

from load.observe.__main__ import main, passes
from load.observe.receiver import Receiver, problem
from load.observe.rules import RUNBOOK, anchors, environment, rules
from load.observe.scene import Played
from load.observe.scenes import SCENES
from load.observe.table import page, report
from load.servers import prometheus
from service.errors import SetupError
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


def test_a_machine_without_prometheus_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"prometheus is not on the PATH\. On Debian: apt-get install prometheus "):
        prometheus.Prometheus(tmp_path, {}, {})


def test_an_unknown_alert_is_named_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "TidemarkNone"]) == SetupError.status
    assert "no alert and no scene 'TidemarkNone'" in capsys.readouterr().err


def test_a_run_passes_when_every_alert_fired_was_notified_and_cleared_and_no_query_is_empty() -> None:
    every = rules()
    rows = [Played(name, "input", "a cause", 1.0, True, 2.0, is_shown=True, is_hidden=True) for name in every]
    figures = report(every, rows, [], 60.0)
    assert passes(figures)
    assert not passes({**figures, "cleared": len(every) - 1})
    assert not passes({**figures, "empty_queries": 1})
    rows[0].is_shown = False
    assert report(every, rows, [], 60.0)["different"] == 1
    assert not passes(report(every, rows, [], 60.0))


def test_the_service_evaluates_the_rules_of_the_run(tmp_path: Path) -> None:
    variables = environment(rules(), tmp_path / "run" / "rules.json")
    assert list(alert_rules.rules(variables)) == [rule.played for rule in rules().values()]


def test_the_page_of_a_run_names_each_alert() -> None:
    every = rules()
    figures = report(every, [Played(name, "input", "a cause", 1.0, True, 2.0) for name in every], [], 60.0)
    text = page(figures)
    assert all(f"\n| `{name}` | a cause | 1.0 | 2.0 |" in text for name in every)


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
def test_a_notification_needs_its_receiver_its_link_and_a_summary(
    receiver: str, runbook: str, summary: str, wrong: str
) -> None:
    webhook = Receiver()
    webhook._keep(notification(receiver, runbook, summary))
    [notified] = webhook.of("a", "TidemarkStuck")
    told = problem(notified, rules()["TidemarkStuck"])
    assert told.startswith(wrong)
    assert bool(told) == bool(wrong)


def test_the_receiver_keeps_what_is_posted_by_job_and_alert() -> None:
    with Receiver() as receiver:
        receiver._keep(notification("page", "", ""))
        assert [each.status for each in receiver.of("a", "TidemarkStuck")] == ["firing"]
        assert receiver.of("b", "TidemarkStuck") == []


def test_the_page_in_docs_has_every_rule() -> None:
    text = (RUNBOOK.parents[1] / "docs" / "operator" / "alerts.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| .* \| [\d.]+ \| [\d.]+ \|", text, re.MULTILINE)) == set(RULES)
