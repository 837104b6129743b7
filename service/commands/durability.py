"""`tidemark check`: how long records and values are kept: records in a topic until they are read, values in Redis until they are
final."""

from collections.abc import Iterable, Iterator, Mapping

from service.aggregation.sessions import longest_gap_ms
from service.commands.finding import Line, failed, ok
from service.errors import DataLossError
from service.kafka import clients, topics
from service.kafka.offsets import committed, edges, headrooms
from service.settings import Settings
from service.spark.files import Local, local
from service.spark.internals import offset_log
from service.units import format_duration

COMPRESSION, PLAIN = "compression.type", "uncompressed"
DOWN_MS = 86_400_000
"""The shortest outage without a warning: an operator repairs a shorter one within a day."""


def copies(topic: topics.Topic) -> Iterator[Line]:
    """Lines about replication and deletion. They are warnings, because a service on one machine runs without replicas."""
    name, configuration = f"topic {topic.name}", topic.configuration
    if topic.replicas < 2:
        detail = "its partitions have one copy: a broker's disk that is lost takes records with it"
        yield Line(name, "warn", detail, "Give it a replication factor of 3, and min.insync.replicas=2")
    elif int(configuration.get("min.insync.replicas", 1)) < 2:
        detail = f"min.insync.replicas is {configuration.get('min.insync.replicas', 'not readable')}"
        detail += ": a record may be acknowledged by one broker alone, and be lost with it"
        yield Line(name, "warn", detail, "Set min.insync.replicas=2, and let producers use acks=all")
    if configuration.get("unclean.leader.election.enable") == "true":
        detail = "unclean.leader.election.enable is true: a broker that lacks the last records may become leader"
        yield Line(name, "warn", detail, "Set it to false: offsets that were read would get other records")
    if "compact" in configuration.get("cleanup.policy", ""):
        detail = f"cleanup.policy is {configuration['cleanup.policy']}: readings of a key are deleted, read or not"
        yield Line(name, "warn", detail, "Set cleanup.policy=delete")


def decompression(inputs: Iterable[topics.Topic]) -> Iterator[Line]:
    """One line that names all topics that accept compressed records, whose size after decompression is unbounded."""
    names = [
        f"{topic.name} ({topic.max_bytes})" for topic in inputs if topic.configuration.get(COMPRESSION, PLAIN) != PLAIN
    ]
    if names:
        detail = (
            f"max.message.bytes of {', '.join(names)} bounds records as they are compressed: a few KB may be gigabytes"
        )
        remedy = f"If not all producers are trusted, set {COMPRESSION}={PLAIN}: the broker then refuses such records"
        yield Line("decompression", "warn", detail, remedy)


def expiry(settings: Settings) -> Iterator[Line]:
    """Warnings of views and sessions that may expire in Redis before they are closed."""
    admission, sessions = settings.admission, settings.sessions
    closed_ms = max(admission.watermark_delay_ms, admission.idle_after_ms)
    for view in settings.closing_views:
        if view.retain_ms < closed_ms:
            detail = (
                f"retain is {format_duration(view.retain_ms)}, a window is final up to {format_duration(closed_ms)} after its end"
                " (admission.max_delay + max_ahead, or idle_after): Redis may drop it before readers see it final"
            )
            yield Line(f"view {view.name}", "warn", detail, f"Set its retain to {format_duration(closed_ms)} or more")
    closed_ms += longest_gap_ms(settings)
    if sessions.retain_ms < closed_ms:
        detail = (
            f"retain is {format_duration(sessions.retain_ms)}, a session is closed up to {format_duration(closed_ms)} after its"
            " last reading (its gap, and admission.max_delay + max_ahead, or idle_after): Redis may drop it while it is open"
        )
        yield Line("sessions", "warn", detail, f"Set sessions.retain to {format_duration(closed_ms)} or more")


def retention(settings: Settings, inputs: Mapping[str, topics.Topic]) -> Iterator[Line]:
    """Lines on how long the service may be down, from its last committed offsets."""
    kafka, folder = settings.kafka, local(settings.service.checkpoint)
    position = offset_log.position(Local(folder)) if folder is not None else None
    kept = {name: topic.retention_ms for name, topic in inputs.items() if topic.retention_ms is not None}
    consumer = clients.consumer(kafka, small=True, uncommitted=True)
    try:
        known = kafka.model_copy(update={"topics": tuple(inputs)})
        ends = edges(consumer, known)
        done = position.offsets if position is not None else committed(consumer, known)
        reached = {
            topic: {p: done.get(topic, {}).get(p, end) for p, (_, end) in partitions.items()}
            for topic, partitions in ends.items()
        }
        rooms = headrooms(consumer, ends, reached, kept)
    finally:
        consumer.close()
    longest_ms = max(settings.sessions.retain_ms, *(view.retain_ms for view in settings.views))
    for name, topic in inputs.items():
        yield from keeping(topic, min(rooms.get(name, {}).values(), default=None), longest_ms)


def keeping(topic: topics.Topic, room_s: float | None, longest_ms: int) -> Iterator[Line]:
    """Lines for a topic whose oldest unread record may be deleted in `room_s`; Redis keeps values for `longest_ms`."""
    name, keep_ms, keep_bytes = f"topic {topic.name}", topic.retention_ms, topic.retention_bytes
    if keep_ms is None:
        yield Line(name, "warn", "its retention is not readable", "Let the service's user describe its configuration")
        return
    if room_s == 0:
        what = "records after the last committed batch are deleted already"
        yield failed(
            name,
            DataLossError(what, remedy="See docs/operator/procedures.md#records-were-deleted-before-they-were-read"),
        )
    elif keep_ms >= 0 and room_s is not None:
        down = f"records are kept for {format_duration(keep_ms)}; the service may be down for {_rough(room_s)}"
        if room_s * 1000 < DOWN_MS:
            yield Line(name, "warn", f"{down} before unread ones are deleted", "Raise retention.ms, or catch up first")
        else:
            yield ok(name, down)
        if keep_ms < longest_ms:
            detail = f"retention.ms is {format_duration(keep_ms)}, Redis keeps values for {format_duration(longest_ms)}"
            yield Line(name, "warn", detail, "Make it the longer one: what Redis loses is read from the topic again")
    elif keep_ms < 0:
        yield ok(name, "records are not deleted because of their age")
    if keep_bytes is not None and keep_bytes >= 0:
        detail = f"retention.bytes is {keep_bytes} a partition: how long that is depends on the load, and nothing foresees it"
        yield Line(name, "warn", detail, "Set retention.bytes=-1, and let retention.ms decide")


def _rough(seconds: float) -> str:
    """A duration rounded down to the hour, or below a day to the minute."""
    step_s = 3600 if seconds >= 86_400 else 60
    return (
        format_duration(max(0, int(seconds // step_s * step_s * 1000))) if seconds >= step_s else "less than a minute"
    )
