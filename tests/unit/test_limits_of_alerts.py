"""The limits that the page at / and `status --watch` show are those of deploy/alerts.yml."""

import math
import re
from pathlib import Path

import pytest
import yaml

from service.monitoring import limits
from service.monitoring.samples import Samples, Span

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES}
NOT_SHOWN = {"TidemarkAbsent"}
"""A service that does not answer shows nothing."""


def samples(at_s: float, **values: float | dict[str, float]) -> Samples:
    """A metric with labels is given as its values by `name=value` of the labels."""
    by_name = {}
    for name, value in values.items():
        of = value if isinstance(value, dict) else {"": value}
        by_name[name] = [(dict(part.split("=") for part in key.split(",") if part), each) for key, each in of.items()]
    return Samples(by_name, at_s)


def over(now: Samples, before: Samples | None = None) -> set[str]:
    return {each.alert for each in limits.readings(Span(now, before)) if each.is_over}


def test_every_alert_is_shown_with_the_metrics_and_the_number_of_its_rule() -> None:
    names = [each.alert for each in limits.readings(Span(Samples({}, 0)))]
    assert sorted(names) == sorted(set(EXPRESSIONS) - NOT_SHOWN)
    for name, number in (
        ("TidemarkStuck", limits.BATCH_S),
        ("TidemarkBehind", limits.MINUTE_OF_WORK_S),
        ("TidemarkLagUnknown", limits.LAG_AGE_S),
        ("TidemarkRetention", limits.HEADROOM),
        ("TidemarkWatermarkHeld", limits.HELD),
        ("TidemarkPartitionsApart", limits.APART),
        ("TidemarkRejects", limits.REJECTED),
        ("TidemarkInventedDevices", limits.INVENTED),
        ("TidemarkReferenceOld", limits.REFERENCE),
        ("TidemarkOutletAway", limits.OUTLET_AGE_S),
        ("TidemarkOutletFull", limits.OUTLET_FULL),
        ("TidemarkSlow", limits.SLOW_S),
        ("TidemarkFailures", limits.FAILURES),
        ("TidemarkQueryRestarts", limits.RESTARTS),
        ("TidemarkDriverRestarts", limits.RESTARTS),
        ("TidemarkQualityUnchecked", limits.UNCHECKED),
    ):
        written = re.findall(r"[<>*] *([\d.]+)|([\d.]+) \*", EXPRESSIONS[name])
        assert number in {float(each) for pair in written for each in pair if each}, name


@pytest.mark.parametrize(
    ("alert", "now", "before"),
    [
        ("TidemarkNotRunning", {"query_running": 0}, None),
        ("TidemarkNotReady", {"role": {"role=leader": 1, "role=ready": 0}, "lag_records": {"partition=0": 1}}, None),
        ("TidemarkStuck", {"batch_running_seconds": 121}, None),
        ("TidemarkBehind", {"lag_records": 601, "records_total": 100}, {"records_total": 0}),
        ("TidemarkLagUnknown", {"lag_age_seconds": 61}, None),
        (
            "TidemarkRetention",
            {"retention_seconds": {"topic=t": 100}, "retention_headroom_seconds": {"topic=t,partition=1": 24}},
            None,
        ),
        ("TidemarkRecordsLost", {"records_lost_total": 5}, {"records_lost_total": 4}),
        ("TidemarkWatermarkHeld", {"watermark_held_seconds": 901, "watermark_max_hold_seconds": 3600}, None),
        ("TidemarkRejects", {"rejects_total": {"reason=late": 6}, "records_total": 100}, {"records_total": 0}),
        (
            "TidemarkTooManyDevices",
            {"rejects_total": {"reason=too_many_devices": 6, "reason=late": 9}},
            {"rejects_total": {"reason=too_many_devices": 5, "reason=late": 9}},
        ),
        (
            "TidemarkWatermarkStands",
            {"watermark_timestamp_seconds": 7, "readings_admitted_total": 9},
            {"watermark_timestamp_seconds": 7, "readings_admitted_total": 8},
        ),
        ("TidemarkQuality", {"quality_expectation_met": {"expectation=a": 1, "expectation=b": 0}}, None),
        ("TidemarkOutletAway", {"outlet_age_seconds": {"outlet=a": 0, "outlet=b": 61}}, None),
        (
            "TidemarkOutletFull",
            {
                "outlet_max_pending_bytes": {"outlet=a": 100, "outlet=b": 1000},
                "outlet_pending_bytes": {"outlet=a": 51, "outlet=b": 0},
            },
            None,
        ),
        ("TidemarkSlow", {"event_to_redis_seconds_bucket": {"le=0.5": 90, "le=20.0": 100, "le=+Inf": 100}}, {}),
    ],
)
def test_an_alert_is_over_where_its_value_is_above_its_limit(
    alert: str, now: dict[str, float], before: dict[str, float] | None
) -> None:
    assert over(samples(10, **now), samples(0, **before) if before is not None else None) == {alert}


def test_nothing_is_over_in_a_service_that_is_well() -> None:
    well = {"query_running": 1, "lag_records": 10, "records_total": 100, "readings_admitted_total": 100}
    assert over(samples(0, **well)) == set()
    assert over(samples(10, **{**well, "records_total": 200.0}), samples(0, **well)) == set()
    assert over(Samples({}, 0)) == set()


def test_a_counter_of_a_new_process_has_grown_by_its_value() -> None:
    span = Span(samples(9, failures_total={"part=lag": 2}), samples(0, failures_total={"part=lag": 5}))
    assert span.increase("failures_total", part="lag") == 2
    assert math.isnan(span.quantile("event_to_redis_seconds", 0.5))
