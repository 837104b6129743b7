"""The generator's command line, and parts' ports, without a broker."""

import math
import socket
import subprocess
import sys

import pytest

from load.fleet.generator import Summary, main
from load.fleet.options import arguments, seconds_of
from load.servers.server_process import HOST, ServerProcess, free_port, port_is_free
from service.errors import SetupError

NEEDED = ["--bootstrap", "127.0.0.1:1", "--topic", "readings"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("60s", 60.0), ("20m", 1200.0), ("2h", 7200.0), ("1.5", 1.5)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_a_simulated_run_needs_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments([*NEEDED, "--simulate", "1760000000000"])
    assert "--simulate needs" in capsys.readouterr().err


def test_a_count_over_a_span_is_a_rate() -> None:
    args = arguments([*NEEDED, "--simulate", "1760000000000", "--count", "1200", "--span", "20m"])
    assert (args.rate, args.seconds, args.count) == (1.0, math.inf, 1200)
    assert arguments([*NEEDED, "--simulate", "1760000000000", "--span", "20m"]).seconds == 1200


def test_without_a_broker_it_says_so_and_ends_with_the_setup_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("load.fleet.generator._ANSWER_S", 0.5)
    assert main([*NEEDED, "--devices", "10"]) == SetupError.status
    assert "No broker answers at 127.0.0.1:1" in capsys.readouterr().err


def test_an_impossible_fleet_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NEEDED, "--devices", "0"]) == 2
    assert "a fleet needs a device" in capsys.readouterr().err


def test_a_summary_is_whole_only_when_all_is_acknowledged() -> None:
    summary = Summary(sent=10, readings={}, failed=0, waiting=0, offsets={0: (0, 10)}, seconds=2.0, behind_s=0.0)
    assert (summary.rate, summary.is_whole) == (5.0, True)
    assert '"rate":5.0' in summary.to_json()
    lost = Summary(sent=10, readings={}, failed=0, waiting=1, offsets={}, seconds=0.0, behind_s=0.0)
    assert (lost.rate, lost.is_whole) == (0.0, False)


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
