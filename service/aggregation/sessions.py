"""Sessions: the runs of a batch against the tables of open sessions, one table per bucket of devices."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from service.frames import SESSIONS
from service.settings import Settings
from state.processor import SessionProcessor
from state.rules import Rules


def rules(settings: Settings) -> Rules:
    """The settings that decide where a session begins and ends, in the words of state/."""
    sessions = settings.sessions
    return Rules(
        gap_ms=sessions.gap_ms,
        max_duration_ms=sessions.max_duration_ms,
        retain_ms=sessions.retain_ms,
        measures=tuple(settings.input.measures),
    )


def advance(runs: DataFrame, settings: Settings) -> DataFrame:
    """RUNS rows (bucket, payload) in, SESSIONS rows of frames.OUTPUT (kind, payload) out: what changed, by bucket."""
    # Only these two columns go in: with a watermarked one among them the engine would drop whole payloads as late, where
    # the processor drops, and counts, the single runs that are.
    changed = (
        runs.select("bucket", "payload")
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=SessionProcessor(rules(settings)),
            outputStructType="bucket int, payload binary",
            outputMode="Update",
            timeMode="EventTime",
        )
    )
    return changed.select(F.lit(SESSIONS).cast("tinyint").alias("kind"), "payload")
