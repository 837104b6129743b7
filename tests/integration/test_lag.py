"""The lag is that of the checkpoint's committed batches, whatever a consumer group's offsets say."""

import threading
from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from load.servers.kafka import Broker
from service.micro_batch import Offsets
from service.monitoring.lag import Lag
from service.settings import Kafka
from tests.outputs import settings
from tests.topics import send

pytestmark = pytest.mark.integration


@pytest.fixture
def kafka(broker_server: Broker, prefix: str) -> Kafka:
    """A topic and a group of its own."""
    broker_server.create_topic(f"lag-{prefix}", 1)
    made = settings("redis://127.0.0.1:1", prefix, broker_server.bootstrap)
    return made.kafka.model_copy(update={"topics": (f"lag-{prefix}",), "group": prefix})


@pytest.mark.thorough
def test_an_older_checkpoint_has_more_to_read(broker_server: Broker, kafka: Kafka, prefix: str) -> None:
    """Else silence closes what is open while a rebuild reads the topic."""
    [topic] = kafka.topics
    send(broker_server, topic, [b"{}"] * 10)
    old = Consumer({"bootstrap.servers": broker_server.bootstrap, "group.id": prefix, "log_level": 0})
    old.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    old.close()
    looks: list[tuple[Offsets, tuple[Offsets, Offsets]]] = []
    lags: list[Offsets] = []
    looked = threading.Event()

    def level(_asked_ms: int, ends: Offsets, reached: Offsets) -> None:
        looks.append((lags[-1], (ends, reached)))
        looked.set()

    def seen(behind: int) -> tuple[Offsets, Offsets]:
        """What a look says that finds the service so many records behind."""
        while not looks or looks[-1][0] != {topic: {0: behind}}:
            assert looked.wait(60), looks
            assert len(looks) < 10, looks
            looked.clear()
        return looks[-1][1]

    lag = Lag(kafka, lags.append, lambda: None, level=level)
    lag.start()
    try:
        assert seen(10) == ({topic: {0: 10}}, {topic: {0: 0}})
        lag.committed({topic: {0: 4}})
        assert seen(6) == ({topic: {0: 10}}, {topic: {0: 4}})
        lag.committed({topic: {0: 10}})
        assert seen(0) == ({topic: {0: 10}}, {topic: {0: 10}})
    finally:
        lag.close()


@pytest.mark.thorough
def test_between_two_queries_there_is_a_lag_and_no_silence(kafka: Kafka) -> None:
    """While Redis is away there is no query, and Kafka answers."""
    [topic] = kafka.topics
    asked, looks = list[int](), list[tuple[str, int]]()
    answered = threading.Event()

    def on_answer(at_ms: int) -> None:
        asked.append(at_ms)
        answered.set()

    def wait() -> None:
        """Until Kafka has answered twice: the first answer may be one that was under way."""
        for _ in range(2):
            answered.clear()
            assert answered.wait(60)

    lag = Lag(kafka, lambda _: None, lambda: None, asked=on_answer)
    with closing(lag):
        assert not lag.is_alive(), "before the first query there is no position"
        with lag.serving({topic: -1}, lambda at_ms, *_: looks.append(("first", at_ms))):
            wait()
        seen, before = list(looks), len(asked)
        wait()
        assert looks == seen
        assert len(asked) > before
        with lag.serving({topic: -1}, lambda at_ms, *_: looks.append(("second", at_ms))):
            wait()
    assert {name for name, _ in looks[len(seen) :]} == {"second"}


def test_a_lag_that_no_query_has_begun_ends_at_once() -> None:
    Lag(settings("redis://127.0.0.1:1", "none", "127.0.0.1:1").kafka, lambda _: None, lambda: None).close()


def test_the_end_commits_newest_offsets(
    broker_server: Broker, kafka: Kafka, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to end while a broker takes its time: another process may have the lease, and show the lag, by then."""
    [topic] = kafka.topics
    shown: list[Offsets] = []
    asked, answered = threading.Event(), threading.Event()

    def slow(*_: object) -> dict[str, dict[int, tuple[int, int]]]:
        asked.set()
        assert answered.wait(60)
        return {topic: {0: (0, 10)}}

    monkeypatch.setattr("service.monitoring.lag.edges", slow)
    lag = Lag(kafka, shown.append, lambda: None)
    lag.start()
    assert asked.wait(60)
    lag.committed({topic: {0: 7}})
    closing_ = threading.Thread(target=lag.close)
    closing_.start()
    while not lag._closing:
        pass
    answered.set()
    closing_.join(60)
    assert shown == []
    group = Consumer({"bootstrap.servers": broker_server.bootstrap, "group.id": prefix, "log_level": 0})
    [stored] = group.committed([TopicPartition(topic, 0)], timeout=30)
    group.close()
    assert stored.offset == 7
