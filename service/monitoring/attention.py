"""What needs attention of a running service, as its /conditions says: for `tidemark status` and the page at /.

This module imports neither Spark nor a client, so that `tidemark status` starts fast.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.monitoring import pages, status
from service.units import rough_bytes, rough_duration, rough_seconds

if TYPE_CHECKING:
    from service.settings import Metrics

PATH = "/conditions"
MOST = 5
"""Alerts of one rule that are shown: each of a thousand topics may have one."""


def asked(metrics: "Metrics", name: str = "") -> dict[str, Any]:
    """Return the conditions of the running service. Raises NoServiceError.

    `name` is that of the pipeline, where the process may have several. Ask for the status first: it says whose address this is.
    """
    return pages.document(metrics, f"{PATH}{status.query(name)}", "conditions")


def active(document: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the conditions that are not inactive, each with one of its alerts: what fires first, then what is urgent.

    The last of the MOST alerts of a condition says how many more there are.
    """
    rows = [(each, alert) for each in document["conditions"] for alert in _shown(each["alerts"])]
    return sorted(rows, key=lambda row: (row[1]["state"] != "firing", row[0]["severity"] != "page"))


def _shown(alerts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    shown = sorted(alerts, key=lambda alert: alert["state"] != "firing")[:MOST]
    if (more := len(alerts) - len(shown)) > 0:
        shown[-1] = {**shown[-1], "summary": f"{shown[-1]['summary']}, and {more} more"}
    return shown


def duration(document: Mapping[str, Any], condition: Mapping[str, Any], alert: Mapping[str, Any]) -> str:
    """Return for how long an alert is there, and while it is pending also when it fires: "30 s of 2 min"."""
    since = rough_seconds(document["at_ms"] - alert["since_ms"])
    return since if alert["state"] == "firing" else f"{since} of {rough_seconds(1000 * condition['for_s'])}"


def amount(condition: Mapping[str, Any], value: float) -> str:
    """Return a value or a limit of a condition in the unit of its metric: "6 h", "2.5 GiB", "5,000,000"."""
    expression = condition["expr"]
    if expression.startswith("changes("):
        return f"{value:,.4g}"
    if "_seconds" in expression:
        return rough_duration(round(1000 * value)) if value else "0 s"
    if "_bytes" in expression:
        return rough_bytes(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each alert, or one that says that there is none."""
    rows = active(document)
    for each, alert in rows:
        since = f"for {duration(document, each, alert)}"
        yield f"{alert['state']} ({each['severity']}) {each['alert']} {since}: {alert['summary']} ({each['runbook']})"
    if not rows:
        yield "nothing needs attention"
