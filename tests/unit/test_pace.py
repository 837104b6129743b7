"""The comparison of two trees: what the figures of the rounds give."""

from load.bench import pace
from load.bench.pace import OTHER, THIS, Measured


def measured(jvm: float, python: float = 20.0, redis: float = 10.0) -> Measured:
    return Measured({"jvm": jvm, "python": python, "redis": redis}, 200.0, 2_000)


def test_a_ratio_is_the_median_of_the_rounds_so_one_disturbed_round_decides_nothing() -> None:
    rounds = [
        {THIS: measured(80.0), OTHER: measured(80.0)},
        {THIS: measured(160.0), OTHER: measured(80.0)},
        {THIS: measured(82.0), OTHER: measured(80.0)},
    ]
    figures = pace.compared(rounds)
    assert figures["jvm"] == {THIS: 82.0, OTHER: 80.0, "ratio": 1.025}
    assert figures["memory_mb"]["ratio"] == 1.0


def test_more_than_five_per_cent_of_any_part_is_named() -> None:
    rounds = [{THIS: measured(83.9, redis=10.6), OTHER: measured(80.0)}]
    report = {"against": "0.2.0", "devices": {"10000": pace.compared(rounds)}}
    assert pace.slower(report) == ["redis at 10000 devices: 1.06"]
    assert "10000 redis" in " ".join(pace.table(report).split())
