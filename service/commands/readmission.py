"""Decide with the service's own admission whether records would be admitted if they were sent now.

Admission runs in Spark (service/admission/readings.py), so this starts a local session, for the first records that are asked
about. The reference is the snapshot that the service uses. The watermark is that of `tidemark:progress`. Whether the state has
room for a new device is not decided: only the running query has the list.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service import clock
from service.admission import readings
from service.admission.formats.format import FILTERED
from service.admission.schema_sources import load_schemas
from service.commands import dissect, progress
from service.commands.explain import explain
from service.pipeline import failure
from service.recompute import decisions, late
from service.redis import link
from service.reference import lookup
from service.rejects.reject_log import Reject
from service.settings import Settings
from service.spark import session

_CORRECT = "add it to closed values with `tidemark correct`, or change its time with --set"
_FORCE = "send it with --force: it is rejected as late, and `tidemark correct` adds it to closed values"
"""`correct` takes late rejects. The bytes of another one, perhaps changed, become late by being sent."""
_REMEDIES = {
    "early": "send it when its time has come",
    "ahead": "send it when its time has come",
    "unknown_schema": "add the schema first",
    "unknown_device": "add the device to the reference first",
}


class Readmission:
    """One session of decisions; a context manager that ends Spark."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spark: SparkSession | None = None
        self._dissector = dissect.Dissector(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spark is not None:
            self._spark.stop()

    def refusals(self, rejects: Sequence[Reject]) -> list[tuple[str, str]]:
        """Return for each record why admission would reject it now: the reason and an explanation, both "" if it would not.

        Raises TidemarkError when admission cannot be run, for example without Spark's jars.
        """
        if not rejects:
            return []
        try:
            return self._decide(rejects)
        except Exception as error:  # Spark's and py4j's own too
            raise failure.classify(error) from error

    def _decide(self, rejects: Sequence[Reject]) -> list[tuple[str, str]]:
        settings, now_ms = self._settings, clock.now_ms()
        if self._spark is None:
            with progress.waiting("Spark starts, to decide which rejects would be admitted"):
                self._spark = session.build(settings, master="local[1]", is_brief=True)
        attributes = decisions.serving_attributes(self._spark, settings) if lookup.needed(settings) else None
        # Two rejects may have one offset, in two partitions: a record's number takes the offset's place.
        rows = [replace(each, place=replace(each.place, offset=n), broker_ms=now_ms) for n, each in enumerate(rejects)]
        records = self._spark.createDataFrame(late.records(rows, has_headers=settings.needs_headers))
        decided = readings.admit(records, settings, attributes, keep=["offset"], schemas=load_schemas(settings))
        table = decided.toArrow()
        watermark_ms = max(int(each or 0) for each in link.progress(settings.redis, "watermark"))
        refusals = [("", "")] * len(rejects)
        behind = pc.less(table["event_ms"], watermark_ms).to_pylist()
        columns = (table[readings.KEPT + "offset"], table["event_ms"], table["reject"])
        is_filtered = pc.and_(pc.is_null(table["device"]), pc.is_null(table["reject"]))
        for number in table[readings.KEPT + "offset"].filter(is_filtered).to_pylist():
            form = settings.form_of(rows[number].place.topic)
            unmet = "it is an array without readings"
            if form.where is not None:
                unmet = f"it does not meet {form.place}.where = {form.where!r}"
            why = f"{unmet}. To mend it, change it with --set or --value"
            refusals[number] = FILTERED, why
        for number, event_ms, text, is_behind in zip(*(each.to_pylist() for each in columns), behind, strict=True):
            if text is not None:
                fields = readings.parsed(text)
                reason, detail = str(fields["reason"]), str(fields["detail"] or "")
                row = replace(rows[number], detail=detail)
                refusals[number] = self._refusal(rejects[number], row, reason, fields["event_ms"])
            elif is_behind:
                refusals[number] = self._refusal(rejects[number], rows[number], "behind", event_ms, watermark_ms)
        return refusals

    def _refusal(
        self, reject: Reject, row: Reject, reason: str, event_ms: int | None, watermark_ms: int | None = None
    ) -> tuple[str, str]:
        decided = replace(row, reason=reason, event_ms=event_ms, watermark_ms=watermark_ms)
        seen = self._dissector(row.place.topic, row.value, row.headers)
        remedy = _REMEDIES.get(reason, "change it with --set or --value")
        if reason in readings.LATE:
            remedy = _CORRECT if reject.reason in readings.LATE else _FORCE
        return reason, f"{explain(decided, seen, self._settings)}. To mend it, {remedy}"
