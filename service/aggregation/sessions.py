"""The stateful operator in the plan, and its rules."""

from pyspark.sql import DataFrame

from service.row_schemas import OUTPUT
from service.settings import Settings
from state.processor import BucketProcessor
from state.rules import Rules
from state.watermark import Delays


def rules(settings: Settings) -> Rules:
    """The settings that decide where a session begins and ends, in the words of state/."""
    sessions = settings.sessions
    return Rules(
        gap_ms=sessions.gap_ms,
        max_duration_ms=sessions.max_duration_ms,
        retain_ms=sessions.retain_ms,
        measures=tuple(settings.input.measures),
    )


def delays(settings: Settings) -> Delays:
    """The settings that decide how far the watermark follows the readings."""
    admission = settings.admission
    return Delays(admission.watermark_delay_ms, admission.max_delay_ms, admission.max_hold_ms)


def advance(folded: DataFrame, settings: Settings) -> DataFrame:
    """Rows of row_schemas.FOLDED in, row_schemas.OUTPUT out."""
    return (
        folded.select("bucket", "kind", "payload")
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=BucketProcessor(rules(settings), delays(settings)),
            outputStructType=OUTPUT,
            outputMode="Update",
            timeMode="None",
        )
    )
