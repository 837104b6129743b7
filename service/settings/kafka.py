"""[kafka]."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, field_validator, model_validator

from service.settings.section import Client, Text, rule
from service.settings.topics_pattern import Topics, TopicsPattern, matches, with_topics

TOPIC = re.compile(r"^[A-Za-z0-9._-]+\Z")
_REJECTS = rule(
    re.compile(r"\{topic\}[A-Za-z0-9._-]+|[A-Za-z0-9._-]+\{topic\}[A-Za-z0-9._-]*").fullmatch,
    "must be {topic} with letters, digits, . _ or - before or after it, such as '{topic}.rejects'",
)
MARKS = ".applied"
"""Ends the name of the topic of marks, after that of the topic of rejects."""
MOST_TOPICS = 2_048
"""A topic and a partition of it are one number of 32 bits (service/admission/readings.py)."""
_PARTITION = re.compile(r"(0|[1-9][0-9]{0,9})\Z")
"""One spelling for each number, so that no two entries are of one partition."""


def _starting(value: object) -> str | datetime | Mapping[str, Mapping[int, int]]:
    text = (
        "must be 'earliest', 'latest', a time with a zone such as 2026-11-20T08:00:00Z, or offsets such as "
        "{ readings = { 0 = 1200, 1 = 900 } }"
    )
    if value in ("earliest", "latest"):
        return str(value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(text) from None
    if isinstance(value, datetime) and value.tzinfo is not None and value.timestamp() >= 0:
        return value
    if not isinstance(value, Mapping) or not value or not all(isinstance(each, Mapping) for each in value.values()):
        raise ValueError(text)
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in value.items():
        for partition, offset in partitions.items():
            if (
                not _PARTITION.match(str(partition))
                or not isinstance(offset, int)
                or isinstance(offset, bool)
                or offset < 0
            ):
                raise ValueError(f"{topic}[{partition}] = {offset!r} is no partition with an offset of 0 or more")
            offsets.setdefault(str(topic), {})[int(partition)] = offset
    return offsets


class Kafka(Client):
    bootstrap: Text = Field(examples=["kafka-1:9092,kafka-2:9092"])
    """The brokers' addresses, with commas between."""
    topics_pattern: TopicsPattern = Field(default=None, examples=["plant-[a-z]+"])
    """More topics, or all: those whose complete name this regular expression of RE2 matches, without topics of rejects.
    New ones are found while the service runs, and are read from their first record. Default: none.
    """
    topics: Topics = Field(examples=[["readings"]])
    """The topics that are read; not given with [[inputs]]. Their message.timestamp.type should be LogAppendTime."""
    group: str = "tidemark"
    """Consumer group in which Kafka's own tools find the offsets of committed batches. It assigns nothing."""
    starting: Annotated[str | datetime | Mapping[str, Mapping[int, int]], PlainValidator(_starting)] = "earliest"
    """Where a new checkpoint begins: "earliest", "latest", a time of the broker's such as 2026-11-20T08:00:00Z, or
    offsets such as { readings = { 0 = 1200, 1 = 900 } }; a partition that is not named begins at its first record. An
    existing checkpoint continues at its position.
    """
    on_data_loss: Literal["stop", "continue"] = "stop"
    """When Kafka has deleted records that were not read yet: "stop" ends the service with status 5 and names them,
    "continue" goes on without them and counts them (tidemark_records_lost_total).
    """
    max_per_batch: int = Field(default=3_000_000, gt=0)
    """Most records in one batch, over all partitions. service.target_batch makes batches smaller."""
    rejects: Annotated[str, _REJECTS] = "{topic}.rejects"
    """Name of the topic that takes the rejects of {topic}. It is created if it does not exist."""

    @model_validator(mode="before")
    @classmethod
    def _may_have_a_pattern_alone(cls, value: Any) -> Any:
        return with_topics(value)

    @field_validator("topics")
    @classmethod
    def _are_different(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)}: is named twice")
        return value

    def conflicts(self) -> Iterator[str]:
        others = sorted(set(self.starting) - set(self.topics)) if isinstance(self.starting, Mapping) else []
        if others and self.topics_pattern is not None:
            others = sorted(set(others) - set(matches(self.topics_pattern, others)))
        if others:
            yield f"starting: {', '.join(others)} is not among the topics {', '.join(self.topics)}"
        if len(self.topics) > MOST_TOPICS:
            yield f"topics: has {len(self.topics)} topics, the limit is {MOST_TOPICS}. Read the others by another service"
        if self.user is None and (self.password is not None or self.password_file is not None):
            yield "user: is missing, and there is a password"
        if (self.certificate is None) != (self.key is None):
            yield "certificate and key: give both or neither"

    def rejects_topic(self, topic: str) -> str:
        return self.rejects.format(topic=topic)

    def marks_topic(self, topic: str) -> str:
        """The topic that says which rejects are corrected or replayed (service/rejects/marks.py)."""
        return f"{self.rejects_topic(topic)}{MARKS}"
