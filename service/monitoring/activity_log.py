"""The log lines about the flow of records: the start, the first batch, the begin of rejects, and the sums of each minute."""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from service import clock
from service.kafka import starting
from service.pipeline.outcome import LATENCY_BOUNDS_MS
from service.redis import client as redis_client
from service.units import format_duration, format_time

if TYPE_CHECKING:
    from service.pipeline.batch import BatchReport
    from service.settings import Settings, View
    from service.spark.internals.offset_log import Position

EVERY_S = 60.0
"""The time between two lines with sums."""
QUIET_S = 3600.0
"""Rejects of a reason begin again, and are logged again, after so long without one."""
NAMED = 10
"""Topics and views that a line names: hundreds make a line that a collector of logs cuts."""
ABSENT_AFTER = 100
"""Admitted readings of an input after which a measure that none of them has is logged."""
_log = logging.getLogger(__name__)


class ActivityLog:
    """Writes these lines for one run of the service. Its methods may be called from any thread."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._starts = 0
        self._has_batch = False
        self._lacking: Counter[tuple[int, int]] = Counter()
        """Admitted readings without a measure, by the numbers of input and measure, until one has it or a line names it."""
        self._measured: set[tuple[int, int]] = set()
        self._rejected_s: dict[str, float] = {}
        """When a record was last rejected, by reason."""
        self._watermark_ms = 0
        self._begin_s = clock.monotonic_s()
        self._clear()

    def _clear(self) -> None:
        self._rows = self._batches = 0
        self._rejects: Counter[str] = Counter()
        self._latency = [0] * (len(LATENCY_BOUNDS_MS) + 1)

    def query_starts(self, epoch: int, position: "Position | None", views: "Sequence[View]") -> None:
        """Log what is read and published; of a later query in the same process only where it continues.

        `views` are those that the query computes: the settings file may have others by now than at the start of the process.
        """
        with self._lock:
            self._starts += 1
            starts = self._starts
            if starts == 1:  # the sums of a later query go on with those of the one before
                self._begin_s = clock.monotonic_s()
        place = self._place(position)
        fields = {"epoch": epoch, "starts": starts}
        if starts > 1:
            _log.info(
                "The query starts again from %s, in epoch %d, start %d", place, epoch, starts, extra={"fields": fields}
            )
            return
        kafka, redis = self._settings.kafka, self._settings.redis
        _log.info(
            "Reading %s records of %s from Kafka at %s, from %s. Publishing the views %s, sessions and devices to Redis at %s "
            "under the prefix %s. Rejects go to %s",
            " and ".join(dict.fromkeys(form.traits.label for form in self._settings.forms)),
            f"the topic{'s' if len(kafka.topics) > 1 else ''} {_listed(kafka.topics)}",
            kafka.bootstrap,
            place,
            _listed([f"{view.name} ({view.length})" for view in views]),
            redis_client.address(redis),
            redis.prefix,
            _listed([kafka.rejects_topic(topic) for topic in kafka.topics]),
            extra={"fields": {**fields, "topics": kafka.topics, "prefix": redis.prefix}},
        )

    def _place(self, position: "Position | None") -> str:
        checkpoint = self._settings.service.checkpoint
        if position is None:
            return f"{starting.describe(self._settings.kafka)} (the checkpoint {checkpoint} is new)"
        repeated = ", which is repeated" if position.is_repeated else ""
        return f"batch {position.batch} of the checkpoint {checkpoint}{repeated}"

    def batch(self, report: "BatchReport") -> None:
        """Count a published batch. Log the first one, and reasons for rejects that had none for an hour."""
        micro_batch = report.micro_batch
        rejected = {reason: count for reason, count in report.outcome.by_reason.items() if count}
        now_s = clock.monotonic_s()
        with self._lock:
            is_first, self._has_batch = not self._has_batch, True
            self._rows += micro_batch.rows
            self._batches += 1
            self._rejects.update(rejected)
            self._latency = [a + b for a, b in zip(self._latency, report.outcome.latency, strict=True)]
            self._watermark_ms = micro_batch.watermark_ms
            absent = self._absent(report)
            begun = [reason for reason in rejected if now_s - self._rejected_s.get(reason, -QUIET_S) >= QUIET_S]
            self._rejected_s.update(dict.fromkeys(rejected, now_s))
        fields = {"batch": micro_batch.batch, "epoch": micro_batch.epoch}
        if is_first:
            outcome = report.outcome
            _log.info(
                "The first batch of this process, %d, is published: %d rows, %d readings admitted, %d rejected; %d windows, "
                "%d sessions and %d devices written in %.1f s",
                micro_batch.batch,
                micro_batch.rows,
                outcome.admitted,
                sum(rejected.values()),
                outcome.windows,
                outcome.sessions,
                outcome.devices,
                sum(report.phases.values()),
                extra={"fields": {**fields, "rows": micro_batch.rows}},
            )
        for (number, measure), readings in absent.items():
            self._warn_of_absent(number, measure, readings)
        for reason in begun:
            _log.warning(
                "Rejects begin: %d of %d records of batch %d are rejected as %s. To see why, run "
                "`tidemark rejects list --reason %s --since 10m`",
                rejected[reason],
                micro_batch.rows,
                micro_batch.batch,
                reason,
                reason,
                extra={"fields": {**fields, "reason": reason, "rejects": rejected[reason]}},
            )

    def _absent(self, report: "BatchReport") -> dict[tuple[int, int], int]:
        """Return the measures that none of the first readings has, once each, with the number of readings."""
        found = {}
        for number, measure, has, lacks in report.outcome.measured:
            key = number, measure
            if key in self._measured:
                continue
            self._lacking[key] += lacks
            if not has and self._lacking[key] < ABSENT_AFTER:
                continue
            self._measured.add(key)
            if not has:
                found[key] = self._lacking[key]
        return found

    def _warn_of_absent(self, number: int, measure: int, readings: int) -> None:
        form, name = self._settings.forms[number], self._settings.measures[measure]
        paths = " and ".join(form.measures[name].paths)
        _log.warning(
            "None of the first %d admitted readings has %s: %s.measures.%s has no value. Correct the path, or the producers. "
            "To see which fields the records have, run `tidemark try`",
            readings,
            paths,
            form.place,
            name,
            extra={"fields": {"measure": name, "paths": paths, "readings": readings}},
        )

    def look(self, lag: int | None) -> None:
        """Log the sums of the last minute if it is over. Call it often. `lag` is that of now in records, None if not known."""
        with self._lock:
            passed_s = clock.monotonic_s() - self._begin_s
            if passed_s < EVERY_S:
                return
            rows, batches, rejects, latency = self._rows, self._batches, self._rejects, self._latency
            self._clear()
            self._begin_s += passed_s
        rate = rows / passed_s
        p99 = percentile(latency, 0.99)
        by_reason = ", ".join(f"{reason} {count}" for reason, count in rejects.most_common())
        watermark = format_time(self._watermark_ms) if self._watermark_ms else "none yet"
        _log.info(
            "In %.0f s: %d rows (%s/s) in %d batches, p99 from Kafka to Redis %s, lag %s, %d rejects%s, watermark %s",
            passed_s,
            rows,
            f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}",
            batches,
            p99,
            "unknown" if lag is None else f"{lag} records",
            rejects.total(),
            f" ({by_reason})" if by_reason else "",
            watermark,
            extra={
                "fields": {
                    "seconds": round(passed_s, 1),
                    "rows": rows,
                    "batches": batches,
                    "lag": lag,
                    "rejects": dict(rejects),
                    "watermark_ms": self._watermark_ms,
                }
            },
        )


def percentile(counts: list[int], share: float) -> str:
    """Return the bucket of LATENCY_BOUNDS_MS that has the percentile, as text; "-" without a reading."""
    total, seen = sum(counts), 0
    for count, bound_ms in zip(counts, (*LATENCY_BOUNDS_MS, None), strict=True):
        seen += count
        if total and seen >= share * total:
            if bound_ms is None:
                return f"above {format_duration(LATENCY_BOUNDS_MS[-1])}"
            return f"{bound_ms / 1000:g} s"
    return "-"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
