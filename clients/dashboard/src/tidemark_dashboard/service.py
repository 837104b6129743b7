"""What the service and Prometheus say over HTTP: /status, /conditions, /metrics and alerts. Asked while a page is open."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2

from tidemark_dashboard.course import Course
from tidemark_dashboard.health import Health, now_ms
from tidemark_dashboard.metrics import Samples

EVERY_S, CONDITIONS_S = 4.0, 10.0
"""Between two questions; the service evaluates its alert rules, and adds a point to its course, each ten seconds."""
TIMEOUT_S = 5.0
MOST_BYTES = 8 << 20
KEPT_BATCHES = 200
KEPT_S = 30.0
"""How far back counters are compared."""


@dataclass(frozen=True)
class Look:
    """One answer of /metrics; `at_s` is the monotonic clock."""

    at_s: float
    samples: Samples


@dataclass(frozen=True)
class Alert:
    """An alert that fires, or is about to. `for_s` is how long its cause has to last, 0 where that is not known."""

    name: str
    state: str
    severity: str
    summary: str
    for_s: float = 0.0


class Service:
    """The last answers. `on_change` is called when there are new ones.

    `url` is the service's base URL. For a pipeline of a process of several it ends with `?pipeline=NAME`.
    """

    def __init__(self, url: str, prometheus: str, wanted: asyncio.Event, on_change: Callable[[], None]) -> None:
        address, mark, query = url.partition("?")
        self.url, self.prometheus, self._query = address.rstrip("/"), prometheus.rstrip("/"), mark + query
        self._wanted, self._on_change = wanted, on_change
        self.health, self.alerts_health = Health(), Health()
        self.asked_ms = 0
        """When the service was asked the last time, whether it has answered or not."""
        self.status: Mapping[str, Any] = {}
        self.looks: deque[Look] = deque()
        self.batches: list[Mapping[str, Any]] = []
        self.epochs: dict[int, int] = {}
        self.conditions: list[Alert] = []
        """What the service's own evaluation of the alert rules says."""
        self.alerts: list[Alert] = []
        self.course: Course | None = None
        """The course of the service; None until /history was asked."""
        self._conditions_asked_s = 0.0

    @property
    def is_known(self) -> bool:
        """Whether a URL was given."""
        return bool(self.url)

    @property
    def samples(self) -> Samples:
        """The newest metrics."""
        return self.looks[-1].samples if self.looks else Samples()

    async def run(self) -> None:
        """Ask until the task is cancelled."""
        limits = httpx2.Limits(max_connections=4)
        plain = {"Accept-Encoding": "identity"}  # to compress /metrics costs the service as much as to write it
        async with httpx2.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False, headers=plain) as client:
            while True:
                await self._wanted.wait()
                if self.url:
                    await self._ask_service(client)
                    self.asked_ms = now_ms()
                if self.prometheus:
                    await self._ask_prometheus(client)
                self._on_change()
                await asyncio.sleep(EVERY_S)

    async def _ask_service(self, client: httpx2.AsyncClient) -> None:
        try:
            status = json.loads(await _get(client, f"{self.url}/status{self._query}"))
            if isinstance(status, dict) and "pipelines" in status:
                names = ", ".join(status["pipelines"])
                msg = (
                    f"{self.url} has the pipelines {names}: --service ends with the name of one, such as ?pipeline=NAME"
                )
                raise ValueError(msg)
            if not isinstance(status, dict) or "batches" not in status:
                raise ValueError(f"{self.url}/status is not what a service of Tidemark answers")
            samples = Samples(await _get(client, f"{self.url}/metrics{self._query}"))
            conditions = self.conditions
            if time.monotonic() - self._conditions_asked_s >= CONDITIONS_S - EVERY_S / 2 or self.health.is_away:
                self._conditions_asked_s = time.monotonic()
                conditions = await self._ask_conditions(client)
                await self._ask_course(client)
            # A batch that is repeated replaces itself; a rebuild begins again with number 0.
            known = {each["batch"]: each for each in [*self.batches, *status["batches"]]}
            batches = sorted(known.values(), key=lambda each: each["finished_ms"])[-KEPT_BATCHES:]
        except (httpx2.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            self.health.failed(str(error) or type(error).__name__)
            return
        self.health.answered()
        self.status, self.conditions, self.batches = status, conditions, batches
        at_s = time.monotonic()
        self.looks.append(Look(at_s, samples))
        while self.looks[0].at_s < at_s - KEPT_S:
            self.looks.popleft()
        epoch = status.get("epoch") or 0
        self.epochs.setdefault(epoch, now_ms())

    async def _ask_conditions(self, client: httpx2.AsyncClient) -> list[Alert]:
        document = json.loads(await _get(client, f"{self.url}/conditions{self._query}"))
        return [
            Alert(
                str(each["alert"]),
                str(alert["state"]),
                str(each["severity"]),
                str(alert["summary"]),
                float(each["for_s"]),
            )
            for each in document["conditions"]
            for alert in each["alerts"]
        ]

    async def _ask_course(self, client: httpx2.AsyncClient) -> None:
        """Ask for the course. What is no such document leaves the former one."""
        with suppress(httpx2.HTTPError, ValueError, LookupError, TypeError, AttributeError):
            document = json.loads(await _get(client, f"{self.url}/history{self._query}"))
            course = self.course or Course()
            course.add(document)
            self.course = course

    async def _ask_prometheus(self, client: httpx2.AsyncClient) -> None:
        try:
            answer = json.loads(await _get(client, f"{self.prometheus}/api/v1/alerts"))
            self.alerts = [_alert(each) for each in answer["data"]["alerts"]]
        except (httpx2.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            self.alerts_health.failed(str(error) or type(error).__name__)
            return
        self.alerts_health.answered()


def _alert(document: Mapping[str, Any]) -> Alert:
    labels, annotations = document["labels"], document.get("annotations", {})
    return Alert(
        str(labels.get("alertname", "")),
        str(document.get("state", "")),
        str(labels.get("severity", "")),
        str(annotations.get("summary", "")),
    )


async def _get(client: httpx2.AsyncClient, url: str) -> str:
    """The body of an answer. Raises HTTPError, and ValueError for one that is too long."""
    async with client.stream("GET", url) as answer:
        answer.raise_for_status()
        body = b""
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MOST_BYTES:
                raise ValueError(f"{url} answers more than {MOST_BYTES} bytes")
    return body.decode("utf-8", "replace")
