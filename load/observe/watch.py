"""The watch: Prometheus scrapes the services of all scenes, Alertmanager notifies a receiver, and dashboards are queried."""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from load.observe.dashboards import Query, queries
from load.observe.receiver import Notification, Receiver
from load.observe.rules import Rule, document
from load.servers.prometheus import Alertmanager, Prometheus
from load.servers.server_process import HOST, Repeated, Started
from load.testbed import ROOT
from service.errors import SetupError

SCRAPE = "1s"
RATE_INTERVAL = "15s"
"""The value of Grafana's $__rate_interval."""
_QUERIES_EVERY_S = 5.0
_DEPLOY = ROOT / "deploy"


class Watch(Started):
    """Prometheus and Alertmanager with the configurations of deploy/, whose intervals are shorter and whose addresses are ours.

    `targets` are the ports of the jobs.
    """

    def __init__(self, folder: Path, targets: Mapping[str, int], rules: Mapping[str, Rule]) -> None:
        self.rules = rules
        self.receiver = Receiver()
        self.alertmanager = Alertmanager(folder, self._alertmanager_config())
        self.prometheus = Prometheus(folder, self._prometheus_config(targets), document(rules))
        self._empty = queries()
        self._asking = Repeated(_QUERIES_EVERY_S, self._ask)

    def start(self) -> None:
        self.receiver.start()
        self.alertmanager.start()
        self.prometheus.start()
        self._asking.start()

    def close(self) -> None:
        self._asking.close()
        self.prometheus.close()
        self.alertmanager.close()
        self.receiver.close()

    @property
    def empty_queries(self) -> list[Query]:
        """The queries of the dashboards that have not returned data yet."""
        return list(self._empty)

    def is_quiet(self, job: str, alert: str) -> bool:
        """Whether the alert does not fire, and its receiver has been told so."""
        notifications = self.receiver.of(job, alert)
        is_open = bool(notifications) and notifications[-1].status == "firing"
        return not is_open and not self.fires(job, alert)

    def fires(self, job: str, alert: str) -> bool:
        with contextlib.suppress(SetupError):
            return (job, alert) in self.prometheus.firing()
        return False

    def notified(self, job: str, alert: str, since_s: float) -> Notification | None:
        """Return the first notification since then that the alert fires."""
        notifications = self.receiver.of(job, alert, since_s=since_s)
        return next((each for each in notifications if each.status == "firing"), None)

    def _ask(self) -> None:
        with contextlib.suppress(SetupError):
            self._empty = [each for each in self._empty if not self._has_data(each)]

    def _has_data(self, query: Query) -> bool:
        samples = self.prometheus.query(query.concrete(RATE_INTERVAL))
        return any(not math.isnan(value) for _, value in samples)

    def _prometheus_config(self, targets: Mapping[str, int]) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load((_DEPLOY / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
        config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [self.alertmanager.address]}]}]
        config["scrape_configs"] = [
            {"job_name": job, "static_configs": [{"targets": [f"{HOST}:{port}"]}]} for job, port in targets.items()
        ]
        return config

    def _alertmanager_config(self) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load((_DEPLOY / "alertmanager.yml").read_text())
        config["route"] |= {"group_wait": "1s", "group_interval": "2s"}
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": self.receiver.url(receiver["name"])}]
        return config
