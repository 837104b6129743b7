"""The webhook receiver that Alertmanager notifies."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from load.observe.rules import Rule, anchors
from load.servers.server_process import HOST, Started, free_port
from load.servers.web_server import Handler, WebServer
from load.testbed import ROOT


@dataclass(frozen=True, slots=True)
class Notification:
    """One alert of a notification: when it came, by which receiver of Alertmanager, and what it says."""

    at_s: float
    receiver: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Receiver(Started):
    """Keeps every notification in the order of arrival. `at_s` is of time.monotonic."""

    def __init__(self) -> None:
        self.port = free_port()
        self._notifications: list[Notification] = []
        keep = self._keep

        class Notified(Handler):
            def answer(self) -> None:
                keep(json.loads(self.body()))
                self.accept()

        self._server = WebServer(self.port, Notified)

    def url(self, receiver: str) -> str:
        """Return the address for the notifications of a receiver of Alertmanager."""
        return f"http://{HOST}:{self.port}/{receiver}"

    def of(self, job: str, alert: str, *, since_s: float = 0.0) -> list[Notification]:
        """Return the notifications about an alert of a job."""
        return [
            each
            for each in tuple(self._notifications)
            if each.at_s >= since_s and (each.labels.get("job"), each.labels["alertname"]) == (job, alert)
        ]

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def _keep(self, document: Mapping[str, Any]) -> None:
        now_s = time.monotonic()
        for each in document["alerts"]:
            self._notifications.append(
                Notification(now_s, document["receiver"], each["status"], each["labels"], each["annotations"])
            )


def problem(notification: Notification, rule: Rule) -> str:
    """Return what is wrong with a notification of a rule, "" for nothing."""
    page, _, anchor = notification.annotations.get("runbook_url", "").partition("#")
    summary = notification.annotations.get("summary", "")
    if notification.receiver != rule.severity:
        return f"{rule.severity} was sent to the receiver {notification.receiver}"
    if not (ROOT / page).is_file() or anchor not in anchors():
        return f"the runbook has no {page}#{anchor}"
    if not summary or any(mark in summary for mark in ("<no value>", "{{", "<error")):
        return f"the summary is {summary!r}"
    return ""
