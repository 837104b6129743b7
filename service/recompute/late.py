"""Late readings: records that were rejected only for being late, as the rows of `readings.admit` they would have been.

Their bytes come from the rejects topic. The marks state which of them are in values in Redis (service/rejects/marks.py).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.admission import expansion, readings
from service.admission.arrays import NO_INDEX
from service.admission.column_values import DECIDED
from service.recompute.engine import Recomputation
from service.rejects import marks, reject_log, two_places
from service.rejects.former import NONE, Former
from service.rejects.marks import Mark
from service.rejects.reject_log import Coordinates, Reject
from service.settings import Settings

PLACE = ("topic", "partition", "offset")
IN_VALUES = ("correcting", "corrected")
"""States of late readings that are in values in Redis, or are being written there."""
NEXT = "next_ms"
"""Of a mark `correcting`: the reading is in its closed values, and is to be added to a longer window that ends then."""

_BY_ITS_TIME = frozenset({"ahead", "too_many_devices", "duplicate", "replayed", "behind"})
"""Reasons that admission alone does not find again."""
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
_INDEX = pa.field(expansion.INDEX, pa.int32())
_HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record was rejected, and its broker time."""

    reason: str
    broker_ms: int


@dataclass(frozen=True, slots=True)
class Log:
    """Late rejects, and the marks of all rejects.

    rejects  the late rejects that are in the span or in values
    span     the places of late rejects whose broker time is in the span
    gone_ms  newest event time of late readings that are in values, but no longer in the rejects topic; -1 for none
    refused  `rejects`, and readings that admission alone might admit: behind the watermark, ahead, of too many devices,
             duplicates, or replaced by their copies
    """

    rejects: Mapping[Coordinates, Reject]
    span: Collection[Coordinates]
    marks: Mapping[Coordinates, Mark]
    gone_ms: int
    refused: Mapping[Coordinates, Refusal] = field(default_factory=dict)

    def state(self, place: Coordinates) -> str:
        """The state of a reject; "open" without a mark."""
        mark = self.marks.get(place)
        return "open" if mark is None else mark.state

    def todo(self, watermark_ms: int, *, again: bool) -> list[Coordinates]:
        """The places to correct: open rejects in the span, all that an unfinished run has begun to correct, and all that a longer
        window waits for which the watermark has closed since.

        With `again`, also those in the span that are corrected, as far as their windows are closed.
        """
        asked = {"open", "corrected"} if again else {"open"}
        return [
            place
            for place in self.rejects
            if (place in self.span and self.state(place) in asked)
            or (self.state(place) == "correcting" and (again or self.next_ms(place) <= watermark_ms))
        ]

    def next_ms(self, place: Coordinates) -> int:
        """The end of the next window that a corrected reading is to be added to; -1 if a run has not finished with it."""
        return int(self.marks[place].details.get(NEXT, -1))

    def in_values(self) -> list[Reject]:
        """The late rejects that are in values."""
        return [reject for place, reject in self.rejects.items() if self.state(place) in IN_VALUES]


def read(settings: Settings, since_ms: int | None = None, until_ms: int | None = None, *, former: Former = NONE) -> Log:
    """Read the late rejects whose broker time is in the span, and all that are in values. Raises SourceError."""
    return _read(settings, marks.read(settings.kafka), since_ms, until_ms, former)


def in_values(settings: Settings, known: Mapping[Coordinates, Mark], former: Former) -> Log | None:
    """Read the late rejects that are in values by the marks; None when there are none. Raises SourceError."""
    return _read(settings, known, 0, 0, former) if any(mark.state in IN_VALUES for mark in known.values()) else None


def refused(
    settings: Settings, known: Mapping[Coordinates, Mark], former: Former, *, has_refused: bool
) -> Mapping[Coordinates, Refusal]:
    """Return the readings that no value has: behind the watermark, ahead, duplicates, of too many devices, or replaced by their
    copies.

    `known` are the marks. `has_refused` says whether the limit on devices was ever reached, or readings were ever ahead or
    behind: without need the rejects topic, which may be long, is not read. Raises SourceError.
    """
    refused = _replaced(known)
    if settings.admission.distinct or has_refused:
        found = reject_log.read(settings.kafka, without=former.has)
        refused |= {each.place: Refusal(each.reason, each.broker_ms) for each in found if each.reason in _BY_ITS_TIME}
    return refused


def _replaced(known: Mapping[Coordinates, Mark]) -> dict[Coordinates, Refusal]:
    return dict.fromkeys(two_places.originals(known), Refusal("replayed", -1))


def _read(
    settings: Settings, known: Mapping[Coordinates, Mark], since_ms: int | None, until_ms: int | None, former: Former
) -> Log:
    applied = {place for place, mark in known.items() if mark.state in IN_VALUES}
    late: dict[Coordinates, Reject] = {}
    span: set[Coordinates] = set()
    refused = _replaced(known)
    # A correction needs the readings that earlier ones have put into the same windows, so all of the topic is read.
    for reject in reject_log.read(settings.kafka, without=lambda each: each.place not in applied and former.has(each)):
        if reject.reason in _BY_ITS_TIME or reject.place in refused:
            refused[reject.place] = Refusal(reject.reason, reject.broker_ms)
        if reject.reason not in readings.LATE:
            continue
        within = (since_ms is None or reject.broker_ms >= since_ms) and (
            until_ms is None or reject.broker_ms < until_ms
        )
        if within:
            span.add(reject.place)
        if within or reject.place in applied:
            late[reject.place] = reject
            # The row of a corrected one is added to those of the topic, where a larger max_delay would admit it a second time.
            refused[reject.place] = Refusal(reject.reason, reject.broker_ms)
    gone = [int(known[place].details.get("event_ms", -1)) for place in applied - late.keys()]
    return Log(late, span, known, max(gone, default=-1), refused)


def admitted(run: Recomputation, rejects: Iterable[Reject], known: Mapping[Coordinates, Mark]) -> tuple[pa.Table, int]:
    """Admit late rejects as if they had come in time: rows of `readings.admit` with their places, and the number of others.

    The values of grouped columns are decided (column_values.DECIDED), those of readings that are in values as their marks say.
    The others are rejected for another reason as well, or filtered now, or their bytes are gone.
    """
    settings = run.settings
    found = reject_log.complete(settings.kafka, rejects, settings.inputs_by_topic)
    total, complete = len(found), [each for each in found if each is not None]
    admission = settings.admission.model_copy(update={"max_delay_ms": _ANY_DELAY_MS})
    relaxed = settings.model_copy(update={"admission": admission})
    made = records(complete, has_index=settings.has_arrays, has_headers=settings.needs_headers)
    frame = run.spark.createDataFrame(made)
    decided = readings.admit(frame, relaxed, run.attributes, keep=PLACE, schemas=run.schemas).toArrow()
    table = decided.filter(pc.is_valid(decided["device"]))
    return _with_keys(run, table, known), total - table.num_rows


def _with_keys(run: Recomputation, table: pa.Table, known: Mapping[Coordinates, Mark]) -> pa.Table:
    """Decide the values of the grouped columns, once for all runs: the list of a column may be full in the next one."""
    columns = run.settings.grouped_columns
    if not columns:
        return table
    noted = [mark.details.get("keys", {}) if (mark := known.get(place)) else {} for place in places(table)]
    for name, decided in run.values.decided({name: table[name] for name in columns}).items():
        texts = [keys.get(name, text) for keys, text in zip(noted, decided.to_pylist(), strict=True)]
        marked = pa.array([None if text is None else DECIDED + text for text in texts], pa.string())
        table = table.set_column(table.column_names.index(name), name, marked)
    return table


def keys(run: Recomputation, table: pa.Table) -> list[dict[str, str]]:
    """Return how unlisted values of rows of `admitted` are decided, by column, for their marks."""
    noted: list[dict[str, str]] = [{} for _ in range(table.num_rows)]
    for name in run.settings.grouped_columns:
        texts = pc.utf8_slice_codeunits(table[name], len(DECIDED))
        is_noted = pc.and_not(pc.is_valid(texts), run.values.are_listed(name, texts))
        for row, text in zip(
            np.flatnonzero(is_noted.to_numpy()).tolist(), texts.filter(is_noted).to_pylist(), strict=True
        ):
            noted[row][name] = text
    return noted


def records(rejects: Iterable[Reject], *, has_index: bool = False, has_headers: bool = False) -> pa.Table:
    """Return complete rejects as records of the Kafka source, the input of `readings.admit`.

    With `has_index`, those that are readings of an array keep their number in it. With `has_headers`, headers are a column.
    """
    rows = []
    for reject in rejects:
        place = {"topic": reject.place.topic, "partition": reject.place.partition, "offset": reject.place.offset}
        index = None if reject.place.index == NO_INDEX else reject.place.index
        row = {**place, "key": reject.key, "value": reject.value, "timestamp": reject.broker_ms * 1000}
        headers = [{"key": name, "value": value} for name, value in reject.headers]
        rows.append({**row, expansion.INDEX: index, "headers": headers})
    more = [*([_INDEX] if has_index else []), *([_HEADERS] if has_headers else [])]
    return pa.Table.from_pylist(rows, schema=pa.schema([*_RECORD, *more]))


def places(table: pa.Table) -> list[Coordinates]:
    """The place of each row of `admitted`."""
    columns = [table[readings.KEPT + name].to_pylist() for name in PLACE]
    if expansion.INDEX in table.column_names:
        columns.append(table[expansion.INDEX].fill_null(NO_INDEX).to_pylist())
    return [Coordinates(*place) for place in zip(*columns, strict=True)]


def of(table: pa.Table, wanted: Collection[Coordinates]) -> pa.Table:
    """The rows of `admitted` at the `wanted` places."""
    return table.filter(pa.array([place in wanted for place in places(table)], pa.bool_()))


def plain(table: pa.Table) -> pa.Table:
    """Rows of `readings.admit`, without their places."""
    return table.drop_columns([readings.KEPT + name for name in PLACE])
