"""Replay: rejects go through admission again, as new records of their input topic, each once.

A record that admission would reject again is not sent, and not marked; `force` sends it anyway. service/commands/readmission.py
decides. The copy counts in the place of the original (service/rejects/two_places.py). So an original that the service has not
published yet is not sent: a query reads the marks when it begins, and may admit the original before it knows the mark.

The steps of a run:

    1  take the fence, which ends every run that began earlier                           service/rejects/fence.py
    2  look in the input topic for the records of a run that did not finish, and mark their rejects
    3  mark these rejects as `replaying`, with the end of the topic                      service/rejects/marks.py
    4  check the fence
    5  send the records, each with its reject's coordinates and its mark's token in the header `tidemark-origin`; one that views
       without windows have counted gets the header `tidemark-counted`, too
    6  mark these rejects as `replayed`, for ever

Steps 3 to 6 run for a few hundred rejects at a time. A run that is killed between 3 and 6 may have written some of the records.
The next run finds them in the topic, behind the end that step 3 stored, and sends the others. A record is sent within `_SEND_MS`
of step 4 or never, so the next run waits that long before it looks. A process that is frozen right after step 4, and continues
after another run has looked, still sends: Kafka has no fence without transactions, and transactions write records of their own
into the input topic.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from service import clock, failpoint
from service.admission.readings import COUNTED_HEADER
from service.commands import dissect
from service.commands.readmission import Readmission
from service.errors import SettingsError, SourceError
from service.kafka import clients, scan
from service.kafka.offsets import edges_of
from service.micro_batch import Offsets
from service.redis import link
from service.rejects import marks, reject_log, two_places
from service.rejects.fence import Fence
from service.rejects.marks import Mark
from service.rejects.reject_log import ORIGIN, Coordinates, Reject
from service.settings import Kafka, Settings, field_path

AT_ONCE = 500
_BYTES_AT_ONCE = 16 << 20
_SEND_MS = 10_000
SETTLE_S = _SEND_MS / 1000 + 2.0

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Mend:
    """The changes to a reject before it is sent: the values of fields by path, or all of its bytes."""

    fields: Mapping[str, Any]
    value: bytes | None = None

    def __bool__(self) -> bool:
        return bool(self.fields) or self.value is not None


def replay(
    settings: Settings,
    chosen: Iterable[Reject],
    mend: Mend,
    say: Say,
    *,
    dry: bool = False,
    force: bool = False,
    rate: int | None = None,
) -> Counter[str]:
    """Send the chosen rejects again; returns how many were `sent`, and how many not, by why.

    Only a few are in memory at a time. At most `rate` records a second are sent. With `dry`, nothing is sent or marked. With
    `force`, records that would be rejected again are sent too. Raises SourceError, SinkError, FencedError; then run it again.
    """
    dissector = dissect.Dissector(settings)
    counts: Counter[str] = Counter()
    with ExitStack() as cleanup:
        fence = None if dry else Fence(settings.redis)
        if fence is not None:
            cleanup.callback(fence.close)
        known = marks.read(settings.kafka)
        if fence is not None:
            known = _finish(settings.kafka, known, say)
        readmission = None if force else cleanup.enter_context(Readmission(settings))
        begun_s, published = clock.monotonic_s(), link.published(settings.redis)
        for part in _parts(chosen, min(AT_ONCE, rate or AT_ONCE)):
            ready = _ready(settings, part, mend, dissector, known, published, counts, say)
            if readmission is not None:
                ready = _admissible(ready, readmission, counts, say)
            counts["sent"] += len(ready)
            if fence is not None and ready:
                _send(settings.kafka, ready, fence)
                time.sleep(max(0.0, counts["sent"] / rate - (clock.monotonic_s() - begun_s)) if rate else 0)
    return counts


def _parts(rejects: Iterable[Reject], most: int) -> Iterator[list[Reject]]:
    """Yield the rejects, `most` at a time, or fewer if they are large."""
    part: list[Reject] = []
    size = 0
    for reject in rejects:
        part.append(reject)
        size += reject.omitted_bytes or len(reject.value or b"")
        if len(part) >= most or size >= _BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _ready(
    settings: Settings,
    chosen: Iterable[Reject],
    mend: Mend,
    dissector: dissect.Dissector,
    known: Mapping[Coordinates, Mark],
    published: Offsets,
    counts: Counter[str],
    say: Say,
) -> list[Reject]:
    """Return the rejects that were not applied before, with the bytes to send.

    `published` are the offsets of progress, {} for none.
    """
    ready, wanted = [], []
    for reject in chosen:
        mark = known.get(reject.place)
        if mark is not None and mark.state != "open":
            counts[f"{mark.state} already"] += 1
            continue
        place = reject.place
        if published and place.offset >= published.get(place.topic, {}).get(place.partition, 0):
            why = "not read by the service yet, or not published: try later"
            counts[why] += 1
            say(f"{place}: {why}")
            continue
        wanted.append(reject)
    for reject, complete in zip(
        wanted, reject_log.complete(settings.kafka, wanted, settings.inputs_by_topic), strict=True
    ):
        mended, why, more = _mended(reject, complete, mend, dissector)
        if mended is not None:
            ready.append(mended)
        else:
            counts[why] += 1
            say(f"{reject.place}: {why}{more}")
    return ready


def _admissible(ready: Sequence[Reject], readmission: Readmission, counts: Counter[str], say: Say) -> list[Reject]:
    """Return the records that admission would not reject again."""
    admissible = []
    for reject, (reason, explanation) in zip(ready, readmission.refusals(ready), strict=True):
        if reason:
            counts[f"would be rejected again as {reason}"] += 1
            say(f"{reject.place}: would be rejected again as {reason}: {explanation}")
        else:
            admissible.append(reject)
    return admissible


def _mended(
    reject: Reject, complete: Reject | None, mend: Mend, dissector: dissect.Dissector
) -> tuple[Reject | None, str, str]:
    """Return the reject, `complete` if it has all bytes, with the bytes to send; or None, why it cannot be sent, and more about
    this record."""
    if mend.value is not None:
        return replace(complete or reject, value=mend.value, omitted_bytes=None), "", ""
    if complete is None:
        return None, "its bytes are in no topic any more", ""
    if not mend.fields:
        return complete, "", ""
    seen = dissector(complete.place.topic, complete.value, complete.headers)
    if not seen.whole or complete.value is None:
        return None, "does not decode: replace all of its bytes with --value", f" ({seen.why})"
    try:
        changed = _set(seen.fields, mend.fields)
        value = dissector.encode(complete.place.topic, complete.value, changed, complete.headers)
    except ValueError as error:
        return None, "cannot be changed by --set", f": {error}"
    return replace(complete, value=value), "", ""


def _set(record: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(record)
    for path, value in values.items():
        node = changed
        *parents, leaf = field_path.parts(path)
        for parent in parents:
            inner = node.get(parent)
            if not isinstance(inner, Mapping):
                raise ValueError(f"there is no {path}")
            node[parent] = node = dict(inner)
        if leaf not in node:
            raise ValueError(f"there is no {path}; there are {', '.join(map(str, node))}")
        node[leaf] = value
    return changed


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `field=value` to path and value, which is JSON, or else text. Raises SettingsError."""
    values: dict[str, Any] = {}
    for text in texts:
        path, is_there, value = text.partition("=")
        if not path or not is_there:
            raise SettingsError(f"--set {text!r} is no assignment", remedy="Write --set temperature=21.5")
        try:
            values[path] = json.loads(value)
        except ValueError:
            values[path] = value
    return values


def _send(kafka: Kafka, rejects: Sequence[Reject], fence: Fence) -> None:
    """Do steps 3 to 6. Raises SourceError when a record was not delivered; the delivered ones are marked."""
    ends = _ends(kafka, {(reject.place.topic, reject.place.partition) for reject in rejects})
    taken = [
        Mark(
            r.place,
            "replaying",
            {"from": ends[r.place.topic, r.place.partition], "token": secrets.token_hex(8), **_counted(r)},
        )
        for r in rejects
    ]
    marks.write(kafka, taken)
    fence.check()
    done: list[Mark] = []
    failures: list[KafkaError] = []
    producer = clients.producer(kafka, "tidemark-replay", {"delivery.timeout.ms": _SEND_MS})
    for reject, mark in zip(rejects, taken, strict=True):
        place, counted = reject.place, _counted(reject)

        def delivered(error: KafkaError | None, message: Message, taken: Mark = mark) -> None:
            if error is None:
                done.append(_replayed(taken, message))
            else:
                failures.append(error)

        try:
            producer.produce(
                place.topic,
                reject.value,
                reject.key,
                partition=place.partition,
                headers=[*reject.headers, (ORIGIN, _origin(mark)), *((COUNTED_HEADER, b"1") for _ in counted)],
                on_delivery=delivered,
            )
        except KafkaException as error:
            failures.append(error.args[0])
        producer.poll(0)
    missing = producer.flush(SETTLE_S)
    failpoint.hit("replayed_before_marked")
    marks.write(kafka, done)
    if failures or missing:
        reason = failures[0].str() if failures else "no answer in time"
        what = f"Kafka at {kafka.bootstrap}: {len(failures) + missing} records were not delivered: {reason}"
        raise SourceError(what, remedy="Run it again: what was delivered is not sent a second time")


def _ends(kafka: Kafka, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    with clients.reading(kafka) as consumer:
        return {place: end for place, (_, end) in edges_of(consumer, [*places]).items()}


def _origin(mark: Mark) -> bytes:
    """Return the value of ORIGIN for a mark. Its token is secret until the record is sent, so that no device can forge it."""
    place, token = mark.place, mark.details.get("token", "")
    return f"{place.topic}/{place.partition}/{place.number}/{token}".rstrip("/").encode()


def _counted(reject: Reject) -> dict[str, bool]:
    return {"counted": True} if two_places.is_counted(reject) else {}


def _replayed(taken: Mark, message: Message) -> Mark:
    counted = {name: taken.details[name] for name in ("counted",) if name in taken.details}
    return Mark(taken.place, "replayed", {"as": [message.partition(), message.offset()], **counted})


def _finish(kafka: Kafka, known: dict[Coordinates, Mark], say: Say) -> dict[Coordinates, Mark]:
    """Do step 2, and return the marks as they are after it."""
    taken = {place: mark for place, mark in known.items() if mark.state == "replaying"}
    if not taken:
        return known
    say(f"{len(taken)} were taken by a run that did not finish: looking for them in {SETTLE_S:.0f} s")
    time.sleep(SETTLE_S)  # after that, the records of that run are in the topic, or are never delivered
    begin: dict[tuple[str, int], int] = {}
    for place, mark in taken.items():
        where = place.topic, place.partition
        begin[where] = min(int(mark.details["from"]), begin.get(where, int(mark.details["from"])))
    sent: dict[Coordinates, Mark] = {}
    places = {_origin(mark): place for place, mark in taken.items()}
    for message in scan.messages(kafka, sorted({topic for topic, _ in begin}), begin=begin, uncommitted=True):
        for name, text in scan.headers(message):
            if name == ORIGIN and text is not None and text in places:
                place = places[text]
                sent[place] = _replayed(taken[place], message)
    settled = {place: sent.get(place, Mark(place, "open", {})) for place in taken}
    marks.write(kafka, settled.values())
    say(f"{len(sent)} of them are there, the others are open again")
    return known | settled
