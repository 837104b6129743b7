"""Records as a consumer gives them."""

from confluent_kafka import Message

BROKER_MS = 1_790_000_000_000
"""2026-09-21T14:13:20Z."""


def sample(
    value: bytes | None,
    key: bytes | None = None,
    headers: list[tuple[str, bytes]] | None = None,
    ms: int = BROKER_MS,
    topic: str = "topic",
    offset: int = 0,
) -> Message:
    return Message(topic=topic, partition=0, offset=offset, key=key, value=value, headers=headers, timestamp=(1, ms))
