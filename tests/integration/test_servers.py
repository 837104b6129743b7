"""Real parts: they start, survive a kill on their data, say why when they cannot start, and never stay behind."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Producer

from load.fleet.fleet import REFERENCE_QUERY, Fleet, FleetSettings, reference_rows
from load.fleet.postgres import write_reference_postgres
from load.servers.kafka import Broker
from load.servers.postgres import Postgres
from load.servers.redis import Redis
from load.servers.server_process import is_alive
from service.errors import SetupError
from tests.topics import read

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("parts")) as running:
        yield running


def send(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def test_the_broker_keeps_acknowledged_records_through_a_kill_and_a_stop(broker: Broker) -> None:
    broker.create_topic("kept", partitions=1)
    send(broker, "kept", b"1", b"2")
    port = broker.port
    broker.kill()
    assert not broker.is_running()
    broker.start()
    send(broker, "kept", b"3")
    broker.stop()
    broker.start()
    assert broker.port == port
    assert [message.value() for message in read(broker, "kept", 3)] == [b"1", b"2", b"3"]


def test_a_broker_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    data = tmp_path / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=9\n")
    with pytest.raises(
        SetupError, match=r"kafka on 127\.0\.0\.1:\d+ ended with status 1; the last lines of .*kafka\.log"
    ):
        broker.start()
    assert not broker.is_running()


def test_postgres_keeps_its_rows_and_asks_for_a_password(tmp_path: Path) -> None:
    fleet = Fleet(7, FleetSettings(devices=50))
    with Postgres(tmp_path) as postgres:
        assert postgres.jdbc_url == f"jdbc:postgresql://127.0.0.1:{postgres.port}/tidemark"
        for _ in range(2):
            write_reference_postgres(postgres.dsn, fleet)
        children = psutil.Process(postgres.pid).children()
        postgres.kill()
        assert not any(map(is_alive, children))
        postgres.start()
        assert sorted(postgres.execute(REFERENCE_QUERY)) == sorted(reference_rows(fleet))
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(postgres.dsn.replace(postgres.password, "guess"))
        postgres.stop()
        postgres.start()
        postgres.execute("update devices set site = %s where device_id = %s", [("here", fleet.names[0])])
        assert postgres.execute("select count(*) from devices where site = 'here'") == [(1,)]
        elsewhere = postgres.folder / "data-is-in"
        outside = Path(elsewhere.read_text().strip()) if elsewhere.exists() else None
    assert outside is None or not outside.exists()
    assert stat.S_IMODE((postgres.folder / "password").stat().st_mode) == 0o600


def test_a_part_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    thread = threading.Thread(target=redis.start)
    thread.start()
    thread.join()
    try:
        assert redis.client().ping()
    finally:
        redis.close()


def test_a_failing_block_ends_its_part(tmp_path: Path) -> None:
    seen: list[int] = []

    def fail() -> None:
        with Redis(tmp_path) as redis:
            seen.append(redis.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not psutil.pid_exists(seen[0])


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
