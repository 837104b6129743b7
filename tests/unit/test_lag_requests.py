"""A request that Kafka refuses hides no answer to another one. tests/integration/test_lag.py has a real broker."""

import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from service.kafka import clients
from service.monitoring import lag
from service.monitoring.lag import Lag
from tests import minimal


def refuse(*_: object, **__: object) -> Any:
    raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no right"))


class Answering(Consumer):
    """A client whose broker has ten records of one partition, and takes offsets of the group."""

    commit: Any = lambda *_, **__: []

    def list_topics(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(topics={"readings": SimpleNamespace(error=None, partitions={0: None})})

    def offsets_for_times(self, asked: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, 10 if each.offset == -1 else 0) for each in asked]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ((Answering, "commit"), "The group tidemark does not get the offsets of batches: no right"),
        ((lag, "headrooms"), "The time until retention is unknown: no right"),
        ((lag, "marked"), "The topics and the marks of rejects are unknown: no right"),
        ((lag, "edges"), "The lag is unknown: no right"),
    ],
)
def test_what_kafka_refuses_is_logged_once_and_only_refused_edges_hide_the_lag(
    part: tuple[Any, str], said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Answering({"bootstrap.servers": "127.0.0.1:1", "group.id": "tidemark", "log_level": 0})
    monkeypatch.setattr(clients, "consumer", lambda *_, **__: made)
    monkeypatch.setattr(lag, "EVERY_S", 0.01)
    monkeypatch.setattr(lag, "HEADROOM_EVERY_S", 0.0)
    monkeypatch.setattr(*part, refuse)
    shown, failures, rounds = list[Any](), list[int](), threading.Semaphore(0)

    def publish(lags: Any) -> None:
        shown.append(lags)
        rounds.release()

    def count() -> None:
        failures.append(1)

    asking = Lag(minimal.settings().kafka, publish, count)
    with closing(asking):
        asking.committed({"readings": {0: 4}})
        asking.start()
        for _ in range(3):
            assert rounds.acquire(timeout=30)
    assert shown[:3] == [{} if part[1] == "edges" else {"readings": {0: 6}}] * 3
    assert len(failures) >= 2
    assert [each.getMessage().partition(". ")[0] for each in caplog.records] == [said]
