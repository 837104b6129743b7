"""The past of views that are new, computed as service/recompute/fill.py does, without Spark."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from service.aggregation import sessions
from service.pipeline import builder
from service.pipeline.batch_publisher import Sink
from service.recompute import engine, fill
from service.reference.attributes import Index
from service.row_schemas import PARTS
from service.settings import Settings, ViewVersion
from service.spark.batch_context import BatchContext


def settings_of(settings: Settings, views: Sequence[ViewVersion]) -> Settings:
    """Return the settings for the past of views."""
    admission = settings.admission.model_copy(update={"distinct": ()})
    views = tuple(map(fill.plain, views))
    return settings.model_copy(update={"views": views, "admission": admission, "outlets": ()})


def publish(sink: Sink, views: Sequence[ViewVersion], reference: Index, admitted: Iterable[pa.RecordBatch]) -> None:
    """Write the windows of views that are closed and begin before they have all readings.

    `sink` has the settings of `settings_of`. In the last pass windows that lack readings, and were not computed, are removed.
    """
    if not views:
        return
    settings, watermark_ms = sink.settings, sink.micro_batch.watermark_ms
    fold = replace(builder.folding(settings, reference, views=settings.closing_views), context=BatchContext)
    rows = [row for batch in fold(admitted) for row in batch.to_pylist() if row["kind"] == PARTS]
    rows.sort(key=lambda row: (row["bucket"], row["first"], row["payload"]))
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in ("bucket", "first", "kind", "payload")}
    spans = {(view.name, measure): (0, ms) for view in views for measure, ms in view.incomplete.items()}
    alive = {view.name: watermark_ms - view.retain_ms for view in settings.closing_views}
    step = engine._Closed(sessions.rules(settings), watermark_ms, 0, alive, engine.Chosen(spans))
    servers = sink.servers()
    sink.write(batch.select(["kind", "payload"]) for batch in step([pa.RecordBatch.from_pydict(columns)]))
    for view in views if sink.policy.is_last else ():
        sink.scan("parts", f"window:{view.name}", begins="0")
    sink.run("read_progress", servers)
