"""The table of a run, as JSON and as the page docs/operator/alerts.md."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from load.observe.dashboards import Query
from load.observe.rules import Rule
from load.observe.scene import Played
from load.report import machine

_HEAD = """\
# Alerts that have fired

`make observe` wrote this page. A real Prometheus scrapes the service while the cause of every alert in
[alerts.yml](../../deploy/alerts.yml) is brought about. Each alert must fire, reach a receiver of Alertmanager with its link to
the [runbook](../../deploy/runbook.md), and clear when the cause is over. The service's [conditions](monitor.md#conditions) and
`tidemark status` must show the same at both times. Every query of the [dashboards](monitor.md#dashboards)
must return data.

The seconds to fire begin with the cause, those to clear with its end. Times of more than two minutes in a rule are shortened for
the run, as the last column says. Prometheus scrapes every second, and Alertmanager groups for one second. Limits are those of the
rules. The settings of the services are in `load/observe/scenes`.
"""


def report(rules: Mapping[str, Rule], rows: Sequence[Played], empty: Sequence[Query], seconds: float) -> dict[str, Any]:
    return {
        "alerts": len(rules),
        "fired": sum(row.fired_s is not None for row in rows),
        "notified": sum(row.notified for row in rows),
        "cleared": sum(row.cleared_s is not None for row in rows),
        "different": sum(not row.agrees for row in rows),
        "empty_queries": len(empty),
        "queries": [str(query) for query in empty],
        "seconds": round(seconds),
        "rows": [{**_row(row), "shortened": dict(rules[row.alert].shortened)} for row in rows],
        "machine": machine(),
    }


def page(figures: Mapping[str, Any]) -> str:
    """Return the page of a run that played every alert."""
    rows = sorted(figures["rows"], key=lambda row: row["alert"])
    lines = ["| alert | cause | s to fire | s to clear | shortened |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        short = ", ".join(f"{time} to {became}" for time, became in row["shortened"].items())
        lines.append(f"| `{row['alert']}` | {row['cause']} | {row['fired_s']} | {row['cleared_s']} | {short} |")
    result = (
        f"Result of {time.strftime('%Y-%m-%d')}, on {figures['machine']['cores']} cores: {figures['alerts']} alerts, "
        f"{figures['fired']} fired, {figures['notified']} notified, {figures['cleared']} cleared, "
        f"{figures['different']} shown differently by the service, "
        f"{figures['empty_queries']} queries without data, {figures['seconds']} s."
    )
    return "\n".join([_HEAD, result, "", *lines, ""])


def _row(row: Played) -> dict[str, Any]:
    document = asdict(row)
    del document["since_s"]
    return document
