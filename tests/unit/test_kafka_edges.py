"""Begin and end of partitions: a number of requests that does not grow with them."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from service.errors import SourceError
from service.kafka import clients, offsets, scan, starting, topics
from service.kafka.offsets import EdgeReader, edges
from service.recompute import sources
from service.recompute.sources import Partition
from service.settings import Kafka


class Cluster:
    """Topics by name with (begin, end) of each partition; counts requests. It knows no other time than 0."""

    def __init__(self, topics: dict[str, list[tuple[int, int]]]) -> None:
        self.topics, self.requests, self.assigned = topics, 0, list[TopicPartition]()
        self.closed = 0

    def list_topics(self, topic: str | None = None, *, timeout: float) -> Any:
        self.requests += 1
        names = self.topics if topic is None else [topic]
        missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(
                    partitions=range(len(self.topics.get(name, ()))), error=None if name in self.topics else missing
                )
                for name in names
            }
        )

    def offsets_for_times(self, places: list[TopicPartition], *, timeout: float) -> list[Any]:
        self.requests += 1
        assert places
        return [self._found(place) for place in places]

    def _found(self, place: TopicPartition) -> Any:
        begin, end = self.topics[place.topic][place.partition]
        offset = {-2: begin, -1: end, 0: begin if begin < end else -1}[place.offset]
        error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE) if end < 0 else None
        return SimpleNamespace(topic=place.topic, partition=place.partition, offset=offset, error=error)

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = places

    def poll(self, timeout: float) -> Message | None:
        """The first record of each assigned partition."""
        if not self.assigned:
            return None
        place = self.assigned.pop(0)
        return Message(topic=place.topic, partition=place.partition, offset=place.offset, timestamp=(2, 1_000))

    def resume(self, places: list[TopicPartition]) -> None:
        """No partition is paused."""

    pause = resume

    def unassign(self) -> None:
        self.assigned = []

    def close(self) -> None:
        self.closed += 1


def kafka(*topics: str) -> Kafka:
    return Kafka(bootstrap="127.0.0.1:1", topics=topics)


def test_a_thousand_partitions_of_a_hundred_topics_take_three_requests() -> None:
    cluster: Any = Cluster({f"t{n}": [(p, 10 * p) for p in range(10)] for n in range(100)})
    found = edges(cluster, kafka(*cluster.topics))
    assert {topic: [*each.values()] for topic, each in found.items()} == cluster.topics
    assert cluster.requests == 3


def test_of_few_topics_the_metadata_of_no_other_topic_is_asked_for() -> None:
    cluster: Any = Cluster({"a": [(0, 1)], "b": [(0, 0)], "other": [(0, 9)]})
    assert edges(cluster, kafka("a", "b")) == {"a": {0: (0, 1)}, "b": {0: (0, 0)}}
    assert cluster.requests == 4


@pytest.mark.parametrize("others", [0, 100])
def test_a_missing_topic_and_a_partition_without_a_leader_are_errors(others: int) -> None:
    cluster: Any = Cluster({**{f"t{n}": [(0, 0)] for n in range(others)}, "gone": [(0, -5)]})
    with pytest.raises(KafkaException, match="LEADER_NOT_AVAILABLE"):
        edges(cluster, kafka(*cluster.topics))
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        edges(cluster, kafka(*cluster.topics, "missing"))


def test_a_scan_begins_at_a_time_or_an_offset_and_leaves_out_partitions_without_a_record() -> None:
    cluster: Any = Cluster({"a": [(5, 9), (3, 3), (0, 2)], "b": [(0, 4)]})

    def assigned(**options: Any) -> list[tuple[str, int, int]]:
        scan._assign(cluster, ["a", "b", "missing"], options.get("since_ms"), options.get("begin"))
        return [(each.topic, each.partition, each.offset) for each in cluster.assigned]

    assert assigned() == [("a", 0, 5), ("a", 2, 0), ("b", 0, 0)]
    assert assigned(since_ms=-1) == assigned()
    assert assigned(begin={("a", 0): 1, ("a", 2): 1, ("b", 0): 4}) == [("a", 0, 5), ("a", 2, 1)]
    assert assigned(begin={}) == []


def test_a_time_begins_at_its_first_record_or_at_the_end() -> None:
    cluster: Any = Cluster({"a": [(5, 9), (3, 3)]})
    found = starting._at(cluster, 0, edges(cluster, kafka("a")))
    assert found == {"a": {0: 5, 1: 3}}


def test_the_batches_of_a_query_ask_with_one_consumer_until_it_fails_or_the_query_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster: Any = Cluster({"a": [(0, 1)]})
    made: list[bool] = []
    monkeypatch.setattr(clients, "consumer", lambda *_, uncommitted, **__: made.append(uncommitted) or cluster)
    monkeypatch.setattr(offsets, "Consumer", Cluster)
    ask = EdgeReader(kafka("a"))
    assert made == []
    assert [ask() for _ in range(3)] == [{"a": {0: (0, 1)}}] * 3
    assert made == [False]
    cluster.topics["a"] = [(0, -5)]
    with pytest.raises(SourceError, match="does not answer"):
        ask()
    assert cluster.closed == 1
    cluster.topics["a"] = [(0, 2)]
    assert ask(uncommitted=True) == ask() == {"a": {0: (0, 2)}}
    assert made == [False, True, False]
    ask.close()
    assert cluster.closed == 3


def test_a_topic_that_no_broker_describes_in_time_is_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of topics leaves out those that do not exist, and those that the user may not see."""
    cluster: Any = Cluster({"other": [(0, 1)]})
    cluster.describe_topics = lambda _, request_timeout: {"a": Future[Any]()}
    monkeypatch.setattr(clients, "admin", lambda _: cluster)
    monkeypatch.setattr(topics, "TIMEOUT_S", 0.01)
    with pytest.raises(SourceError, match="does not answer: no answer in time") as raised:
        topics.prepare(kafka("a"))
    assert type(raised.value) is SourceError


def test_a_recomputation_asks_for_all_partitions_together() -> None:
    """Its parts are found by halves of the span, and each half asks again."""
    cluster: Any = Cluster({"a": [(0, n) for n in range(300)], "cut": [(5, 9), (7, 7)]})
    places = [*(("a", n) for n in range(300)), ("cut", 0), ("cut", 1)]
    found = sources._partitions(cluster, places, 0)
    assert cluster.requests == 3
    assert (found["a", 0], found["a", 7]) == (Partition(0, None, None), Partition(0, None, 0))
    assert (found["cut", 0], found["cut", 1]) == (Partition(5, 1_000, 5), Partition(7, None, None))
