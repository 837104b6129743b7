"""The Prometheus metrics, liveness and readiness of the service; service/monitoring/server.py serves them.

Each instance has a registry of its own, so that tests can have two. A device id is never a label. All methods may be called
from any thread.
"""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, Info, disable_created_metrics
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service import clock
from service.admission import readings
from service.admission.schema_catalog import LOOK_UPS
from service.monitoring.part_metrics import EventTime, Outlets, Quality, Schedule, Views
from service.monitoring.resource_metrics import ProcessMetrics, StoreMetrics
from service.monitoring.series import Series, replace
from service.pipeline import failure
from service.pipeline.outcome import LATENCY_BOUNDS_MS
from service.pipeline.term import TermMetrics
from service.redis.link import EpochLostError, WritesLostError
from service.reference.database import REASONS
from service.rejects.delivery import UNREADABLE
from service.version import version as tidemark_version

if TYPE_CHECKING:
    from service.kafka.offsets import Headrooms
    from service.micro_batch import Offsets
    from service.pipeline.batch import BatchReport
    from service.pipeline.batch_report import Progress
    from service.pipeline.outcome import Outcome
    from service.settings import Settings

_once: Callable[[], None] = disable_created_metrics
_once()  # the client's default is a second series for each counter: the time of its creation

STUCK_S = 300.0
"""While a batch runs longer than this, /healthz fails, so that a supervisor restarts the process."""

SLOW_S = 10.0
"""With this latency, and the time until the next trigger, readings reach Redis late."""

BATCH_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)

# Spark's phases of a trigger -> the phases of tidemark_batch_seconds. addBatch is left out: our own phases divide it.
_PHASES = {
    "queryPlanning": "planning",
    "latestOffset": "source",
    "getBatch": "source",
    "walCommit": "log",
    "commitOffsets": "log",
    "commitBatch": "log",
    "triggerExecution": "total",
}
_OWN_PHASES = ("cut", "run", "publish", "finish")
_CODES = (*failure.CODES, EpochLostError.code, WritesLostError.code)
"""The codes of all failures that restart the query."""
_STATE_ROWS = ("windows", "devices", "sessions")
_PUBLISHED = ("windows", "sessions", "devices", "rejects")
_CHANGES = ("opened", "closed")
_OUTCOMES = ("written", "unchanged", "refused_old", "refused_final")
_PARTS = ("lag", "lease", "reference", "redis_data", "republish", "idle", "fill", "never_sent")
VIEW_CHANGES = ("applied", "refused")
_BEGINNING = {"lease": "the lease is not held yet", "batch": "the first batch is not done yet"}
ROLES = ("starting", "standby", "leader", "ready")
"""The lease is not acquired yet; another process holds it; this process holds it; it holds it and /readyz answers 200."""


class Buckets(Collector):
    """A histogram of counts per bucket: a batch reports its latencies as a few counts and their sum."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        """`bounds` are the upper bounds, inclusive, ascending. One more bucket counts larger values."""
        self._name = name
        self._documentation = documentation
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add `counts[i]` observations to bucket i (not cumulative) and `total` to the sum of all values."""
        with self._lock:
            self._counts = [old + new for old, new in zip(self._counts, counts, strict=True)]
            self._sum += total

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            counts, total = self._counts, self._sum
        bounds = ["+Inf" if bound == math.inf else repr(bound) for bound in self._bounds]
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], list(zip(bounds, map(float, accumulate(counts)), strict=True)), total)
        yield family


class Metrics(TermMetrics):
    """Every metric of the service, its liveness and its readiness."""

    def __init__(self, process: ProcessMetrics | None = None, *, spark: str = "") -> None:  # noqa: PLR0915 - a line for each
        """`process` are the metrics of a process with several pipelines; None for a pipeline alone."""
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._batch_since: float | None = None
        self._reasons = dict(_BEGINNING)
        self._standby = False
        self._notes: dict[str, str] = {}
        self._reference = ""
        self._topics: Sequence[str] = ()
        self._columns: Sequence[str] = ()
        self._inputs: Sequence[str] = ()
        self._measures: Sequence[str] = ()

        series = Series(self.registry)
        counter, gauge = series.counter, series.gauge
        self.records = counter("records", "Kafka records in finished batches")
        self.record_bytes = counter("record_bytes", "Bytes of keys and values of the Kafka records in finished batches")
        self.batch_limit = gauge("batch_limit_records", "The most Kafka records that the next batch may have")
        self.admitted = counter("readings_admitted", "Readings that were admitted")
        self.rejects = counter("rejects", "Readings that were not admitted", "reason", (*readings.REASONS, UNREADABLE))
        self.topic_rejects = counter("topic_rejects", "Rejects that were copied to the topic's rejects topic", "topic")
        self.filtered = counter("records_filtered", "Records that input.where does not let in")
        self.behind = counter("readings_behind", "Readings that were rejected because the watermark had passed them")
        self.unknown = counter("readings_unknown_device", "Admitted readings of devices that the reference lacks")
        self.column_values = gauge("column_values", "Values of a column of the record that are keys of views", "column")
        self.column_limit = gauge("column_max_values", "input.columns: max_values of the column", "column")
        self.measured = counter("measure_readings", "Admitted readings that have the measure", "input measure")
        self.unmeasured = counter("measure_missing_readings", "Admitted readings without the measure", "input measure")
        self.others = counter("readings_other_value", "Readings that views count under (other) in a column", "column")
        self.devices = counter("devices_new", "Devices that Redis has for the first time, or again")
        self.published = counter("published", "Values published to Redis, and rejects to Kafka", "kind", _PUBLISHED)
        self.sessions = counter("sessions", "Sessions that Redis has first, and as closed", "change", _CHANGES)
        self.writes = counter("redis_writes", "Values given to Redis, by what it did with them", "outcome", _OUTCOMES)
        self.bytes = counter("redis_bytes", "Bytes sent to Redis")
        self.retries = counter("redis_retries", "Writes to Redis that were tried again")
        self.closed_idle = counter("sessions_closed_idle", "Sessions that were closed because input was silent")
        self.silent = gauge("input_silent", "1 while nothing is admitted and the clock closes what is open")
        self.lost = counter("records_lost", "Kafka records that were deleted before they were read")
        self.failures = counter("failures", "Failures that did not end the service", "part", _PARTS)
        self.restarts = counter("query_restarts", "Failures that restarted the query inside the driver", "code", _CODES)
        self.lookups = counter("schema_lookups", "Schema ids that were looked up, by result", "result", LOOK_UPS)
        self.unreadable = gauge("unreadable_offsets", "Offsets that the service has named when it ended as unreadable")
        self.schemas = gauge("schemas", "Writers' schemas that the query decodes")
        self.republished = counter("republished", "Lost values that were published again", "kind", _PUBLISHED[:3])
        self.view_changes = counter("view_changes", "Changes to the views while running", "result", VIEW_CHANGES)
        self.incomplete_views = gauge("incomplete_views", "Views whose past is not computed yet")
        self.filled = counter("filled_windows", "Windows of the past that were computed for new views")
        self.unrepublished = counter(
            "unrepublished", "Lost values that Kafka lacks readings of", "kind", _PUBLISHED[:2]
        )
        self.data_lost = counter("redis_data_lost", "Times that Redis was found without what it had acknowledged")
        self.headroom = gauge(
            "retention_headroom_seconds", "Time until unread records are deleted", "topic", "partition"
        )
        self.marks = gauge("reject_marks", "Entries of the topics of corrected and replayed rejects")
        self.topics_unread = gauge("topics_unread", "New topics that match the pattern, without room for them")
        self.lag = gauge("lag_records", "End of the partition minus that of the committed batch", "topic", "partition")
        self.lag_asked = gauge("lag_timestamp_seconds", "When Kafka was asked for what the lags are taken from")
        self.lag_age = gauge("lag_age_seconds", "Time since Kafka last said how long the partitions are; NaN before")
        self.lag_total: int | None = None
        """Of all partitions together; None while it is not known."""
        self._lag_asked_s = math.nan
        self.lag_age.set_function(lambda: clock.monotonic_s() - self._lag_asked_s)
        self.retention = gauge("retention_seconds", "For how long a topic keeps its records", "topic")
        self.reference_max_age = gauge("reference_max_age_seconds", "reference.max_age: older, it ends the service")
        self.watermark_delay = gauge("watermark_delay_seconds", "admission.max_delay + max_ahead")
        self.max_hold = gauge("watermark_max_hold_seconds", "admission.max_hold")
        self.redis_ahead = gauge("redis_ahead_seconds", "How far Redis calls windows final beyond the watermark")
        self.event_time = EventTime(series)
        self.quality = Quality(series)
        self.views = Views(series)
        self.outlets = Outlets(series)
        self.process = process or ProcessMetrics(series)
        self.stores = StoreMetrics(series, self.process.failures if process is None else None)
        self.unordered = counter("windows_unordered", "Writes of windows without their statistics of order")
        self.values_waiting = gauge("values_waiting", "Open values that are newer in the state than in Redis")
        self.state_rows = gauge("state_rows", "Open windows, devices and devices with a session", "kind")
        self.state_bytes = gauge("state_bytes", "Bytes of the state as it is stored")
        self.state_written = counter("state_written_bytes", "Bytes of the state that batches wrote")
        self.state_changed = counter("state_changed_bytes", "Bytes of the state's rows that batches changed")
        self.state_memory = gauge("state_memory_bytes", "Memory of the engine's state store")
        self._sizes: dict[int, tuple[int, ...]] = {}
        self.reference_age = gauge("reference_age_seconds", "Time since the database last gave a good answer")
        self.reference_rows = gauge("reference_rows", "Devices in the reference in use")
        self.reference_without_zone = gauge("reference_without_zone", "Devices without the time zone that a view needs")
        self.never_devices = gauge("never_devices", "Devices of the reference that have never sent")
        self.reference_kept = gauge("reference_kept", "1 while the last good reference serves on")
        self.reference_failures = counter("reference_failures", "Times without a newer reference", "reason", REASONS)
        self.reference_info = gauge("reference_info", "1 for the version of the reference in use", "version")
        self.last_batch = gauge("last_batch_timestamp_seconds", "When the last batch was finished")
        self.batch = gauge("batch", "The number of the last finished batch")
        self.running = gauge("batch_running_seconds", "For how long the batch that runs has been running; 0 for none")
        self.running.set_function(self._running_s)
        self.epoch = gauge("epoch", "The writer's term")
        self.query_running = gauge("query_running", "1 while the query runs, once it has got through a trigger")
        self.role = gauge("role", "1 for what this process is", "role")
        for role in ROLES:
            self.role.labels(role).set_function(partial(self._is, role))
        self.seconds = Histogram(
            "tidemark_batch_seconds", "Duration of a batch's phases", ["phase"], buckets=BATCH_S, registry=self.registry
        )
        for phase in dict.fromkeys((*_OWN_PHASES, *_PHASES.values())):
            self.seconds.labels(phase)
        self.schedule_delay = Histogram(
            "tidemark_schedule_delay_seconds",
            "From the time that a trigger was due until its batch began to run",
            buckets=BATCH_S,
            registry=self.registry,
        )
        self._schedule = Schedule()
        self.latency = Buckets(
            "tidemark_event_to_redis_seconds",
            "From the broker's time for a reading to Redis having it",
            [bound_ms / 1000 for bound_ms in LATENCY_BOUNDS_MS],
        )
        self.registry.register(self.latency)
        self.latency_limit = gauge(
            "event_to_redis_max_seconds", "10 s and service.trigger: its 99th percentile is less"
        )
        self.latency_limit.set(SLOW_S)
        versions = {"version": tidemark_version(), "spark": spark or version("pyspark")}
        Info("tidemark_build", "What runs", registry=self.registry).info(versions)

    def limits(self, settings: "Settings") -> None:
        self.watermark_delay.set(settings.admission.watermark_delay_ms / 1000)
        self.max_hold.set(settings.admission.max_hold_ms / 1000)
        self.latency_limit.set(SLOW_S + settings.service.trigger_ms / 1000)
        self.serves(settings)
        self.outlets.named(settings.outlets)
        self._schedule = Schedule(settings.service.trigger_ms)
        self.reads(settings)
        self._measures = settings.measures
        self._inputs = [form.label for form in settings.forms]
        for form in settings.forms:
            for measure in form.measures:
                self.measured.labels(form.label, measure)
                self.unmeasured.labels(form.label, measure)
        if settings.reference is not None:
            self.reference_max_age.set(settings.reference.max_age_ms / 1000)

    def reads(self, settings: "Settings") -> None:
        """Show the topics that are read; again when others match the settings."""
        self._topics = settings.kafka.topics
        for topic in self._topics:
            self.topic_rejects.labels(topic)

    def serves(self, settings: "Settings") -> None:
        """Show the views and the columns that they group by; again when they have changed."""
        self.views.named(settings)
        self._columns = settings.grouped_columns
        for name in self._columns:
            self.column_limit.labels(name).set(settings.columns[name])
            self.others.labels(name)

    def keeps(self, retention_ms: Mapping[str, int]) -> None:
        """Show the retention of each topic in ms, -1 for unlimited."""
        for topic, topic_ms in retention_ms.items():
            self.retention.labels(topic).set(topic_ms / 1000 if topic_ms >= 0 else math.inf)

    def batch_begins(self) -> None:
        """Start the clock of a batch, which runs until `batch_ends` or `batch_fails`."""
        with self._lock:
            self._batch_since = clock.monotonic_s()

    def batch_fails(self) -> None:
        """Stop the clock of the batch, if one runs."""
        with self._lock:
            self._batch_since = None

    def batch_ends(self, report: "BatchReport") -> None:
        with self._lock:
            self._batch_since = None
            self._reasons.pop("batch", None)
        micro_batch, outcome = report.micro_batch, report.outcome
        if outcome.admitted:
            self.silent.set(0)
        self.records.inc(micro_batch.rows)
        self.record_bytes.inc(outcome.read_bytes)
        self.batch_limit.set(report.next_limit)
        self.event_time.batch(report)
        self.epoch.set(micro_batch.epoch)
        self.batch.set(micro_batch.batch)
        self.last_batch.set(clock.now_ms() / 1000)
        self.admitted.inc(outcome.admitted)
        self.unknown.inc(outcome.unknown)
        self.lost.inc(report.lost)
        for reason, records in outcome.by_reason.items():
            self.rejects.labels(reason).inc(records)
        for phase, seconds in report.phases.items():
            self.seconds.labels(phase).observe(seconds)
        for kind in _PUBLISHED:
            self.published.labels(kind).inc(getattr(outcome, kind))
        for change in _CHANGES:
            self.sessions.labels(change).inc(getattr(outcome, change))
        for result in _OUTCOMES:
            self.writes.labels(result).inc(getattr(outcome, result))
        self.unordered.inc(outcome.unordered)
        self.values_waiting.set(outcome.waiting)
        # A batch reports the buckets that it changed: after a restart the sums are of the buckets changed since.
        for bucket, *size, written, changed in outcome.sizes:
            self._sizes[bucket] = tuple(size)
            self.state_written.inc(written)
            self.state_changed.inc(changed)
        for kind, rows in zip(_STATE_ROWS, zip(*self._sizes.values(), strict=True), strict=False):
            self.state_rows.labels(kind).set(sum(rows))
        self.state_bytes.set(sum(size[-1] for size in self._sizes.values()))
        self.views.opened([bucket for bucket, *_ in outcome.sizes], outcome.windows_open)
        self.views.finals(micro_batch.watermark_ms)
        self.redis_ahead.set(report.redis_ahead_ms / 1000)
        for topic, records in outcome.topics:
            self.topic_rejects.labels(self._topics[topic]).inc(records)
        for name, values in report.column_values.items():
            self.column_values.labels(name).set(values)
        for each, measure, has, lacks in outcome.measured:
            labels = self._inputs[each], self._measures[measure]
            self.measured.labels(*labels).inc(has)
            self.unmeasured.labels(*labels).inc(lacks)
        for number, records in outcome.others:
            self.others.labels(self._columns[number]).inc(records)
        self.devices.inc(outcome.new_devices)
        self.behind.inc(outcome.by_reason["behind"])
        self.filtered.inc(outcome.filtered)
        self.retries.inc(outcome.retries)
        self.bytes.inc(outcome.bytes)
        self.latency.add(outcome.latency, outcome.latency_ms / 1000)

    def engine(self, progress: "Progress") -> None:
        """Show Spark's phases and the state store's memory of a committed batch."""
        seconds: dict[str, float] = {}
        for name, phase in _PHASES.items():
            if name in progress.durations_ms:
                seconds[phase] = seconds.get(phase, 0.0) + progress.durations_ms[name] / 1000
        for phase, value in seconds.items():
            self.seconds.labels(phase).observe(value)
        self.state_memory.set(progress.state_bytes)
        self.schedule_delay.observe(self._schedule.delay_s(progress))

    def lags(self, lags: "Offsets") -> None:
        """Replace the lags of all partitions; none while they are not known."""
        self.lag_total = sum(sum(partitions.values()) for partitions in lags.values()) if lags else None
        replace(self.lag, {(topic, str(p)): records for topic, each in lags.items() for p, records in each.items()})

    def asked(self, asked_ms: int) -> None:
        """Note when Kafka was asked for the shown lags."""
        self.lag_asked.set(asked_ms / 1000)
        self._lag_asked_s = clock.monotonic_s()

    def forget_kafka(self) -> None:
        """Remove what Kafka has answered: nobody asks it for this pipeline now."""
        self.lags({})
        self._lag_asked_s = math.nan
        self.headroom.clear()

    def idle(self, outcome: "Outcome") -> None:
        self.silent.set(1)
        self.closed_idle.inc(outcome.closed)

    def closes_idle(self, until_ms: int) -> None:
        self.views.finals(until_ms)

    def never_sent(self, devices: int) -> None:
        self.never_devices.set(devices)

    def outlet_writes(self, outlet: str, rows: int, size: int) -> None:
        self.outlets.rows.labels(outlet).inc(rows)
        self.outlets.bytes.labels(outlet).inc(size)

    def outlet_fails(self, outlet: str) -> None:
        self.outlets.failures.labels(outlet).inc()

    def redis_loses_data(self) -> None:
        self.data_lost.inc()

    def fails(self, part: str) -> None:
        self.failures.labels(part).inc()

    def republishes(self, outcome: "Outcome", unrecoverable: tuple[int, int]) -> None:
        for kind in _PUBLISHED[:3]:
            self.republished.labels(kind).inc(getattr(outcome, kind))
        for kind, count in zip(("windows", "sessions"), unrecoverable, strict=True):
            self.unrepublished.labels(kind).inc(count)

    def fills(self, outcome: "Outcome") -> None:
        self.filled.inc(outcome.windows)

    def headrooms(self, rooms: "Headrooms") -> None:
        """Show the headroom of each partition, in seconds; a partition that is not in `rooms` keeps its last one."""
        for topic, partitions in rooms.items():
            for partition, seconds in partitions.items():
                self.headroom.labels(topic, partition).set(seconds)

    def reference(self, version: str, rows: int, age_s: Callable[[], float]) -> None:
        """Show the reference in use; each scrape calls `age_s`."""
        self.reference_age.set_function(age_s)
        self.reference_rows.set(rows)
        if version != self._reference:
            replace(self.reference_info, {(version,): 1})
            self._reference = version

    def note(self, part: str, text: str) -> None:
        """Add a note on a part to /readyz, which stays 200; "" removes it."""
        with self._lock:
            self._notes.pop(part, None)
            if text:
                self._notes[part] = text

    @property
    def notes(self) -> dict[str, str]:
        with self._lock:
            return dict(self._notes)

    def waiting(self, part: str, reason: str, *, standby: bool = False) -> bool:
        """Make /readyz fail for `reason` until `ready(part)`; whether the reason is new. `standby`: another holds the lease."""
        with self._lock:
            self._standby = standby
            former, self._reasons[part] = self._reasons.get(part), reason
            return former != reason

    def ready(self, part: str) -> None:
        with self._lock:
            self._reasons.pop(part, None)

    def begins(self) -> None:
        """Make /readyz fail until the first batch, as at the start of the process."""
        self._forget_query()
        with self._lock:
            self._reasons, self._standby = dict(_BEGINNING), False

    def ended(self, reason: str) -> None:
        """Make /readyz fail for `reason` until `begins`."""
        self._forget_query()
        with self._lock:
            self._reasons, self._notes = {"lease": reason}, {}

    def _forget_query(self) -> None:
        """Remove what only a running query has."""
        self.batch_fails()
        self.query_running.set(0)
        self.forget_kafka()

    def unhealthy(self) -> str:
        """Return why a supervisor should restart the process, "" if it should not."""
        running_s = self._running_s()
        return f"a batch runs for {running_s:.0f} s, the limit is {STUCK_S:.0f} s" if running_s > STUCK_S else ""

    def unready(self) -> str:
        """Return why the service is not ready, "" when it is."""
        with self._lock:
            reasons = list(self._reasons.values())
        return "; ".join(filter(None, [*reasons, self.unhealthy()]))

    def _is(self, role: str) -> bool:
        with self._lock:
            waits, standby = "lease" in self._reasons, self._standby
        if waits:
            return role == ("standby" if standby else "starting")
        return role == ("leader" if self.unready() else "ready")

    def _running_s(self) -> float:
        with self._lock:
            since = self._batch_since
        return clock.monotonic_s() - since if since is not None else 0.0
