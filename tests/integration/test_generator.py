"""The generator against a real broker: what it says it sent is what the topic holds."""

import collections
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from load.fleet.fleet import SHARES, Fleet, FleetSettings
from load.fleet.generator import Generator, Summary
from load.servers.kafka import CREATE_TIME, Broker
from service.errors import SetupError

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
ROOT = Path(__file__).resolve().parents[2]
START_MS = 1_760_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("generator")) as running:
        for topic in ("live", "sent", "stopped", "one", "spread", "killed", "arrays"):
            running.create_topic(topic, partitions=4)
        for topic in ("first", "second"):
            running.create_topic(topic, partitions=4, config=CREATE_TIME)
        yield running


def read(broker: Broker, topic: str, summary: Summary) -> list[Message]:
    """The records between the summary's offsets."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, first) for partition, (first, _) in summary.offsets.items()])
    wanted = sum(end - first for first, end in summary.offsets.values())
    got: list[Message] = []
    deadline = time.monotonic() + 60
    while len(got) < wanted:
        assert time.monotonic() < deadline, f"{len(got)} of {wanted} records after 60 s"
        more = consumer.consume(10_000, timeout=0.2)
        got += [each for each in more if each.offset() < summary.offsets[each.partition()][1]]
    consumer.close()
    return got


def kind_of(message: Message) -> str:
    return dict(message.headers() or [("kind", b"ordinary")])["kind"].decode()


def generator(broker: Broker, topic: str, rate: float = 5_000.0, **options: object) -> Generator:
    return Generator(broker.bootstrap, topic, Fleet(7, FleetSettings(devices=500, rate=rate)), **options)


def test_the_summary_is_what_the_topic_holds(broker: Broker) -> None:
    summary = generator(broker, "sent").send(20_000)
    messages = read(broker, "sent", summary)
    counts = collections.Counter(map(kind_of, messages))
    assert summary.is_whole
    assert summary.sent == len(messages)
    assert sum(summary.readings.values()) == 20_000
    for name, count in summary.readings.items():
        assert counts[name] == count * (2 if name == "duplicate" else 1)
    assert {kind.name.lower() for kind in SHARES} <= set(counts)
    homes = collections.defaultdict(set)
    for message in messages:
        homes[message.key()].add(message.partition())
    assert {len(each) for each in homes.values()} == {1}  # a device's readings keep their order


def test_a_simulated_topic_is_the_same_bytes_at_the_same_times_again(broker: Broker) -> None:
    contents = []
    for topic in ("first", "second"):
        summary = generator(broker, topic, rate=100, simulate_ms=START_MS).run(120)
        messages = read(broker, topic, summary)
        contents.append(sorted((m.partition(), m.offset(), m.timestamp(), m.key(), m.value() or b"") for m in messages))
        assert summary.sent == pytest.approx(12_000, rel=0.05)
    assert contents[0] == contents[1]
    times = [each[2][1] for each in contents[0]]
    assert min(times) >= START_MS
    assert START_MS + 119_000 < max(times) < START_MS + 120_000


def test_partitions_can_be_one_or_any(broker: Broker) -> None:
    one = generator(broker, "one", partitions_by="2").send(100)
    assert {partition: end - first for partition, (first, end) in one.offsets.items() if end > first} == {2: one.sent}
    spread = generator(broker, "spread", partitions_by="spread").send(2_000)
    assert all(end - first > 200 for first, end in spread.offsets.values())
    with pytest.raises(SetupError, match="there is no 9"):
        generator(broker, "one", partitions_by="9")
    with pytest.raises(SetupError, match="Topic nowhere"):
        generator(broker, "nowhere")


def test_arrays_have_ordinary_readings_that_follow_each_other(broker: Broker) -> None:
    summary = generator(broker, "arrays", value_format="json", array=4, partitions_by="0").send(2_000)
    messages = read(broker, "arrays", summary)
    assert summary.is_whole
    assert summary.sent == len(messages) < 1_000
    readings: list[dict[str, object]] = []
    lengths = set()
    for message in messages:
        if kind_of(message) == "ordinary":
            value = message.value()
            text = gzip.decompress(value) if value.startswith(b"\x1f\x8b") else value
            array = json.loads(text)
            assert message.key() == array[0]["device_id"].encode()
            assert (len(array) == 4) == (text != value)
            lengths.add(len(array))
            readings += array
    assert lengths == {1, 2, 3, 4}
    assert len(readings) == summary.readings["ordinary"]


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed_under_it(broker: Broker) -> None:
    command = [*program(broker, "killed"), "--rate", "2000", "--for", "8s", "--progress"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_for_records(broker, "killed", 1_000)
        broker.kill()
        broker.start()
        out, err = running.communicate(timeout=120)
    summary = json.loads(out)
    assert running.returncode == 0, err
    assert (summary["failed"], summary["waiting"]) == (0, 0)
    assert sum(end - first for first, end in summary["offsets"].values()) == summary["sent"]


def program(broker: Broker, topic: str) -> list[str]:
    options = ["--bootstrap", broker.bootstrap, "--topic", topic, "--devices", "200"]
    return [sys.executable, "-W", "error", "-m", "load.fleet.generator", *options]


def wait_for_records(broker: Broker, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test", "log_level": 0})
    deadline = time.monotonic() + 60
    partitions = [TopicPartition(topic, partition) for partition in range(4)]
    while sum(consumer.get_watermark_offsets(each, timeout=10)[1] for each in partitions) < count:
        assert time.monotonic() < deadline, f"{topic} did not reach {count} records"
    consumer.close()
