"""What is shown of one pipeline."""

from dataclasses import dataclass, field
from typing import Self

from service.errors import TidemarkError
from service.monitoring.metrics import Metrics
from service.monitoring.quality_page import Page
from service.monitoring.resource_metrics import ProcessMetrics
from service.monitoring.status import Status
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Monitor:
    """The metrics, the status and the page on quality of one pipeline. They live as long as the process."""

    metrics: Metrics
    status: Status
    page: Page = field(default_factory=lambda: Page(is_on=False))

    @classmethod
    def of(cls, settings: Settings, process: ProcessMetrics | None = None) -> Self:
        """Return the monitor of a pipeline that begins; `process` as for Metrics."""
        metrics, status = Metrics(process), Status(settings.service.name)
        metrics.limits(settings)
        status.outlets(metrics.outlets.document)
        return cls(metrics, status, Page(is_on=settings.quality.expectations is not None))

    @property
    def name(self) -> str:
        return self.status.service

    def begins(self) -> None:
        """Note that the pipeline begins, for the first time or again."""
        self.status.begins()
        self.metrics.begins()

    def ended(self, error: TidemarkError | None) -> None:
        """Note that the pipeline has ended: by an error, or because an operator has stopped it."""
        self.status.ended(error)
        self.metrics.ended("an operator has stopped it" if error is None else f"{error.code}: {error}")
