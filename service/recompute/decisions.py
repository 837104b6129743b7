"""Which records of the past count: those that the stream has admitted, without what it refused, and with corrections.

Admission repeats most decisions of the stream. It does not repeat those that depended on the stream's state or on its time: late,
behind, ahead, duplicate, of too many devices, replaced by a replayed copy. `Decisions` has these. `recomputation` gives admission
the schemas, column values and reference attributes of then.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from service.admission import column_values, device_limit, expansion, readings
from service.admission.readings import KEPT, SECOND
from service.admission.schema_sources import SchemaSets
from service.checkpoint import event_time
from service.errors import ReferenceDataError
from service.micro_batch import each
from service.pipeline.term import Term
from service.recompute import late
from service.recompute.engine import Recomputation, Span
from service.recompute.late import Log, Refusal
from service.reference import history, snapshots
from service.reference.attributes import SERVING, Stored
from service.reference.folder import snapshot_folder
from service.rejects import former, marks
from service.rejects.reject_log import Coordinates
from service.settings import Settings
from service.spark.files import Files
from state.columns import Bools

_ORDER = (*(KEPT + name for name in ("topic", "partition", "offset")), expansion.INDEX)


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
            for refusal in refusals.values():
                if span[0] <= refusal.broker_ms < span[1]:
                    counts[refusal.reason] += step
        return counts


def of_log(run: Recomputation, log: Log) -> Decisions:
    """Return the decisions that a log of late rejects has. Raises SourceError."""
    in_values = {reject.place: Refusal(reject.reason, reject.broker_ms) for reject in log.in_values()}
    rows = late.plain(late.admitted(run, log.in_values(), log.marks)[0]) if in_values else None
    return Decisions(log.refused, rows, log.gone_ms + 1, in_values)


def present(run: Recomputation) -> Decisions:
    """Return the decisions of now. Raises SourceError and CheckpointError."""
    known, files = marks.read(run.settings.kafka), Files(run.spark, run.settings.service.checkpoint)
    earlier = former.read(files)
    log = late.in_values(run.settings, known, earlier)
    if log is not None:
        return of_log(run, log)
    has_refused = device_limit.was_reached(files) or event_time.has_refused(files)
    return Decisions(late.refused(run.settings, known, earlier, has_refused=has_refused))


def recomputation(
    spark: SparkSession, settings: Settings, schemas: SchemaSets | None, newest: Stored | None
) -> Recomputation:
    """Return the recomputation with the column values and the reference snapshots that the service has stored.

    `newest` are the attributes of now, None without a reference. Raises CheckpointError.
    """
    then = None
    if newest is not None:
        folder = snapshot_folder(spark, settings.service.checkpoint)
        then = history.attributes(folder, newest, settings.kafka.topics, readings.number_of)
    values = column_values.stored(settings, Files(spark, settings.service.checkpoint))
    return Recomputation(spark, settings, then, schemas, values)


def of_term(term: Term, settings: Settings) -> Recomputation:
    """Return the recomputation of a running term, for these settings. Raises CheckpointError."""
    snapshot = term.snapshot
    return recomputation(term.spark, settings, term.schemas, None if snapshot is None else snapshot.attributes())


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


def unknown_attributes(spark: SparkSession, settings: Settings) -> Iterator[str]:
    """Yield for people that the attributes of some time are not known, if that is so."""
    if settings.reference is not None:
        folder = snapshot_folder(spark, settings.service.checkpoint)
        found = history.read(folder)
        if not found.uses:
            yield "devices get the attributes of the reference snapshot that the service uses now: it has noted no other"
        elif found.is_cut:
            first = found.uses[0]
            places = ", ".join(
                f"{topic}[{partition}]@{offset}" for topic, partition, offset in sorted(each(first.begin))
            )
            yield f"records before {places} get the attributes of {first.version}, the oldest snapshot that is kept"


def copies(readings: pa.Table, earlier: pa.Table, admitted: DataFrame) -> Bools:
    """Return which late readings are copies (admission.distinct) of an admitted reading, or of one before them.

    The stream remembers readings until the watermark has passed them, and rejects a copy that comes later as late. `earlier` are
    late readings that are in values. The readings of one run are compared in the order of topic, partition and offset. All are
    rows of `readings.admit`, the first two with their places.
    """
    names = _names(readings)
    seen = {key for key in _keys(earlier) if None not in key} | _admitted(readings.select(names), admitted)
    is_copy = np.zeros(readings.num_rows, np.bool_)
    numbered = readings.append_column("row", pa.array(np.arange(readings.num_rows))).sort_by(
        [(name, "ascending") for name in _ORDER if name in readings.column_names]
    )
    for row, key in zip(numbered["row"].to_pylist(), _keys(numbered), strict=True):
        is_copy[row] = key in seen
        if None not in key:
            seen.add(key)
    return is_copy


def _names(table: pa.Table) -> list[str]:
    return ["device", SECOND if SECOND in table.column_names else "event_ms"]


def _keys(table: pa.Table) -> list[tuple[str | int | None, ...]]:
    return list(zip(*(table[name].to_pylist() for name in _names(table)), strict=True))


def _admitted(keys: pa.Table, admitted: DataFrame) -> set[tuple[str | int | None, ...]]:
    """The keys that admitted readings have, too."""
    wanted = keys.rename_columns(["copy_device", "copy_second"]).group_by(["copy_device", "copy_second"]).aggregate([])
    chosen = F.broadcast(admitted.sparkSession.createDataFrame(wanted))
    device, second = (F.col(f"`{name}`") for name in keys.column_names)
    found = admitted.join(chosen, (device == F.col("copy_device")) & (second == F.col("copy_second")))
    return {tuple(row) for row in found.select("copy_device", "copy_second").distinct().collect()}
