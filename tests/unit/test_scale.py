"""What large rates need, computed from a report of the benchmark."""

import pytest

from load.bench.scale import BUSY, MOST_PRIMARIES, Costs, Load, merged, needs, walls
from service.errors import SetupError

BUSY_RUN = {"service": 4.0, "redis": 12.0, "kafka": 0.5, "rows": 2.5, "kafka_bytes": 80.0, "redis_bytes": 500.0}
REPORT = {
    "machine": {"cores": 2},
    "runs": [
        {
            "large": {"catch_up": {"per_reading": BUSY_RUN}, "steady": {"rows_per_reading": 2.75}},
            "state": {"bytes_per_row": 75.0},
            "floor": {"per_second": 2_000_000.0},
            "rows": {"one_us": 6.0, "shards_us": 6.5},
        }
    ],
}
COSTS = Costs.of(REPORT)


def test_costs_are_those_of_the_large_fleet() -> None:
    assert (COSTS.service_us, COSTS.row_us, COSTS.rows, COSTS.row_bytes) == (4.0, 4.8, 2.75, 200.0)
    assert COSTS.partition_rate == 1_000_000
    assert COSTS.shard_s == pytest.approx(0.5e-6 * 60_000 / 11)


def test_needs_grow_with_the_rate_and_rows_fall_where_a_batch_has_several_readings_of_a_device() -> None:
    one, ten = (needs(COSTS, Load(rate, 10.0, 5.0)) for rate in (1e6, 1e7))
    assert one["cores"] == round(1e6 * 4e-6 / BUSY + 0.5) == 7
    assert one["primaries"] == 22
    assert (one["shards"], one["partitions"], one["devices"]) == (88, 7, 1e7)
    assert ten["kafka_gbit"] == pytest.approx(10 * one["kafka_gbit"])
    assert needs(COSTS, Load(1e6, 1.0, 5.0))["rows_per_second"] == pytest.approx(one["rows_per_second"] / 5)


def test_the_first_wall_is_named_first() -> None:
    found = walls(COSTS, Load(1e6, 10.0, 5.0))
    assert list(found.values()) == sorted(found.values())
    assert next(iter(found)) == "one Redis"
    assert found["the nodes of a Redis Cluster"] == pytest.approx(MOST_PRIMARIES * found["one Redis"], rel=1e-3)
    assert needs(COSTS, Load(0.999 * found["one Redis"], 10.0, 5.0))["primaries"] == 1


def test_a_report_of_an_older_version_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match="The report lacks 'runs'"):
        Costs.of({"machine": {"cores": 2}})


def test_reports_of_parts_count_as_one() -> None:
    [run] = REPORT["runs"]
    large = run["large"]
    parts = [
        {"machine": {"cores": 2}, "runs": [{"large": {"catch_up": large["catch_up"]}, "floor": run["floor"]}]},
        {"machine": {"cores": 2}, "runs": [{"large": {"steady": large["steady"]}, "state": run["state"]}]},
        {"machine": {"cores": 2}, "runs": [{"rows": run["rows"]}]},
    ]
    assert Costs.of(merged(parts)) == COSTS
