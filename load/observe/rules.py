"""The rules of deploy/alerts.yml, with shorter times: an alert whose range is half an hour is played in two minutes.

Only times are rewritten: `for`, ranges and the step of a subquery. Limits stay. Times of two minutes and less stay, and so does
the range of TidemarkAbsent. The table of a run names each time that was rewritten.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from load.testbed import ROOT

FILE = ROOT / "deploy" / "alerts.yml"
RUNBOOK = ROOT / "deploy" / "runbook.md"
_SHORT = {"5m": "15s", "10m": "30s", "15m": "45s", "30m": "90s"}
_OWN: Mapping[str, Mapping[str, str]] = {
    "TidemarkAbsent": {},
    # Five starts of a process.
    "TidemarkDriverRestarts": {"30m": "10m", "1m": "5s"},
    # Four checks of a sample, each of which starts a process.
    "TidemarkQualityUnchecked": {"1h": "6m"},
    "TidemarkValuesLost": {"1h": "1m"},
    "TidemarkMeasureAbsent": {"1h": "1m", "15m": "15s"},
    # Some slow batches are within the range.
    "TidemarkSlow": {"5m": "1m", "10m": "30s"},
}
_RANGE = re.compile(r"\[(\w+)(?::(\w+))?\]")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it is played; `shortened` has each time that was rewritten, and what it became."""

    alert: str
    severity: str
    runbook: str
    shortened: Mapping[str, str]
    document: Mapping[str, Any]


def rules() -> dict[str, Rule]:
    """Return all rules by name."""
    groups = yaml.safe_load(FILE.read_text())["groups"]
    return {each["alert"]: _shortened(each) for group in groups for each in group["rules"]}


def document(played: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the rule file for Prometheus."""
    return {"groups": [{"name": "tidemark", "rules": [dict(rule.document) for rule in played.values()]}]}


def anchors() -> set[str]:
    """Return the anchors of the runbook's headings."""
    headings = re.findall(r"^#+ (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def _shortened(rule: Mapping[str, Any]) -> Rule:
    times = _OWN.get(rule["alert"], _SHORT)
    used: dict[str, str] = {}

    def short(time: str) -> str:
        if time in times:
            used[time] = times[time]
        return times.get(time, time)

    def ranges(match: re.Match[str]) -> str:
        length, step = match.groups()
        return f"[{short(length)}:{short(step)}]" if step else f"[{short(length)}]"

    document = {**rule, "expr": _RANGE.sub(ranges, rule["expr"])}
    if "for" in rule:
        document["for"] = short(rule["for"])
    runbook = rule["annotations"]["runbook_url"]
    return Rule(rule["alert"], rule["labels"]["severity"], runbook, used, document)
