"""What needs attention of a running service, as its /conditions says: for `tidemark status` and the page at /.

This module imports neither Spark nor a client, so that `tidemark status` starts fast.
"""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from service.monitoring import pages, status

if TYPE_CHECKING:
    from service.settings import Metrics

PATH = "/conditions"


def asked(metrics: "Metrics", name: str = "") -> dict[str, Any] | None:
    """Return the conditions of the running service, None if it is of an earlier version, which has none. Raises NoServiceError.

    `name` is that of the pipeline, where the process may have several. Ask for the status first: it says whose address this is.
    """
    path = f"{PATH}{status.query(name)}"
    if pages.fetch(metrics, path)[0] == HTTPStatus.NOT_FOUND:
        return None
    try:
        reply = json.loads(pages.document(metrics, path))
    except ValueError as error:
        raise pages.foreign(metrics) from error
    if not isinstance(reply, dict) or "conditions" not in reply:
        raise pages.foreign(metrics)
    return reply


def active(document: Mapping[str, Any] | None) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the conditions that are not inactive, each with one of its alerts: what fires first, then what is urgent."""
    rows = [(each, alert) for each in (document or {"conditions": ()})["conditions"] for alert in each["alerts"]]
    return sorted(rows, key=lambda row: (row[1]["state"] != "firing", row[0]["severity"] != "page"))


def lines(document: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a line for each alert, or one that says that there is none."""
    if document is None:
        yield "the service is of an earlier version, and does not evaluate the alert rules"
        return
    rows = active(document)
    for each, alert in rows:
        since = f"for {(document['at_ms'] - alert['since_ms']) // 1000} s"
        wait = "" if alert["state"] == "firing" else f" of {each['for_s']:.0f} s"
        yield f"{alert['state']} ({each['severity']}) {each['alert']} {since}{wait}: {alert['summary']} ({each['runbook']})"
    if not rows:
        yield "nothing needs attention"
