"""The stateful operator in the plan, and its rules."""

from pyspark.sql import DataFrame

from service.frames import OUTPUT
from service.settings import Settings
from state.processor import BucketProcessor
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


def advance(folded: DataFrame, settings: Settings) -> DataFrame:
    """Rows of frames.FOLDED with a watermarked event time in, frames.OUTPUT out."""
    # Only these columns go in: with a watermarked one among them the engine would drop whole payloads as late, where
    # the operator drops, and counts, the single windows and runs that are.
    return (
        folded.select("bucket", "kind", "payload")
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=BucketProcessor(rules(settings)),
            outputStructType=OUTPUT,
            outputMode="Update",
            timeMode="EventTime",
        )
    )
