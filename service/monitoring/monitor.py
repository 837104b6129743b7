"""What is shown of one pipeline."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from prometheus_client.core import Metric

from service.errors import TidemarkError
from service.monitoring.conditions import Conditions
from service.monitoring.home_page import Quality
from service.monitoring.metrics import Metrics
from service.monitoring.resource_metrics import ProcessMetrics
from service.monitoring.status import Status
from service.settings import Settings

_OF_STOPPED = "tidemark_build"
"""The metric that a stopped pipeline still has: alerts take a pipeline without it for one that has gone."""


@dataclass(frozen=True, slots=True)
class Monitor:
    """The metrics, the status, the conditions and the page on quality of one pipeline. They live as long as the process."""

    metrics: Metrics
    status: Status
    page: Quality = field(default_factory=lambda: Quality(is_on=False))
    conditions: Conditions = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", Conditions(self.name, self._watched, marks=self.status.marks))

    @classmethod
    def of(cls, settings: Settings, process: ProcessMetrics | None = None) -> Self:
        """Return the monitor of a pipeline that begins; `process` as for Metrics."""
        metrics, status = Metrics(process), Status(settings.service.name)
        metrics.limits(settings)
        status.outlets, status.inputs = metrics.outlets.document, _inputs(settings)
        return cls(metrics, status, Quality(is_on=settings.quality.expectations is not None))

    @property
    def name(self) -> str:
        return self.status.service

    def collect(self) -> Iterator[Metric]:
        """Return the metrics that are shown: of a pipeline that an operator has stopped, one alone."""
        is_stopped = self.status.state == "stopped"
        return (each for each in self.metrics.registry.collect() if not is_stopped or each.name == _OF_STOPPED)

    def _watched(self) -> Iterator[Metric]:
        """Return the metrics that the alert rules are about: also those that all pipelines of the process share."""
        yield from self.collect()
        shared = self.metrics.process.registry
        if shared is not self.metrics.registry and self.status.state != "stopped":
            yield from shared.collect()

    def document(self) -> dict[str, Any]:
        """Return the document of /status, with the figures of now."""
        document = self.status.document()
        return {**document, "figures": dict(self.conditions.figures(document))}

    def course(self) -> dict[str, Any]:
        """Return the document of /history, with the figures of now."""
        self.conditions.look()
        return self.conditions.course.document()

    def reads(self, settings: Settings) -> None:
        self.metrics.reads(settings)
        self.status.inputs = _inputs(settings)

    def begins(self) -> None:
        """Note that the pipeline begins, for the first time or again."""
        self.status.begins()
        self.metrics.begins()

    def ended(self, error: TidemarkError | None) -> None:
        """Note that the pipeline has ended: by an error, or because an operator has stopped it."""
        self.status.ended(error)
        self.metrics.ended("an operator has stopped it" if error is None else f"{error.code}: {error}")


def _inputs(settings: Settings) -> list[dict[str, Any]]:
    """Return the part of /status about the inputs: [input] has the name "input"."""
    kafka = settings.kafka
    return [
        {
            "name": name,
            "format": each.form.format,
            "topics": [{"topic": topic, "rejects": kafka.rejects_topic(topic)} for topic in each.kafka.topics],
        }
        for name, each in zip([each.name for each in settings.inputs] or ["input"], settings.split(), strict=True)
    ]
