"""`tidemark skip`: give up named offsets that no process can read, as rejects that have coordinates and no bytes.

    1  take the lease, so that no service reads or writes
    2  require that Kafka has the offsets, and that they are in the batch that is begun and not committed, or after it
    3  send rejects to Kafka, reason `unreadable`, every delivery acknowledged
    4  write skips.json into the checkpoint: the next start leaves out these offsets only (service/checkpoint/narrow.py)

A command that ends between 3 and 4 has sent rejects of records that are not skipped: run it again. Offsets in skips.json get no
second reject. A reject that is sent twice has the same coordinates, and counts as one (service/rejects/delivery.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from service import clock
from service.checkpoint import logs, skips
from service.checkpoint.skips import Span
from service.commands import offline
from service.errors import SettingsError
from service.kafka import topics
from service.kafka.offsets import edges_now
from service.micro_batch import MicroBatch, Offsets
from service.pipeline.command_session import started
from service.redis import link as redis_link
from service.rejects import delivery
from service.rejects.delivery import UNREADABLE
from service.settings import Kafka, Settings
from service.spark.files import Files, Folder, Local, local
from service.spark.internals import offset_log
from service.spark.internals.offset_log import Position

MOST = 10_000
"""The most offsets in one command, so that a mistyped number does not give up a day's readings."""
Say = Callable[[str], object]


def skip(settings: Settings, places: Sequence[str], say: Say, *, dry: bool = False) -> None:
    """Skip the offsets that `places` name (`Span.parse`). Offsets that are skipped already stay skipped.

    With `dry`, the lease is not taken, and nothing is sent or written. Raises TidemarkError.
    """
    spans = skips.merged(map(Span.parse, places))
    if dry:
        with _folder(settings) as folder:
            _, new, _ = _chosen(settings, folder, spans)
            _report(new, spans, say, "would be skipped")
        return
    with offline.term(settings, say) as lease, _folder(settings) as folder:
        position, new, known = _chosen(settings, folder, spans)
        if new:
            topics.prepare(settings.kafka)
            _reject(settings.kafka, new, MicroBatch(lease.epoch, position.batch if position else 0, 0, {}, {}))
            offline.confirm(lease, "Rejects are sent, nothing is skipped")
            skips.write(folder, [*known, *new])
        _report(new, spans, say, "skipped")


def _chosen(
    settings: Settings, folder: Folder, spans: Sequence[Span]
) -> tuple[Position | None, tuple[Span, ...], tuple[Span, ...]]:
    """Return the query's position, the part of `spans` that is not skipped yet, and all skipped spans. Raises SettingsError."""
    logs.require_whole(folder)
    known, position = skips.read(folder), offset_log.position(folder)
    new = skips.without(spans, known)
    begin = position.offsets if position is not None else {}
    if new:
        ends = {
            t: {p: end for p, (_, end) in each.items()}
            for t, each in edges_now(settings.kafka, uncommitted=True).items()
        }
        refuse(new, begin, ends)
        published = max(int(batch or -1) for batch in redis_link.progress(settings.redis, "batch"))
        if position is not None and offset_log.last(folder) == position.batch <= published:
            what = f"Batch {position.batch} is published: its records were read"
            raise SettingsError(
                what, remedy="Start the service, which commits it. Then name the offsets that are still unreadable"
            )
    return position, new, known


def refuse(new: Sequence[Span], begin: Offsets, ends: Offsets) -> None:
    """Raise a SettingsError that names each span that cannot be skipped. The query continues at `begin`, Kafka ends at `ends`."""
    problems = []
    for span in new:
        first = begin.get(span.topic, {}).get(span.partition, 0)
        end = ends.get(span.topic, {}).get(span.partition)
        if end is None:
            problems.append(f"{span}: there is no such partition in kafka.topics")
        elif span.begin < first:
            problems.append(f"{span}: offsets below {first} are read and counted")
        elif span.end > end:
            problems.append(f"{span}: the partition ends at {end}")
    many = sum(span.offsets for span in new)
    if many > MOST:
        problems.append(f"{many} offsets are more than {MOST}")
    if problems:
        raise SettingsError(
            "; ".join(problems), remedy="Name only the offsets that the service has named as unreadable"
        )


def _reject(kafka: Kafka, spans: Sequence[Span], micro_batch: MicroBatch) -> None:
    now_ms = clock.now_ms()  # the record's own time cannot be read
    with delivery.sender(kafka) as sending:
        for span in spans:
            for offset in range(span.begin, span.end):
                place = {"topic": span.topic, "partition": span.partition, "offset": offset}
                detail = "was skipped by an operator; the time is that of the skip"
                sending.send({"reason": UNREADABLE, "detail": detail, "broker_ms": now_ms, **place}, None, micro_batch)
        sending.flush(micro_batch)


def _report(new: Sequence[Span], spans: Sequence[Span], say: Say, done: str) -> None:
    for span in new:
        say(f"{span}: {span.offsets} {'offset' if span.offsets == 1 else 'offsets'} {done}")
    for span in skips.without(spans, new):
        say(f"{span}: skipped already")


@contextmanager
def _folder(settings: Settings) -> Iterator[Folder]:
    """Open the checkpoint's folder; Spark starts only for one on another file system."""
    path = local(settings.service.checkpoint)
    if path is not None:
        yield Local(path)
        return
    with started(settings, master="local[1]", is_brief=True) as spark:
        yield Files(spark, settings.service.checkpoint)
