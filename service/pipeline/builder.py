"""Build and start the pass: one query from Kafka to Redis, with one scan, one shuffle, one checkpoint and one watermark.

    Kafka -> decode -> admit -> fold -> (bucket, kind, payload) -> shuffle by bucket -> one stateful operator -> publish
                         ^        ^                                                     windows, sessions, devices:
                    reference   attributes                                              pure functions on columns (state/)

Spark moves and stores packed columns; the code in state/ interprets them. The plan does not depend on the settings, and it is
small because Spark plans every batch again. docs/decisions/0015-one-operator.md has the figures.
"""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from service.admission import readings
from service.admission.column_values import Known
from service.admission.schema_sources import SchemaSets
from service.aggregation import sessions
from service.aggregation.partial_aggregation import Fold
from service.aggregation.screen import Screen
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.reference.attributes import Attributes
from service.reference.snapshots import Snapshot
from service.row_schemas import FOLDED
from service.settings import Settings, View
from service.spark import batch_context


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
    admitted = readings.admit(
        records, settings, attributes, schemas=schemas, keep_late=bool(settings.endless), asks=True
    )
    step = replace(folding(settings, attributes), context=batch_context.of_task)
    # Each task costs a Python worker, however little it reads: start no more tasks than can run at once.
    if settings.admission.distinct:
        # All readings of a bucket must be in one task, which decides about duplicates. Other rows go anywhere.
        task = F.pmod(F.coalesce("bucket", "offset"), F.lit(tasks)).cast("int")
        admitted = admitted.repartitionById(tasks, task)
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
    step = replace(step, screen=replace(step.screen, keep_rejects=False))
    return admitted.mapInArrow(step, FOLDED)


def folding(
    settings: Settings,
    attributes: Attributes | None,
    values: Known | None = None,
    *,
    views: Sequence[View] | None = None,
) -> Fold:
    """Return the step that folds the readings of a task, by default for all views but roll-ups.

    `values` are the decisions on the values of the record's columns.
    """
    views = settings.folded_views if views is None else views
    of_views = [(view, settings.view_measures(view)) for view in views]
    gap = interval = None
    if settings.reference is not None and attributes is not None:
        gap, interval = settings.reference.session_gap, settings.reference.expected_interval
        own = {"device", *settings.columns}
        grouped = [column for view in settings.views for column in view.by if column not in own]
        attributes = attributes.only(list(dict.fromkeys(filter(None, [*grouped, gap, interval]))))
    # Of these topics records of unknown schemas are filtered.
    ignoring = frozenset(topic for topic, form in settings.inputs_by_topic.items() if form.others == "ignore")
    return Fold(
        Screen(settings.kafka.topics, settings.buckets, settings.has_filter, ignoring=ignoring),
        sessions.rules(settings),
        of_views,
        settings.pane_ms,
        attributes,
        gap=gap,
        interval=interval,
        inputs=settings.topic_inputs,
        columns=settings.grouped_columns,
        values=values or Known(),
    )


def attributes(snapshot: Snapshot | None, settings: Settings) -> Attributes | None:
    """Return the attributes for device hashes: the columns that the settings name, or all when they name none."""
    if snapshot is None or settings.reference is None:
        return None
    return snapshot.attributes(settings.reference.columns)


def write_on_executors(frame: DataFrame, sink: Sink, *, whole: bool = True) -> Outcome:
    """Publish on the executors; only the outcomes go to the driver. Unless `whole`, a partition is not held in memory."""

    def write(batches: Any) -> Any:
        for part in [batches] if whole else ([batch] for batch in batches):
            yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(sink.write(part))]})

    outcomes: pa.Table = frame.mapInArrow(write, "outcome binary").toArrow()
    return sum(map(pickle.loads, outcomes["outcome"].to_pylist()), Outcome())
