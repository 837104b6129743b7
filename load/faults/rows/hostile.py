"""H: a hostile fleet beside a good one: sizes, keys, headers, ids, schema ids, transactions and markup that nobody should send.

The service has three inputs: Avro, arrays of JSON, and Protobuf; and four to which only bombs are sent. What is good here are the
devices of the generators. Everything else is sent by the cases below, one after the other; after each of them the lag must be
back. At last come records that no process can read, which an operator has to skip.
"""

import contextlib
import json
import random
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from load.demo import METERS, VIEWS
from load.faults import bombs, raw
from load.faults.inputs import BOMBED, GAUGES, HOSTILE
from load.faults.raw import Message, Reading, send_readings
from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.fleet.encode import SCHEMAS
from load.fleet.fleet import MEASURES
from load.fleet.payloads import PAGE, TERMINAL
from load.fleet.protobuf import SCHEMA_ID, framing, schema
from load.servers.schema_registry import Registry
from load.testbed import TOPIC, output_of, percentile
from service.clock import now_ms
from service.errors import SetupError, UnreadableRecordError

MB = 1_000_000
CANARY = "kanari-9c1e55"
"""The registry's password: it must be nowhere but in its file."""
_SUBJECT = f"{TOPIC}-value"
_BEFORE_S = 20.0
_ABORTED = 50
_LATENCY = "tidemark_event_to_redis_seconds"
_ACTIVE = {"script", "img", "svg", "iframe", "object", "embed", "form", "input", "video", "base", "marquee", "meta"}
_SUITE = {
    "name": "readings",
    "expectations": [
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "device", "regex": "^[^<>]*$"}},
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "temperature", "min_value": -1e9}},
    ],
    "meta": {},
}


_BY_LINE = {"name": "line", "by": ["line"], "window": "10 s", "measures": ["power"], "retain": "1 d"}


@row(
    "H",
    "a hostile fleet: sizes, keys, headers, ids, schemas, transactions, markup, bombs",
    testbed={"views": (*VIEWS, _BY_LINE)},
    inputs=HOSTILE,
)
def hostile(run: Run) -> Figures:
    """Short: a tenth of the records of each case."""
    share = 10 if run.short else 1
    with Registry(user="tidemark", password=CANARY) as registry:
        _configure(run, registry)
        foreign = [registry.register("others-value", _foreign(number)) for number in range(10_000 // share)]
        run.begin(20)
        process, epoch = run.testbed.service_pid, run.observer.epoch
        bootstrap = run.testbed.broker.bootstrap
        before = _during(run, lambda: run.run_on(_BEFORE_S))
        own_elements = _active_elements(run, "")
        device = _with_power(run)
        cases: dict[str, Iterator[Message]] = {
            "large garbage": _garbage(run.seed, 1_500 // share),
            "large keys and headers": _large_keys(20),
            "foreign schema ids": _with_ids(foreign),
            "names": _names(),
            "strangers, early": _strangers(100_000 // share, ahead_ms=3_600_000),
            "strangers, in time": _strangers(100_000 // share, ahead_ms=0),
            "headers of ours": _our_headers(300),
            "markup": _markup(),
            "as many values as may be": bombs.many_values(device, bombs.VALUES),
            "a million values": bombs.many_values(device, 1_000_000 // share, bombs.VALUES),
            "arrays": ({"value": value} for value in (*bombs.array_bombs(), bombs.rejected_readings())),
            "messages": ({"value": framing(SCHEMA_ID) + each} for each in bombs.message_bombs()),
            "times": ({"value": value, "key": b"k"} for value in bombs.slow_times(device)),
            **{name: ({"value": value, "key": b"k"} for value in values) for name, values in bombs.PACKS.items()},
        }
        topics = {"as many values as may be": METERS, "a million values": METERS, "arrays": METERS, "messages": GAUGES}
        topics |= {name: name for name in BOMBED}
        worst: dict[str, float] = {}
        for name, messages in cases.items():
            with run.fault(name):
                send_all = partial(raw.send, bootstrap, messages, topics.get(name, TOPIC))
                worst[name] = _during(run, send_all)
            run.recover()
        active = _active_elements(run, "alert(1)") - own_elements
        with run.fault("transactions"):
            without_record = _transactions(run)
        run.recover()
        run.steady()
        ends = int(run.testbed.service_pid != process) + run.observer.epoch - epoch
        secrets = _secrets(run)
        run.drain()
        run.stop()
        registry.user = ""  # the oracle knows no password
        # A reading that an open transaction has hidden may come behind the watermark: it is rejected as late, and listed.
        verdict = run.compare(lost={TOPIC: {0: without_record}}, may_be_refused=True)
        listed = _tidemark(run, "rejects", "list", "-n", "10000000", "--json")
        listed_rejects = sum(1 for line in listed.splitlines() if line.startswith("{"))
        if ends:
            run.violation("P6", f"hostile records ended the process, or its query, {ends} times")
        rejects = verdict.compared["rejects"]
        if listed_rejects < rejects:
            run.violation("P4", f"{listed_rejects} of {rejects} rejects are listed")
        figures = {
            "process_ends": ends,
            "values_of_a_column": _values(run),
            "rejects_listed_share": round(listed_rejects / max(1, rejects), 6),
            "rejected_behind": verdict.refused,
            "keys_of_rejected_devices": _strange_keys(run),
            "active_elements": active,
            "raw_escapes": _raw_escapes(listed + _tidemark(run, "rejects", "list", "-n", "100000")),
            "secrets_found": secrets,
        }
        for name in ("keys_of_rejected_devices", "active_elements", "raw_escapes", "secrets_found"):
            if figures[name]:
                run.violation("P6", f"{name}: {figures[name]}")
        return {
            **figures,
            **_unreadable(run),
            "p99_before_ms": before,
            "p99_ms_by_case": worst,
            "p99_ratio": round(max(worst.values()) / before, 2),
            "mismatches": verdict.mismatches,
        }


def _configure(run: Run, registry: Registry) -> None:
    for number in (1, 2):
        registry.register(_SUBJECT, json.loads((SCHEMAS / f"{number}.avsc").read_text()))
    if registry.register(f"{GAUGES}-value", schema(), kind="PROTOBUF") != SCHEMA_ID:
        raise SetupError(f"the schema of {GAUGES} has not the id {SCHEMA_ID} that its readings have")
    settings = run.testbed.settings
    settings["inputs"][1]["columns"] = {"line": {"path": "line", "max_values": bombs.VALUES}}
    run.testbed.first_input["reader_schema"] = 2
    secret, suite = run.folder / "registry.password", run.folder / "readings.expectations.json"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    suite.write_text(json.dumps(_SUITE))
    settings["registry"] = {"url": registry.url, "user": "tidemark", "password_file": str(secret)}
    # A sample is spread over the partitions of all inputs: this is more than a second of each.
    settings["quality"] = {"expectations": str(suite), "every": "2 s", "sample": 10_000}
    run.testbed.write_settings()
    # Devices that are known, and whose names are markup: what they send is admitted and shown.
    with contextlib.closing(sqlite3.connect(run.folder / "reference.db")) as database, database:
        rest = database.execute("select * from devices limit 1").fetchone()[1:]
        marks = ", ".join("?" * (1 + len(rest)))
        database.executemany(f"insert into devices values ({marks})", [(name, *rest) for name in PAGE])  # noqa: S608


def _with_power(run: Run) -> str:
    """A device whose readings the filter of the second input admits."""
    fleet = run.testbed.fleet
    return fleet.names[int(fleet.has[:, MEASURES.index("power")].argmax())]


def _foreign(number: int) -> dict[str, Any]:
    return {"type": "record", "name": f"Foreign{number}", "fields": [{"name": "device_id", "type": "string"}]}


# The cases: each gives what to send.


def _garbage(seed: int, count: int) -> Iterator[Message]:
    chance = random.Random(seed)
    bytes_ = chance.randbytes(MB)
    for number in range(count):
        yield {"value": struct.pack(">I", number) + bytes_[4:], "key": b"garbage"}


def _large_keys(count: int) -> Iterator[Message]:
    for number in range(count):
        yield {"value": None, "headers": [("note", bytes(MB - 2_000))], "key": b"%d" % number}
        yield {"value": None, "key": bytes(1_048_480 - 2_000)}
        yield {"value": b"no reading", "key": bytes(MB // 2), "headers": [("note", bytes(MB // 2 - 2_000))]}


def _with_ids(numbers: list[int]) -> Iterator[Message]:
    for number in numbers:
        yield {"value": b"\0" + struct.pack(">I", number) + b"\x02a"}


def _names() -> Iterator[Message]:
    for text in (*TERMINAL, "a" * 257, "\u00e9" * 129, "x" * 65_000, "", " ", "\u2003"):
        name = text.encode("utf-8", "surrogatepass")
        yield {"value": raw.reading(name, now_ms()), "key": name or None}


def _strangers(count: int, ahead_ms: int) -> Iterator[Message]:
    for number in range(count):
        name = b"stranger-%d-%d" % (ahead_ms, number)
        yield {"value": raw.reading(name, now_ms() + ahead_ms), "key": name}


def _our_headers(count: int) -> Iterator[Message]:
    ours = (
        ("tidemark.omitted_bytes", b"abc"),
        ("tidemark.reason", b"\xff\xfe"),
        ("tidemark.offset", b"-1"),
        ("tidemark-origin", b"junk"),
        ("tidemark-origin", b"readings/0/0"),
        ("tidemark.topic", b"elsewhere"),
    )
    for number in range(count):
        yield {
            "value": b"no reading %d" % number,
            "headers": [ours[number % len(ours)], ours[(number // 6) % len(ours)]],
        }


def _markup(times: int = 20) -> Iterator[Message]:
    for _ in range(times):
        for text in PAGE:
            yield {"value": raw.reading(text.encode(), now_ms()), "key": text.encode()}
            yield {"value": f'{{"device_id": "{text}"}}'.encode(), "key": text.encode(), "headers": [(text, b"x")]}


def _transactions(run: Run) -> int:
    """One that is aborted, and one that stays open for some batches; how many offsets hold nothing to read."""
    options = {"bootstrap.servers": run.testbed.broker.bootstrap, "log_level": 0}
    for name in ("aborted", "open"):
        producer = Producer({**options, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(_ABORTED):
            producer.produce(TOPIC, raw.reading(run.testbed.fleet.names[0].encode(), now_ms()), partition=0)
        producer.flush(30)
        if name == "open":
            run.steady(5)
        producer.abort_transaction(30)
    return 2 * (_ABORTED + 1)


def _unreadable(run: Run) -> Figures:
    """Four records of 300 MB between good readings, on a service at rest whose values were compared: skipped by their names."""
    names, at_ms = run.testbed.fleet.names[:40], now_ms()
    good = send_readings(run, [Reading(name, at_ms, partition=1) for name in names[:20]])
    offsets = [raw.send_zeros(run.testbed.broker.bootstrap, TOPIC, 300 << 20, partition=1) for _ in range(4)]
    places = sorted(f"{TOPIC}:1:{offset}" for offset in offsets)
    good += send_readings(run, [Reading(name, at_ms, partition=1) for name in names[20:]])
    attempts = 0
    with run.fault("records that nobody can read", restarts=True):
        run.start(wait=False)

        def is_named() -> bool:
            nonlocal attempts
            status = run.testbed.exit_status
            if status not in {None, UnreadableRecordError.status}:
                attempts += 1
                run.start_again()
            return status == UnreadableRecordError.status

        run.until(is_named, 4 * STARTS_S, "the service to name what it cannot read")
        positions = re.findall(rf"{TOPIC}\[\d+\]@\d+(?:-\d+)?", run.testbed.last_words())
        _tidemark(run, "skip", *dict.fromkeys(positions))
        run.start()
    run.wait(
        lambda: run.testbed.metrics().get("tidemark_readings_admitted_total", 0.0) >= good, STARTS_S, "good readings"
    )
    run.stop()
    listed = map(
        json.loads, _tidemark(run, "rejects", "list", "-n", "100", "--reason", "unreadable", "--json").splitlines()
    )
    skipped = sorted(f"{each['topic']}:{each['partition']}:{each['offset']}" for each in listed)
    if skipped != places:
        run.violation("P4", f"{places} cannot be read, {skipped} were skipped")
    return {"attempts": attempts, "skipped": len(skipped)}


# What is seen of them.


def _during(run: Run, act: Callable[[], None]) -> float:
    """The 99th percentile of the latency in ms while something happens, and until the lag is back."""
    before = run.testbed.metrics()
    act()
    run.steady(5)
    run.wait(lambda: (run.observer.lag or 0) < 2 * run.setup.rate, STARTS_S, "the lag to be back")
    after = run.testbed.metrics()
    names = [name for name in after if name.startswith(_LATENCY)]
    return round(percentile({name: after[name] - before.get(name, 0.0) for name in names}, 0.99), 1)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.active = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        is_active = any(name.startswith("on") or "javascript:" in (value or "") for name, value in attributes)
        # The page's own declarations of its encoding and its title are no payload's.
        self.active += is_active or (tag in _ACTIVE and not (tag == "meta" and ("charset", "UTF-8") in attributes))


def _active_elements(run: Run, name: str) -> int:
    """Of the page that shows a sample, once it has `name`, of a device whose name is markup; the report has some of its own."""

    def shown() -> str:
        if name:
            raw.send(run.testbed.broker.bootstrap, _markup(times=1))
        status, page = run.testbed.get("/quality")
        return page if status == 200 and name in page else ""

    elements = _Elements()
    # A check is a job of one task beside a stream that is busy: with three inputs one took a minute.
    elements.feed(run.wait(shown, 300, "a page with their names"))
    return elements.active


def _raw_escapes(text: str) -> int:
    return sum(1 for each in text if each != "\n" and not each.isprintable() and each != " ")


def _values(run: Run) -> int:
    """Keys of the view by a column that was sent a million values: `max_values`, (other) and (none) at most."""
    with run.testbed.redis.client() as client:
        keys = {key.split(":")[4] for key in client.scan_iter("tidemark:window:line:power:*")}
    if not 1 < len(keys) <= bombs.VALUES + 2:
        run.violation("P6", f"the view by line has {len(keys)} keys")
    return len(keys)


def _strange_keys(run: Run) -> int:
    """Keys of devices that the reference does not have."""
    with contextlib.closing(sqlite3.connect(run.folder / "reference.db")) as database:
        known = {device for (device,) in database.execute("select device_id from devices")}
    with run.testbed.redis.client() as client:
        devices: set[str] = {key.removeprefix("tidemark:device:") for key in client.scan_iter("tidemark:device:*")}
        sessions = {
            key.removeprefix("tidemark:session:").rpartition(":")[0] for key in client.scan_iter("tidemark:session:*")
        }
    return len((devices | sessions) - known)


def _secrets(run: Run) -> int:
    """How many files but its own, command lines and pages contain the registry's password."""
    secret = CANARY.encode()
    own = run.folder / "registry.password"
    files = [path for path in run.folder.rglob("*") if path.is_file() and path != own and secret in _bytes(path)]
    service = psutil.Process(run.testbed.service_pid)
    lines = [" ".join(each.cmdline()) for each in (service, *service.children(recursive=True))]
    pages = [run.testbed.get(path)[1] for path in ("/metrics", "/readyz", "/quality", "/status")]
    return len(files) + sum(CANARY in text for text in (*lines, *pages))


def _bytes(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _tidemark(run: Run, *arguments: str) -> str:
    return output_of(run.testbed.command(*arguments))
