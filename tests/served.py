"""Pipelines whose pages are served in this process, as the daemon serves them, without their queries."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from load.servers.web import answer
from service.monitoring.board import Board
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.server import Server
from service.monitoring.status import Status
from tests.reports import CUT, REPORT


class Served:
    """One pipeline, or those of the names; `monitor`, `metrics` and `status` are of the first."""

    def __init__(self, *names: str, address: str = "127.0.0.1", port: int = 0) -> None:
        self.monitors = [Monitor(Metrics(), Status(name)) for name in names or ("tidemark",)]
        self.monitor = self.monitors[0]
        self.metrics, self.status = self.monitor.metrics, self.monitor.status
        self.board = Board(self.monitors)
        self.server = Server(self.board, address, port)
        self.port = self.server.port

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the body of a page."""
        return answer(f"http://127.0.0.1:{self.port}{path}", 10)

    def document(self, path: str) -> Any:
        """Return a page of JSON, which has no infinity."""
        return json.loads(self.get(path)[1], parse_constant=_refuse)

    def run(self) -> None:
        """Have the query run in a term."""
        self.status.term(3)
        self.status.query_started()
        self.metrics.query_running.set(1)

    def batch(self, number: int, rows: int, phases: Mapping[str, float] | None = None) -> None:
        """Publish a batch."""
        cut = replace(CUT, batch=number, end={"r": {0: 10 + rows, 1: 0}})
        published = replace(REPORT, micro_batch=cut, phases=REPORT.phases if phases is None else phases)
        self.status.batch(published)
        self.metrics.batch_ends(published)

    def settings_file(self, folder: Path, text: str) -> Path:
        """Write a settings file that names the port, and return it."""
        path = folder / "tidemark.toml"
        path.write_text(f"{text}\n[metrics]\nport = {self.port}\n")
        return path


@contextmanager
def served(*names: str, address: str = "127.0.0.1", port: int = 0) -> Iterator[Served]:
    """Serve in a block."""
    made = Served(*names, address=address, port=port)
    try:
        yield made
    finally:
        made.server.close()


def _refuse(constant: str) -> None:
    raise AssertionError(constant)
