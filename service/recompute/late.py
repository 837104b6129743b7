"""Late readings: the rejects that were rejected for nothing else, as the rows that admission would have made of them.

Their bytes come from the rejects topic. Which of them are part of what Redis holds, the marks say (service/rejects/marks.py).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service.admission import readings
from service.admission.schema_sources import SchemaSet
from service.reference.lookup import LookUp
from service.rejects import marks, reject_log
from service.rejects.marks import Mark
from service.rejects.reject_log import Coordinates, Reject
from service.settings import Settings

PLACE = ("topic", "partition", "offset")
IN_VALUES = ("correcting", "corrected")
"""States of the late readings that values hold, or are about to."""

_ANY_DELAY_MS = 1 << 50
_RECORD = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class Log:
    """The late rejects by place, those of them that are in the span, the marks, and of those that are in values but not in
    the rejects topic any more, the time of the youngest reading in ms (-1: there is none). `refused` are all that admission alone
    would take: they came behind the watermark, or were of too many devices."""

    rejects: Mapping[Coordinates, Reject]
    span: Collection[Coordinates]
    marks: Mapping[Coordinates, Mark]
    gone_ms: int
    refused: Collection[Coordinates] = ()

    def state(self, place: Coordinates) -> str:
        """Of a reject: "open" when nothing has become of it."""
        mark = self.marks.get(place)
        return "open" if mark is None else mark.state

    def todo(self, *, again: bool) -> list[Coordinates]:
        """What is to be corrected: what is open in the span, with `again` also what is corrected there, and whenever it was
        what a run has begun and not finished."""
        asked = {"open", "corrected"} if again else {"open"}
        return [
            place
            for place in self.rejects
            if self.state(place) == "correcting" or (place in self.span and self.state(place) in asked)
        ]

    def held(self) -> list[Reject]:
        """Those that are in values."""
        return [reject for place, reject in self.rejects.items() if self.state(place) in IN_VALUES]


def read(settings: Settings, since_ms: int | None = None, until_ms: int | None = None) -> Log:
    """The late rejects that the broker got in the span, and whenever it was those that are in values. Raises SourceError."""
    return _read(settings, marks.read(settings.kafka), since_ms, until_ms)


def in_values(settings: Settings) -> Log | None:
    """Those that are in values; None when there are none. Raises SourceError."""
    found = marks.read(settings.kafka)
    return _read(settings, found, 0, 0) if any(mark.state in IN_VALUES for mark in found.values()) else None


def _read(settings: Settings, found: Mapping[Coordinates, Mark], since_ms: int | None, until_ms: int | None) -> Log:
    held = {place for place, mark in found.items() if mark.state in IN_VALUES}
    late: dict[Coordinates, Reject] = {}
    span: set[Coordinates] = set()
    refused: set[Coordinates] = set()
    # All of the topic is read: a correction of today needs what an earlier one put into the same windows.
    for reject in reject_log.read(settings.kafka):
        if reject.reason == "too_many_devices" or (reject.reason == "late" and readings.BEHIND in reject.detail):
            refused.add(reject.place)
        if reject.reason != "late":
            continue
        within = (since_ms is None or reject.broker_ms >= since_ms) and (
            until_ms is None or reject.broker_ms < until_ms
        )
        if within:
            span.add(reject.place)
        if within or reject.place in held:
            late[reject.place] = reject
    gone = [int(found[place].details.get("event_ms", -1)) for place in held - late.keys()]
    return Log(late, span, found, max(gone, default=-1), refused)


def admitted(
    spark: SparkSession,
    settings: Settings,
    rejects: Iterable[Reject],
    look_up: LookUp | None,
    schemas: SchemaSet | None,
) -> tuple[pa.Table, int]:
    """Rows of `readings.admit` with their places, one for each reject that would have been admitted had it come in time,
    and how many would not, or have lost their bytes. `look_up` and `schemas` are as for `readings.admit`."""
    rows, lost = [], 0
    for reject in rejects:
        found = reject_log.complete(settings.kafka, reject)
        if found is None:
            lost += 1
            continue
        place = {"topic": found.place.topic, "partition": found.place.partition, "offset": found.place.offset}
        rows.append({**place, "key": found.key, "value": found.value, "timestamp": found.broker_ms * 1000})
    admission = settings.admission.model_copy(update={"max_delay_ms": _ANY_DELAY_MS})
    relaxed = settings.model_copy(update={"admission": admission})
    records = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_RECORD))
    decided = readings.admit(records, relaxed, look_up, keep=PLACE, schemas=schemas).toArrow()
    table = decided.filter(pc.is_null(decided["reject"]))
    return table, lost + len(rows) - table.num_rows


def places(table: pa.Table) -> list[Coordinates]:
    """Of each row of `admitted`."""
    columns = [table[readings.KEPT + name].to_pylist() for name in PLACE]
    return [Coordinates(*place) for place in zip(*columns, strict=True)]


def of(table: pa.Table, wanted: Collection[Coordinates]) -> pa.Table:
    """The rows of `admitted` that are at these places."""
    return table.filter(pa.array([place in wanted for place in places(table)], pa.bool_()))


def plain(table: pa.Table) -> pa.Table:
    """Rows of `readings.admit`, without their places."""
    return table.drop_columns([readings.KEPT + name for name in PLACE])
