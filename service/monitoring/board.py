"""What is shown of a process: of one pipeline, or of several together.

of one        the pages and the metrics of the pipeline
of several    /metrics has the label `pipeline`, /status has the documents of all by name, /readyz answers 200 when all are
              ready that nobody has stopped, /healthz unless all that run are stuck; with `?pipeline=NAME` as of one
"""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.monitoring.monitor import Monitor
from service.monitoring.status import STATES

LABEL = "pipeline"


class Board:
    """The monitors of a process. `process` is the registry of what is of no pipeline, where there are several.

    `control` is the path of the socket that takes commands, None without one.
    """

    def __init__(self, monitors: Sequence[Monitor], process: CollectorRegistry | None = None) -> None:
        self.monitors = tuple(monitors)
        self.control: str | None = None
        self._process = process or CollectorRegistry()
        self.registry = self.monitors[0].metrics.registry if self.is_single else CollectorRegistry()
        if not self.is_single:
            self.registry.register(_Together(self.monitors, self._process))

    @property
    def is_single(self) -> bool:
        """Whether the process has one pipeline."""
        return len(self.monitors) == 1

    def chosen(self, name: str | None) -> Monitor | None:
        """Return the pipeline that a page is asked of: the only one, or that of the name; None for all. Raises KeyError."""
        if self.is_single:
            return self.monitors[0]
        return {each.name: each for each in self.monitors}[name] if name else None

    def registry_of(self, monitor: Monitor) -> CollectorRegistry:
        """Return the metrics of a pipeline and of the process, as if it had no other pipeline."""
        if self.is_single:
            return self.registry
        registry = CollectorRegistry()
        for each in (monitor, self._process):
            registry.register(each)  # both collect as a collector does
        return registry

    def unhealthy(self) -> str:
        """Return why a supervisor should restart the process, "" if it should not: all pipelines that run are stuck."""
        running = [each for each in self.monitors if each.status.state not in {"stopped", "failed"}]
        reasons = {each.name: each.metrics.unhealthy() for each in running}
        return _joined(reasons) if reasons and all(reasons.values()) else ""

    def unready(self) -> str:
        """Return which pipelines are not ready, and why; "" when all are that nobody has stopped."""
        return _joined({each.name: each.metrics.unready() for each in self.monitors if each.status.state != "stopped"})

    def notes(self) -> dict[str, str]:
        """Return the notes on the parts of all pipelines, and which of them somebody has stopped."""
        notes = {f"{each.name}.{part}": text for each in self.monitors for part, text in each.metrics.notes.items()}
        stopped = {each.name: each.metrics.unready() for each in self.monitors if each.status.state == "stopped"}
        return notes | stopped


class _Together(Collector):
    """Metrics and states of several pipelines, with the label `pipeline`, and metrics of the process without the label."""

    def __init__(self, monitors: Sequence[Monitor], process: CollectorRegistry) -> None:
        self._monitors, self._process = monitors, process

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        of_process: list[tuple[dict[str, str], Metric]] = [({}, family) for family in self._process.collect()]
        of_pipelines = [({LABEL: each.name}, family) for each in self._monitors for family in each.collect()]
        for labels, family in of_process + of_pipelines:
            one = families.get(family.name)
            if one is None:
                one = families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            one.samples += [sample._replace(labels={**labels, **sample.labels}) for sample in family.samples]
        yield from families.values()
        yield self._states()

    def _states(self) -> Metric:
        family = GaugeMetricFamily("tidemark_pipeline_state", "1 for the state of a pipeline", labels=[LABEL, "state"])
        for monitor in self._monitors:
            now = monitor.status.state
            for state in STATES:
                family.add_metric([monitor.name, state], float(state == now))
        return family


def _joined(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
