"""Commands that write closed values beside the running service: the session, the sink and the recomputation that they share."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from service.admission import catalogs, column_values, readings
from service.checkpoint import view_versions
from service.errors import ReferenceDataError, SettingsError
from service.pipeline import batch_report, failure
from service.recompute import closed_sink
from service.recompute.closed_sink import ClosedSink
from service.recompute.engine import Recomputation
from service.reference import history, snapshots
from service.reference.attributes import SERVING, Stored
from service.reference.folder import snapshot_folder
from service.rejects.fence import Fence
from service.settings import Settings, View
from service.spark import session
from service.spark.files import Files


def require_complete(views: Iterable[View]) -> None:
    """Raise SettingsError if the service computes the past of a view: it would write over what is written beside it."""
    if filling := [view.of for view in views if view.is_marked]:
        what = f"The service computes the past of the view {filling[0]} at this moment"
        raise SettingsError(
            what, remedy="Run it again, for a span that begins as early, when `tidemark views list` has it as complete"
        )


@contextmanager
def writing(
    settings: Settings, fence: Fence | None, spark: SparkSession | None
) -> Iterator[tuple[SparkSession, ClosedSink]]:
    """Give a session, and a sink that writes as of the last progress; its settings have the views that the service has now.

    Without `spark` a session is started, and ended with the block. Errors of the block, also Spark's and py4j's, are raised as
    TidemarkError.
    """
    servers = closed_sink.servers(settings)
    sink = ClosedSink(settings, closed_sink.progress(settings), 0 if fence is None else fence.number, servers)
    running = spark or session.build(settings, master="local[*]")
    try:
        served = view_versions.stored(settings, Files(running, settings.service.checkpoint))
        yield running, replace(sink, settings=served)
    except Exception as error:
        raise failure.classify(error) from error
    finally:
        if spark is None:
            running.stop()


def with_recomputation(spark: SparkSession, sink: ClosedSink) -> tuple[ClosedSink, Recomputation]:
    """Return the sink with the offsets at which the last committed batch begins, and the recomputation for the sink's settings.

    The recomputation has the schemas, column values and reference snapshots that the service has stored. Raises TidemarkError.
    """
    settings = sink.settings
    committed = batch_report.committed(spark, settings.service.checkpoint)
    start = committed.start if committed else {}
    known = catalogs.new_catalog(spark, settings).recorded()
    values = column_values.stored(settings, Files(spark, settings.service.checkpoint))
    newest, then = serving_attributes(spark, settings), None
    if newest is not None:
        folder = snapshot_folder(spark, settings.service.checkpoint)
        then = history.attributes(folder, newest, settings.kafka.topics, readings.number_of)
    run = Recomputation(spark, settings, then, known, values)
    return replace(sink, micro_batch=replace(sink.micro_batch, start=start)), run


def unknown_attributes(spark: SparkSession, settings: Settings) -> Iterator[str]:
    """Yield for people that the attributes of some time are not known, if that is so."""
    if settings.reference is not None:
        folder = snapshot_folder(spark, settings.service.checkpoint)
        found = history.read(folder)
        if not found.uses:
            yield "devices get the attributes of the reference snapshot that the service uses now: it has noted no other"
        elif found.is_cut:
            first = found.uses[0]
            begins = sorted((topic, *pair) for topic, each in first.begin.items() for pair in each.items())
            places = ", ".join(f"{topic}[{partition}]@{offset}" for topic, partition, offset in begins)
            yield f"records before {places} get the attributes of {first.version}, the oldest snapshot that is kept"


def serving_attributes(spark: SparkSession, settings: Settings) -> Stored | None:
    """Return the attributes of the snapshot that the service uses, or used last; None without a reference."""
    if settings.reference is None:
        return None
    folder = snapshot_folder(spark, settings.service.checkpoint)
    snapshot = snapshots.latest(folder, pointer=SERVING) or snapshots.latest(folder)
    if snapshot is None:
        what = f"{folder}: there is no reference snapshot"
        raise ReferenceDataError(what, remedy="Run this where the service's checkpoint is")
    return snapshot.attributes()
