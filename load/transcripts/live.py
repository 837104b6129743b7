"""The third executor: the service itself, submitted to Spark, with a real Kafka and a real Redis.

Records are sent one after the other with their times as Kafka's (CreateTime). A step is over when progress holds all of it
and the watermark that follows from it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer

from load import oracle
from load.fleet import Fleet, FleetSettings
from load.rules import read_reference, read_rules
from load.stage import TOPIC, Stage
from load.transcripts.profile import REFERENCE, SECTIONS, VIEWS, write_reference
from load.transcripts.pure import Pure
from load.transcripts.transcript import Output, Record, Transcript

WITHIN_S = 60.0
_CONFIG = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str((1 << 63) - 1)}


class Live:
    """One service for a whole run, in a `with` block; the pure executor says which watermark a step leads to."""

    name = "live"

    def __init__(self, folder: Path, transcripts: list[Transcript]) -> None:
        sections = {**SECTIONS, "reference": REFERENCE}
        fleet = Fleet(1, FleetSettings(devices=1))
        self.stage = Stage(folder, fleet, views=VIEWS, sections=sections, topic_config=_CONFIG)
        self._transcripts = transcripts
        self._offset = self._begins = 0
        self.watermark_ms = 0

    def __enter__(self) -> Self:
        self.stage.__enter__()
        try:
            write_reference(self.stage.folder, self._transcripts)
            self._rules = read_rules(self.stage.config)
            self._pure = Pure(self._rules, read_reference(self._rules))
            self._producer = Producer({"bootstrap.servers": self.stage.broker.bootstrap, "acks": "all", "linger.ms": 1})
            self.stage.start_service()
        except BaseException:
            self.stage.close()
            raise
        return self

    def __exit__(self, *what: Any) -> None:
        self.stage.__exit__(*what)

    def begin(self, _transcript: Transcript) -> None:
        """Rejects are numbered from here."""
        self._begins = self._offset

    def step(self, transcript: Transcript, records: tuple[Record, ...]) -> Output:
        """Everything there is after these records, of all transcripts."""
        self._pure.step(transcript, records)
        for record in records:
            self._producer.produce(TOPIC, record.value, partition=0, timestamp=record.at_ms)
            self._offset += 1
        self._producer.flush()
        self.stage.wait(self._is_published, WITHIN_S + (60 if not self.watermark_ms else 0), "a step to be published")
        return dict(self._output())

    def _is_published(self) -> bool:
        progress = self.stage.progress()
        self.watermark_ms = int(progress.get("watermark", 0))
        reached = progress.get("offsets", {}).get(TOPIC, {}).get("0", 0)
        return bool(reached == self._offset and self.watermark_ms >= self._pure.watermark_ms)

    def _output(self) -> Iterator[tuple[str, dict[str, Any]]]:
        with self.stage.redis.client() as client:
            for key in client.scan_iter("tidemark:*", count=1000):
                kind, _, name = str(key).removeprefix("tidemark:").partition(":")
                if kind in ("window", "session", "device"):
                    found: Any = client.hgetall(key)
                    head, _, start = name.rpartition(":")
                    if kind == "window":
                        yield f"window {head.replace(':', '/')}/{start}", _window(found)
                    elif kind == "device":
                        if (
                            found["last_seen"] != "0"
                        ):  # else no reading was admitted: its clock was ahead, and that is all
                            yield f"device {name}", _device(found)
                    elif found["state"] != "merged":
                        yield f"session {head}/{start}", _session(found)
        rejects = [self._rules.rejects.format(topic=TOPIC)]
        for record in oracle.records(self._rules, rejects):
            said = {name: value or b"" for name, value in record.headers}
            number = int(said["tidemark.offset"]) - self._begins + 1
            if number > 0:
                yield f"reject {number}", {"reason": said["tidemark.reason"].decode()}


def _window(found: Mapping[str, str]) -> dict[str, Any]:
    numbers = {name: json.loads(found[name]) for name in ("count", "mean", "min", "max", "stddev")}
    return {**numbers, "final": found["final"] == "1"}


def _session(found: Mapping[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {"state": found["state"], "reason": found["reason"]}
    return {**shown, "count": int(found["count"]), "last": int(found["last"])}


def _device(found: Mapping[str, str]) -> dict[str, Any]:
    values = {name: json.loads(found[name]) for name in ("temperature", "humidity") if name in found}
    return {"status": found["status"], "last_seen": int(found["last_seen"]), **values}
