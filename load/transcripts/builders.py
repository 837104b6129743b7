"""The second executor: the service's own builders under Spark, on a memory of batches instead of Kafka; no Redis.

Each step is one file of records, and so one batch, and what it leads to. The output frame is what publish would get.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from load.transcripts.profile import ALL_MEASURES, COLUMNS, changed
from load.transcripts.simulated_clock import SimulatedClock, content
from load.transcripts.transcript import (
    FIELDS,
    SESSION_ORDER,
    Output,
    Record,
    Step,
    Transcript,
    reject,
    value_of,
    view_of,
)
from service import row_schemas, settings
from service.admission import column_values
from service.admission.column_values import ColumnValues
from service.admission.questions import COLUMN_VALUES, until_decided
from service.aggregation import seen_keys, task_counters
from service.aggregation.sessions import finals, rules
from service.checkpoint import event_time, view_versions
from service.checkpoint.view_versions import Filled, Versions
from service.daemon import idle_closer
from service.daemon.idle_detection import Tables
from service.outlets import tables as outlet_tables
from service.outlets.outbox import Outbox, Scope
from service.outlets.outlet import Position
from service.outlets.silence import Silence
from service.pipeline import builder, failure
from service.publication.rows import session_rows, window_rows
from service.recompute import engine, fill
from service.redis.keys import Keys
from service.reference.attributes import Index
from service.settings import View, ViewVersion
from service.spark import batch_context
from service.spark.batch_context import BatchContext
from service.spark.files import Local
from state import codec, reader
from state.layout import TRANSITIONS, Changes, session_schema
from state.rules import ENDLESS_MS
from state.watermark import EventTime
from state.windows import concat, for_silence

_HEADER = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
KAFKA = t.StructType(
    [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("headers", t.ArrayType(_HEADER)),
    ]
)
"""The columns of Spark's Kafka source."""


class Builders:
    """One query for a whole run, and one more after a change of views. Ends with `close`.

    `document` are the settings, `known` is the reference: device and profile.COLUMNS.
    """

    name = "builders"

    def __init__(
        self, spark: SparkSession, document: Mapping[str, Any], folder: Path, known: Sequence[tuple[Any, ...]]
    ) -> None:
        self._spark, self._document, self._folder, self._known = spark, document, folder, known
        self._settings = settings.parse({**document, "service": {"checkpoint": str(folder / "checkpoint")}})
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._schema = to_arrow_schema(KAFKA)
        self._hush = SimulatedClock(self._settings.admission.idle_after_ms)
        self._steps = 0
        self._output: dict[str, dict[str, Any]] = {}
        self._ends: dict[str, int] = {}
        self._tables: Tables | None = None
        self._times = event_time.Log(Local(folder / "checkpoint"))
        self._silence = Silence(Outbox(Local(folder / "checkpoint")))
        self._windows: list[pa.Table] = []
        self._closed_ms = 0
        self._begin()
        rows = spark.createDataFrame(list(known), ", ".join(f"{name} string" for name in ("device", *COLUMNS)))
        self._reference = Index(rows.toArrow())
        self._versions = view_versions.begun(self._settings)
        self._start_query()

    def _start_query(self) -> None:
        """With the versions of the views that there are now; windows of others are gone."""
        self._settings = view_versions.applied(self._settings, self._versions)
        views = {view.name for view in self._settings.views}
        self._output = {item: fields for item, fields in self._output.items() if view_of(item) in {"", *views}}
        self._ends = {item: end for item, end in self._ends.items() if view_of(item) in views}
        records = self._spark.readStream.schema(KAFKA).parquet(str(self._input))
        output = builder.build(records, self._settings, self._reference, tasks=1)
        self._query = (
            output.writeStream.outputMode("update")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .foreachBatch(self._take)
            .start()
        )

    @property
    def watermark_ms(self) -> int:
        """After the last step."""
        return self._times.before(self._steps).watermark_ms

    def close(self) -> None:
        """Stop the query."""
        self._query.stop()

    def begin(self, transcript: Transcript) -> None:
        """Rejects are numbered from here."""
        self._begin()
        self._hush.now_ms = transcript.origin_ms
        self._output = {item: fields for item, fields in self._output.items() if not item.startswith("reject ")}

    def _begin(self) -> None:
        self._records: list[Record] = []
        self._unread: tuple[Record, ...] = ()
        self._begins = self._offset = self._steps * 1_000_000

    def step(self, _transcript: Transcript, step: Step) -> Output:
        """Everything there is after the step, of all transcripts."""
        if step.change:
            self._document = {**self._document, "views": changed(self._document["views"], step.change)}
            newest_ms = self._times.before(self._steps).newest_ms
            self._serve(view_versions.changed(self._versions, settings.parse(self._document), newest_ms))
        self._hush.arrive((*step.add, *step.unread))
        self._records += [*step.add, *step.unread]
        self._read((*self._unread, *step.add))
        self._unread = step.unread
        self._fill_last()
        self._hush.wait(step.silent_ms, self._unread)
        line_ms = self._hush.line_ms(self.watermark_ms)
        if line_ms is not None:
            self._close(line_ms)
        views = dict(self._views())
        return {item: dict(fields) for item, fields in {**self._output, **views}.items()}

    def _serve(self, versions: Versions) -> None:
        """Go on with other versions, as service/daemon/view_changes.py does."""
        self._query.stop()
        self._versions = versions
        self._start_query()
        self._fill(versions.incomplete)

    def _fill_last(self) -> None:
        """The last pass of service/recompute/fill.py: the watermark has passed the windows that lack readings."""
        due = [view for view in self._versions.incomplete if self.watermark_ms >= fill.ends_ms(view)]
        if due:
            self._fill(due)
            self._serve(view_versions.filled(self._versions, {view.name: Filled(view.incomplete) for view in due}))

    def _fill(self, views: Sequence[ViewVersion]) -> None:
        """The closed windows of the past of views, by the engine that service/recompute/fill.py uses."""
        if not views:
            return
        chosen = self._settings.model_copy(update={"views": tuple(map(fill.plain, views))})
        values = column_values.stored(chosen, self._times.files)
        run = engine.Recomputation(self._spark, chosen, self._reference, values=values)
        records = self._spark.read.schema(KAFKA).parquet(str(self._input))
        spans = {(view.name, measure): (0, ms) for view in views for measure, ms in view.incomplete.items()}
        closed = engine.closed_values(run, run.admit(records), self.watermark_ms, 0, engine.Chosen(spans))
        for row in closed.frame.toArrow().to_pylist():
            self._take_windows(codec.unpack_changes(row["payload"]).windows, chosen.views, is_past=True)
        self._finish(self.watermark_ms, "watermark")

    def _views(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for view in self._versions.views:
            if not view.is_next:
                following = self._versions.of(view.of, is_next=True)
                marks = (following or view).incomplete.values()
                names = {"keys": view.name, "next": following.name if following else None}
                yield f"view {view.of}", {**names, "complete_from": max(marks, default=None)}

    def replay(self, transcript: Transcript) -> Output:
        """As another query ends that reads all records of the transcript at once, and sees the end of the silence."""
        again = Builders(self._spark, self._document, self._folder / f"replay-{transcript.number}", self._known)
        try:
            again._hush.now_ms = self._hush.now_ms - self._hush.after_ms
            return again.step(transcript, Step(add=tuple(self._records), silent_ms=self._hush.after_ms))
        finally:
            again.close()

    def _read(self, records: Sequence[Record]) -> None:
        """A batch of these, and what it leads to."""
        if not records:
            return
        rows = []
        for record in records:
            at = datetime.fromtimestamp(record.at_ms / 1000, UTC)
            rows.append((None, record.value, record.topic, record.partition, self._offset, at, None))
            self._offset += 1
        columns = [
            pa.array(column, each.type) for column, each in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        part = self._input / f".{self._steps:06d}"
        pq.write_table(pa.Table.from_arrays(columns, schema=self._schema), part)
        part.rename(self._input / f"{self._steps:06d}.parquet")
        self._steps += 1
        self._tables = None
        self._query.processAllAvailable()
        self._finish(self.watermark_ms, "watermark")

    def _close(self, line_ms: int) -> None:
        """As service/daemon/idle_closer.py does."""
        if self._tables is None:
            checkpoint = str(self._folder / "checkpoint")
            self._tables = idle_closer.tables(self._spark, checkpoint, self._settings)
            states, kept = reader.states(self._spark, checkpoint), rules(self._settings)
            self._windows = [for_silence(state.windows, kept.fills, kept.rollups) for _, state in states]
        told = [TRANSITIONS.empty_table()]
        for number in self._tables.due(line_ms):
            state, changes = self._tables.step(number, line_ms)
            self._tables.keep(number, state)
            self._take_changes(changes, "idle")
            told += [] if changes.transitions is None else [changes.transitions]
        asked = finals(self._settings)
        assert asked is not None  # noqa: S101
        due = concat([table.filter(pc.less_equal(table["end"], line_ms)) for table in self._windows])
        unwritten = idle_closer.unwritten([due], self._settings.rollups).windows
        self._take_windows(unwritten, self._settings.views, has_all=True)
        entry = self._silence.close(
            Position(1, self._steps - 1),
            asked.of(session_schema(()).empty_table(), due, pa.concat_tables(told)),
            Scope({}),
        )
        if entry is not None:
            left = self._silence.outbox.load(entry)
            self._leave(left.windows, left.states, "idle")
        self._finish(line_ms, "idle")

    def _finish(self, line_ms: int, closed_by: str) -> None:
        """Windows that end by then are final, and by the watermark also those that are settled."""
        leads = self._settings.leads if closed_by == "watermark" else {}
        for item, end in self._ends.items():
            if line_ms < end <= line_ms + leads.get(view_of(item), 0):
                self._output[item] |= {"final": True, "closed_by": "settled"}
            if end <= line_ms and (not self._output[item]["final"] or closed_by == "watermark"):
                self._output[item] |= {"final": True, "closed_by": closed_by}

    def _take(self, frame: DataFrame, batch: int) -> None:
        before, folder = self._times.before(batch), self._folder / "checkpoint"
        self._silence.transitions.begin(batch)
        seen_keys.clear(folder, self._settings.buckets, batch)
        distinct = str(folder), batch, 1, seen_keys.floor_ms(before, self._settings.admission)
        values = ColumnValues.of(self._spark.sparkContext, self._settings, self._times.files)

        def attempt() -> pa.Table:
            context = BatchContext(before, distinct=distinct, column_values=values.text())
            batch_context.set_for_tasks(self._spark.sparkContext, context)
            return frame.toArrow()

        deciders = {COLUMN_VALUES: lambda asked: values.decide(asked, lambda: None)}
        rows = until_decided(attempt, deciders, failure.classify).to_pylist()
        after = next(EventTime.unpack(row["payload"]) for row in rows if row["kind"] == row_schemas.TIMES)
        self._times.note(batch, after)
        self._closed_ms = after.watermark_ms
        for row in rows:
            if row["kind"] == row_schemas.CHANGES:
                self._take_changes(codec.unpack_changes(row["payload"]), "watermark")
            elif row["kind"] == row_schemas.FINALS:
                finals = self._silence.final(batch, codec.unpack_changes(row["payload"]), after.watermark_ms)
                self._leave(finals.windows, finals.devices, "watermark", after.watermark_ms)
            elif row["kind"] == row_schemas.COUNTS:
                self._hush.admitted += task_counters.unpack(row["payload"]).sum(task_counters.ADMITTED)
            elif row["kind"] == row_schemas.REJECTS:
                for each in codec.unpack(b"J", row["payload"]).to_pylist():
                    item = reject(each["offset"] - self._begins + 1, each["index"])
                    self._output[item] = {"reason": each["reason"]}

    def _leave(self, windows: pa.Table, states: pa.Table, closed_by: str, watermark_ms: int = ENDLESS_MS) -> None:
        """As service/outlets/delivery.py does."""
        shown = {view.name: view.shown for view in self._settings.views}
        rows = outlet_tables.windows(windows, shown, 1, self._steps, closed_by, watermark_ms=watermark_ms)
        for each in rows.to_pylist():
            start_ms = round(each["start"].timestamp() * 1000)
            item = f"left {each['view']}/{each['measure']}/{each['key']}/{start_ms}"
            self._output[item] = {name: each[name] for name in FIELDS["left"]}
        for each in states.to_pylist():
            self._output[f"told {each['device']}/{each['field']}"] = {name: each[name] for name in FIELDS["told"]}

    def _take_changes(self, changes: Changes, closed_by: str) -> None:
        fields = session_rows(changes.sessions, Keys(""), self._settings.sessions).fields
        for number, each in enumerate(changes.sessions.to_pylist()):
            item = f"session {each['device']}/{each['start']}"
            if each["state"] == "merged":
                self._output.pop(item, None)
            else:
                shown = {name: each[name] for name in ("state", "count", "last", "reason")}
                texts = {name: fields[f"temperature.{name}"][number] for name in SESSION_ORDER}
                shown |= {name: value_of(name, text) for name, text in texts.items() if text is not None}
                self._put(item, {**shown, "closed_by": closed_by if each["state"] == "closed" else ""})
        for each in changes.devices.to_pylist():
            values = {name: each[f"{name}.value"] for name in ALL_MEASURES if each[f"{name}.value"] is not None}
            self._output[f"device {each['device']}"] = {
                "status": each["status"],
                "last_seen": each["last_seen"],
                **values,
                **{name: each[name] for measure in values if (name := f"{measure}.status") in each},
            }
        self._take_windows(changes.windows, self._settings.views)

    def _take_windows(
        self, table: pa.Table, views: Collection[View], *, is_past: bool = False, has_all: bool = False
    ) -> None:
        """Take windows of present views as publish writes them. Windows of the past replace incomplete ones. An open one of a
        roll-up replaces none that silence has closed, unless it `has_all` readings.
        """
        table = table.filter(pc.is_in(table["view"], pa.array([view.name for view in views], pa.string())))
        fields = window_rows(table, Keys(""), views, 0).fields
        columns = {name: fields[name] for name in FIELDS["window"] if name in fields}
        for number, each in enumerate(table.to_pylist()):
            item = f"window {each['view']}/{each['measure']}/{each['key']}/{each['start']}"
            is_behind = each["view"] in self._settings.rollups and each["end"] > self._closed_ms and not has_all
            if is_behind and self._output.get(item, {}).get("closed_by") == "idle":
                continue
            texts = {name: column[number] for name, column in columns.items()}
            shown = {name: value_of(name, text) for name, text in texts.items() if text is not None}
            self._put(item, {**shown, "final": False, "closed_by": ""}, is_past=is_past)
            self._ends[item] = each["end"]

    def _put(self, item: str, fields: dict[str, Any], *, is_past: bool = False) -> None:
        """As publish.lua does: what silence has closed stays so until it says something else, or the watermark has passed it."""
        current = self._output.get(item, {"closed_by": "", "revision": 0})
        if current["closed_by"] in {"idle", "settled"}:
            is_same = content(current) == content(fields)
            if is_same and fields["closed_by"] != "watermark":
                return
            current["revision"] += not is_same
        current["revision"] += is_past and "complete_from" in current
        self._output[item] = {**fields, "revision": current["revision"]}
