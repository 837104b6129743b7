"""The lines of `tidemark check` that need no Kafka, Redis or Spark."""

import socket
from pathlib import Path

import pytest

from service.commands import check
from service.errors import SetupError
from service.monitoring.board import Board
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.server import Server
from service.monitoring.status import Status
from tests.stream.records import make_settings


def test_a_port_that_the_running_service_holds_is_no_problem(tmp_path: Path) -> None:
    server = Server(Board([Monitor(Metrics(), Status("tidemark"))]), "127.0.0.1", 0)
    try:
        (line,) = check._metrics_port(make_settings(tmp_path, metrics={"port": server.port}))
        assert (line.status, line.detail) == ("ok", f"127.0.0.1:{server.port} is in use by the running service")
        another = make_settings(tmp_path, metrics={"port": server.port}, service={"name": "another"})
        with pytest.raises(SetupError, match=f"metrics.port = {server.port}"):
            next(check._metrics_port(another))
    finally:
        server.close()


def test_a_port_that_somebody_else_holds_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SetupError, match=f"metrics.port = {taken.getsockname()[1]}"):
            next(check._metrics_port(make_settings(tmp_path, metrics={"port": taken.getsockname()[1]})))
