"""Publish a micro-batch by named steps. Their order is the guarantee:

    begin      check the offsets, read event time, set the state of the stream for the tasks, begin and end views
    compute    run the pass; the tasks of a large batch do the next step, too
    publish    copy rejected records from Kafka to the rejects topics, until all are acknowledged, then write windows,
               sessions, devices and the views' keys to Redis, under the epoch
    deliver    store the finals, and write them to every outlet that is not behind
    progress   write the progress key: all values include the batch up to these offsets, and the windows that the watermark
               has passed are final
    note       write event time, and the limit of the next batch, to the checkpoint

Spark commits the batch after the last step. A failure in a step fails the batch. The replay writes the same keys with the same
values, so every step may be repeated, also in part.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from service import clock, failpoint, threads, tracing
from service.admission import readings
from service.admission.catalogs import Catalogs, LookUps, open_catalog
from service.admission.column_values import ColumnValues
from service.admission.device_limit import DeviceLimit
from service.admission.questions import COLUMN_VALUES, SCHEMA_IDS, until_decided
from service.aggregation import seen_keys
from service.aggregation.sessions import has_states
from service.checkpoint import beginnings, event_time, resume
from service.checkpoint.beginnings import Beginnings
from service.checkpoint.skips import Care
from service.kafka import source
from service.kafka.offsets import EdgeReader, unavailable
from service.micro_batch import MicroBatch
from service.pipeline import batch_report, builder, failure
from service.pipeline.back_pressure import BatchLimit, Measured
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.pipeline.term import Term
from service.publication.policy import WritePolicy
from service.reference.snapshots import Snapshot
from service.rejects import former
from service.rejects.two_places import Originals
from service.spark import batch_context, memory, session
from service.spark.batch_context import BatchContext
from service.spark.files import opened
from service.spark.internals import execution
from state.waiting import AT_ONCE, EVER, Pace
from state.watermark import EventTime


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did. `phases` are seconds by name.

    `lost` counts records of the batch that Kafka no longer had; it is 0 unless the settings accept that. `held_ms` is how far
    the `unread` partitions hold the watermark back, `times` has the oldest and newest event time (ms) of the partitions, `skewed`
    is the number of skewed devices, `column_values` the number of listed values by grouped column. `limit` is the most records
    that the batch could have, `next_limit` that of the next batch. `redis_ahead_ms` is how far Redis calls windows final beyond
    the watermark: a new window that ends before that is refused.
    """

    micro_batch: MicroBatch
    outcome: Outcome
    lost: int = 0
    held_ms: int = 0
    unread: int = 0
    times: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    skewed: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    column_values: Mapping[str, int] = field(default_factory=dict)
    limit: int = 0
    next_limit: int = 0
    redis_ahead_ms: int = 0


@dataclass(slots=True)
class Batch:
    """A batch between two steps: what the steps so far have found."""

    frame: DataFrame
    number: int
    begun_s: float = field(default_factory=clock.monotonic_s)
    phases: dict[str, float] = field(default_factory=dict)
    # begin
    sink: Sink = field(init=False)
    context: BatchContext = field(default_factory=BatchContext)
    pace: Pace = AT_ONCE
    before: EventTime = field(default_factory=EventTime)
    unread: Collection[tuple[str, int]] = ()
    devices: int = event_time.NO_LIST
    most: int = 0
    servers: Mapping[int, str] = field(default_factory=dict)
    # compute
    rows: pa.Table | None = None
    """The rows of a small batch, until they are written; the tasks have written those of a large one."""
    outcome: Outcome = field(default_factory=Outcome)
    # publish
    after: EventTime = field(default_factory=EventTime)
    skewed: int = 0
    # progress
    final_ms: int = 0
    # note
    next_limit: int = 0

    def fence(self) -> None:
        """Raise FencedError when there is another writer: call this before a file of the checkpoint is written."""
        self.sink.run_in(0, "read_progress")


@dataclass(slots=True)
class Publication:
    """The function of foreachBatch: publishes each batch by its steps.

    A publication holds the term's `write_lock` during a batch and then sets the term's `published`. Spark commits the batch
    after that, and the runner then commits offsets to a Kafka consumer group and updates metrics. `failure` is the exception
    that ended the query, as it was raised. `final_ms` is the event time up to which Redis calls windows final, None before the
    first batch. `care` ends the query before a batch that the query must not read: the frame is not evaluated yet. `edges` keeps
    a consumer of Kafka: close it when the query has ended.
    """

    term: Term
    before_batch: Callable[[int], None]
    on_batch: Callable[[BatchReport], None]
    catalog: Catalogs
    times: event_time.Log
    limit: DeviceLimit
    values: ColumnValues
    beginnings: Beginnings
    batch_limit: BatchLimit
    originals: Originals
    edges: EdgeReader
    care: Care = field(default_factory=Care)
    final_ms: int | None = None
    failure: BaseException | None = None
    pipeline: str = field(default_factory=threads.pipeline)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        threads.belong_to(self.pipeline)
        try:
            named = {"pipeline": self.pipeline} if self.pipeline else {}
            with self.term.write_lock, tracing.span("batch", batch=batch, epoch=self.term.epoch, **named):
                self._run(frame, batch)
        except BaseException as error:
            if isinstance(error, failure.PLANNED):
                session.silence(self.term.spark)  # it would log the end as an error
            self.failure = error
            raise
        memory.settle()

    def _run(self, frame: DataFrame, number: int) -> None:
        self.before_batch(number)
        self.catalog.before_batch()
        failpoint.hit("before_fetch")
        batch = Batch(frame, number)
        begun_s = batch.begun_s
        for step, phase in STEPS:
            step(self, batch)
            ended_s = clock.monotonic_s()
            batch.phases[phase] = batch.phases.get(phase, 0.0) + ended_s - begun_s
            begun_s = ended_s
        failpoint.hit("after_publish_before_commit")
        tracing.phases(batch.phases)
        self.on_batch(self._report(batch))

    def begin(self, batch: Batch) -> None:
        """Check the batch, and set what its tasks need. Nothing that readers see is written."""
        term, settings, number = self.term, self.term.settings, batch.number
        # The batch's join uses this snapshot, because on_batch swaps it between batches only.
        snapshot = term.snapshot
        version = snapshot.version if snapshot else ""
        micro_batch = batch_report.running_batch(term.spark, settings.service.name, number, term.epoch, version)
        self.care.check(micro_batch)
        resume.require_growing(micro_batch)
        if term.current_snapshot is not None:
            term.current_snapshot.note(micro_batch)
        batch.most = self.times.limit(number, self.batch_limit.records)
        batch.before = self.times.before(number)
        hold_ms = settings.admission.max_hold_ms
        batch.unread = self.times.unread(settings.kafka, micro_batch, batch.most, hold_ms, self.edges)
        batch.devices = self.times.devices(number)
        batch.sink = Sink(
            settings,
            replace(micro_batch, watermark_ms=batch.before.watermark_ms),
            builder.attributes(snapshot, settings),
            policy=WritePolicy.stream(term.published, term.settled_ms, term.covered),
        )
        self._begin_views(batch)
        batch.pace = self._pace_of_values(batch)
        batch.context = self._context(batch, snapshot)
        batch.servers = batch.sink.servers()

    def compute(self, batch: Batch) -> None:
        """Compute the rows of a small batch. The tasks of a large one write theirs: only the outcome comes to the driver."""
        look_ups = LookUps(self.catalog, batch.number)
        deciders = {SCHEMA_IDS: look_ups.decide, COLUMN_VALUES: lambda values: self.values.decide(values, batch.fence)}
        until_decided(lambda: self._compute(batch, look_ups), deciders, failure.classify)

    def publish(self, batch: Batch) -> None:
        """Copy the rejects and write the values, unless the tasks have."""
        if batch.rows is not None:
            batch.outcome, batch.rows = batch.sink.write(batch.rows.to_batches()), None
        self.term.id_check.ask()  # the batch has read its records
        # A batch without readable records leaves event time as it is.
        batch.after = EventTime(*max([(batch.before.watermark_ms, batch.before.newest_ms), *batch.outcome.event_times]))
        after = batch.after
        micro_batch = replace(batch.sink.micro_batch, watermark_ms=after.watermark_ms, newest_ms=after.newest_ms)
        batch.sink = replace(batch.sink, micro_batch=micro_batch)
        batch.skewed = batch.sink.count_skewed()

    def deliver(self, batch: Batch) -> None:
        """Write the finals to the outlets."""
        if self.term.outlets is not None:
            skewed = batch.sink.skewed() if has_states(self.term.settings) else {}
            self.term.outlets.publish(batch.sink.micro_batch, batch.outcome.finals, skewed)

    def progress(self, batch: Batch) -> None:
        """Write the progress key of each shard."""
        batch.final_ms = self.final_ms = batch.sink.progress(batch.servers, batch.outcome.waiting)

    def note(self, batch: Batch) -> None:
        """Write the event time after the batch to the checkpoint, and the limits of the next batch."""
        term, micro_batch, outcome = self.term, batch.sink.micro_batch, batch.outcome
        measured = Measured(micro_batch.rows, outcome.read_bytes, clock.monotonic_s() - batch.begun_s)
        batch.next_limit = self._pace(measured, is_full=micro_batch.reaches(batch.most))
        term.id_check.require()
        self.times.note_refused({reason for reason, count in outcome.by_reason.items() if count})
        sizes = ((bucket, number) for bucket, _, number, *_ in outcome.sizes)
        devices = self.limit.list_after(batch.number, batch.devices, sizes)
        self.times.note(batch.number, batch.after, devices, batch.next_limit)
        term.published = term.epoch, batch.number
        if term.covered and micro_batch.watermark_ms >= max(each.until_ms for each in term.covered.values()):
            term.covered = {}

    def _report(self, batch: Batch) -> BatchReport:
        settings, after, times = self.term.settings, batch.after, batch.outcome.times
        topics = settings.kafka.topics
        return BatchReport(
            batch.sink.micro_batch,
            batch.outcome,
            lost=self._lost(batch.sink.micro_batch, batch.outcome),
            held_ms=max(0, after.newest_ms - settings.admission.watermark_delay_ms - after.watermark_ms),
            unread=len(batch.unread),
            times={readings.partition_of(code, topics): (oldest, newest) for code, oldest, newest in times},
            skewed=batch.skewed,
            phases=batch.phases,
            column_values=self.values.sizes(),
            limit=batch.most,
            next_limit=batch.next_limit,
            redis_ahead_ms=max(0, batch.final_ms - after.watermark_ms),
        )

    def _context(self, batch: Batch, snapshot: Snapshot | None) -> BatchContext:
        """Return what the tasks of the batch need."""
        term, settings, micro_batch = self.term, self.term.settings, batch.sink.micro_batch
        topics, planned_ms = settings.kafka.topics, micro_batch.planned_ms
        return BatchContext(
            batch.before,
            frozenset(readings.number_of(topic, partition, topics) for topic, partition in batch.unread),
            planned_ms,
            planned_ms + settings.admission.max_ahead_ms,
            frozenset(topics.index(topic) for topic in term.broker_times if topic in topics),
            devices=self.limit.distribute(batch.devices),
            reference=snapshot.path.name if snapshot else "",
            replaced=self.originals.of_batch(micro_batch),
            distinct=self._keys(batch) if settings.admission.distinct else None,
            pace=batch.pace,
        )

    def _pace_of_values(self, batch: Batch) -> Pace:
        """Return when open values leave. As long as Redis has closed values that readings may still change, none waits. While a
        backlog has another batch of this size, all of them wait.
        """
        term, planned_ms = self.term, batch.sink.micro_batch.planned_ms
        is_written = term.written is not None and term.written == term.published
        if self.final_ms is None:
            self.final_ms, is_written = batch.sink.closed_until()
            term.idle_ms = max(term.idle_ms, self.final_ms)
        if max(self.final_ms, term.idle_ms) > batch.before.watermark_ms:
            return Pace(planned_ms, EVER, is_written)
        # The next batch of a backlog is as large, and changes most of these values again.
        has_next = self.times.behind >= batch.sink.micro_batch.rows > 0
        wait_ms = term.settings.service.catch_up_update_every_ms if has_next else 0
        return Pace(planned_ms, planned_ms - wait_ms, is_written)

    def _keys(self, batch: Batch) -> tuple[str, int, int, int]:
        """Return where the tasks find the keys of duplicates, after the files of an attempt before are removed."""
        settings = self.term.settings
        folder = seen_keys.folder(settings)
        batch.fence()
        seen_keys.clear(folder, settings.buckets, batch.number)
        return str(folder), batch.number, self.term.epoch, seen_keys.floor_ms(batch.before, settings.admission)

    def _begin_views(self, batch: Batch) -> None:
        """Begin and end views without windows, and remove the values of those that ended before this batch."""
        settings, sink, micro_batch = self.term.settings, batch.sink, batch.sink.micro_batch
        for view, measures in self.beginnings.over(micro_batch.batch).items():
            # Other measures may have ended with the batch before: the next one finds their keys by the view's set.
            is_over = self.beginnings.is_over(view, micro_batch.batch)
            sink.drop(view, measures, whole=is_over and all(name != view for name, _ in settings.endless))
        begun = self.beginnings.of_batch(
            micro_batch.batch,
            settings.endless,
            lambda: beginnings.complete_from_ms(settings.kafka, micro_batch, settings.admission.max_ahead_ms),
            batch.fence,
        )
        batch.sink = replace(sink, begun=begun)

    def _pace(self, measured: Measured, *, is_full: bool) -> int:
        """Return the limit of the next batch, and set it in the running query where it changes."""
        former = self.batch_limit.records
        self.batch_limit.measure(measured, is_full=is_full)
        if self.batch_limit.records != former:
            term = self.term
            execution.set_read_limit(term.spark, term.settings.service.name, self.batch_limit.records)
        return self.batch_limit.records

    def _lost(self, micro_batch: MicroBatch, outcome: Outcome) -> int:
        # Other offsets than those of records are a transaction's marker, an aborted record, a compacted record, or a record that
        # Kafka has deleted: only the last one is lost.
        without = micro_batch.rows - outcome.records
        if self.term.settings.kafka.on_data_loss != "continue" or without <= 0:
            return 0
        return min(without, unavailable(self.edges(uncommitted=True), micro_batch))

    def _compute(self, batch: Batch, look_ups: LookUps) -> None:
        context = replace(batch.context, refused=look_ups.refused(), column_values=self.values.text())
        batch_context.set_for_tasks(self.term.spark.sparkContext, context)
        if batch.sink.micro_batch.rows <= self.term.settings.redis.driver_rows:
            batch.rows = batch.frame.toArrow()
            failpoint.hit("after_decode")
        else:
            failpoint.hit("after_decode")
            batch.outcome = builder.write_on_executors(batch.frame, replace(batch.sink, trace=tracing.current()))


STEPS: tuple[tuple[Callable[[Publication, Batch], None], str], ...] = (
    (Publication.begin, "cut"),
    (Publication.compute, "run"),
    (Publication.publish, "publish"),
    (Publication.deliver, "finish"),
    (Publication.progress, "finish"),
    (Publication.note, "finish"),
)
"""The steps in their order, each with the phase of `tidemark_batch_seconds` that has its time."""


def start_query(
    term: Term,
    *,
    before_batch: Callable[[int], None] = lambda _: None,
    on_batch: Callable[[BatchReport], None] = lambda _: None,
    care: Care | None = None,
) -> tuple[StreamingQuery, Publication]:
    """Start the term's query; `before_batch` gets the number of a batch before anything of it is written and may raise,
    `on_batch` is called after all is. `care` is as for Publication."""
    spark, settings, current_snapshot = term.spark, term.settings, term.current_snapshot
    catalog = term.catalog or open_catalog(spark, settings)
    tasks = spark.sparkContext.defaultParallelism
    attributes = current_snapshot.attributes if current_snapshot else None
    care = care or Care()
    batch_limit = term.limit or BatchLimit.of(settings)
    # Views without windows ask by a header whether they have counted a reading before.
    headers = bool(settings.endless) or settings.needs_headers
    records = source.stream(spark, settings.kafka, limit=batch_limit.records, careful=care.is_needed, headers=headers)
    output = builder.build(records, settings, attributes, tasks, schemas=catalog.plan)
    checkpoint = settings.service.checkpoint
    times = event_time.Log(opened(spark, checkpoint))
    limit = DeviceLimit(spark, checkpoint, times.files, settings.admission.max_devices, settings.buckets)
    values = ColumnValues.of(spark.sparkContext, settings, times.files)
    begun = Beginnings(times.files)
    if not settings.admission.distinct:
        seen_keys.forget(checkpoint)
    originals = Originals(settings.kafka)
    former.note(times.files, settings.kafka)
    publication = Publication(
        term,
        before_batch,
        on_batch,
        catalog,
        times,
        limit,
        values,
        begun,
        batch_limit,
        originals,
        EdgeReader(settings.kafka),
        care,
    )
    writer = (
        output.writeStream.queryName(settings.service.name)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(publication)
        .trigger(processingTime=f"{settings.service.trigger_ms} milliseconds")
    )
    return writer.start(), publication
