"""Rebuild: a second service that makes a new checkpoint beside the running one, and never gets ahead of it.

    own         checkpoint, prefix, consumer group, lease and epoch
    not done    copies of rejects, outlets, checks of quality: the service does them
    not written values that have expired: in a run over days of records they would fill Redis

`Gate` holds each batch until the service has published the records of that batch, in every partition. So no record is read by
the new checkpoint alone, and its rejects and finals are those that the service has delivered.

`finish` ends the run exactly at the offsets that the service has published last: the batch that would go beyond them is made
shorter in Spark's offset log, as for skips (service/checkpoint/narrow.py). The batch that is planned after it has not begun.
"""

import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from pyspark import SparkContext

from service import clock
from service.checkpoint import event_time
from service.checkpoint.skips import ReadAnewError
from service.daemon.application import Application
from service.daemon.query_run import QueryRun
from service.daemon.runner import Runner
from service.daemon.session_parts import SessionParts
from service.daemon.shutdown import Shutdown
from service.errors import SparkLostError
from service.micro_batch import Offsets, parse_offsets
from service.monitoring.lag import Lag
from service.monitoring.monitor import Monitor
from service.pipeline.term import Term
from service.publication.shadow import Shadow
from service.redis import link
from service.settings import Settings
from service.spark import session
from service.spark.files import Files, Local
from service.spark.internals import offset_log

SUFFIX = ".rebuild"
LOOK_S = 0.2
ENDS_S = 30.0
_PARTITIONS = "spark.sql.shuffle.partitions"


class BeyondError(ReadAnewError):
    """A batch of the rebuild goes beyond the last offsets of the service."""


def derived(settings: Settings, folder: Path, *, rate: int, buckets: int, since: datetime | None = None) -> Settings:
    """Return the settings of the second service. `rate` is the most records that it reads in a second, from the broker's time
    `since` on, or from the oldest record."""
    service, kafka, redis = settings.service, settings.kafka, settings.redis
    return settings.model_copy(
        update={
            "service": service.model_copy(
                update={"name": f"{service.name}_rebuild", "checkpoint": str(folder), "trigger_ms": 1_000}
            ),
            "kafka": kafka.model_copy(
                update={
                    "group": kafka.group + SUFFIX,
                    "max_per_batch": min(rate, kafka.max_per_batch),
                    "starting": since or "earliest",
                }
            ),
            "redis": redis.model_copy(update={"prefix": redis.prefix + SUFFIX}),
            "sessions": settings.sessions.model_copy(update={"buckets": buckets}),
            "metrics": settings.metrics.model_copy(update={"port": 0}),
            "quality": type(settings.quality)(),
            "outlets": (),
            "otel": None,
        }
    )


def published(settings: Settings) -> Offsets:
    """Return the offsets up to which every value of a prefix is published, {} before the first batch. Raises SinkError."""
    texts = link.progress(settings.redis, "offsets")
    every = [parse_offsets(text.decode()) for text in texts if text is not None]
    if len(every) < len(texts):
        return {}
    return {
        topic: {partition: min(each.get(topic, {}).get(partition, 0) for each in every) for partition in partitions}
        for topic, partitions in every[0].items()
    }


def reaches(offsets: Offsets, end: Offsets) -> bool:
    """Whether the first offsets are not below the second ones, in any partition."""
    return all(
        offsets.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def least(one: Offsets, other: Offsets) -> Offsets:
    """Return the smaller offset of each partition of `one`; a partition that `other` lacks is at 0."""
    return {
        topic: {partition: min(offset, other.get(topic, {}).get(partition, 0)) for partition, offset in each.items()}
        for topic, each in one.items()
    }


class Gate:
    """Holds the batches of a rebuild behind the progress of the service.

    `last` are the last offsets of the service, once it has ended.
    """

    def __init__(self, service: Settings, folder: Path) -> None:
        self._service, self._folder = service, Local(folder)
        self.last: Offsets | None = None

    def __call__(self, batch: int, is_over: Callable[[], bool]) -> None:
        """Return when the service has published the records of a batch, or the query is to end. Raises BeyondError, SinkError."""
        end = offset_log.ends(self._folder, batch)
        wait = threading.Event()
        while not is_over():
            last = self.last
            if reaches(published(self._service) if last is None else last, end):
                return
            if last is not None:
                what = f"batch {batch} goes beyond the last offsets of the service"
                raise BeyondError(what)
            wait.wait(LOOK_S)


class Rebuilder(Runner):
    """One run of the second service, in a process of its own: until `stop`, or until it is at the last offsets of the service.

    `begin` is called before each query, under the lease of the rebuild, and raises if the new checkpoint must not be used.
    `partitions` are the shuffle partitions of a new checkpoint.
    """

    has_predecessor = False  # its group has the offsets of a former rebuild

    def __init__(
        self, service: Settings, own: Settings, partitions: int, begin: Callable[[], object] = lambda: None
    ) -> None:
        monitor = Monitor.of(own)
        self._shutdown = Shutdown(self.stop)
        master = f"local[{max(1, (os.cpu_count() or 2) // 2)}]"
        super().__init__(own, Application(master, monitor.metrics.process, self._take_signals), monitor)
        self._service, self._partitions, self._begin = service, partitions, begin
        self.gate = Gate(service, Path(own.service.checkpoint))

    @property
    def stopping(self) -> threading.Event:
        """Set when the run is to end."""
        return self._stop

    def serve(self) -> bool:
        """Run, then end Spark; whether nobody has stopped it by a signal. For the main thread. Raises TidemarkError."""
        with self._shutdown.handling_signals():
            try:
                self.run()
            finally:
                self._application.close()
        if self._parts is not None:  # else it has not begun
            _await_end_of_spark()
        return not self._shutdown.requested.is_set()

    def _take_signals(self) -> None:
        self._shutdown.take_signals()  # a new SparkContext replaces SIGINT's handler
        session.on_jvm_signals(self._shutdown.request, "TERM")

    def _run_of(self, term: Term, parts: SessionParts) -> QueryRun:
        watermarks = [int(text) for text in link.progress(self._service.redis, "watermark") if text is not None]
        term.shadow = Shadow.of(term.settings, min(watermarks, default=0))

        def gate(batch: int, is_over: Callable[[], bool]) -> None:
            if self.gate.last is not None:
                session.silence(term.spark)  # it would log the end of each query as an error
            self.gate(batch, is_over)

        return QueryRun(parts, term, self._lease, self._backoff, self._stop, gate)

    def _serve(self, parts: SessionParts, epoch: int, lag: Lag) -> None:
        self._begin()
        parts.spark.conf.set(_PARTITIONS, str(self._partitions))
        last = self.gate.last
        if last is None or not shorten(Files(parts.spark, self.settings.service.checkpoint), last):
            super()._serve(parts, epoch, lag)


def _await_end_of_spark() -> None:
    """Raise SparkLostError if Spark does not end: its threads would write state files to the folder that gets the new name."""
    until_s = clock.monotonic_s() + ENDS_S
    while SparkContext._active_spark_context is not None:
        if clock.monotonic_s() > until_s:
            what = f"Spark has not ended within {ENDS_S:.0f} s"
            raise SparkLostError(what, remedy="Repeat the command")
        time.sleep(LOOK_S)


def shorten(files: Files | Local, last: Offsets) -> bool:
    """Let the batch that was begun and not committed end at the last offsets, or before. Return whether the checkpoint is there.

    Records behind the last offsets do not hold the watermark of the batch, as they did not hold that of the service, which had
    read all that there was. The checkpoint's logs must be undamaged. Raises CheckpointError.
    """
    position = offset_log.position(files)
    if position is None:
        return False
    if reaches(position.offsets, last):
        return True
    if position.is_repeated:
        end = offset_log.ends(files, position.batch)
        shorter = least(end, last)
        if shorter != end:
            unread = [
                (t, p) for t, ends in last.items() for p, end in ends.items() if shorter.get(t, {}).get(p, 0) < end
            ]
            event_time.Log(files).note_unread(position.batch, unread)
            offset_log.replace(files, position.batch, shorter)
    return False
