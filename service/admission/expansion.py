"""Make a row of each reading, for inputs whose records hold several (Format.cut).

The records go through Python, a few thousand readings at a time, so that memory depends on neither the size of a record nor that
of Spark's batches.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from service.admission import formats
from service.admission.arrays import OVERSIZED, Cut, UnreadableArrayError
from service.settings import Input, Settings

INDEX = "$index"
"""The column with a reading's number in its record; null for a record that is one reading, or none."""
FAULT, DETAIL = "$fault", "$fault_detail"
"""The columns with the reason why a record holds no readings, and its detail; null for a reading."""
CARRIED = ("$counted",)
"""Columns that each reading has from its record, where records have them: readings.COUNTED."""
HEADERS = ("headers",)
"""The column that is carried, too, where a value comes from a header."""
BATCH_BYTES = 64 << 20
"""Bytes of records that Spark hands to Python at once, and one record."""
_COLUMNS = ("key", "topic", "partition", "offset", "timestamp")
_SCHEMA = t.StructType(
    [
        t.StructField("key", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("value", t.BinaryType()),
        t.StructField(INDEX, t.IntegerType()),
        t.StructField(FAULT, t.StringType()),
        t.StructField(DETAIL, t.StringType()),
    ]
)
_ROWS, _BYTES = 5_000, 4 << 20
"""Readings, and bytes of keys, values and headers, from which a batch is handed on."""


def expand(records: DataFrame, settings: Settings) -> DataFrame:
    """Return one row for each reading: the element in `value`, and the columns INDEX, FAULT and DETAIL.

    Other columns than those of `_SCHEMA` and CARRIED are lost. Records of inputs without arrays pass unchanged. Returns the frame
    itself when no input has arrays, and when it is expanded already. Where `records` has INDEX, a record that is one reading
    keeps it.
    """
    if not settings.has_arrays or FAULT in records.columns:
        return records
    forms = {topic: each.form for each in settings.split() if each.form.is_cut for topic in each.kafka.topics}
    limit_batches(records)
    carried = tuple(name for name in CARRIED if name in records.columns) + HEADERS * settings.needs_headers
    names = ["value", *_COLUMNS, *([INDEX] if INDEX in records.columns else []), *carried]
    schema = t.StructType([*_SCHEMA, *(records.schema[name] for name in carried)])
    return records.select(*names).mapInArrow(Expander(forms, int(settings.admission.max_bytes), carried), schema)


def limit_batches(records: DataFrame) -> None:
    """Limit the bytes of Spark's batches for Python.

    Without the limit a batch has 10,000 records of megabytes. docs/decisions/0040-arrays-are-cut-before-admission.md
    """
    records.sparkSession.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(BATCH_BYTES))


def columns(settings: Settings) -> list[Column]:
    """Return the columns that `expand` adds."""
    return [F.col(name) for name in (INDEX, FAULT, DETAIL)] if settings.has_arrays else []


@dataclass(frozen=True, slots=True)
class Expander:
    """Turns batches of records into batches of readings, for mapInArrow; it is pickled for the tasks.

    `forms` has the input of each topic whose records are cut. A key of more than `max_key` bytes
    rejects its record as a whole: each reading has a copy of it, and of headers that are carried.
    """

    forms: Mapping[str, Input]
    max_key: int
    carried: tuple[str, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        topics = pa.array(self.forms, pa.string())
        for batch in batches:
            if not pc.any(pc.is_in(batch.column("topic"), topics)).as_py():
                yield _Readings.unchanged(batch, self.carried)
                continue
            readings = _Readings(batch, self.carried)
            for row in range(batch.num_rows):
                key, headers = self._copied(batch, row)
                values, first, fault = self._of_record(batch, row, key, headers)
                own = key + headers
                step = _ROWS if sum([len(each or b"") for each in values]) + len(values) * own <= _BYTES else 1
                for begin in range(0, len(values), step):
                    index = None if first is None else first + begin
                    readings.add(row, values[begin : begin + step], index, fault, own)
                    if readings.is_full:
                        yield readings.take()
            if readings.rows:
                yield readings.take()

    def _copied(self, batch: pa.RecordBatch, row: int) -> tuple[int, int]:
        """Return the bytes of a record's key, and of its headers if they are carried."""
        found = [each for name in HEADERS if name in self.carried for each in batch.column(name)[row].as_py() or ()]
        headers = sum([len(each["key"]) + len(each["value"] or b"") for each in found])
        return len(batch.column("key")[row].as_py() or b""), headers

    def _of_record(
        self, batch: pa.RecordBatch, row: int, key: int, headers: int
    ) -> tuple[Sequence[bytes | None], int | None, UnreadableArrayError | None]:
        """Return the readings of a record, the index of the first one, and the fault of a record without readings."""
        value = batch.column("value")[row].as_py()
        own = batch.column(INDEX)[row].as_py() if INDEX in batch.schema.names else None
        form = self.forms.get(batch.column("topic")[row].as_py())
        if form is None or value is None:
            return [value], own, None
        try:
            found = formats.of(form).cut(value, form, batch.column("timestamp")[row].value // 1_000)
            if found.readings is not None:
                self._check_copied(key, headers, found, form)
        except UnreadableArrayError as error:
            return [value], own, error
        return ([found.text], own, None) if found.readings is None else (found.readings, 0, None)

    def _check_copied(self, key: int, headers: int, found: Cut, form: Input) -> None:
        limit, readings = int(form.max_array_bytes), len(found.each)
        if key > self.max_key:
            raise UnreadableArrayError(OVERSIZED, f"{key} bytes, limit {self.max_key} (admission.max_bytes)")
        if found.size + readings * (key + headers) > limit:
            copied = f"a key of {key}" + (f" and headers of {headers}" if headers else "")
            detail = f"{found.size} bytes and {copied} for each of {readings} readings"
            raise UnreadableArrayError(OVERSIZED, f"{detail}, limit {limit} ({form.place}.max_array_bytes)")


@dataclass(slots=True)
class _Readings:
    """Readings of a batch of records; `rows` are the rows of their records."""

    records: pa.RecordBatch
    carried: tuple[str, ...] = ()
    rows: list[int] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    indices: list[int | None] = field(default_factory=list)
    faults: dict[int, UnreadableArrayError] = field(default_factory=dict)
    """By the place in `values`."""
    size: int = 0

    def add(
        self, row: int, values: Sequence[bytes | None], first: int | None, fault: UnreadableArrayError | None, own: int
    ) -> None:
        """Add readings of a record, of which the first one has the index `first`, and the others the next ones.

        Each has `own` bytes that are not its value's.
        """
        if fault is not None:
            self.faults[len(self.values)] = fault
        self.rows.extend([row] * len(values))
        self.values.extend(values)
        self.indices.extend([None] if first is None else range(first, first + len(values)))
        self.size += sum([len(each or b"") for each in values]) + len(values) * own

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= _ROWS or self.size >= _BYTES

    def take(self) -> pa.RecordBatch:
        """Return the readings as a batch, and begin with the next one."""
        rows = pa.array(self.rows, pa.int64())
        made = [self.records.column(name).take(rows) for name in _COLUMNS]
        faults = [self.faults.get(place) for place in range(len(rows))] if self.faults else [None] * len(rows)
        reasons, details = [each and each.reason for each in faults], [each and str(each) for each in faults]
        carried = {name: self.records.column(name).take(rows) for name in self.carried}
        batch = _batch([*made, self.values, self.indices, reasons, details], carried)
        self.rows, self.values, self.indices, self.faults, self.size = [], [], [], {}, 0
        return batch

    @staticmethod
    def unchanged(records: pa.RecordBatch, carried: Sequence[str] = ()) -> pa.RecordBatch:
        """Return records that are readings."""
        nothing = [None] * records.num_rows
        index = records.column(INDEX) if INDEX in records.schema.names else nothing
        made = [records.column(name) for name in (*_COLUMNS, "value")]
        return _batch([*made, index, nothing, nothing], {name: records.column(name) for name in carried})


def _batch(made: Sequence[pa.Array | list[object]], carried: Mapping[str, pa.Array]) -> pa.RecordBatch:
    schema = to_arrow_schema(_SCHEMA)
    arrays = [
        each if isinstance(each, pa.Array) else pa.array(each, field.type)
        for each, field in zip(made, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*arrays, *carried.values()], [*schema.names, *carried])
