"""F7: what devices should never send, one in a hundred records and ten thousand in a row."""

import gzip
import math
import random
import struct
import time
from collections.abc import Iterator

from load.demo import METERS
from load.faults import raw
from load.faults.history import read
from load.faults.row import row
from load.faults.run import Figures, Run
from load.fleet.fleet import Kind
from load.testbed import TOPIC

BURST = 10_000
HUGE = 10 << 20
HUGE_COUNT = 20
BACK_S = 60.0
_DECODED = {Kind.LATE, Kind.AHEAD, Kind.YEAR_2099, Kind.NO_DEVICE, Kind.UNKNOWN_DEVICE, Kind.OUT_OF_RANGE}
_WITHOUT_MEASURE = tuple(
    {kind.name.lower() for kind in kinds}
    for kinds in ({Kind.NOT_A_NUMBER, Kind.OUT_OF_RANGE}, {*_DECODED, Kind.NOT_A_NUMBER})
)
"""Kinds that are no reject for certain if the device does not have the input's measure: of the first input, and of the second."""
_ADMITTED = {kind.name.lower() for kind in (Kind.ORDINARY, Kind.DUPLICATE)}


@row("F7", "poison: damaged, foreign and huge records", rate=2_000, devices=1_000)
def poison(run: Run) -> Figures:
    """Short: a run of 2,000."""
    run.begin()
    process, epoch = run.testbed.service_pid, run.observer.epoch
    count = 2_000 if run.short else BURST
    with run.fault("a run of poison", records=count):
        began = time.monotonic()
        for topic, values in ((TOPIC, _records(run.seed, count)), (METERS, _arrays(run.seed, count))):
            if topic in run.testbed.topics:
                messages = ({"value": value, "key": b"poison"} for value in values)
                raw.send(run.testbed.broker.bootstrap, messages, topic)
    run.recover(BACK_S)
    back_s = round(time.monotonic() - began, 1)
    run.steady()
    run.drain()
    seen = run.testbed.metrics()
    restarts = run.restarts()
    run.require_same_query(process, epoch, "poison")
    run.stop()
    verdict = run.compare()
    most = count * len(run.testbed.topics)
    least = most
    for entry in read(run.history.path):
        for kind, number in entry["readings"].items() if entry["what"] == "sent" else ():
            most += number * (kind not in _ADMITTED)
            # Two inputs have a measure each, and the second one a filter. A device without the measure is admitted or filtered.
            is_sure = kind not in (_WITHOUT_MEASURE[entry["topic"] == METERS] if METERS in run.testbed.topics else ())
            least += number * (kind not in _ADMITTED and is_sure)
    rejects = verdict.compared["rejects"]
    if not least <= rejects <= most:
        run.violation("P4", f"{least} to {most} rejects were injected, {rejects} are expected")
    if verdict.duplicates:
        run.violation("P4", f"{verdict.duplicates} rejects are stored more than once")
    return {
        "injected": most,
        "rejects": rejects,
        "rejects_without_bytes": verdict.omitted,
        "restarts": restarts,
        "back_s": back_s,
        "lookups": {name: value for name, value in seen.items() if name.startswith("tidemark_schema_lookups_total")},
    }


def _records(seed: int, count: int) -> Iterator[bytes | None]:
    """Every kind in turn, none of which can be admitted; the huge ones are spread over all of it."""
    chance = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    good = raw.reading(b"poison", now_ms)
    for number in range(count):
        if number % max(1, count // HUGE_COUNT) == 0:
            yield b"\0\0\0\0\1" + bytes(HUGE)
            continue
        kinds = (
            b"\xff" + chance.randbytes(40),  # random bytes
            b"\0" + struct.pack(">I", chance.randrange(1_000, 1 << 31)) + chance.randbytes(40),  # random ids
            b"\0\0\0\x03\xe7" + good[5:],  # one unknown id
            good[:-1],  # truncated
            good + chance.randbytes(1 + number % 9),  # trailing
            b"\0\0\0\0\1\x80\x80\x80\x80\x80\x40" + chance.randbytes(20),  # 2^40 bytes of device id
            raw.reading(b"poison", now_ms, math.nan),
            raw.reading(b"poison", now_ms, -math.inf),
            None,
        )
        yield kinds[number % len(kinds)]


def _arrays(seed: int, count: int) -> Iterator[bytes | None]:
    """As `_records`, for an input of arrays: each has one reading to reject, or is rejected as a whole."""
    chance = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    good = b'{"device_id":"poison","event_time":%d,"power":200.5}' % now_ms
    packed = gzip.compress(b"[" + good + b"]", mtime=0)
    bomb = gzip.compress(bytes(HUGE), mtime=0)
    for number in range(count):
        kinds = (
            b"[" + good,
            b"[" + good + b"]]",
            b"[" + good.replace(b"200.5", b"NaN") + b"]",
            b"[[" + good + b"]]",
            b'["' + b"[" * chance.randrange(5_000),  # in a string that never ends
            packed[: chance.randrange(2, len(packed))],
            packed[:10] + chance.randbytes(40),
            b"\xff" + chance.randbytes(40),
            b"[nothing]",
            bomb,
            None,
        )
        yield kinds[number % len(kinds)]
