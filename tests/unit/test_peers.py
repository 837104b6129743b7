"""The peers of `make peers` read Kafka with the options of Tidemark's consumer."""

import pytest

from load.peers.engines import PEERS, settings
from load.testbed import ROOT
from service.kafka.source import CONSUMER_OPTIONS


@pytest.mark.parametrize("name", PEERS)
def test_each_peer_reads_with_the_consumer_options_of_tidemark(name: str) -> None:
    chosen = settings(name, ROOT, "localhost:1", "redis://localhost:2")
    text = "\n".join(f"{key} {value}" for key, value in chosen.items())
    for option, value in CONSUMER_OPTIONS.items():
        assert chosen.get(f"streams.consumer.{option}", chosen.get(f"consumer.{option}")) == value
        assert name != "flink-sql" or f"'properties.{option}' = '{value}'" in text
    assert "$" not in text
