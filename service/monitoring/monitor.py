"""What is shown of one pipeline."""

from service.monitoring.metrics import Metrics
from service.monitoring.quality_page import Page
from service.monitoring.status import Status
from service.settings import Settings


class Monitor:
    """The metrics, the status and the page on quality of one pipeline. They live as long as the process."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.service.name
        self.metrics = Metrics()
        self.metrics.limits(settings)
        self.status = Status(self.name)
        self.status.outlets(self.metrics.outlets.document)
        self.page = Page(is_on=settings.quality.expectations is not None)
