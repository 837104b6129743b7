"""Rejects: records copied from an input topic to its rejects topic, byte for byte, whatever they are, in bounded memory."""

import ctypes
import json
import random
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import jsonschema_rs
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from load.servers.kafka import LOG_APPEND_TIME, Broker
from service.errors import SourceError, SourceRefusedError
from service.kafka import clients, topics
from service.micro_batch import MicroBatch
from service.rejects import delivery, fetch, reject_log
from service.rejects.fetch import JUMP, Record
from service.settings import Kafka

pytestmark = pytest.mark.integration

REJECT_SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "schemas" / "reject.json").read_text())
CUT = MicroBatch(3, 7, 0, {}, {})
LIMIT = 20_000
"""Bytes that a rejects topic takes here."""


class Sent(NamedTuple):
    """A record of an input topic."""

    value: bytes | None = b"value"
    key: bytes | None = b"key"
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = 0


class World:
    """An input topic and its rejects topic."""

    def __init__(self, broker: Broker, topic: str, partitions: int = 1, limit: int | None = LIMIT) -> None:
        self.bootstrap = broker.bootstrap
        self.kafka = Kafka(bootstrap=broker.bootstrap, topics=(topic,))
        self.topic, self.rejects = topic, self.kafka.rejects_topic(topic)
        broker.create_topic(topic, partitions, {**LOG_APPEND_TIME, "max.message.bytes": "4000000"})
        if limit is not None:
            broker.create_topic(self.rejects, partitions, {**LOG_APPEND_TIME, "max.message.bytes": str(limit)})

    def send(self, records: Iterable[Sent], **options: str | int) -> None:
        fixed: dict[str, str | int] = {"bootstrap.servers": self.bootstrap, "message.max.bytes": 10_000_000}
        producer = Producer({**fixed, "log_level": 0, **options})
        for each in records:
            producer.produce(self.topic, each.value, each.key, partition=each.partition, headers=list(each.headers))
        assert producer.flush(30) == 0

    def row(self, offset: int, partition: int = 0, **fields: Any) -> dict[str, Any]:
        place = {"topic": self.topic, "partition": partition, "offset": offset}
        return {"reason": "late", "detail": "", "broker_ms": 1, **place, **fields}

    def copy(self, rows: Iterable[dict[str, Any]]) -> None:
        delivery.copy(self.kafka, rows, CUT)
        delivery.flush(self.kafka, CUT)

    def copied(self) -> list[Message]:
        """All records of the rejects topic."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "t", "log_level": 0})
        messages: list[Message] = []
        for number in consumer.list_topics(self.rejects, timeout=20).topics[self.rejects].partitions:
            end = consumer.get_watermark_offsets(TopicPartition(self.rejects, number), timeout=20)[1]
            consumer.assign([TopicPartition(self.rejects, number, 0)])
            read = 0
            while read < end:
                message = consumer.poll(20)
                assert message is not None
                assert message.error() is None
                messages.append(message)
                read = int(message.offset() or 0) + 1
        consumer.close()
        return messages

    def by_place(self) -> dict[tuple[int, int], tuple[Any, Any, list[Any], Any]]:
        """(partition, offset) -> key, value, own headers and how many bytes are omitted; each only once."""
        copies = {}
        for message in self.copied():
            fields = delivery.parse(message.headers())
            jsonschema_rs.validate(REJECT_SCHEMA, fields)
            assert (fields["topic"], fields["epoch"], fields["batch"]) == (self.topic, 3, 7)
            headers: Any = message.headers()
            own = delivery.split(headers)[0]
            place = int(fields["partition"]), int(fields["offset"])
            assert place not in copies
            copies[place] = (message.key(), message.value(), own, fields.get("omitted_bytes"))
        return copies


def test_a_copy_has_the_bytes_of_its_record_and_no_other(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix, partitions=3)
    numbers = random.Random(3)
    records = {
        (partition, offset): Sent(
            numbers.choice([None, b"", numbers.randbytes(numbers.randrange(300))]),
            numbers.choice([None, b"", numbers.randbytes(9)]),
            [("trace", numbers.choice([None, b"", b"\xff\0"])) for _ in range(numbers.randrange(3))],
            partition,
        )
        for partition in range(3)
        for offset in range(3 * JUMP)
    }
    world.send(records.values())
    # All of a stretch, some of a stretch, one that is far from all others, and the last of a partition.
    chosen = [(0, offset) for offset in range(100, 200)]
    chosen += [(1, 7), *((1, offset) for offset in range(2 * JUMP, 3 * JUMP - 1, 7)), (1, 3 * JUMP - 1)]
    chosen += [(2, 0), (2, JUMP), (2, 2 * JUMP + 1)]
    numbers.shuffle(chosen)
    world.copy(world.row(offset, partition) for partition, offset in chosen)
    wanted = {place: (records[place].key, records[place].value, list(records[place].headers), None) for place in chosen}
    assert world.by_place() == wanted


def test_records_beside_one_that_nobody_can_decompress_are_copied(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix)
    zeros = Sent(bytes(300 << 20))
    for record in (Sent(b"0"), zeros, zeros, Sent(b"3"), zeros, Sent(b"5")):
        world.send([record], **{"compression.type": "zstd", "message.max.bytes": 1_000_000_000})
    world.copy(world.row(offset) for offset in (0, 1, 3, 5))
    gone = (None, None, [], 0)
    key = b"key"
    assert world.by_place() == {
        (0, 0): (key, b"0", [], None),
        (0, 1): gone,
        (0, 3): (key, b"3", [], None),
        (0, 5): (key, b"5", [], None),
    }
    world.copy([world.row(4)])
    assert len(world.copied()) == 5


def test_a_record_too_large_for_the_rejects_topic_is_cut_down(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix)
    large = b"x" * (2 * LIMIT)
    trace = [("trace", b"1")]
    records = [
        Sent(b"before", headers=trace),
        Sent(large, headers=trace),
        Sent(None, large, headers=trace),
        Sent(b"value", large, headers=trace),
        Sent(None, headers=[("trace", large)]),
        Sent(b"value", headers=[("trace", large)]),
        Sent(large, large, headers=[("trace", large)]),
        Sent(b"after", headers=trace),
    ]
    world.send(records)
    world.copy([world.row(offset) for offset in range(len(records))])
    copies = world.by_place()
    whole = [len(each.value or b"") + len(each.key or b"") + len("trace" + "1") for each in records]
    assert copies == {
        (0, 0): (b"key", b"before", trace, None),
        (0, 1): (b"key", None, trace, len(large)),
        (0, 2): (None, None, [], whole[2]),
        (0, 3): (None, None, [], whole[3]),
        (0, 4): (None, None, [], 3 + 5 + len(large)),
        (0, 5): (None, None, [], 5 + 3 + 5 + len(large)),
        (0, 6): (None, None, [], 2 * len(large) + 5 + len(large)),
        (0, 7): (b"key", b"after", trace, None),
    }
    rejects = [*reject_log.read(world.kafka)]
    for reject, there in zip(rejects, reject_log.complete(world.kafka, rejects, {}), strict=True):
        assert there is not None
        sent = records[reject.place.offset]
        assert (there.key, there.value, there.headers) == (sent.key, sent.value, tuple(sent.headers))


def test_small_records_are_not_cut_because_they_go_out_together(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix, limit=2_000)
    world.send([Sent(b"x" * 500, partition=0)] * 100)
    world.copy([world.row(offset) for offset in range(100)])
    assert [value for _, value, _, _ in world.by_place().values()] == [b"x" * 500] * 100


def test_a_rejects_topic_that_takes_nothing_is_an_error_that_does_not_pass(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix, limit=200)
    world.send([Sent()])
    with pytest.raises(SourceRefusedError, match=r"max\.message\.bytes"):
        world.copy([world.row(0)])


def test_records_that_kafka_no_longer_has_are_sent_as_coordinates(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix, partitions=3)
    world.send(Sent(b"%d" % number, partition=number % 3) for number in range(30))
    admin = AdminClient({"bootstrap.servers": broker_server.bootstrap})
    gone = [TopicPartition(world.topic, 0, 4), TopicPartition(world.topic, 1, 10)]
    for future in admin.delete_records(gone).values():
        future.result(20)
    world.copy([world.row(offset, partition) for partition in range(3) for offset in range(12)])
    copies = world.by_place()
    assert len(copies) == 36
    kept = {place: each[1] for place, each in copies.items() if each[3] is None}
    assert kept == {(p, o): b"%d" % (3 * o + p) for p, o in copies if o < 10 and (p == 2 or (p == 0 and o >= 4))}
    assert all(each == (None, None, [], 0) for place, each in copies.items() if place not in kept)
    lost = [reject for reject in reject_log.read(world.kafka) if reject.omitted_bytes is not None]
    elsewhere = replace(lost[0], place=replace(lost[0].place, partition=7))
    assert reject_log.complete(world.kafka, [*lost[:2], elsewhere], {}) == [None, None, None]


@pytest.mark.parametrize("name", [b"\xff\xfe", b"tidemark.\xff", b"", b"a\0b"])
def test_a_headers_name_that_is_no_text_hides_no_reject(broker_server: Broker, prefix: str, name: bytes) -> None:
    world = World(broker_server, prefix)
    world.send([Sent(b"before")])
    _send_raw(world, name)
    world.copy([world.row(0), world.row(1)])
    assert [each[:2] for each in world.by_place().values()] == [(b"key", b"before"), (None, b"value")]
    assert len(list(reject_log.read(world.kafka))) == 2


def test_a_transaction_that_never_ended_holds_up_no_reject(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix)
    open_ = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": prefix, "log_level": 0})
    open_.init_transactions(20)
    open_.begin_transaction()
    open_.produce(world.topic, b"never committed")
    assert open_.flush(20) == 0
    world.send([Sent(b"behind it")])
    world.copy([world.row(1)])
    assert world.by_place()[0, 1][1] == b"behind it"
    open_.abort_transaction(20)


@pytest.mark.thorough
def test_copies_take_bounded_memory(broker_server: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_QUEUE_KIB", 8 << 10)
    monkeypatch.setattr(delivery, "_LARGEST", 4 << 20)
    world = World(broker_server, prefix, limit=4_000_000)
    world.send([Sent(bytes(1_000_000))] * 10)
    world.copy([world.row(offset) for offset in range(10)])
    world.send([Sent(bytes(1_000_000))] * 290)
    done, most, before = threading.Event(), 0, _resident()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, _resident())

    watching = threading.Thread(target=watch)
    watching.start()
    world.copy([world.row(offset) for offset in range(10, 300)])
    done.set()
    watching.join()
    assert len(world.copied()) == 300
    # Twice the queue (the client's and ours), what is read ahead, and the pieces of each in between.
    assert most - before < 100 << 20


def test_what_waits_for_the_broker_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_QUEUE_KIB", 8 << 10)
    monkeypatch.setattr(delivery, "_LARGEST", 4 << 20)
    monkeypatch.setattr(clients, "DELIVERY_S", 1.0)
    nobody = Kafka(bootstrap="127.0.0.1:1", topics=("readings",))
    row = {"reason": "late", "detail": "", "broker_ms": 1, "topic": "readings", "partition": 0, "offset": 0}
    taken = []

    def send_all() -> None:
        with delivery.sender(nobody) as sending:
            for number in range(100):
                sending.send(row, Record(None, bytes(1 << 20), []), CUT)
                taken.append(number)

    with pytest.raises(SourceError, match="rejects were not delivered"):
        send_all()
    assert len(taken) <= 8


def test_unreadable_records_send_nothing(broker_server: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_SILENCE_S", 0.5)
    world = World(broker_server, prefix)
    with pytest.raises(SourceError):
        world.copy([{**world.row(0), "topic": f"no-such-{prefix}"}])
    assert world.copied() == []
    world.send([Sent(b"later")])
    world.copy([world.row(0)])
    assert [message.value() for message in world.copied()] == [b"later"]


def test_a_rejects_topic_is_made_with_a_limit_above_the_input_topics(broker_server: Broker, prefix: str) -> None:
    world = World(broker_server, prefix, limit=None)
    topics.prepare(world.kafka)
    descriptions = topics.describe(clients.admin(world.kafka), world.kafka)
    assert descriptions[world.rejects].max_bytes > descriptions[world.topic].max_bytes == 4_000_000
    world.send([Sent(b"x" * 3_999_000)])
    world.copy([world.row(0)])
    assert world.by_place()[0, 0][3] is None


def _send_raw(world: World, name: bytes) -> None:
    """Send a record with a header of any name: the Python client takes text only, and what is below it anything."""
    [path] = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*.so*")
    library, pointer, size = ctypes.CDLL(str(path)), ctypes.c_void_p, ctypes.c_size_t
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = pointer
    error = ctypes.create_string_buffer(200)
    configuration = pointer(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(configuration, b"bootstrap.servers", world.bootstrap.encode(), error, size(200))
    producer = pointer(library.rd_kafka_new(0, configuration, error, size(200)))
    headers = pointer(library.rd_kafka_headers_new(size(1)))
    library.rd_kafka_header_add(headers, name, size(len(name)), b"x", size(1))
    # Topic, partition, value (copied, flag 2) and headers, each behind its number in rd_kafka_vtype_t; 0 ends them.
    topic, value = ctypes.c_char_p(world.topic.encode()), ctypes.c_char_p(b"value")
    arguments = [*(1, topic), *(3, 0), *(4, value, size(5)), *(7, 2), *(10, headers), 0]
    assert library.rd_kafka_producev(producer, *arguments) == 0
    assert library.rd_kafka_flush(producer, 20_000) == 0
    library.rd_kafka_destroy(producer)


def _resident() -> int:
    """Bytes of memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))
