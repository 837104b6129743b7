"""The alert rules: the one list of what needs attention, with limits, durations and texts.

The service evaluates the rules over its own metrics and serves the result at /conditions (service/monitoring/conditions.py).
`tidemark status`, the page at / and the dashboard show that. `python -m load.manifests` writes the same rules for Prometheus:
deploy/alerts.yml and the PrometheusRule. CONTRIBUTING.md says how to add one.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

RUNBOOK = "deploy/runbook.md"

_JOBS = 'job=~"(.+/)?tidemark.*"'
"""The scrape jobs of Tidemark, by name: `tidemark-berlin`, and `<namespace>/tidemark` of the Prometheus operator."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of Prometheus. `expr` is PromQL, `summary` a template of Prometheus, `for_` a duration of Prometheus or "".

    `anchor` is the heading of the runbook that says what to do. `prometheus_only` marks a rule about other processes than the one
    that evaluates: that a process is absent, or that several took turns.
    """

    alert: str
    expr: str
    summary: str
    severity: Literal["page", "warn"]
    for_: str = ""
    anchor: str = "alerts"
    prometheus_only: bool = False
    command: str = "status --watch"
    """What `tidemark` shows or tries first when the rule fires: words without --config."""

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.anchor}"

    def document(self) -> dict[str, Any]:
        """Return the rule as a rule file of Prometheus has it."""
        return {
            "alert": self.alert,
            "expr": self.expr,
            **({"for": self.for_} if self.for_ else {}),
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook_url": self.runbook},
        }


RULES: tuple[Rule, ...] = (
    # Nothing is served, or not for long.
    Rule(
        "TidemarkAbsent",
        # A job without an instance that serves these metrics; then a job that Prometheus has no target of any more, or a pipeline
        # that its process has no longer; then no job at all. The first and the last do not end by themselves.
        f"group by (job) (up{{{_JOBS}}}) unless group by (job) (up and on (instance) tidemark_build_info) or "
        "group by (job) (last_over_time(tidemark_build_info[6h])) unless group by (job) (tidemark_build_info) or "
        f'label_replace(absent(up{{{_JOBS}}}), "job", "tidemark", "", "")',
        "No metrics of {{ $labels.job }} for two minutes",
        "page",
        for_="2m",
        prometheus_only=True,
    ),
    Rule(
        "TidemarkNotRunning",
        "max by (job) (tidemark_query_running) == 0",
        "No instance of {{ $labels.job }} gets through a trigger: Redis or Kafka is away, or nothing leads",
        "page",
        for_="2m",
        anchor="tidemarknotrunning",
        command="check",
    ),
    Rule(
        "TidemarkNotReady",
        'tidemark_role{role="leader"} == 1 and on (job, instance) sum by (job, instance) (tidemark_lag_records) > 0',
        "{{ $labels.instance }} holds the lease, has records to read, and is not ready",
        "page",
        for_="5m",
    ),
    Rule(
        "TidemarkStuck",
        "tidemark_batch_running_seconds > 120",
        "A batch has been running for {{ $value | humanizeDuration }}",
        "page",
        anchor="tidemarkstuck",
        command="status -n 20",
    ),
    Rule(
        "TidemarkBehind",
        "sum by (job, instance) (tidemark_lag_records) > 60 * sum by (job, instance) "
        "(rate(tidemark_records_total[10m]))",
        "{{ $value | humanize }} records behind: more than a minute's work",
        "page",
        for_="10m",
        command="status -n 20",
    ),
    Rule(
        "TidemarkLagUnknown",
        'tidemark_lag_age_seconds > 60 and on (job, instance) tidemark_role{role=~"leader|ready"} == 1',
        "Kafka has not answered for {{ $value | humanizeDuration }}: the lag is unknown",
        "page",
        for_="2m",
        command="check",
    ),
    Rule(
        "TidemarkQueryRestarts",
        "sum by (job, instance) (increase(tidemark_query_restarts_total[15m])) > 3",
        "The query restarts again and again",
        "warn",
        command="check",
    ),
    Rule(
        "TidemarkDriverRestarts",
        # A process that waits for the lease has epoch 0.
        "changes((max by (job) (tidemark_epoch) > 0)[30m:1m]) > 3",
        "The fourth new epoch in half an hour: the driver restarts, or two instances take turns",
        "page",
        prometheus_only=True,
    ),
    Rule(
        "TidemarkUnreadable",
        "max by (job) (max_over_time(tidemark_unreadable_offsets[10m])) > 0",
        "{{ $value }} offsets end every process of {{ $labels.job }} that reads them: it goes on when they are skipped",
        "page",
        command="skip --help",
    ),
    # Data is lost, or about to be.
    Rule(
        "TidemarkRetention",
        "min by (job, instance, topic) (tidemark_retention_headroom_seconds) "
        "< on (job, instance, topic) 0.25 * tidemark_retention_seconds",
        "Kafka deletes unread records of {{ $labels.topic }} in {{ $value | humanizeDuration }} if the service stops",
        "page",
        command="status -n 20",
    ),
    Rule(
        "TidemarkRecordsLost",
        "increase(tidemark_records_lost_total[10m]) > 0",
        "Records were deleted before they were read",
        "page",
    ),
    Rule(
        "TidemarkRedisLostData",
        "increase(tidemark_redis_data_lost_total[10m]) > 0",
        "Redis was found without what it had acknowledged",
        "page",
        anchor="tidemarkredislostdata",
        command="republish --dry-run",
    ),
    Rule(
        "TidemarkRedisEvicts",
        "tidemark_redis_evicts == 1",
        "The maxmemory-policy of the Redis with shard {{ $labels.shard }} is not noeviction: at its limit it removes values",
        "warn",
        command="check",
    ),
    Rule(
        "TidemarkValuesLost",
        "sum by (job, instance) (increase(tidemark_unrepublished_total[1h])) > 0",
        "Redis lost values that Kafka no longer has all readings of",
        "page",
        command="republish --dry-run",
    ),
    Rule(
        "TidemarkReadingsBehind",
        "increase(tidemark_readings_behind_total[10m]) > 0",
        "Readings came behind the watermark and were rejected as late",
        "warn",
        anchor="tidemarkreadingsbehind",
        command="rejects list --since 10m --reason behind",
    ),
    Rule(
        "TidemarkWatermarkHeld",
        "tidemark_watermark_held_seconds > 0.25 * tidemark_watermark_max_hold_seconds",
        "Partitions with unread records hold the watermark back by {{ $value | humanizeDuration }}",
        "warn",
        for_="5m",
        anchor="tidemarkwatermarkheld",
    ),
    Rule(
        "TidemarkFinalsOld",
        "(tidemark_final_window_age_seconds > on (job, instance, view) tidemark_final_window_max_age_seconds) "
        "and on (job, instance) tidemark_query_running == 1",
        "The newest final window of {{ $labels.view }} ended {{ $value | humanizeDuration }} ago: no window closes",
        "warn",
        for_="5m",
    ),
    Rule(
        "TidemarkRedisAhead",
        "tidemark_redis_ahead_seconds > 0",
        "Redis calls windows final {{ $value | humanizeDuration }} beyond the watermark: it refuses new windows until there",
        "warn",
        for_="10m",
    ),
    Rule(
        "TidemarkPartitionsApart",
        "tidemark_event_spread_seconds > 0.5 * tidemark_watermark_delay_seconds",
        "The partitions' event times are {{ $value | humanizeDuration }} apart: beyond max_delay "
        "+ max_ahead readings are late",
        "warn",
        for_="5m",
    ),
    # What is published is not what it should be.
    Rule(
        "TidemarkRejects",
        "sum by (job, instance) (rate(tidemark_rejects_total[10m])) > 0.05 * sum by (job, "
        "instance) (rate(tidemark_records_total[10m]))",
        "More than one record in twenty is rejected",
        "warn",
        for_="10m",
        anchor="tidemarkrejects",
        command="rejects list --since 10m",
    ),
    Rule(
        "TidemarkInventedDevices",
        "increase(tidemark_devices_new_total[10m]) > 0.2 * increase(tidemark_readings_admitted_total[10m])",
        "More than one reading in five is of a device that Redis did not have: {{ $value | humanize }} in ten minutes",
        "warn",
        for_="5m",
        anchor="tidemarkinventeddevices",
        command="devices -n 20",
    ),
    Rule(
        "TidemarkTooManyDevices",
        'increase(tidemark_rejects_total{reason="too_many_devices"}[10m]) > 0',
        "The state has admission.max_devices devices: readings of {{ $value | humanize }} records were of others, and rejected",
        "page",
        anchor="tidemarktoomanydevices",
        command="rejects list --since 10m --reason too_many_devices",
    ),
    Rule(
        "TidemarkTooManyValues",
        "tidemark_column_values >= tidemark_column_max_values and on (job, instance, column) "
        "increase(tidemark_readings_other_value_total[10m]) > 0",
        "The column {{ $labels.column }} has as many values as max_values allows: readings of others count as (other)",
        "warn",
        anchor="tidemarktoomanyvalues",
        command="try",
    ),
    Rule(
        "TidemarkMeasureAbsent",
        "increase(tidemark_measure_readings_total[1h]) == 0 and increase(tidemark_measure_missing_readings_total[1h]) > 0",
        "None of {{ $labels.input }}'s readings has the measure {{ $labels.measure }}: its views have no value",
        "warn",
        for_="15m",
        anchor="tidemarkmeasureabsent",
        command="try",
    ),
    Rule(
        "TidemarkLimitNear",
        "100 * tidemark_limit_used_ratio > 70",
        "{{ $value | humanize }} % of the limit of {{ $labels.limit }} is used: at 90 % of files or threads the service ends",
        "warn",
        for_="5m",
        anchor="tidemarklimitnear",
    ),
    Rule(
        "TidemarkSkewedDevices",
        "tidemark_skewed_devices > 0",
        "{{ $value }} devices have clocks that are ahead; their readings are rejected",
        "warn",
        for_="10m",
        command="devices --skewed",
    ),
    Rule(
        "TidemarkSchemas",
        "sum by (job, instance, result) "
        '(increase(tidemark_schema_lookups_total{result=~"failed|unusable|full"}[10m])) > 0',
        "Schema ids could not be looked up ({{ $labels.result }}): their readings are rejected",
        "warn",
        anchor="tidemarkschemas",
        command="rejects list --since 10m --reason unknown_schema",
    ),
    Rule(
        "TidemarkWatermarkStands",
        "changes(tidemark_watermark_timestamp_seconds[10m]) == 0 and rate(tidemark_readings_admitted_total[10m]) > 0",
        "Readings come, and event time stands still: nothing becomes final",
        "warn",
        command="try",
    ),
    Rule(
        "TidemarkQuality",
        "tidemark_quality_expectation_met == 0",
        "The readings are not as expected: {{ $labels.expectation }}",
        "warn",
        for_="15m",
        anchor="tidemarkquality",
    ),
    Rule(
        "TidemarkQualityUnchecked",
        "increase(tidemark_quality_failures_total[1h]) > 3",
        "Samples of the readings cannot be checked; the service goes on",
        "warn",
        anchor="tidemarkqualityunchecked",
    ),
    Rule(
        "TidemarkReferenceKept",
        "tidemark_reference_kept == 1",
        "No newer reference for a quarter of an hour: the last good one serves on",
        "warn",
        for_="15m",
        command="check",
    ),
    Rule(
        "TidemarkReferenceOld",
        "tidemark_reference_age_seconds > 0.25 * tidemark_reference_max_age_seconds",
        "The database last gave a good reference {{ $value | humanizeDuration }} ago; at "
        "reference.max_age the service ends",
        "page",
        command="check",
    ),
    Rule(
        "TidemarkOutletAway",
        # A batch that waits for the outlet fails and comes again: between two attempts nothing is lacking.
        "max_over_time(tidemark_outlet_age_seconds[2m]) > 60",
        "The outlet {{ $labels.outlet }} lacks finals that are {{ $value | humanizeDuration }} old",
        "warn",
        for_="5m",
        anchor="tidemarkoutletaway",
        command="check",
    ),
    Rule(
        "TidemarkOutletFull",
        "max_over_time(tidemark_outlet_pending_bytes[2m]) > 0.5 * tidemark_outlet_max_pending_bytes",
        "{{ $value | humanize1024 }}B are kept for the outlet {{ $labels.outlet }}; at max_pending batches wait for it",
        "page",
        anchor="tidemarkoutletfull",
        command="check",
    ),
    Rule(
        "TidemarkOutletRefuses",
        "tidemark_outlet_refused_rows > 0",
        "The outlet {{ $labels.outlet }} refuses {{ $value | humanize }} rows for what they hold, and lacks them",
        "warn",
        anchor="tidemarkoutletrefuses",
        command="check",
    ),
    Rule(
        "TidemarkSlow",
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(tidemark_event_to_redis_seconds_bucket[5m]))) "
        "> on (job, instance) tidemark_event_to_redis_max_seconds",
        "One reading in a hundred takes more than {{ $value | humanizeDuration }} to Redis",
        "warn",
        for_="10m",
        command="status -n 20",
    ),
    Rule(
        "TidemarkFailures",
        "sum by (job, instance, part) (increase(tidemark_failures_total[30m])) > 3",
        "{{ $labels.part }} fails again and again; the service goes on",
        "warn",
    ),
)


def rules(environment: Mapping[str, str] = os.environ) -> Sequence[Rule]:
    """Return the rules of this process.

    With `TIDEMARK_ALERTS=FILE` and `TIDEMARK_TEST=1` they are those of the JSON file: `make observe` shortens their times.
    """
    file = environment.get("TIDEMARK_ALERTS")
    if not file or environment.get("TIDEMARK_TEST") != "1":
        return RULES
    names = {each.name for each in fields(Rule)}
    documents = json.loads(Path(file).read_text(encoding="utf-8"))
    return [Rule(**{name: value for name, value in each.items() if name in names}) for each in documents]
