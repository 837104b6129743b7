"""Read topics in tests."""

from confluent_kafka import Consumer, Message, TopicPartition

from load.servers.kafka import Broker


def read(broker: Broker, topic: str, count: int) -> list[Message]:
    """The first `count` records of partition 0, and what follows at once."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    while len(messages) < count:
        more = consumer.consume(count, timeout=20)
        assert more, f"{len(messages)} of {count} records after 20 s"
        messages += more
    consumer.close()
    return messages
