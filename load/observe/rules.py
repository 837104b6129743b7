"""The alert rules with shorter times: an alert whose range is half an hour is played in two minutes.

Only times are rewritten: `for`, ranges and the step of a subquery. Limits stay. Times of two minutes and less stay, and so does
the range of TidemarkAbsent. The table of a run names each time that was rewritten. Prometheus and the service get the same rules.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from load.testbed import ROOT
from service.monitoring import alert_rules
from service.monitoring.alert_rules import RULES

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

    played: alert_rules.Rule
    shortened: Mapping[str, str]

    @property
    def severity(self) -> str:
        return self.played.severity

    @property
    def document(self) -> Mapping[str, Any]:
        """The rule as a rule file of Prometheus has it."""
        return self.played.document()


def rules() -> dict[str, Rule]:
    return {each.alert: _shortened(each) for each in RULES}


def document(played: Mapping[str, Rule]) -> dict[str, Any]:
    return {"groups": [{"name": "tidemark", "rules": [dict(rule.document) for rule in played.values()]}]}


def environment(played: Mapping[str, Rule], file: Path) -> dict[str, str]:
    """Write the rules for the service, and return the variables that have it evaluate them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(rule.played) for rule in played.values()]), encoding="utf-8")
    return {"TIDEMARK_TEST": "1", "TIDEMARK_ALERTS": str(file)}


def anchors() -> set[str]:
    """Return the anchors of the runbook's headings."""
    headings = re.findall(r"^#+ (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def _shortened(rule: alert_rules.Rule) -> Rule:
    times = _OWN.get(rule.alert, _SHORT)
    used: dict[str, str] = {}

    def short(time: str) -> str:
        if time in times:
            used[time] = times[time]
        return times.get(time, time)

    def ranges(match: re.Match[str]) -> str:
        length, step = match.groups()
        return f"[{short(length)}:{short(step)}]" if step else f"[{short(length)}]"

    return Rule(replace(rule, expr=_RANGE.sub(ranges, rule.expr), for_=short(rule.for_)), used)
