"""The readings of the past, as the stream has counted them: admitted by its steps, without what it refused, with corrections."""

from pyspark.sql import DataFrame

from service.admission import column_values
from service.pipeline.term import Term
from service.recompute import late, rebuild
from service.recompute.rebuild import Recomputation, Source
from service.settings import Settings
from service.spark.files import Files


def admitted(term: Term, settings: Settings, source: Source) -> tuple[Recomputation, DataFrame, int]:
    """Return the recomputation for these settings, the rows of `readings.admit` of a range of offsets, and the event time (ms)
    from which they lack no reading.

    Raises SourceError and CheckpointError.
    """
    snapshot = term.snapshot
    attributes = None if snapshot is None else snapshot.attributes()
    values = column_values.stored(settings, Files(term.spark, settings.service.checkpoint))
    run = Recomputation(term.spark, settings, attributes, term.schemas, values)
    log, whole_from_ms, corrections = late.in_values(settings), source.whole_from_ms, None
    refused = late.duplicates(settings) if log is None else log.refused
    records = rebuild.records(term.spark, settings, source, refused=refused)
    if log is not None:
        rows, _ = late.admitted(run, log.rejects.values())
        corrections, whole_from_ms = late.plain(rows), max(whole_from_ms, log.gone_ms + 1)
    return run, run.admit(records, corrections), whole_from_ms
