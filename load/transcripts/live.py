"""The second executor: the service itself, submitted to Spark, with a real Kafka and a real Redis.

Records are sent with their times as Kafka's (CreateTime), and the service's clock is a file (service/clock.py). A step is
over when progress holds all of it, the watermark that follows from it, and how far silence has closed; the pure executor
says which these are. What changed and is not in the change feed is an error.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import pyarrow.parquet as pq
from confluent_kafka import Producer

from load.fleet.fleet import Fleet, FleetSettings
from load.instance import Instance
from load.judge import feed, oracle, published
from load.judge.rules import read_reference, read_rules
from load.testbed import Testbed, to_toml
from load.transcripts.profile import (
    ALL_MEASURES,
    IDLE_AFTER_MS,
    KEPT,
    REFERENCE,
    STATES,
    VIEWS,
    changed,
    outlets,
    sections,
    write_reference,
)
from load.transcripts.pure import Pure
from load.transcripts.transcript import (
    FIELDS,
    ORIGIN_MS,
    SESSION_ORDER,
    Output,
    Record,
    Step,
    Transcript,
    TranscriptError,
    reject,
    value_of,
    view_of,
)
from service import settings
from service.commands import views as views_command
from service.errors import SetupError
from state.rules import DAY_MS

WITHIN_S = 60.0
STARTS_S = 120.0
FAR_MS = 200 * DAY_MS
"""A clock that is set on by more starts the service again: its reference would be older than a year."""
REPLAY = "replay"
PROCESS_ZONE = "Australia/Lord_Howe"
"""The service's own time zone, in which no value may depend: its clocks change by half an hour."""
_FILLED = re.compile(r"windows of the past of (.*) are published")
_CONFIG = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str((1 << 63) - 1)}


class Live:
    """One service for a whole run, in a `with` block."""

    def __init__(self, folder: Path, transcripts: list[Transcript], registry_url: str) -> None:
        self._any_site = folder / "expectations.json"  # those of the testbed allow no zone as a site
        reference = {**REFERENCE, "expectations": str(self._any_site.absolute())}
        own = {**sections(registry_url), "reference": reference, "outlets": outlets(folder.absolute())}
        fleet = Fleet(1, FleetSettings(devices=1))
        self.testbed = Testbed(folder, fleet, views=VIEWS, sections=own, topic_config=_CONFIG)
        self._transcripts = transcripts
        self._clock = Clock(self.testbed.folder / "clock", ORIGIN_MS)
        self._started_ms = ORIGIN_MS
        self._sent: dict[str, dict[str, int]] = {}
        self._has_sent = False
        """Whether the service was sent anything since its start: its first batch sets the gauges."""
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._before: Output = {}
        self._fed = feed.FIRST
        self._stopped_workers: list[psutil.Process] = []
        self._views = tuple(VIEWS)
        self.watermark_ms = 0

    def __enter__(self) -> Self:
        self.testbed.__enter__()
        try:
            write_reference(self.testbed.folder, self._transcripts)
            self._any_site.write_text('{"expectations": []}', encoding="utf-8")
            self._rules = read_rules(self.testbed.config)
            self._pure = Pure(self._rules, read_reference(self._rules), IDLE_AFTER_MS)
            self._producer = Producer(
                {"bootstrap.servers": self.testbed.broker.bootstrap, "acks": "all", "linger.ms": 1}
            )
            self._start()
        except BaseException:
            self.testbed.close()
            raise
        return self

    def __exit__(self, *what: Any) -> None:
        self._read_on()
        del self._producer  # or it looks for the broker, and says so
        self.testbed.__exit__(*what)

    def _start(self) -> None:
        self._has_sent = False
        self.testbed.start_service({**self._clock.environment, "TZ": PROCESS_ZONE})

    def begin(self, transcript: Transcript) -> None:
        """Rejects are numbered from here."""
        self._pure.begin(transcript)
        self._numbers = {}

    def step(self, transcript: Transcript, step: Step) -> Output:
        """Everything there is after the step, of all transcripts."""
        lag = len(step.unread)
        self._pure.step(transcript, step)
        until_ms = self._pure.simulated_clock.now_ms
        begins_ms = until_ms - step.silent_ms - 1  # so that a look at the time itself comes after all is published
        is_far = begins_ms - self._started_ms > FAR_MS
        if step.restart or is_far:
            self._read_on()
            self.testbed.stop_service()
            if is_far:
                self._clock.set(begins_ms)
                self._started_ms = begins_ms
            self._start()
            self.testbed.wait(lambda: self.testbed.metrics().get("tidemark_query_running"), STARTS_S, "a restart")
        if step.change:
            self._change(step.change)
        if self._stopped_workers or not step.add:
            self._clock.set(begins_ms)
            self._read_on()
            self._send(step.add)
        else:
            # A service that is not held may see the new time before the records, and take the time between for a silence.
            self._hold()
            self._send(step.add)
            self._clock.set(begins_ms)
            self._read_on()
        self.testbed.wait(self._is_published, WITHIN_S if self.watermark_ms else STARTS_S, "a step to be published")
        self._clock.set(until_ms - step.silent_ms)
        if lag:
            self._hold()
            self._send(step.unread)
        if step.silent_ms:
            # Two looks see all of a silence that the service can see: one when it has as long to go, one at its end.
            first_ms = max(until_ms - step.silent_ms, until_ms - IDLE_AFTER_MS)
            for at_ms in (first_ms, until_ms):
                self._clock.set(at_ms)
                self.testbed.wait(partial(self._has_looked, at_ms, lag), WITHIN_S, "a look at the topic")
            line_ms = self._pure.simulated_clock.line_ms(self.watermark_ms)
            if line_ms is not None:
                self.testbed.wait(lambda: self._idle_ms() == line_ms, WITHIN_S, "what silence closes")
        self.testbed.wait(self._has_views, WITHIN_S, f"the views to be {dict(self._pure.views.items())}")
        served = {view["keys"] for view in self._status_views()}
        after = {item: fields for item, fields in self._output() if view_of(item) in {"", *served}}
        # A window is only gone when its view has ended, or when it has expired: the past of a view has some that soon do.
        before = {item: fields for item, fields in self._before.items() if not view_of(item) or item in after}
        self._before = after
        self._check_feed(transcript, before, after)
        self.testbed.wait(self._has_left, WITHIN_S, "the outlet to have what has left")
        return {**after, **dict(self._left()), **dict(self._rejects()), **dict(self._pure.views.items())}

    def replay(self, _transcript: Transcript) -> Output:
        """As a second service ends that reads the whole topic, and sees the end of the silence."""
        until_ms = self._pure.simulated_clock.now_ms
        clock = Clock(self.testbed.folder / "replay-clock", until_ms - IDLE_AFTER_MS)
        document = {**self.testbed.settings, "redis": {**self.testbed.settings["redis"], "prefix": REPLAY}}
        document["kafka"] = {**document["kafka"], "rejects": "{topic}.replayed"}
        document["outlets"] = outlets(self.testbed.folder / REPLAY)
        config = self.testbed.folder / "replay.toml"
        config.write_text(to_toml(document), encoding="utf-8")
        again = Instance(
            self.testbed, REPLAY, self.testbed.folder / "replay-checkpoint", config, environment=clock.environment
        )
        again.start()
        try:
            self.testbed.wait(partial(_has_batch, again), STARTS_S, "the first batch of the replay")
            self.testbed.wait(
                lambda: self._has_looked(until_ms - IDLE_AFTER_MS, 0, again), STARTS_S, "the replay to read all"
            )
            clock.set(until_ms)
            line_ms = self._pure.simulated_clock.line_ms(self.watermark_ms)
            self.testbed.wait(lambda: self._idle_ms(REPLAY) == line_ms, WITHIN_S, "what silence closes in the replay")
            return dict(self._output(REPLAY))
        finally:
            again.kill()

    def _change(self, change: Mapping[str, Any]) -> None:
        """As `tidemark views` does."""
        self._views = changed(self._views, change)
        self.testbed.settings["views"] = list(self._views)
        self.testbed.write_settings()
        self.testbed.wait(self._status_views, STARTS_S, "the service to have views")
        views_command.tell(settings.load(self.testbed.config), lambda _: None)

    def _status_views(self) -> list[dict[str, Any]]:
        status, text = self.testbed.get("/status")
        views = json.loads(text)["views"] if status == 200 else None
        return [] if views is None else views["list"]

    def _has_views(self) -> bool:
        """Whether the service has the views that it should have, and has computed their past as often as it should."""
        serving: dict[str, dict[str, Any]] = {}
        for view in self._status_views():
            names = {"next": view["keys"]} if view["next"] else {"keys": view["keys"], "next": None}
            of = serving.setdefault(f"view {view['name']}", {})
            of |= {**names, "complete_from": view["complete_from_ms"]}
        lines = _FILLED.findall(self.testbed.log.read_text(errors="replace"))
        passes = Counter(name for line in lines for name in line.split(", "))
        return serving == dict(self._pure.views.items()) and passes >= self._pure.views.passes

    def _send(self, records: tuple[Record, ...]) -> None:
        self._has_sent |= bool(records)
        for record in records:
            sent, partition = self._sent.setdefault(record.topic, {}), str(record.partition)
            offset = sent.get(partition, 0)
            self._numbers[record.topic, record.partition, offset] = len(self._numbers) + 1
            sent[partition] = offset + 1
            self._producer.produce(record.topic, record.value, partition=record.partition, timestamp=record.at_ms)
        self._producer.flush()

    def _hold(self) -> None:
        """No batch ends until `_read_on`: Spark's Python workers stand still."""
        driver = psutil.Process(self.testbed.service_pid)
        self._stopped_workers = [each for each in driver.children(recursive=True) if _is_worker(each)]
        for each in self._stopped_workers:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                each.suspend()

    def _read_on(self) -> None:
        for each in self._stopped_workers:
            with suppress(psutil.NoSuchProcess):
                each.resume()
        self._stopped_workers = []

    def _is_published(self) -> bool:
        """And the gauges say so, too."""
        progress = self.testbed.progress()
        self.watermark_ms = int(progress.get("watermark", 0))
        offsets = {
            t: {p: offset for p, offset in of.items() if offset} for t, of in progress.get("offsets", {}).items()
        }
        reached = {topic: partitions for topic, partitions in offsets.items() if partitions}
        if reached != self._sent or self.watermark_ms < self._pure.watermark_ms:
            return False
        return not self._has_sent or self.testbed.metrics().get("tidemark_batch") == float(progress["batch"])

    def _has_looked(self, at_ms: int, lag: int, service: Instance | None = None) -> bool:
        """Whether the topics were looked at when the clock showed that, and so many records were not read."""
        metrics = service.metrics() if service else self.testbed.metrics()
        lags = [records for name, records in metrics.items() if name.startswith("tidemark_lag_records")]
        return metrics.get("tidemark_lag_timestamp_seconds", 0) >= at_ms / 1000 and bool(lags) and sum(lags) == lag

    def _idle_ms(self, prefix: str = "tidemark") -> int | None:
        with self.testbed.redis.client() as client:
            idle_ms: Any = client.hget(f"{prefix}:progress", "idle")
        return None if idle_ms is None else int(idle_ms)

    def _check_feed(self, transcript: Transcript, before: Output, after: Output) -> None:
        """Raise TranscriptError when something has changed and the change feed says nothing of it."""
        with self.testbed.redis.client() as client:
            entries = feed.changes(client, after=self._fed)
        told = {_item(entry["key"].removeprefix("tidemark:")) for _, entry in entries}
        self._fed = entries[-1][0] if entries else self._fed
        items = {*after, *before}
        changed = {item for item in items if _written(after.get(item)) != _written(before.get(item))}
        silent = changed - told
        if _item("progress") not in told:
            silent |= {item for item in items if after.get(item) != before.get(item)} - changed
        if silent:
            msg = f"{transcript.place}: {transcript.name}: the change feed does not say that {sorted(silent)} changed"
            raise TranscriptError(msg)

    def _output(self, prefix: str = "tidemark") -> Iterator[tuple[str, dict[str, Any]]]:
        with self.testbed.redis.client() as client:
            hashes = list(published.hashes(client, prefix))
        for key, fields in hashes:
            item = _item(key.removeprefix(f"{prefix}:"))
            kind = item.partition(" ")[0]
            if kind == "window":
                yield item, _window(fields)
            elif kind == "session" and fields["state"] != "merged":
                yield item, _session(fields)
            elif kind == "device" and fields["last_seen"] != "0":
                # Else no reading was admitted: its clock was ahead, and that is all.
                yield item, _device(fields)

    def _has_left(self) -> bool:
        metrics = self.testbed.metrics()
        return all(
            metrics.get(f'tidemark_outlet_pending_batches{{outlet="{each}"}}', 1.0) == 0 for each in (KEPT, STATES)
        )

    def _left(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The newest row of each window in the outlet, and of each status."""
        files = sorted((self.testbed.folder / STATES).rglob("[!.]*.parquet"), key=lambda file: file.name)
        for row in (row for file in files for row in _rows_of(file)):
            told = {name: row[name] for name in FIELDS["told"]} | {"at": round(row["at"].timestamp() * 1000)}
            yield f"told {row['device']}/{row['field']}", told
        folder = self.testbed.folder / "outlet"
        files = sorted(folder.rglob("view=*/*/[!.]*.parquet"))
        rows = [row for file in files for row in _rows_of(file)]
        for row in sorted(rows, key=lambda row: (row["revision"], row["epoch"], row["batch"])):
            start_ms = round(row["start"].timestamp() * 1000)
            item = f"left {row['view']}/{row['measure']}/{row['key']}/{start_ms}"
            yield item, {name: row[name] for name in FIELDS["left"]}

    def _rejects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        rejects = [self._rules.rejects.format(topic=topic) for topic in self._rules.topics]
        for record in oracle.records(self._rules, rejects):
            headers = {name: value or b"" for name, value in record.headers}
            partition, offset = int(headers["tidemark.partition"]), int(headers["tidemark.offset"])
            place = headers["tidemark.topic"].decode(), partition, offset
            if place in self._numbers:
                index = int(headers["tidemark.index"]) if "tidemark.index" in headers else None
                yield reject(self._numbers[place], index), {"reason": headers["tidemark.reason"].decode()}


def _item(name: str) -> str:
    """The item of a key, whose name is given without the prefix."""
    kind, _, rest = name.partition(":")
    return f"{kind} {rest.replace(':', '/')}"


def _rows_of(file: Path) -> list[dict[str, Any]]:
    table: Any = pq.ParquetFile(file).read()
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{"view": file.parent.parent.name.removeprefix("view="), **row} for row in rows]


class Clock:
    """A service's clock, in a file."""

    def __init__(self, file: Path, now_ms: int) -> None:
        self._file = file
        self._now_ms = 0
        self.set(now_ms)

    @property
    def environment(self) -> dict[str, str]:
        """With which the service goes by it."""
        return {"TIDEMARK_TEST": "1", "TIDEMARK_CLOCK": str(self._file)}

    def set(self, now_ms: int) -> None:
        """It shows this, and stands; it never goes back."""
        self._now_ms = max(now_ms, self._now_ms)
        new = self._file.with_suffix(".new")
        new.write_text(str(self._now_ms), encoding="ascii")
        new.replace(self._file)


def _has_batch(service: Instance) -> bool:
    """Whether the service has published a batch; raises SetupError when it has ended."""
    if not service.is_running:
        raise SetupError(f"The replay has ended: {service.last_words()}")
    return service.metrics().get("tidemark_records_total", 0) > 0


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "service.spark.pyworker" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def _written(fields: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Without what progress says of a window."""
    if fields is None or "final" not in fields:
        return fields
    return {name: fields[name] for name in fields.keys() - {"final", "closed_by"}}


def _window(fields: Mapping[str, str]) -> dict[str, Any]:
    names = (name for name in FIELDS["window"] if name not in {"final", "closed_by"})
    numbers = {name: value_of(name, fields[name]) for name in names if name in fields}
    return {**numbers, "final": fields["closed_by"] != "", "closed_by": fields["closed_by"]}


def _session(fields: Mapping[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {name: fields[name] for name in ("state", "reason", "closed_by")}
    texts = {name: text for name in SESSION_ORDER if (text := fields.get(f"temperature.{name}")) is not None}
    shown |= {name: value_of(name, text) for name, text in texts.items()}
    return {**shown, **{name: int(fields[name]) for name in ("count", "last", "revision")}}


def _device(fields: Mapping[str, str]) -> dict[str, Any]:
    values = {name: json.loads(fields[name]) for name in ALL_MEASURES if name in fields}
    statuses = {name: fields[name] for measure in values if (name := f"{measure}.status") in fields}
    return {"status": fields["status"], "last_seen": int(fields["last_seen"]), **values, **statuses}
