"""/conditions: the alert rules as the service evaluates them. tests/unit/test_alerts.py compares the results with Prometheus'."""

import json
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from service import clock
from service.monitoring import alert_rules, attention, promql
from service.monitoring.alert_rules import RULES, Rule
from service.monitoring.conditions import Evaluation, summary
from service.monitoring.history import History
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.status import Status
from tests.served import served


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def later(self, seconds: float) -> None:
        self.s += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(clock, "monotonic_s", lambda: made.s)
    monkeypatch.setattr(clock, "now_ms", lambda: int(made.s * 1000))
    return made


def of(document: dict[str, Any], alert: str) -> dict[str, Any]:
    [condition] = [each for each in document["conditions"] if each["alert"] == alert]
    return condition


def test_a_condition_is_pending_for_its_time_then_fires_and_begins_again_after_an_interruption(time: Clock) -> None:
    monitor = Monitor(Metrics(), Status("plant7"))
    monitor.metrics.query_running.set(1)

    def state(skewed: int) -> str:
        monitor.metrics.event_time.skewed.set(skewed)
        return str(of(monitor.conditions.document(), "TidemarkSkewedDevices")["state"])

    assert state(0) == "inactive"
    assert state(3) == "pending"
    time.later(599)
    assert state(3) == "pending"
    time.later(1)
    assert state(2) == "firing"
    assert state(0) == "inactive"
    assert state(1) == "pending"


def test_the_first_event_of_a_process_counts(time: Clock) -> None:
    monitor = Monitor(Metrics(), Status("plant7"))
    monitor.metrics.redis_loses_data()
    assert of(monitor.conditions.document(), "TidemarkRedisLostData")["state"] == "inactive", "no time has passed"
    time.later(1)
    assert of(monitor.conditions.document(), "TidemarkRedisLostData")["state"] == "firing"
    for _ in range(61):
        time.later(10)
        monitor.conditions.look()
    assert of(monitor.conditions.document(), "TidemarkRedisLostData")["state"] == "inactive", "ten minutes ago"


def test_a_large_lag_many_rejects_and_an_outlet_that_is_behind_need_attention_at_once_and_everywhere(
    time: Clock, tmp_path: Path
) -> None:
    """The page said that nothing needs attention."""
    metrics = Metrics()
    monitor = Monitor(metrics, Status("plant7"))
    metrics.query_running.set(1)
    metrics.records.inc(1_000)
    metrics.rejects.labels("undecodable").inc(500)
    metrics.lags({"t": {0: 5_000_000}})
    metrics.outlets.age.labels("history").set(5_400)
    metrics.outlets.limit.labels("history").set(100)
    time.later(10)
    names = {"TidemarkBehind", "TidemarkRejects", "TidemarkOutletAway"}
    for states in ("pending", "firing"):
        active = attention.active(monitor.conditions.document())
        assert {each["alert"]: alert["state"] for each, alert in active} == dict.fromkeys(names, states)
        for _ in range(60):
            time.later(10)
            metrics.records.inc(10)
            metrics.rejects.labels("undecodable").inc(5)
            monitor.conditions.look()
    lines = list(attention.lines(monitor.conditions.document()))
    assert lines[0].startswith("firing (page) TidemarkBehind for 20 min: 5M records behind: more than a minute's work")
    assert any("The outlet history lacks finals that are 1h 30m 0s old" in line for line in lines)


def test_of_an_alert_that_hundreds_of_topics_have_a_few_are_shown_and_the_others_counted(time: Clock) -> None:
    monitor = Monitor(Metrics(), Status("plant7"))
    topics = [f"t{number}" for number in range(300)]
    monitor.metrics.keeps(dict.fromkeys(topics, 86_400_000))
    monitor.metrics.headrooms({topic: {0: 60.0} for topic in topics})
    monitor.metrics.unreadable.set(1)
    document = monitor.conditions.document()
    assert len(of(document, "TidemarkRetention")["alerts"]) == 300
    lines = list(attention.lines(document))
    assert len(lines) == 1 + attention.MOST + 1, "of unreadable records, of topics, and of a query that does not run"
    assert [line.count(", and 295 more (deploy/runbook.md") for line in lines if "Retention" in line] == [0, 0, 0, 0, 1]


def test_a_standby_has_no_conditions_and_says_nothing_of_the_leader(time: Clock) -> None:
    monitor = Monitor(Metrics(), Status("plant7"))
    assert of(monitor.conditions.document(), "TidemarkNotRunning")["state"] == "pending"
    monitor.metrics.waiting("lease", "other holds the lease", standby=True)
    time.later(600)
    document = monitor.conditions.document()
    assert attention.active(document) == []
    assert {each["alert"] for each in document["conditions"] if each["state"] == "unknown"} == {
        "TidemarkAbsent",
        "TidemarkDriverRestarts",
    }


def test_conditions_are_served_for_each_pipeline_as_json() -> None:
    with served("one", "two") as made:
        made.monitors[1].metrics.unreadable.set(math.inf)
        both = made.document("/conditions")["pipelines"]
        two = made.document("/conditions?pipeline=two")
    assert [both[name]["service"] for name in ("one", "two")] == ["one", "two"]
    assert [each["alert"] for each in two["conditions"]] == [each.alert for each in RULES]
    condition = of(two, "TidemarkUnreadable")
    assert condition["state"] == "firing"
    assert condition["alerts"][0]["value"] is None, "JSON has no infinity"
    assert of(both["one"], "TidemarkUnreadable")["state"] == "inactive"


def test_the_page_of_several_pipelines_names_the_alerts_of_each() -> None:
    with served("one", "two") as made:
        made.monitors[1].metrics.unreadable.set(1)
        one, two = re.findall(r"<tr>.*?</tr>", made.get("/")[1])
    assert "TidemarkUnreadable" not in one
    assert "TidemarkUnreadable" in two


def test_a_pipeline_whose_rules_cannot_be_evaluated_leaves_those_of_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(History, "EVERY_S", 0.01)
    monitors = [Monitor(Metrics(), Status(name)) for name in ("broken", "sound")]
    broken, sound = (each.conditions for each in monitors)
    looks, looked = list[int](), threading.Event()

    def collect() -> list[Metric]:
        looks.append(1)
        if len(looks) > 2:
            looked.set()
        return []

    monkeypatch.setattr(broken, "_collect", lambda: 1 / 0)
    monkeypatch.setattr(sound, "_collect", collect)
    evaluation = Evaluation([broken, sound])
    evaluation.start()
    assert looked.wait(30)
    evaluation.close()
    assert caplog.text.count("The alert rules of broken are not evaluated") == 1


def test_rules_of_a_test_replace_those_of_the_process(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps([{"alert": "A", "expr": "x > 1", "summary": "", "severity": "warn", "for_": "15s"}]))
    environment = {"TIDEMARK_ALERTS": str(file), "TIDEMARK_TEST": "1"}
    assert alert_rules.rules(environment) == [Rule("A", "x > 1", "", "warn", "15s")]
    assert alert_rules.rules({"TIDEMARK_ALERTS": str(file)}) is RULES


@pytest.mark.parametrize(
    ("template", "value", "text"),
    [
        ("{{ $value }} of {{ $labels.job }} {{ $labels.none }}", 4.0, "4 of a "),
        ("{{ $value | humanize }}", 5_000_000.0, "5M"),
        ("{{ $value | humanize }}", 12.5, "12.5"),
        ("{{ $value | humanize1024 }}B", 600_000.0, "585.9kiB"),
        ("{{ $value | humanizeDuration }}", 5_400.0, "1h 30m 0s"),
        ("{{ $value | humanizeDuration }}", 12.34, "12.34s"),
        ("{{ $value | humanizeDuration }}", math.inf, "infs"),
    ],
)
def test_a_summary_is_filled_in_as_prometheus_does(template: str, value: float, text: str) -> None:
    assert summary(template, {"job": "a"}, value) == text


def test_every_template_and_every_expression_can_be_used() -> None:
    for rule in RULES:
        assert "{{" not in summary(rule.summary, {}, 1.0), rule.alert
        assert rule.prometheus_only or promql.ranges(promql.parse(rule.expr)), rule.alert
        promql.seconds(rule.for_)


def history(expression: str, *samples: dict[str, float]) -> History:
    """One sample of each metric every ten seconds; a name may have labels, as in `x:a=1`."""
    made = History(promql.ranges(promql.parse(expression)))
    for number, each in enumerate(samples):
        made.add(list(families(each)), 10.0 * number)
    return made


def families(samples: dict[str, float]) -> Iterator[Metric]:
    for key, value in samples.items():
        name, _, text = key.partition(":")
        labels = dict(part.split("=") for part in text.split(",") if part)
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, "", labels=list(labels))
        family.add_metric(list(labels.values()), value)
        yield family


@pytest.mark.parametrize(
    ("expression", "samples", "expected"),
    [
        ("a > 1", [{"a": 2}], {(): 2}),
        ("a > 1", [{"a": 2}, {}], {}),
        ("a == 1 and on (x) b > 3", [{"a:x=1,y=2": 1, "b:x=1,z=9": 4}], {(("x", "1"), ("y", "2")): 1}),
        ("a < on (x) 0.5 * b", [{"a:x=1,y=7": 1, "b:x=1": 3}], {(("x", "1"), ("y", "7")): 1}),
        ('sum by (x) (a{y=~"p|q"})', [{"a:x=1,y=p": 1, "a:x=1,y=q": 2, "a:x=1,y=r": 4}], {(("x", "1"),): 3}),
        ("increase(a_total[1m])", [{"a_total": 0}, {"a_total": 3}, {"a_total": 1}], {(): 4}),
        ("increase(a_total[1m])", [{"a_total": 3}], {}),
        ("rate(a_total[1m])", [{"a_total": 0}, {"a_total": 60}], {(): 1}),
        ("changes(a[1m])", [{"a": 1}, {"a": 2}, {"a": 2}, {"a": 1}], {(): 2}),
        ("max_over_time(a[20s])", [{"a": 9}, {"a": 2}, {"a": 3}, {"a": 1}], {(): 3}),
        ("max_over_time(a[20s])", [{"a": 9}, {}], {(): 9}),
    ],
)
def test_an_expression_has_the_elements_that_prometheus_gives_it(
    expression: str, samples: list[dict[str, float]], expected: dict[tuple[tuple[str, str], ...], float]
) -> None:
    found = promql.vector(promql.parse(expression), history(expression, *samples))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "a >",
        "rate(a)",
        "rate(sum(a)[5m])",
        "a[5m:1m] > 1",
        "absent(a)",
        "a > 1 2",
        'a{x!="1"}',
        "sum by (x) a",
        "a[5y]",
        "",
    ],
)
def test_an_expression_outside_this_part_of_promql_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"did not expect|cannot read|no duration"):
        promql.parse(text)


def test_samples_are_kept_ten_seconds_apart_and_no_longer_than_an_expression_looks_back() -> None:
    expression = "rate(a_total[1m]) > b"
    made = History(promql.ranges(promql.parse(expression)))
    for second in range(300):
        made.add(list(families({"a_total": second, "b": 1, "c": 1})), float(second))
    [(_, points)] = made.series("a_total")
    assert [at for at, _ in points] == [*range(240, 300, 10), 299]
    assert [len(points) for _, points in made.series("b")] == [1]
    assert list(made.series("c")) == []
