"""Why Kafka does not answer: librdkafka has one text for most reasons. Real handshakes, without a broker."""

from pathlib import Path

import pytest

from load.servers.certificates import Authority, shaking_hands
from load.servers.server_process import free_port
from service.errors import SourceError, SourceRefusedError
from service.kafka import topics
from service.settings import Kafka


def refused(bootstrap: str, authority: Authority) -> SourceError:
    options = {"security.protocol": "ssl"}
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
        assert type(error) is SourceRefusedError
        assert "self-signed certificate" in refused(address, other).what


def test_a_broker_that_is_away_is_named_with_its_address_and_waited_for(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    error = refused(address, Authority(tmp_path / "ours"))
    assert type(error) is SourceError, error
    assert f"Kafka at {address} does not answer: " in error.what
    assert "Connection refused" in error.what
