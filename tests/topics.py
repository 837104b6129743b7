"""Write to topics and read them in tests."""

from collections.abc import Iterable

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from load.servers.kafka import Broker


def send(broker: Broker, topic: str, values: Iterable[bytes], partitions: int = 1) -> None:
    """Send values to the partitions in turn; return when all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(30) == 0


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
