"""Build and start the pass: one query from Kafka to Redis, with one scan, one shuffle, one checkpoint and one watermark.

    Kafka -> decode -> admit -> fold -> (bucket, kind, payload) -> shuffle by bucket -> one stateful operator -> publish
                         ^        ^                                                     windows, sessions, devices:
                    reference   attributes                                              pure functions on columns (state/)

Spark moves and stores packed columns; the code in state/ interprets them. The plan does not depend on the settings, and it is
small because Spark plans every batch again. docs/decisions/0015-one-operator.md has the figures.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from service import clock, failpoint, threads, tracing
from service.admission import column_values, readings, unknown_schemas
from service.admission.catalogs import Catalogs, open_catalog
from service.admission.column_values import ColumnValues, Known
from service.admission.device_limit import DeviceLimit
from service.admission.schema_sources import SchemaSets
from service.admission.unknown_schemas import UndecidedError, UnknownSchemaCheck
from service.aggregation import seen_keys, sessions
from service.aggregation.partial_aggregation import Fold
from service.checkpoint import beginnings, event_time, resume
from service.checkpoint.beginnings import Beginnings
from service.checkpoint.event_time import BatchState
from service.checkpoint.skips import Care
from service.kafka import source
from service.kafka.offsets import unavailable
from service.micro_batch import MicroBatch
from service.pipeline import batch_report, failure
from service.pipeline.back_pressure import BatchLimit, Measured
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import OUTCOME_SCHEMA, Outcome
from service.pipeline.term import Term
from service.reference.attributes import Attributes, set_for_tasks
from service.reference.snapshots import Snapshot
from service.rejects import two_places
from service.rejects.two_places import Originals
from service.row_schemas import FOLDED
from service.settings import Settings, View
from service.spark import memory, session
from service.spark.internals import execution
from state.watermark import EventTime

_AHEAD = readings.REASONS.index("ahead")
LOOK_UPS = 3
"""Times that one batch may stop to look up schema ids: each time, another task may report new ones."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did. `phases` are seconds by name; `rejected` has every reason, also those with no reject.

    `lost` counts records of the batch that Kafka no longer had; it is 0 unless the settings accept that. `held_ms` is how far
    the `unread` partitions hold the watermark back, `times` has the oldest and newest event time (ms) of the partitions, `skewed`
    is the number of skewed devices, `column_values` the number of listed values by grouped column. `limit` is the most records
    that the batch could have, `next_limit` that of the next batch. `redis_ahead_ms` is how far Redis calls windows final beyond
    the watermark: a new window that ends before that is refused.
    """

    micro_batch: MicroBatch
    outcome: Outcome
    admitted: int
    rejected: Mapping[str, int]
    unknown: int
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


def build(
    records: DataFrame,
    settings: Settings,
    attributes: Attributes | None,
    tasks: int,
    *,
    schemas: SchemaSets | None = None,
) -> DataFrame:
    """Turn Kafka records into rows of row_schemas.OUTPUT. `records` may be a stream; the stateless part also works on a batch.

    `attributes` is the reference, None without a reference. `tasks` is the number of tasks that read and fold. Records of
    `schemas` are decoded, by default of all schemas that their source has.
    """
    if settings.endless and "headers" in records.columns:
        is_counted = F.exists("headers", lambda header: header["key"] == readings.COUNTED_HEADER)
        records = records.withColumn(readings.COUNTED, F.coalesce(is_counted, F.lit(False)))
    if settings.has_arrays:
        records = records.coalesce(tasks)  # the step that cuts arrays is in Python, too
    admitted = readings.admit(records, settings, attributes, schemas=schemas, keep_late=bool(settings.endless))
    step = folding(settings, attributes)
    step = replace(
        step, batch_state=event_time.of_task, known_values=column_values.of_task, replaced=two_places.of_task
    )
    # Each task costs a Python worker, however little it reads: start no more tasks than can run at once.
    if settings.admission.distinct:
        # All readings of a bucket must be in one task, which decides about duplicates. Other rows go anywhere.
        task = F.pmod(F.coalesce("bucket", "offset"), F.lit(tasks)).cast("int")
        admitted = admitted.repartitionById(tasks, task)
        admission = settings.admission
        step = replace(step, seen_keys=seen_keys.of_task)
        step = replace(step, delay_ms=admission.watermark_delay_ms, distinct_for_ms=admission.distinct_for_ms)
    else:
        admitted = admitted.coalesce(tasks)
    return sessions.advance(admitted.mapInArrow(step, FOLDED), settings)


def fold(
    admitted: DataFrame, settings: Settings, attributes: Attributes | None, values: Known | None = None
) -> DataFrame:
    """Turn rows of readings.admit into row_schemas.FOLDED, for a batch run over the past.

    Rejects and views without windows are left out: these are open for ever, and the state has their values.
    """
    step = folding(settings, attributes, values, views=settings.closing_views)
    return admitted.mapInArrow(replace(step, keep_rejects=False), FOLDED)


def folding(
    settings: Settings,
    attributes: Attributes | None,
    values: Known | None = None,
    *,
    views: Sequence[View] | None = None,
) -> Fold:
    """Return the step that folds the readings of a task, of all views by default.

    `values` are the decisions on the values of the record's columns.
    """
    of_views = [(view, settings.view_measures(view)) for view in (settings.views if views is None else views)]
    gap = interval = None
    if settings.reference is not None and attributes is not None:
        gap, interval = settings.reference.session_gap, settings.reference.expected_interval
        own = {"device", *settings.columns}
        grouped = [column for view in settings.views for column in view.by if column not in own]
        attributes = attributes.only(list(dict.fromkeys(filter(None, [*grouped, gap, interval]))))
    return Fold(
        sessions.rules(settings),
        of_views,
        settings.pane_ms,
        settings.buckets,
        settings.kafka.topics,
        attributes,
        UnknownSchemaCheck(),
        gap=gap,
        interval=interval,
        has_filter=settings.has_filter,
        inputs=settings.topic_inputs,
        columns=settings.grouped_columns,
        known_values=partial(_same, values or Known()),
    )


def _same(values: Known) -> Known:
    return values


@dataclass(slots=True)
class Publication:
    """The function of foreachBatch: publishes each batch by the steps in batch_publisher.py, then notes event time.

    A publication holds the term's `write_lock` during a batch and then sets the term's `published`. Spark commits the batch
    after that, and the runner then commits offsets to a Kafka consumer group and updates metrics. `failure` is the exception
    that ended the query, as it was raised. `care` ends the query before a batch that the query must not read: the frame is
    not evaluated yet.
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
    care: Care = field(default_factory=Care)
    failure: BaseException | None = None
    pipeline: str = field(default_factory=threads.pipeline)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        threads.belong_to(self.pipeline)
        try:
            named = {"pipeline": self.pipeline} if self.pipeline else {}
            with self.term.write_lock, tracing.span("batch", batch=batch, epoch=self.term.epoch, **named):
                self._publish(frame, batch)
        except BaseException as error:
            if isinstance(error, failure.PLANNED):
                session.silence(self.term.spark)  # it would log the end as an error
            self.failure = error
            raise
        memory.settle()

    def _publish(self, frame: DataFrame, batch: int) -> None:
        term, settings = self.term, self.term.settings
        self.before_batch(batch)
        self.catalog.before_batch()
        failpoint.hit("before_fetch")
        started = clock.monotonic_s()
        name = settings.service.name
        # The batch's join uses this snapshot, because on_batch swaps it between batches only.
        snapshot = term.snapshot
        micro_batch = batch_report.running_batch(
            term.spark, name, batch, term.epoch, snapshot.version if snapshot else ""
        )
        self._accept(micro_batch)
        most = self.times.limit(batch, self.batch_limit.records)
        before = self.times.before(batch)
        unread = self.times.unread(settings.kafka, micro_batch, most, settings.admission.max_hold_ms)
        devices = self.times.devices(batch)
        topics = settings.kafka.topics
        self._set_state(before, unread, devices, micro_batch.planned_ms)
        set_for_tasks(term.spark.sparkContext, snapshot.path.name if snapshot else "")
        self.originals.set_for_tasks(term.spark.sparkContext, micro_batch, anew=term.shadow is not None)
        micro_batch = replace(micro_batch, watermark_ms=before.watermark_ms)
        values_of = attributes(snapshot, settings)
        sink = Sink(settings, micro_batch, values_of, term.published, covered=term.covered, settled_ms=term.settled_ms)
        sink = self._begin_views(replace(sink, shadow=term.shadow))
        self._begin_keys(sink)
        servers = sink.servers()
        planned = clock.monotonic_s()
        small = micro_batch.rows <= settings.redis.driver_rows
        outcome, ran = self.values.until_decided(
            failure.classify, lambda: self._run(frame, sink, small=small), lambda: sink.run_in(0, "read_progress")
        )
        published = clock.monotonic_s()
        term.id_check.ask()  # the batch has read its records
        # A batch without readable records leaves event time as it is.
        after = EventTime(*max([(before.watermark_ms, before.newest_ms), *outcome.event_times]))
        micro_batch = replace(micro_batch, watermark_ms=after.watermark_ms)
        sink = replace(sink, micro_batch=micro_batch)
        skewed = sink.count_skewed()
        if term.outlets is not None:
            term.outlets.publish(micro_batch, outcome.finals)
        final_ms = sink.progress(servers)
        sizes = ((bucket, number) for bucket, _, number, *_ in outcome.sizes)
        seconds = clock.monotonic_s() - started
        limit = self._pace(Measured(micro_batch.rows, outcome.read_bytes, seconds), is_full=micro_batch.reaches(most))
        term.id_check.require()
        if outcome.rejected[_AHEAD]:
            self.times.note_ahead()
        self.times.note(batch, after, self.limit.list_after(batch, devices, sizes), limit)
        term.published = term.epoch, batch
        if term.covered and micro_batch.watermark_ms >= max(each.until_ms for each in term.covered.values()):
            term.covered = {}
        failpoint.hit("after_publish_before_commit")
        done = clock.monotonic_s()
        phases = {
            "cut": planned - started,
            "run": ran - planned,
            "publish": published - ran,
            "finish": done - published,
        }
        tracing.phases(phases)
        self.on_batch(
            BatchReport(
                micro_batch,
                outcome,
                outcome.admitted,
                dict(zip(readings.REASONS, outcome.rejected, strict=True)),
                outcome.unknown,
                self._lost(micro_batch, outcome),
                max(0, after.newest_ms - settings.admission.watermark_delay_ms - after.watermark_ms),
                len(unread),
                {readings.partition_of(code, topics): (oldest, newest) for code, oldest, newest in outcome.times},
                skewed,
                phases,
                self.values.sizes(),
                most,
                limit,
                max(0, final_ms - after.watermark_ms),
            )
        )

    def _accept(self, micro_batch: MicroBatch) -> None:
        """Check the offsets of a batch, and note from which on its snapshot of the reference counts."""
        self.care.check(micro_batch)
        resume.require_growing(micro_batch)
        if (
            self.term.current_snapshot is not None and self.term.shadow is None
        ):  # a rebuild counts nothing that readers see
            self.term.current_snapshot.note(micro_batch)

    def _set_state(self, before: EventTime, unread: Collection[tuple[str, int]], devices: int, planned_ms: int) -> None:
        """Set what the tasks of the batch need to know of the stream."""
        term, settings = self.term, self.term.settings
        topics = settings.kafka.topics
        state = BatchState(
            before,
            frozenset(readings.number_of(topic, partition, topics) for topic, partition in unread),
            self.limit.distribute(devices),
            planned_ms,
            planned_ms + settings.admission.max_ahead_ms,
            frozenset(topics.index(topic) for topic in term.broker_times if topic in topics),
        )
        event_time.set_for_tasks(term.spark.sparkContext, state)

    def _begin_keys(self, sink: Sink) -> None:
        """Prepare the tasks that find duplicates."""
        settings, micro_batch = self.term.settings, sink.micro_batch
        if settings.admission.distinct:
            seen_keys.begin(
                self.term.spark.sparkContext,
                seen_keys.folder(settings),
                settings.buckets,
                seen_keys.Place(micro_batch.batch, micro_batch.epoch),
                lambda: sink.run_in(0, "read_progress"),
            )

    def _begin_views(self, sink: Sink) -> Sink:
        """Begin and end views without windows, and remove the values of those that ended before this batch."""
        settings, micro_batch = self.term.settings, sink.micro_batch
        for view, measures in self.beginnings.over(micro_batch.batch).items():
            # Other measures may have ended with the batch before: the next one finds their keys by the view's set.
            is_over = self.beginnings.is_over(view, micro_batch.batch)
            sink.drop(view, measures, whole=is_over and all(name != view for name, _ in settings.endless))
        begun = self.beginnings.of_batch(
            micro_batch.batch,
            settings.endless,
            lambda: beginnings.complete_from_ms(settings.kafka, micro_batch, settings.admission.max_ahead_ms),
            lambda: sink.run_in(0, "read_progress"),
        )
        return replace(sink, begun=begun)

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
        kafka = self.term.settings.kafka
        if kafka.on_data_loss != "continue" or without <= 0:
            return 0
        return min(without, unavailable(kafka, micro_batch))

    def _run(self, frame: DataFrame, sink: Sink, *, small: bool) -> tuple[Outcome, float]:
        """Compute the batch and write it: steps 1 and 2. Also returns the time (s) at which a small batch was computed; a large
        one is written while it is computed.

        Schema ids without a verdict fail the batch in its first stage, before anything is written. The driver looks them up and
        runs the batch again, at most LOOK_UPS times. Each time the batch is decoded once more: if a task has more ids than it can
        report, they are garbage for the most part, and the next run refuses all that are left.
        """
        batch, left = sink.micro_batch.batch, LOOK_UPS
        while True:
            refused = self.catalog.refused(batch) if left else unknown_schemas.ALL
            self.term.spark.sparkContext.setLocalProperty(unknown_schemas.REFUSED, refused)
            if refused:
                self.catalog.record_refused(batch, refused)
            try:
                if small:
                    table = frame.toArrow()
                    ran = clock.monotonic_s()
                    failpoint.hit("after_decode")
                    return sink.write(table.to_batches()), ran
                failpoint.hit("after_decode")
                outcome = write_on_executors(frame, replace(sink, trace=tracing.current()))
                return outcome, clock.monotonic_s()
            except Exception as error:
                undecided = failure.classify(error)
                if not isinstance(undecided, UndecidedError):
                    raise
                self.catalog.look_up(undecided.ids)
                left = left - 1 if len(undecided.ids) < unknown_schemas.IDS_AT_ONCE else 0


def attributes(snapshot: Snapshot | None, settings: Settings) -> Attributes | None:
    """Return the attributes for device hashes: the columns that the settings name, or all when they name none."""
    if snapshot is None or settings.reference is None:
        return None
    return snapshot.attributes(settings.reference.columns)


def write_on_executors(frame: DataFrame, sink: Sink, *, whole: bool = True) -> Outcome:
    """Publish on the executors; only the outcomes go to the driver. Unless `whole`, a partition is not held in memory."""

    def write(batches: Any) -> Any:
        for part in [batches] if whole else ([batch] for batch in batches):
            yield sink.write(part).to_batch()

    outcomes: pa.Table = frame.mapInArrow(write, OUTCOME_SCHEMA).toArrow()
    return Outcome.total(outcomes)


def start(
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
    headers = bool(settings.endless)
    records = source.stream(spark, settings.kafka, limit=batch_limit.records, careful=care.is_needed, headers=headers)
    output = build(records, settings, attributes, tasks, schemas=catalog.plan)
    checkpoint = settings.service.checkpoint
    times = event_time.Log.of(spark, checkpoint)
    limit = DeviceLimit(spark, checkpoint, times.files, settings.admission.max_devices, settings.buckets)
    values = ColumnValues.of(spark.sparkContext, settings, times.files)
    begun = Beginnings(times.files)
    if not settings.admission.distinct:
        seen_keys.forget(checkpoint)
    originals = Originals(settings.kafka)
    publication = Publication(
        term, before_batch, on_batch, catalog, times, limit, values, begun, batch_limit, originals, care
    )
    writer = (
        output.writeStream.queryName(settings.service.name)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(publication)
        .trigger(processingTime=f"{settings.service.trigger_ms} milliseconds")
    )
    return writer.start(), publication
