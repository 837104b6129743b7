"""What the demo shows: the latency after the warm-up, and what its figures mean."""

import math
from dataclasses import fields

from load.demo.summary import Summary
from load.demo.view import Sample, Samples

SLOW, QUICK = (f'tidemark_event_to_redis_seconds_bucket{{le="{bound}"}}' for bound in (10.0, 0.5))


def sample(at: float, batch: int, *, lag: float, slow: int = 0, quick: int = 0) -> Sample:
    """So many readings in 0.5 to 10 s, and so many in up to 0.5 s."""
    metrics = {
        "tidemark_records_total": float(slow + quick),
        "tidemark_batch": float(batch),
        'tidemark_lag_records{partition="0"}': lag,
        QUICK: float(quick),
        SLOW: float(slow + quick),
    }
    return Sample(at, metrics, [])


def test_the_latency_is_that_after_the_service_has_caught_up() -> None:
    samples = Samples(rate=100, longest_s=30)
    samples.add(sample(0, 0, lag=0))
    samples.add(sample(1, 1, lag=900, slow=100))
    assert math.isnan(samples.latency_ms(0.5))
    assert ("p99", "warm-up") in samples.figures()
    samples.add(sample(2, 3, lag=150, slow=900))
    samples.add(sample(3, 4, lag=150, slow=1_000))
    assert samples.warm is samples.last
    assert samples.caught_up
    samples.add(sample(4, 5, lag=100, slow=1_000, quick=50))
    assert 200 < samples.latency_ms(0.5) < 300  # 9 s with the warm-up
    assert samples.latency_ms(0.99) <= 500


def test_a_warm_up_ends_in_time_although_the_service_has_not_caught_up() -> None:
    samples = Samples(rate=100, longest_s=5)
    for second in range(8):
        samples.add(sample(second, second, lag=10_000, slow=100 * second))
    assert samples.warm is not None
    assert samples.warm.at == 6.0
    assert not samples.caught_up


def test_the_result_explains_each_figure_and_ends_with_the_commands_for_an_own_topic() -> None:
    values = {each.name: 1 for each in fields(Summary)}
    lists = {"latency_ms": {"p50": 290.1, "p99": 441.0}, "rejects": {"late": 3}, "examples": ["a: 1, not 2"]}
    summary = Summary(**{**values, **lists, "ok": False, "caught_up": True})
    lines = list(summary.lines())
    assert any("290 / 441 ms" in line and "from the broker's time" in line for line in lines)
    assert "a: 1, not 2" in lines
    assert next(line for line in lines if line.startswith("DIFFERENT"))
    commands = [line.split("#")[0].strip() for line in lines[-3:]]
    assert [command.split()[:2] for command in commands] == [["tidemark", name] for name in ("init", "check", "run")]


def test_a_run_without_a_batch_after_its_warm_up_says_to_run_longer() -> None:
    values = {each.name: 1 for each in fields(Summary)}
    summary = Summary(**{**values, "latency_ms": {}, "rejects": {}, "examples": [], "caught_up": True})
    [line] = [line for line in summary.lines() if line.startswith("latency")]
    assert line.split(None, 2)[1:] == ["none", "no batch after the warm-up: run longer, such as --for 60s"]
