"""[kafka]."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, field_validator, model_validator

from service.settings.section import Client

TOPIC = re.compile(r"^[A-Za-z0-9._-]+\Z")
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
                msg = f"{topic}[{partition}] = {offset!r} is no partition with an offset of 0 or more"
                raise ValueError(msg)
            offsets.setdefault(str(topic), {})[int(partition)] = offset
    return offsets


class Kafka(Client):
    bootstrap: str = Field(examples=["kafka-1:9092,kafka-2:9092"])
    """The brokers' addresses, with commas between."""
    topics: tuple[str, ...] = Field(min_length=1, examples=[["readings"]])
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
    rejects: str = "{topic}.rejects"
    """Name of the topic that takes the rejects of {topic}. It is created if it does not exist."""

    @field_validator("topics")
    @classmethod
    def _are_different(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            msg = f"{', '.join(twice)}: is named twice"
            raise ValueError(msg)
        return value

    @field_validator("rejects")
    @classmethod
    def _names_a_topic(cls, value: str) -> str:
        if value.count("{topic}") != 1 or value == "{topic}" or not TOPIC.match(value.replace("{topic}", "")):
            msg = "must be {topic} with letters, digits, . _ or - before or after it, such as '{topic}.rejects'"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _begins_in_its_topics(self) -> Self:
        others = sorted(set(self.starting) - set(self.topics)) if isinstance(self.starting, Mapping) else []
        if others:
            msg = f"starting: {', '.join(others)} is not among the topics {', '.join(self.topics)}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _has_both_halves(self) -> Self:
        if self.user is None and (self.password is not None or self.password_file is not None):
            msg = "user: is missing, and there is a password"
            raise ValueError(msg)
        if (self.certificate is None) != (self.key is None):
            msg = "certificate and key: give both or neither"
            raise ValueError(msg)
        return self

    def rejects_topic(self, topic: str) -> str:
        return self.rejects.format(topic=topic)
