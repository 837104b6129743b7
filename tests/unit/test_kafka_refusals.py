"""Why Kafka does not answer: librdkafka has one text for most reasons. Real handshakes, without a broker."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from load.servers.certificates import Authority, shaking_hands
from load.servers.server_process import PATIENCE, free_port
from service.errors import SourceError, SourceTrustError
from service.kafka import scan, topics
from service.settings import Kafka


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that cannot connect waits until the end of the time that it has."""
    monkeypatch.setattr(topics, "TIMEOUT_S", 2.0 * PATIENCE)


def refused(bootstrap: str, authority: Authority, protocol: str = "ssl") -> SourceError:
    options = {"security.protocol": protocol}
    kafka = Kafka.model_validate(
        {"bootstrap": bootstrap, "topics": ["readings"], "ca_file": authority.ca_file, "options": options}
    )
    with pytest.raises(SourceError) as raised:
        topics.prepare(kafka)
    return raised.value


def test_a_certificate_is_refused_by_the_reason_that_it_has(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    with shaking_hands(ours.server("old", expired=True)) as address:
        error = refused(address, ours)
        assert f"Kafka at {address} and this client do not trust each other: certificate has expired" in error.what
        assert "clock" in error.remedy
        assert type(error) is SourceTrustError
        assert "self-signed certificate" in refused(address, other).what


def test_a_broker_that_is_away_is_named_with_its_address_and_waited_for(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    error = refused(address, Authority(tmp_path / "ours"))
    assert type(error) is SourceError, error
    assert f"Kafka at {address} does not answer: " in error.what
    assert "Connection refused" in error.what


def test_tls_on_one_side_only_is_named_and_waited_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    with shaking_hands(authority.server("fine")) as address:
        error = refused(address, authority, "plaintext")
        assert "it speaks TLS" in error.what
        assert "ca_file" in error.remedy
        assert type(error) is SourceError
    with hanging_up() as address:
        error = refused(address, authority)
        assert "SSL_HANDSHAKE" in error.what
        assert "port" in error.remedy
        assert type(error) is SourceError


@contextlib.contextmanager
def hanging_up() -> Iterator[str]:
    """A server that closes each connection at its first bytes, as a broker without TLS does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client:
                        client.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "{}:{}".format(*listening.getsockname())
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


class _WithoutLeader:
    """A consumer of a topic whose partition has no leader at this moment: the answer has the error in the partition."""

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={"readings.rejects": SimpleNamespace(partitions={0: None})})

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[SimpleNamespace]:
        return [SimpleNamespace(error=KafkaError(KafkaError.LEADER_NOT_AVAILABLE), offset=-1001)]


def test_a_partition_that_does_not_say_where_a_time_begins_is_no_empty_one() -> None:
    with pytest.raises(KafkaException, match="LEADER_NOT_AVAILABLE"):
        scan._assign(_WithoutLeader(), ["readings.rejects"], 1, None)
