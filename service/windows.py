"""Windows: every view's window averages in one native aggregation.

A view is a value, not an operator: each pane is exploded into the windows of all views that it lies in, and one aggregation
groups by (view, measure, key, window). Adding a view, a measure or a window length changes neither the plan nor the schema
of the state.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from service.frames import MOMENTS, WINDOW
from service.settings import Settings, View

ALL = "all"
NONE = "(none)"
"""Key text of a view over all devices, and of an attribute that a device lacks."""


def key(view: View) -> Column:
    """The text that names a group of the view: see schemas/redis.md, Keys."""
    if not view.by:
        return F.lit(ALL)
    if len(view.by) == 1:
        return F.coalesce(F.col(view.by[0]), F.lit(NONE))
    # Escaped, or ("a|b", "c") and ("a", "b|c") would share a key and a device could write into another's window.
    parts = [
        F.coalesce(F.replace(F.replace(F.col(c), F.lit("%"), F.lit("%25")), F.lit("|"), F.lit("%7C")), F.lit(NONE))
        for c in view.by
    ]
    return F.concat_ws("|", *parts)


def explode(panes: DataFrame, settings: Settings) -> DataFrame:
    """Panes (device, attributes, measure, pane, statistics) as one row per pane and window of a view.

    Columns out: view, measure, key, window (struct of two timestamps, marked with the watermark), the statistics.
    """
    windows: list[Column] = []
    for view in settings.views:
        step = F.lit(view.step_ms)
        newest = F.col("pane") - F.pmod(F.col("pane"), step)
        wanted = F.col("measure").isin(*settings.view_measures(view))
        for back in range(view.window_ms // view.step_ms):
            start = newest - back * view.step_ms
            window = F.struct(
                F.lit(view.name).alias("view"),
                key(view).alias("key"),
                start.alias("start"),
                (start + view.window_ms).alias("end"),
            )
            windows.append(F.when(wanted, window))
    statistics = ["count", *MOMENTS, "min", "max", "first", "last"]
    exploded = panes.select("measure", *statistics, F.explode(F.array(*windows)).alias("w")).where("w is not null")
    # The engine recognises the column of a watermark by this metadata (EventTimeWatermark.delayKey in Spark's source,
    # checked with 4.1.1). `window()` would set it too, but takes one length per operator.
    marked = {"spark.watermarkDelayMs": settings.admission.watermark_delay_ms}
    span = F.struct(F.timestamp_millis("w.start").alias("start"), F.timestamp_millis("w.end").alias("end"))
    return exploded.select("w.view", "measure", "w.key", span.alias("window", metadata=marked), *statistics)


def aggregate(exploded: DataFrame) -> DataFrame:
    """The one aggregation: WINDOW rows of frames.OUTPUT, as far as they go."""
    sums = [F.sum(name).alias(name) for name in ("count", *MOMENTS)]
    grouped = exploded.groupBy("view", "measure", "key", "window").agg(
        *sums,
        F.min("min").alias("min"),
        F.max("max").alias("max"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    return grouped.select(
        F.lit(WINDOW).cast("tinyint").alias("kind"),
        "view",
        "measure",
        "key",
        F.unix_millis("window.start").alias("start"),
        F.unix_millis("window.end").alias("end"),
        "count",
        *MOMENTS,
        "min",
        "max",
        "first",
        "last",
    )
