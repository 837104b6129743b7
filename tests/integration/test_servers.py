"""Embedded servers: none outlives the program that started it, and a port in use is named before anything starts."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from load.servers.kafka import Broker
from load.servers.postgres import Postgres
from load.servers.redis import Redis
from load.servers.server_process import is_alive
from service.errors import SetupError

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
ROOT = Path(__file__).resolve().parents[2]


HOLDER = """
import sys
from load.servers.postgres import Postgres
from load.servers.redis import Redis
parts = [part(sys.argv[1]).start() for part in (Redis, Postgres)]
print(*[part.pid for part in parts], flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["kill", "return"])
def test_parts_die_with_the_process_that_started_them(tmp_path: Path, end: str) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "wait" if end == "kill" else "return"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pids = [int(each) for each in holder.stdout.readline().split()]
        assert len(pids) == 2
        if end == "kill":
            holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, pids
    elsewhere = tmp_path / "postgres" / "data-is-in"
    if elsewhere.exists():
        shutil.rmtree(elsewhere.read_text().strip(), ignore_errors=True)  # what a killed process cannot do


def test_a_port_in_use_is_named_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for part in (Broker(tmp_path, port), Redis(tmp_path, port), Postgres(tmp_path, port)):
            with pytest.raises(SetupError, match=rf"Port {port} on 127.0.0.1 is in use, {part.name} cannot have it"):
                part.start()
    assert os.listdir(tmp_path) == []
