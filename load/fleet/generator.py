"""The generator: sends a fleet's readings to a topic, at a steady rate or as fast as the broker takes them.

    python -m load.fleet.generator --bootstrap 127.0.0.1:9092 --topic readings --seed 7 --rate 5000 --devices 10000 --for 60s

Live, readings are sent when they are due, in steps of at most 20 ms; their event time is when they are due, less their
delay on the way. What cannot be sent within a second of its due time is not made up for: the rest of the schedule moves
back, and the summary says by how much (`behind_s`).
Simulated (`Generator(simulate_ms=...)`), event time and record time both follow the schedule, for a topic with CreateTime, and
records are sent at once: the same seed and start give the same bytes.

Whatever ends the run - time, SIGTERM, Ctrl-C - what was handed over is flushed and one line of JSON says what
was sent: how many readings of each kind, and the offsets they lie between when nobody else writes to the topic.
"""

import gzip
import itertools
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from load.fleet.encode import HEADER, SCHEMAS, Value, encode, encoder_of, key_of
from load.fleet.fleet import Fleet, Ints, Kind, Readings, kinds_of, write_reference_sqlite
from load.fleet.options import arguments, fleet_of
from service.clock import now_ms
from service.errors import SetupError, TidemarkError

Headers = list[tuple[str, str | bytes | None]]
Piece = tuple[Readings, Ints]  # and when each is sent, in milliseconds since the epoch

TICK_S = 0.01, 0.1
"""The shortest and the longest; between them a tick has TICK readings. A slow load must not cost a fast one's requests."""
TICK = 50
_LATEST_S = 1.0
_BLOCK = 20_000
_CHUNK = 2_000
_ANSWER_S = 10.0
_FLUSH_S = 60.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of the sent records. `readings` counts by kind name; each duplicate is two of the `sent` records.

    `failed` records were given up by the client, `waiting` ones were not acknowledged when the flush ran out of time:
    with both 0, the topic holds every record once. `offsets` is partition -> [first, end), measured around the run.
    """

    sent: int
    readings: Mapping[str, int]
    failed: int
    waiting: int
    offsets: Mapping[int, tuple[int, int]]
    seconds: float
    behind_s: float

    @property
    def rate(self) -> float:
        """Records a second, flush included."""
        return self.sent / self.seconds if self.seconds else 0.0

    @property
    def is_whole(self) -> bool:
        """Whether every record that was sent is known to be in the topic."""
        return not (self.failed or self.waiting)

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "rate": round(self.rate, 1)}, separators=(",", ":"))


class _Sending(NamedTuple):
    """A record of so many readings, to be sent so many times."""

    value: Value
    key: bytes
    time_ms: int
    headers: Headers | None
    readings: int = 1
    times: int = 1


def _array_of(readings: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(readings) + b"]"


class Generator:
    """Sends the readings of `fleet` to `topic`; each `run` or `send` goes on where the one before ended.

    `value_format` is "avro", "json" or "protobuf". With `array` > 1 a record of JSON is an array of at most so many readings that
    follow each other, under the key of its first reading; one with that many is gzip'd. `partitions_by` is "device" (Java's hash
    of the key), "spread" (any, changing) or a partition's number. With `simulate_ms`, the start in milliseconds since the epoch,
    all times are simulated.
    `client` are further settings of the Kafka client. Raises SetupError when the broker or the topic is not there.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        fleet: Fleet,
        *,
        value_format: str = "avro",
        array: int = 1,
        schemas: Path = SCHEMAS,
        partitions_by: str = "device",
        simulate_ms: int | None = None,
        client: Mapping[str, str | int] | None = None,
    ) -> None:
        self.topic = topic
        self.fleet = fleet
        self.rate = fleet.rate
        self._encoder = encoder_of(fleet, value_format, schemas)
        self._array = array
        self._partition = int(partitions_by) if partitions_by.isdecimal() else -1
        self._keys: list[bytes] = [name.encode() for name in fleet.names]
        self._headers: list[Headers] = [[(HEADER, kind.name.lower().encode())] for kind in Kind]
        self._simulate_ms = simulate_ms
        self._start_ms = now_ms() if simulate_ms is None else simulate_ms
        self._block = fleet.readings(0, 0, self._start_ms)
        self._block_ms = int(np.clip(_BLOCK * 1000 / fleet.rate, 50, 60_000))
        self._block_end_ms = 0
        self._at = 0
        self._clock_ms = 0.0
        self._behind_s = 0.0
        self._stopping = threading.Event()
        self._failed = 0
        self._sent = 0
        self._readings = np.zeros(len(Kind), dtype=np.int64)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.size": 1 << 20,
                "batch.num.messages": 50_000,
                "queue.buffering.max.messages": 200_000,  # seconds at most: what waits here gets older
                "message.timeout.ms": 0,  # for ever: a record given up would make the counts a lie
                "partitioner": "murmur2_random" if partitions_by == "device" else "random",
                "delivery.report.only.error": True,
                "on_delivery": self._on_failure,
                "log_level": 2,
                **(client or {}),
            }
        )
        # Asks for offsets only: it never joins its group.
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tidemark-generator", "log_level": 0})
        self._check_topic(bootstrap)

    def stop(self) -> None:
        """End a `run` or `send` within a tick, from a signal handler or another thread."""
        self._stopping.set()

    @property
    def sent(self) -> int:
        return self._sent

    def run(self, seconds: float = math.inf, rate: float | None = None) -> Summary:
        """Send for `seconds`; live at `rate` records a second (default: the fleet's own).

        Another rate than the fleet's runs its clock faster or slower, drop-outs included. Simulated, `seconds` are of
        simulated time, `rate` is of no account, and all is sent at once.
        """
        if self._simulate_ms is not None:
            return self._produce(self._at_once(seconds), None)
        return self._produce(self._live(seconds, (rate or self.rate) / self.rate), None)

    def send(self, count: int) -> Summary:
        """Send the next `count` readings at once; live, their event time is now, less their delay on the way."""
        return self._produce(self._at_once(math.inf), count)

    def once(self) -> Summary:
        """Send the first reading of every device at once, aside from the schedule, which goes on where it was.

        Live, their event time is now, less their delay on the way.
        """
        return self._produce(self._firsts(), None)

    def flush(self) -> int:
        """Wait until all is acknowledged, at most a minute; how many records are not."""
        return int(self._producer.flush(_FLUSH_S))

    def _produce(self, pieces: Iterator[Piece], count: int | None) -> Summary:
        self._stopping.clear()
        self._behind_s = 0.0
        before = self._ends()
        sent, failed, readings = self._sent, self._failed, self._readings.copy()
        began = time.monotonic()
        left = count if count is not None else sys.maxsize
        for readings_due, at_ms in pieces:
            piece, times = readings_due, at_ms
            if len(piece) > left:
                self._at -= len(piece) - left
                piece, times = piece.between(0, left), times[:left]
            left -= self._hand_over(piece, times)
            if left <= 0 or self._stopping.is_set():
                break
        waiting = self.flush()
        seconds = time.monotonic() - began
        names = [kind.name.lower() for kind in Kind]
        return Summary(
            sent=self._sent - sent,
            readings=dict(zip(names, (self._readings - readings).tolist(), strict=True)),
            failed=self._failed - failed,
            waiting=waiting,
            offsets={partition: (before.get(partition, 0), end) for partition, end in self._ends().items()},
            seconds=round(seconds, 3),
            behind_s=round(self._behind_s, 3),
        )

    def _live(self, seconds: float, speed: float) -> Iterator[Piece]:
        from_ms, began, epoch_ms = self._clock_ms, time.monotonic(), now_ms()
        until = began + seconds
        tick_s = min(max(TICK_S[0], TICK / (self.rate * speed)), TICK_S[1])
        while not self._stopping.is_set():
            now = time.monotonic()
            target_ms = from_ms + (min(now, until) - began) * 1000 * speed
            behind_s = (target_ms - self._clock_ms) / (1000 * speed)
            if behind_s > _LATEST_S:
                began, epoch_ms = began + behind_s, epoch_ms + int(behind_s * 1000)
                self._behind_s += behind_s
                continue
            self._fill()
            piece = self._take(int(np.searchsorted(self._block.due_ms, target_ms)))
            self._clock_ms = target_ms if self._at < len(self._block) else min(target_ms, float(self._block_end_ms))
            if len(piece):
                yield piece, (epoch_ms + (piece.due_ms - from_ms) / speed).astype(np.int64)
            if self._clock_ms >= target_ms:
                if now >= until:
                    return
                self._stopping.wait(max(0.0, tick_s - (time.monotonic() - now)))

    def _at_once(self, seconds: float) -> Iterator[Piece]:
        until_ms = self._clock_ms + seconds * 1000
        while self._clock_ms < until_ms:
            self._fill()
            stop = int(np.searchsorted(self._block.due_ms, until_ms))
            while self._at < stop:
                piece = self._take(min(stop, self._at + _CHUNK))
                self._clock_ms = float(piece.due_ms[-1])
                if self._simulate_ms is None:
                    yield piece, np.full(len(piece), now_ms())
                else:
                    yield piece, (self._simulate_ms + piece.due_ms).astype(np.int64)
            self._clock_ms = min(until_ms, float(self._block_end_ms))

    def _firsts(self) -> Iterator[Piece]:
        seen = np.zeros(len(self.fleet.names), dtype=np.bool_)
        step_ms = int(self.fleet.interval_ms.max() / 8) + 1
        for from_ms in itertools.count(0, step_ms):
            block = self.fleet.readings(from_ms, from_ms + step_ms, self._start_ms)
            devices, places = np.unique(block.device, return_index=True)
            chosen = np.sort(places[~seen[devices]])
            seen[devices] = True
            for start in range(0, len(chosen), _CHUNK):
                piece = block.at(chosen[start : start + _CHUNK])
                due_ms = piece.due_ms.astype(np.int64)
                yield piece, np.full(len(piece), now_ms()) if self._simulate_ms is None else self._simulate_ms + due_ms
            if seen.all():
                return

    def _fill(self) -> None:
        """Compute the next block that holds anything when this one is used up."""
        while self._at >= len(self._block):
            start_ms = self._block_end_ms
            self._block_end_ms = start_ms + self._block_ms
            self._block = self.fleet.readings(start_ms, self._block_end_ms, self._start_ms)
            self._at = 0

    def _take(self, stop: int) -> Readings:
        start, self._at = self._at, stop
        return self._block.between(start, stop)

    def _hand_over(self, piece: Readings, at_ms: Ints) -> int:
        """Give records to the client; how many readings it took (all, unless the run is stopped while it is full)."""
        event_ms = at_ms - piece.delay_ms + self.fleet.skew_ms[piece.device]
        values = encode(self._encoder, self.fleet, piece, event_ms)
        record_ms = at_ms.tolist() if self._simulate_ms is not None else [0] * len(piece)  # 0: the client's now
        taken = 0
        for each in self._sendings(piece, values, record_ms):
            if not all(self._give(each.value, each.key, each.time_ms, each.headers) for _ in range(each.times)):
                break
            taken += each.readings
        self._readings += kinds_of(piece.between(0, taken))
        self._producer.poll(0)
        return taken

    def _sendings(self, piece: Readings, values: Sequence[Value], record_ms: Sequence[int]) -> Iterator[_Sending]:
        """The records of a piece. An array has ordinary readings that follow each other, and the time of the last one."""
        held: list[bytes] = []
        key, held_ms = b"", 0
        for device, kind, value, time_ms in zip(
            piece.device.tolist(), piece.kind.tolist(), values, record_ms, strict=True
        ):
            if kind == Kind.ORDINARY and self._array > 1 and value is not None:
                key, held_ms = self._keys[device] if not held else key, time_ms
                held.append(value)
                if len(held) == self._array:
                    yield _Sending(gzip.compress(_array_of(held), 1), key, held_ms, None, len(held))
                    held = []
                continue
            if held:
                yield _Sending(_array_of(held), key, held_ms, None, len(held))
                held = []
            if kind == Kind.ORDINARY:
                yield _Sending(value, self._keys[device], time_ms, None)
            else:
                times = 2 if kind == Kind.DUPLICATE else 1
                yield _Sending(value, key_of(self.fleet, device, Kind(kind)), time_ms, self._headers[kind], times=times)
        if held:
            yield _Sending(_array_of(held), key, held_ms, None, len(held))

    def _give(self, value: Value, key: bytes, time_ms: int, headers: Headers | None) -> bool:
        while True:
            try:
                if headers is None:
                    self._producer.produce(self.topic, value, key, self._partition, timestamp=time_ms)
                else:
                    self._producer.produce(self.topic, value, key, self._partition, timestamp=time_ms, headers=headers)
            except BufferError:  # the client's queue is full: the broker is slower than we are, or away
                if self._stopping.is_set():
                    return False
                self._producer.poll(TICK_S[0])
            else:
                self._sent += 1
                return True

    def _on_failure(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed += 1

    def _check_topic(self, bootstrap: str) -> None:
        try:
            metadata = self._consumer.list_topics(self.topic, timeout=_ANSWER_S).topics[self.topic]
        except KafkaException as problem:
            what = f"No broker answers at {bootstrap}: {problem.args[0].str()}"
            raise SetupError(what, remedy="Start it, or give its address as --bootstrap.") from problem
        if metadata.error is not None:
            what = f"Topic {self.topic} at {bootstrap}: {metadata.error.str()}"
            raise SetupError(what, remedy="Create it before the generator starts.")
        if self._partition >= len(metadata.partitions):
            what = f"Topic {self.topic} has {len(metadata.partitions)} partitions, there is no {self._partition}"
            raise SetupError(what)

    def _ends(self) -> dict[int, int]:
        """The end offset of every partition; {} when the broker does not say."""
        try:
            partitions = self._consumer.list_topics(self.topic, timeout=_ANSWER_S).topics[self.topic].partitions
            ends = {}
            for each in partitions:
                offsets = self._consumer.get_watermark_offsets(TopicPartition(self.topic, each), timeout=_ANSWER_S)
                if offsets is not None:
                    ends[each] = offsets[1]
            return ends
        except KafkaException:
            return {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the generator; 0 when all that was sent is acknowledged, 1 when not, an error's own status otherwise."""
    args = arguments(argv)
    try:
        fleet = fleet_of(args)
        if args.reference:
            write_reference_sqlite(args.reference, fleet)
        generator = Generator(
            args.bootstrap,
            args.topic,
            fleet,
            value_format=args.format,
            array=args.array,
            schemas=args.schemas,
            partitions_by=args.partitions_by,
        )
    except (TidemarkError, ValueError) as problem:
        print(f"generator: {problem}", file=sys.stderr)
        return getattr(problem, "status", 2)

    def end(_signal: int, _frame: FrameType | None) -> None:
        generator.stop()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)
    summary = generator.run(args.seconds)
    if summary.behind_s:
        print(f"generator: could not hold the rate, {summary.behind_s} s of it are missing", file=sys.stderr)
    print(summary.to_json(), flush=True)
    return 0 if summary.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
