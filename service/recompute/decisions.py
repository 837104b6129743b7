"""The readings of the past, as the stream has counted them: admitted by its steps, without what it refused, with corrections."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame

from service.admission import column_values, device_limit, readings
from service.checkpoint import event_time
from service.pipeline.term import Term
from service.recompute import engine, late
from service.recompute.engine import Recomputation, Source, Span
from service.recompute.late import Log, Refusal
from service.reference import history
from service.reference.folder import snapshot_folder
from service.rejects import marks
from service.rejects.reject_log import Coordinates
from service.settings import Settings
from service.spark.files import Files


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions about records that admission alone does not repeat.

    `refused` records are left out. `corrected` has the rows of `readings.admit` that corrections have added, all of those from
    the event time `from_ms` (ms) on. `added` are their rejects, as far as admission rejects them again.
    """

    refused: Mapping[Coordinates, Refusal]
    corrected: pa.Table | None = None
    from_ms: int = 0
    added: Mapping[Coordinates, Refusal] = field(default_factory=dict)

    def admit(self, run: Recomputation, records: DataFrame, whole_from_ms: int) -> tuple[DataFrame, int]:
        """Return the rows of `readings.admit` for records, and the event time (ms) from which they lack no reading.

        `records` are without the refused ones, and complete from `whole_from_ms` on.
        """
        return run.admit(records, self.corrected), max(whole_from_ms, self.from_ms)

    def rejected(self, span: Span) -> Counter[str]:
        """Return by how many rejects of a span of broker time the stream's counts differ from admission's, by reason."""
        counts = Counter[str]()
        for step, refusals in ((1, self.refused), (-1, self.added)):
            for each in refusals.values():
                if span[0] <= each.broker_ms < span[1]:
                    counts[each.reason] += step
        return counts


def recomputation(term: Term, settings: Settings) -> Recomputation:
    """Return the recomputation of a term, for these settings. Raises CheckpointError."""
    attributes = None
    if term.snapshot is not None:
        current = term.current_snapshot
        folder = snapshot_folder(term.spark, settings.service.checkpoint) if current is None else current.folder
        newest = term.snapshot.attributes()
        attributes = history.attributes(folder, newest, settings.kafka.topics, readings.number_of)
    values = column_values.stored(settings, Files(term.spark, settings.service.checkpoint))
    return Recomputation(term.spark, settings, attributes, term.schemas, values)


def decisions(run: Recomputation, log: Log) -> Decisions:
    """Return the decisions that a log of late rejects has. Raises SourceError."""
    in_values = {reject.place: Refusal(reject.reason, reject.broker_ms) for reject in log.in_values()}
    rows = late.plain(late.admitted(run, log.in_values(), log.marks)[0]) if in_values else None
    return Decisions(log.refused, rows, log.gone_ms + 1, in_values)


def present_decisions(run: Recomputation) -> Decisions:
    """Return the decisions of now: readings that were behind the watermark are admitted, unless a correction has run.

    Raises SourceError and CheckpointError.
    """
    known = marks.read(run.settings.kafka)
    log = late.in_values(run.settings, known)
    if log is not None:
        return decisions(run, log)
    files = Files(run.spark, run.settings.service.checkpoint)
    has_refused = device_limit.was_reached(files) or event_time.has_ahead(files)
    return Decisions(late.refused(run.settings, known, has_refused=has_refused))


def admitted(run: Recomputation, source: Source, decided: Decisions) -> tuple[DataFrame, int]:
    """Return the rows of `readings.admit` of a range of offsets, and the event time (ms) from which they lack no reading.

    Raises CheckpointError.
    """
    return decided.admit(
        run, engine.records(run.spark, run.settings, source, refused=decided.refused), source.whole_from_ms
    )
