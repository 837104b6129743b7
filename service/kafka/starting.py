"""Where a new checkpoint begins to read: `kafka.starting`. An existing checkpoint continues at its position."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from confluent_kafka import Consumer

from service.errors import SettingsError
from service.kafka import clients
from service.kafka.offsets import Edges, at_time, edges, edges_now
from service.micro_batch import Offsets, at, each, format_offsets
from service.settings import Kafka
from service.units import format_time


def options(kafka: Kafka) -> dict[str, str]:
    """Return the options of Spark's stream source. Raises SourceError when Kafka has to be asked and does not answer."""
    if isinstance(kafka.starting, str):
        return {"startingOffsets": kafka.starting}
    if isinstance(kafka.starting, datetime):
        # Without the strategy Spark (4.1.1) fails at a partition whose records are all older.
        return {"startingTimestamp": str(_ms(kafka.starting)), "startingOffsetsByTimestampStrategy": "latest"}
    # Spark wants every partition named.
    return {"startingOffsets": format_offsets(_given(kafka.starting, edges_now(kafka)))}


def offsets(consumer: Consumer, kafka: Kafka, ends: Edges) -> Offsets:
    """Return the offset at which a new checkpoint begins in each partition. Raises KafkaException."""
    if isinstance(kafka.starting, Mapping):
        return _given(kafka.starting, ends)
    if isinstance(kafka.starting, datetime):
        return _at(consumer, _ms(kafka.starting), ends)
    side = 1 if kafka.starting == "latest" else 0
    return {topic: {p: edge[side] for p, edge in partitions.items()} for topic, partitions in ends.items()}


def of_topics(kafka: Kafka, topics: Sequence[str]) -> Offsets:
    """Return the offsets at which an existing checkpoint begins to read some of the topics.

    Raises SourceError when Kafka does not answer, SettingsError for an offset that a partition does not have.
    """
    starting = kafka.starting
    if isinstance(starting, Mapping):
        starting = {topic: offsets for topic, offsets in starting.items() if topic in topics}
    elif starting == "latest" and kafka.topics_pattern is not None:
        starting = "earliest"  # the topic is as old as its first record, and was found later
    only = kafka.model_copy(update={"topics": tuple(topics), "starting": starting})
    require(only)
    with clients.reading(kafka) as consumer:
        return offsets(consumer, only, edges(consumer, only))


def require(kafka: Kafka) -> None:
    """Raise SettingsError for an offset that its partition does not have; SourceError when Kafka does not answer."""
    if not isinstance(kafka.starting, Mapping):
        return
    ends, problems = edges_now(kafka), []
    for topic, partition, offset in each(kafka.starting):
        edge = ends.get(topic, {}).get(partition)
        if edge is None:
            problems.append(f"{topic} has no partition {partition}")
        elif not edge[0] <= offset <= edge[1]:
            problems.append(f"{topic}[{partition}] has offsets from {edge[0]} to {edge[1]}, not {offset}")
    if problems:
        what = f"kafka.starting: {'; '.join(problems)}"
        raise SettingsError(
            what, remedy="Correct the offsets. A partition that is not named begins at its first record"
        )


def describe(kafka: Kafka) -> str:
    """Return where a new checkpoint begins, for people."""
    if isinstance(kafka.starting, str):
        return f"the {kafka.starting} offsets"
    if isinstance(kafka.starting, datetime):
        return f"the first records of {format_time(_ms(kafka.starting))} or later"
    return "the offsets of kafka.starting"


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _given(starting: Mapping[str, Mapping[int, int]], ends: Edges) -> Offsets:
    return {
        topic: {p: at(starting, topic, p, begin) for p, (begin, _) in partitions.items()}
        for topic, partitions in ends.items()
    }


def _at(consumer: Consumer, time_ms: int, ends: Edges) -> Offsets:
    """Return the offset of the first record of a time or later, by the broker's time; the end without one."""
    found = at_time(consumer, [(topic, partition) for topic, partition, _ in each(ends)], time_ms)
    result: dict[str, dict[int, int]] = {}
    for topic, partition, (_, end) in each(ends):
        offset = found[topic, partition]
        result.setdefault(topic, {})[partition] = offset if 0 <= offset < end else end
    return result
