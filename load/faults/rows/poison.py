"""F7: what devices should never send, one in a hundred records and ten thousand in a row."""

import random
import struct
import time
from collections.abc import Iterator

from confluent_kafka import Producer

from load.faults.history import read
from load.faults.row import Figures, row
from load.faults.run import Run
from load.fleet import Kind
from load.stage import TOPIC

BURST = 10_000
HUGE = 10 << 20
HUGE_COUNT = 20
BACK_S = 60.0
_ADMITTED = {kind.name.lower() for kind in (Kind.ORDINARY, Kind.DUPLICATE)}
_NAN = struct.pack("<d", float("nan"))
_INFINITE = struct.pack("<d", float("-inf"))


@row("F7", "poison: damaged, foreign and huge records", rate=2_000, devices=1_000)
def poison(run: Run) -> Figures:
    """Short: a run of 2,000."""
    run.start()
    run.load()
    run.steady()
    process, epoch = run.stage.service_pid, run.observer.epoch
    count = 2_000 if run.short else BURST
    with run.fault("a run of poison", records=count):
        began = time.monotonic()
        _send(run, _records(run.seed, count))
    run.recover(BACK_S)
    back_s = round(time.monotonic() - began, 1)
    run.steady()
    run.drain()
    seen = run.stage.metrics()
    restarts = sum(value for name, value in seen.items() if name.startswith("tidemark_query_restarts_total"))
    if restarts or run.stage.service_pid != process or run.observer.epoch != epoch:
        run.violation("P6", f"poison restarted the query {restarts:.0f} times; process {process}, epoch {epoch}")
    run.stop()
    verdict = run.compare()
    sent = [entry["readings"] for entry in read(run.history.path) if entry["what"] == "sent"]
    injected = count + sum(number for kinds in sent for kind, number in kinds.items() if kind not in _ADMITTED)
    if verdict.compared["rejects"] != injected:
        run.violation("P4", f"{injected} were injected, {verdict.compared['rejects']} rejects are expected")
    if verdict.duplicates:
        run.violation("P4", f"{verdict.duplicates} rejects are stored more than once")
    return {
        "injected": injected,
        "rejects": verdict.compared["rejects"],
        "rejects_without_bytes": verdict.omitted,
        "restarts": restarts,
        "back_s": back_s,
        "lookups": {name: value for name, value in seen.items() if name.startswith("tidemark_schema_lookups_total")},
    }


def _records(seed: int, count: int) -> Iterator[bytes | None]:
    """Every kind in turn, none of which can be admitted; the huge ones are spread over all of it."""
    chance = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        if number % max(1, count // HUGE_COUNT) == 0:
            yield b"\0\0\0\0\1" + bytes(HUGE)
            continue
        kinds = (
            b"\xff" + chance.randbytes(40),  # random bytes
            b"\0" + struct.pack(">I", chance.randrange(1_000, 1 << 31)) + chance.randbytes(40),  # random ids
            b"\0\0\0\x03\xe7" + _reading(now_ms),  # one unknown id
            b"\0\0\0\0\1" + _reading(now_ms)[:-1],  # truncated
            b"\0\0\0\0\1" + _reading(now_ms) + chance.randbytes(1 + number % 9),  # trailing
            b"\0\0\0\0\1\x80\x80\x80\x80\x80\x40" + chance.randbytes(20),  # 2^40 bytes of device id
            b"\0\0\0\0\1" + _reading(now_ms, _NAN),
            b"\0\0\0\0\1" + _reading(now_ms, _INFINITE),
            None,
        )
        yield kinds[number % len(kinds)]


def _reading(ms: int, value: bytes = b"\0" * 8) -> bytes:
    """By schema 1: a device, a time, a temperature, three measures that are null."""
    time_bytes, number = bytearray(), ms << 1
    while number > 0x7F:
        time_bytes.append(number & 0x7F | 0x80)
        number >>= 7
    return b"\x0cpoison" + bytes(time_bytes) + bytes([number]) + b"\x02" + value + b"\0\0\0"


def _send(run: Run, values: Iterator[bytes | None]) -> None:
    producer = Producer(
        {"bootstrap.servers": run.stage.broker.bootstrap, "log_level": 0, "message.max.bytes": 2 * HUGE, "linger.ms": 5}
    )
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(TOPIC, value, key=b"poison", partition=number % 4)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        run.violation("observed", "not all of the poison was sent")
