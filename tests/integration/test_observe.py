"""The watch of make observe: a real Prometheus and a real Alertmanager around the metrics of a process."""

import shutil
from pathlib import Path

import pytest

from load.observe.receiver import problem
from load.observe.rules import environment, rules
from load.observe.watch import Watch
from service.monitoring import attention
from service.monitoring.board import Board
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.server import Server
from service.monitoring.status import Status
from service.settings.settings import Metrics as Settings
from tests.integration.daemon import until

pytestmark = pytest.mark.integration

ALERT = "TidemarkRedisLostData"


def test_an_alert_fires_reaches_its_receiver_with_its_runbook_and_clears_and_the_service_shows_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    for name, value in environment(rules(), tmp_path / "rules.json").items():
        monkeypatch.setenv(name, value)
    metrics = Metrics()
    metrics.query_running.set(1)
    server = Server(Board([Monitor(metrics, Status("tidemark"))]), "127.0.0.1", 0)
    settings = Settings(address="127.0.0.1", port=server.port)

    def shown() -> list[str]:
        return [
            each["alert"] for each, alert in attention.active(attention.asked(settings)) if alert["state"] == "firing"
        ]

    try:
        with Watch(tmp_path, {"job": server.port}, rules()) as watch:
            until(lambda: watch.prometheus.query("tidemark_redis_data_lost_total"), 30, "the first scrape")
            assert watch.is_quiet("job", ALERT)
            assert shown() == []
            before = len(watch.empty_queries)
            metrics.redis_loses_data()
            until(lambda: watch.fires("job", ALERT), 30, "the alert to fire")
            until(lambda: shown() == [ALERT], 10, "the service to show the alert")
            until(lambda: watch.notified("job", ALERT, 0.0), 30, "the notification")
            notification = watch.notified("job", ALERT, 0.0)
            assert notification is not None
            assert problem(notification, watch.rules[ALERT]) == ""
            until(lambda: watch.is_quiet("job", ALERT), 90, "the alert to clear")
            assert [each.status for each in watch.receiver.of("job", ALERT)] == ["firing", "resolved"]
            until(lambda: shown() == [], 30, "the service to show that it is over")
            until(lambda: len(watch.empty_queries) < before, 30, "the dashboards to show the process")
            assert any("tidemark_event_timestamp_seconds" in query.expr for query in watch.empty_queries)
    finally:
        server.close()
