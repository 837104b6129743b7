"""The generator's command line, and parts' ports, without a broker."""

import socket
import subprocess
import sys

import pytest

from load.fleet.generator import main
from load.servers.server_process import HOST, ServerProcess, free_port, port_is_free
from service.errors import SetupError

NEEDED = ["--bootstrap", "127.0.0.1:1", "--topic", "readings"]


def test_without_a_broker_it_says_so_and_ends_with_the_setup_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("load.fleet.generator._ANSWER_S", 0.5)
    assert main([*NEEDED, "--devices", "10"]) == SetupError.status
    assert "No broker answers at 127.0.0.1:1" in capsys.readouterr().err


def test_free_ports_are_free_distinct_and_outside_the_range_of_clients() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) == 50
    assert all(20_000 <= port < 32_000 and port_is_free(port) for port in ports)


def test_a_port_that_was_given_away_is_not_given_to_another_process() -> None:
    given = [free_port() for _ in range(200)]
    program = f"from load.servers import server_process; print([server_process.reserve(port) for port in {given}].count(True))"
    assert subprocess.check_output([sys.executable, "-c", program]).strip() == b"0"


def test_a_taken_port_is_named(tmp_path: object) -> None:
    with socket.create_server((HOST, 0)) as taken:
        part = ServerProcess(str(tmp_path), taken.getsockname()[1])
        with pytest.raises(SetupError, match=rf"Port {part.port} on {HOST} is in use"):
            part.start()


def test_a_part_that_is_not_running_has_no_process_id(tmp_path: object) -> None:
    part = ServerProcess(str(tmp_path))
    part.stop()
    part.kill()
    with pytest.raises(SetupError, match="is not running"):
        _ = part.pid
