"""Which late readings a correction is about, and which records a recomputation leaves out."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition

from service.admission import device_limit
from service.kafka import clients, scan
from service.recompute import late
from service.recompute.late import Log
from service.rejects import marks, reject_log
from service.rejects.former import NONE
from service.rejects.marks import Mark, State
from service.rejects.reject_log import Coordinates, Reject
from service.spark.files import Local
from tests.samples import sample
from tests.stream.records import make_settings

STATES: tuple[State, ...] = ("open", "correcting", "corrected", "replaying", "replayed")


def place(offset: int) -> Coordinates:
    return Coordinates("readings", 0, offset)


def log() -> Log:
    """One of each state in the span, at offsets 0 to 4, and one of each beyond it, from 10 on; 5 has no mark."""
    offsets = [*range(6), *range(10, 15)]
    rejects = {place(n): Reject(place(n), "late", "", n, 1, 1, None, b"", ()) for n in offsets}
    marks = {place(n): Mark(place(n), STATES[n % 10], {}) for n in offsets if n != 5}
    return Log(rejects, {place(n) for n in range(6)}, marks, -1)


def test_what_is_to_be_corrected() -> None:
    assert [each.offset for each in log().todo(0, again=False)] == [0, 1, 5, 11]
    assert [each.offset for each in log().todo(0, again=True)] == [0, 1, 2, 5, 11]
    assert [reject.place.offset for reject in log().in_values()] == [1, 2, 11, 12]


def test_a_reading_that_a_longer_window_waits_for_is_corrected_when_that_is_closed() -> None:
    waiting = log()
    known = {**waiting.marks, place(11): Mark(place(11), "correcting", {"event_ms": 5, "next_ms": 1_000})}
    waiting = Log(waiting.rejects, waiting.span, known, -1)
    assert [each.offset for each in waiting.todo(999, again=False)] == [0, 1, 5]
    assert [each.offset for each in waiting.todo(1_000, again=False)] == [0, 1, 5, 11]
    assert [each.offset for each in waiting.todo(999, again=True)] == [0, 1, 2, 5, 11]
    assert [reject.place.offset for reject in waiting.in_values()] == [1, 2, 11, 12]


def reject(offset: int, reason: str, detail: str = "") -> Reject:
    return Reject(place(offset), reason, detail, offset, 1, 1, None, b"", ())


@pytest.mark.parametrize(("state", "span"), [("corrected", (0, 0)), ("correcting", (0, 0)), ("open", (None, None))])
def test_a_late_reading_that_is_in_values_is_not_admitted_again_when_max_delay_was_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State, span: Any
) -> None:
    """Every recomputation adds the corrected rows to the records of the topic, so these must be without them."""
    one = reject(
        7, "late", "event time 1 ms, broker time 7200001 ms: 7200000 ms behind, limit 1 h (admission.max_delay)"
    )
    monkeypatch.setattr(reject_log, "read", lambda *_, **__: iter([one]))
    monkeypatch.setattr(marks, "read", lambda *_: {one.place: Mark(one.place, state, {})})
    log = late.read(make_settings(tmp_path), *span)
    assert one.place in log.rejects
    assert one.place in log.refused


def test_readings_of_too_many_devices_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rejects = [reject(1, "too_many_devices"), reject(2, "duplicate"), reject(3, "bad_json")]
    monkeypatch.setattr(reject_log, "read", lambda *_, **__: iter(rejects))
    settings, files = make_settings(tmp_path), Local(tmp_path)
    assert not late.refused(settings, {}, NONE, has_refused=device_limit.was_reached(files))
    files.replace(f"{device_limit.FOLDER}/4", b"")
    assert late.refused(settings, {}, NONE, has_refused=device_limit.was_reached(files)).keys() == {place(1), place(2)}


def test_a_reject_that_was_sent_again_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that a killed run has perhaps sent, and one whose reject Kafka has deleted."""
    rejects = [reject(n, "out_of_range") for n in range(5)] + [reject(9, "late")]
    monkeypatch.setattr(reject_log, "read", lambda *_, **__: iter(rejects))
    known = {place(n): Mark(place(n), state, {}) for n, state in enumerate(STATES)}
    known[place(7)] = Mark(place(7), "replayed", {})
    settings = make_settings(tmp_path)
    assert late.refused(settings, known, NONE, has_refused=False).keys() == {place(3), place(4), place(7)}
    known[place(9)] = Mark(place(9), "corrected", {})
    log = late.in_values(settings, known, NONE)
    assert log is not None
    assert log.refused.keys() == {place(3), place(4), place(7), place(9)}
    assert log.refused[place(3)] == late.Refusal("out_of_range", 3)


@pytest.mark.silent("1.6")
@pytest.mark.parametrize(
    ("reason", "detail", "wanted"),
    [
        ("late", "event time 7 ms is behind the watermark, 12 ms", ("behind", 7, 12)),
        (
            "late",
            "event time -1 ms, broker time 9 ms: 10 ms behind, limit 1 s (admission.max_delay)",
            ("late", -1, None),
        ),
        ("early", "event time 99 ms, broker time 9 ms: 90 ms ahead, the limit is 10 ms", ("early", 99, None)),
        ("out_of_range", "event time 7 ms is behind the watermark, 12 ms", ("out_of_range", None, None)),
    ],
)
def test_rejects_of_earlier_versions_have_their_reason_and_times_in_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, detail: str, wanted: tuple[Any, ...]
) -> None:
    names = ("reason", "detail", "topic", "partition", "offset", "broker_ms", "epoch", "batch")
    texts = (reason, detail, "readings", "0", "3", "9", "1", "2")
    headers = [(f"tidemark.{name}", text.encode()) for name, text in zip(names, texts, strict=True)]

    stored = sample(b"v", b"k", headers, 9, "readings.rejects", 5)
    monkeypatch.setattr(scan, "messages", lambda *_, **__: iter([stored]))
    [read] = reject_log.read(make_settings(tmp_path).kafka)
    assert (read.reason, read.event_ms, read.watermark_ms) == wanted
    assert read.detail == detail


class Topic:
    """A consumer of a topic with two partitions of ten records, as service/rejects/fetch.py uses it."""

    def __init__(self) -> None:
        self.closed, self._next = False, dict[int, int]()

    def list_topics(self, *, timeout: float) -> Any:
        return SimpleNamespace(topics={"readings": SimpleNamespace(partitions={0: None, 1: None})})

    def assign(self, places: list[TopicPartition]) -> None:
        self._next = {each.partition: each.offset for each in places}

    def poll(self, timeout: float) -> Message | None:
        partition = next((p for p, offset in self._next.items() if offset < 10), None)
        if partition is None:
            return None
        offset = self._next[partition]
        self._next[partition] += 1
        return Message(topic="readings", partition=partition, offset=offset, value=b"%d/%d" % (partition, offset))

    def consume(self, most: int, timeout: float) -> list[Message]:
        return []

    def pause(self, places: list[TopicPartition]) -> None:
        for place in places:
            del self._next[place.partition]

    def resume(self, places: list[TopicPartition]) -> None:
        """Nothing is paused."""

    def close(self) -> None:
        self.closed = True


def test_the_bytes_that_rejects_lack_are_read_with_one_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Topic] = []
    monkeypatch.setattr(clients, "consumer", lambda *_, **__: made.append(Topic()) or made[-1])
    places = [(1, 3), (0, 7), (5, 1), (0, 2), (1, 3)]
    given = [
        Reject(Coordinates("readings", *at), "late", "", 1, 1, 1, None, None, (), omitted_bytes=3) for at in places
    ]
    given += [replace(given[0], omitted_bytes=None, value=b"own"), replace(given[0], reason="unreadable")]
    found = reject_log.complete(make_settings(tmp_path).kafka, given, {})
    assert [each and each.value for each in found] == [b"1/3", b"0/7", None, b"0/2", b"1/3", b"own", None]
    assert [each.closed for each in made] == [True]
    assert reject_log.complete(make_settings(tmp_path).kafka, given[5:], {}) == [given[5], None]
    assert len(made) == 1
