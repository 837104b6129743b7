"""The socket that takes commands, and `tidemark query` over it."""

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from load.servers.server_process import free_port
from service.cli import main
from service.commands import query
from service.daemon import control
from service.daemon.control import Control, ask, place
from service.errors import SettingsError, SetupError
from service.monitoring.board import Board
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.server import Server
from service.monitoring.status import Status
from service.settings import Metrics as Address
from tests.unit.test_pipelines import write


class Served:
    """A process of two pipelines that follow commands at once."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.monitors = {name: Monitor(Metrics(), Status(name)) for name in ("one", "two")}
        self.path = folder / "control.sock"
        self.control = Control(self.path, {name: self.request(name) for name in self.monitors})
        self.board = Board([*self.monitors.values()])
        self.board.control = str(self.path)
        self.server = Server(self.board, "127.0.0.1", 0)
        self.address = Address(port=self.server.port)

    def request(self, name: str) -> control.Request:
        def follow(runs: bool) -> None:
            self.asked.append((name, runs))
            if runs:
                self.monitors[name].begins()
                self.monitors[name].status.query_started()
            else:
                self.monitors[name].ended(None)

        return follow

    def close(self) -> None:
        self.control.close()
        self.server.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.close()


def send(path: Path, data: bytes) -> dict[str, str]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return dict(json.loads(connection.recv(control.MOST_BYTES)))


def test_only_the_user_of_the_process_can_open_the_socket(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = served.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    monkeypatch.setattr(control, "peer_of", lambda _: 12_345)
    command = b'{"command": "stop", "pipeline": "one"}\n'
    assert "only the user of the process" in send(served.path, command)["error"]
    with pytest.raises(PermissionError, match="belongs to another user"):
        ask(served.path, "stop", "one")
    assert served.asked == []


def test_a_command_goes_to_the_pipeline_that_it_names(served: Served) -> None:
    assert ask(served.path, "stop", "two") == ""
    assert ask(served.path, "start", "two") == ""
    assert served.asked == [("two", False), ("two", True)]
    assert ask(served.path, "stop", "three") == "there is no pipeline 'three'; there are one, two"
    assert ask(served.path, "delete", "one") == "there is no command 'delete'; there are stop, start"


@pytest.mark.parametrize("data", [b"", b"\n", b"stop\n", b"[]\n", b'{"command": "stop"}\n', b"\xff\n", b"1" * 10_000])
def test_what_is_no_command_is_refused_and_the_next_one_followed(served: Served, data: bytes) -> None:
    assert "no command" in send(served.path, data)["error"]
    assert ask(served.path, "stop", "one") == ""


def test_a_socket_of_a_killed_process_is_replaced_and_a_closed_one_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    again = Control(path, {})
    assert "there is no pipeline 'one'" in ask(path, "stop", "one")
    with pytest.raises(OSError, match="in use"):
        Control(path, {})
    assert "there is no pipeline 'one'" in ask(path, "stop", "one"), "another process does not take it away"
    again.close()
    assert not path.exists()
    with pytest.raises(OSError, match="too long"):
        Control(tmp_path / ("x" * 120), {})


def test_a_process_that_ends_before_it_answers_has_not_taken_the_command(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def end() -> None:
            with server.accept()[0] as connection:
                connection.recv(control.MOST_BYTES)

        ending = threading.Thread(target=end)
        ending.start()
        assert ask(path, "stop", "one") == "no answer"
        ending.join()


def test_the_place_is_of_the_user_and_the_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}:/run/another")
    assert place(9400) == tmp_path / f"tidemark-{os.getuid()}-9400.sock"


def test_query_stops_starts_and_lists(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = f"\n[metrics]\nport = {served.server.port}\n"
    config = ["--config", str(write(tmp_path, "one", more=port))]
    assert main(["query", "stop", "two", *config]) == 0
    assert capsys.readouterr().out == "two: stopped\n"
    assert main(["query", "await", "two", *config]) == 1, "it does not run"
    assert main(["query", "await", "two", "--state", "stopped", *config]) == 0
    assert main(["query", "start", "two", *config]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "two: running"
    assert main(["query", "list", *config]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["pipeline", "state"], ["one", "waiting"], ["two", "running"]]
    assert main(["query", "list", "--json", *config]) == 0
    assert {*json.loads(capsys.readouterr().out)} == {"one", "two"}
    assert main(["query", "stop", "three", *config]) == 2
    assert "there is no pipeline 'three'; there are one, two" in capsys.readouterr().err
    assert main(["query", "await", "one", "--timeout", "0", *config]) == 1
    assert main(["status", *config]) == 1
    assert "one: waiting" in [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()]


def test_query_says_what_is_wrong(served: Served, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no service answers"):
        query.listed(Address(port=free_port()))
    served.control.close()
    with pytest.raises(SetupError, match="the process cannot be asked"):
        query.request(served.address, "stop", "one")
    served.board.control = None
    with pytest.raises(SetupError, match="takes no commands"):
        query.request(served.address, "stop", "one")
    with pytest.raises(SettingsError, match="no pipeline"):
        query.reached(served.address, "three", "running", 1, print)
    alone = Server(Board([Monitor(Metrics(), Status("alone"))]), "127.0.0.1", 0)
    try:
        assert {*query.listed(Address(port=alone.port))} == {"alone"}
        with pytest.raises(SetupError, match="takes no commands"):
            query.request(Address(port=alone.port), "stop", "alone")
    finally:
        alone.close()
