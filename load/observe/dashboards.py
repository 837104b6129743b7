"""The queries of the dashboards in deploy/grafana."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, of an annotation or of a variable, as Grafana has it."""

    dashboard: str
    panel: str
    expr: str

    def concrete(self, interval: str) -> str:
        """Return the query as Grafana sends it, with all pipelines and instances chosen."""
        expr = self.expr
        for name, value in {"$__rate_interval": interval, "$job": ".*", "$instance": ".*"}.items():
            expr = expr.replace(name, value)
        return expr

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel}: {self.expr}"


def queries() -> list[Query]:
    return [query for path in sorted(FOLDER.glob("*.json")) for query in _queries(path)]


def _queries(path: Path) -> Iterator[Query]:
    document = json.loads(path.read_text(encoding="utf-8"))
    for panel in document["panels"]:
        for target in panel["targets"]:
            yield Query(path.stem, panel["title"], target["expr"])
    for annotation in document["annotations"]["list"]:
        yield Query(path.stem, annotation["name"], annotation["expr"])
