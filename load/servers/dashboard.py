"""The dashboard page as a child process on loopback."""

import sys
from collections.abc import Sequence
from pathlib import Path

from load.servers.server_process import ServerProcess
from load.servers.web import answer


class Dashboard(ServerProcess):
    """`python -m tidemark_dashboard` on a free port; `options` are further options of its command line."""

    name = "dashboard"

    def __init__(self, folder: Path | str, redis: str, service: str, options: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self._options = ["--redis", redis, "--service", service, *options]

    @property
    def url(self) -> str:
        """http://host:port, without a path."""
        return f"http://{self.address}"

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "tidemark_dashboard", "--port", str(self.port), *self._options]

    def _answers(self) -> bool:
        return answer(f"{self.url}/healthz", 1.0)[0] == 200
