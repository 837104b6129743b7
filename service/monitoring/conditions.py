"""What needs attention: the alert rules (service/monitoring/alert_rules.py), evaluated by the service over its own metrics.

A rule is `pending` while its expression has elements, and `firing` when an element has been there for the rule's `for`, as in
Prometheus. This process sees itself only: rules that are about other processes have the state `unknown`, and a standby evaluates
none. The samples begin with those of a process that has counted nothing, so the first event of a counter counts.

service/monitoring/attention.py reads the document of a running service.
"""

import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from service import clock
from service.monitoring import alert_rules, promql
from service.monitoring.alert_rules import Rule
from service.monitoring.course import Course, Marks
from service.monitoring.figures import EXPRESSIONS, figures
from service.monitoring.history import History, Labels
from service.monitoring.promql import Expression, Operation

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_log = logging.getLogger(__name__)
_STANDBY = promql.parse('tidemark_role{role="standby"} == 1')
_TEMPLATE = re.compile(r"\{\{ \$(?:labels\.(?P<label>\w+)|value(?: \| (?P<how>\w+))?) \}\}")


@dataclass(slots=True)
class _Active:
    """An element of a rule's expression: since when it is there, and its value."""

    since_s: float
    since_ms: int
    value: float


@dataclass(slots=True)
class _Watched:
    rule: Rule
    expression: Expression | None
    """None for a rule that only Prometheus can evaluate."""
    for_s: float
    active: dict[Labels, _Active] = field(default_factory=dict)


class Conditions:
    """The conditions of a pipeline. Its methods may be called from any thread."""

    def __init__(
        self,
        name: str,
        collect: Callable[[], "Iterable[Metric]"],
        rules: Sequence[Rule] | None = None,
        marks: Marks | None = None,
    ) -> None:
        """`collect` returns the metrics of the pipeline; without `rules` they are those of this process. Alerts that fire are
        `marks` of the course.
        """
        self.name, self._collect = name, collect
        self.course = Course(marks or Marks())
        self._lock = threading.RLock()
        self._rules = [
            _Watched(each, None if each.prometheus_only else promql.parse(each.expr), promql.seconds(each.for_))
            for each in (alert_rules.rules() if rules is None else rules)
        ]
        watched = [each.expression for each in self._rules if each.expression is not None]
        expressions = [*watched, *EXPRESSIONS.values(), _STANDBY]
        self._history = History(promql.longest(*map(promql.ranges, expressions)))
        self._began_s = clock.monotonic_s()
        self._history.add(collect(), self._began_s)

    def look(self) -> None:
        """Add the metrics of now, and evaluate all rules."""
        with self._lock:
            now_s = clock.monotonic_s()
            families = list(self._collect())
            self._history.add(families, now_s)
            is_standby = bool(_STANDBY.vector(self._history))
            for each in self._rules:
                if each.expression is None:
                    continue
                elements = {} if is_standby else promql.vector(each.expression, self._history)
                former = each.active
                each.active = {
                    labels: _Active(*_since(former.get(labels), now_s), value) for labels, value in elements.items()
                }
            self.course.add(families, self._firing(now_s))

    def document(self) -> dict[str, Any]:
        """Return the document of /conditions, evaluated now."""
        with self._lock:
            self.look()
            return {
                "service": self.name,
                "at_ms": clock.now_ms(),
                "watched_s": round(self._history.at_s - self._began_s, 1),
                "conditions": [self._condition(each) for each in self._rules],
            }

    def figures(self, status: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the figures of now; `status` is the status' document."""
        with self._lock:
            self.look()
            return figures(status, self._history)

    def _firing(self, now_s: float) -> dict[str, int]:
        """Return since when each alert fires, by its name: a thousand topics may have it."""
        return {
            each.rule.alert: min(firing) + int(1000 * each.for_s)
            for each in self._rules
            if (firing := [one.since_ms for one in each.active.values() if now_s - one.since_s >= each.for_s])
        }

    def _condition(self, each: _Watched) -> dict[str, Any]:
        rule = each.rule
        alerts = [
            {
                "labels": dict(labels),
                "state": "firing" if self._history.at_s - active.since_s >= each.for_s else "pending",
                "since_ms": active.since_ms,
                "value": _finite(active.value),
                "summary": summary(
                    rule.summary, {"job": self.name, "instance": "This process"} | dict(labels), active.value
                ),
            }
            for labels, active in sorted(each.active.items())
        ]
        states = {str(alert["state"]) for alert in alerts}
        state = next((one for one in ("firing", "pending") if one in states), "inactive")
        value, limit = (math.nan, math.nan) if each.expression is None else _nearest(each.expression, self._history)
        return {
            "alert": rule.alert,
            "state": "unknown" if each.expression is None else state,
            "severity": rule.severity,
            "expr": rule.expr,
            "for_s": each.for_s,
            "runbook": rule.runbook,
            "command": rule.command,
            "value": _finite(value),
            "limit": _finite(limit),
            "alerts": alerts,
        }


class Evaluation(threading.Thread):
    """Evaluates the conditions of all pipelines every ten seconds until `close`."""

    def __init__(self, conditions: Sequence[Conditions]) -> None:
        super().__init__(name="tidemark-conditions", daemon=True)
        self._conditions = conditions
        self._ending = threading.Event()

    def run(self) -> None:
        failing = set[Conditions]()
        while not self._ending.wait(History.EVERY_S):
            for each in self._conditions:
                try:
                    each.look()
                except Exception:  # those of the other pipelines are evaluated
                    if each not in failing:
                        text = "The alert rules of %s are not evaluated. The evaluation is retried every ten seconds"
                        _log.exception(text, each.name)
                    failing.add(each)
                else:
                    failing.discard(each)

    def close(self) -> None:
        self._ending.set()
        self.join()


def summary(template: str, labels: Mapping[str, str], value: float) -> str:
    """Return the summary of an alert, as Prometheus fills in the template."""

    def filled(match: re.Match[str]) -> str:
        if match["label"]:
            return labels.get(match["label"], "")
        return _HUMAN[match["how"]](value)

    return _TEMPLATE.sub(filled, template)


def _scaled(value: float, base: float, prefixes: Sequence[str]) -> str:
    if abs(value) < 1 or not math.isfinite(value):
        return f"{value:.4g}"
    power = min(int(math.log(abs(value), base) + 1e-9), len(prefixes) - 1)
    return f"{value / base**power:.4g}{prefixes[power].strip()}"


def _humanize_duration(value: float) -> str:
    if not math.isfinite(value) or abs(value) < 60:
        return f"{value:.4g}s"
    rest, sign = int(abs(value)), "-" if value < 0 else ""
    parts: list[str] = []
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if rest >= unit_s or parts:
            parts.append(f"{rest // unit_s}{unit}")
            rest %= unit_s
    return sign + " ".join(parts)


_HUMAN: Mapping[str | None, Callable[[float], str]] = {
    None: lambda value: f"{value:.10g}",
    "humanize": lambda value: _scaled(value, 1000.0, " kMGTPEZY"),
    "humanize1024": lambda value: _scaled(value, 1024.0, ["", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"]),
    "humanizeDuration": _humanize_duration,
}


def _since(former: _Active | None, now_s: float) -> tuple[float, int]:
    return (now_s, clock.now_ms()) if former is None else (former.since_s, former.since_ms)


def _nearest(expression: Expression, history: History) -> tuple[float, float]:
    """Return the two sides of the comparison that decides, of the element that is nearest to its limit; NaN without one."""
    while isinstance(expression, Operation) and expression.sign == "and":
        expression = expression.left
    pairs = [(a, b) for _, a, b in expression.pairs(history)] if isinstance(expression, Operation) else []
    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return max(known, key=lambda pair: pair[0] - pair[1], default=(math.nan, math.nan))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
