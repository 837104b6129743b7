"""The limit of the next batch, from what the last batches took: on machines whose speed is a formula."""

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest

from service.pipeline.back_pressure import COLD, COLD_LEAST, FIRST, GROWTH, BatchLimit, Measured
from tests import minimal

CEILING, TARGET_S = 3_000_000, 5.0
COLD_S = 1.5 * TARGET_S
"""How long a batch of a cold process may take where the rate stays the same."""

Machine = Callable[[int, int], float]
"""Seconds of a batch of so many records, the n-th of the process."""


def batches(machine: Machine, limit: BatchLimit, number: int, size: int = 100) -> Iterator[Measured]:
    """Batches of a backlog that does not end."""
    for n in range(number):
        batch = Measured(limit.records, limit.records * size, machine(limit.records, n))
        yield batch
        limit.measure(batch, is_full=True)


def new() -> BatchLimit:
    return BatchLimit(CEILING, TARGET_S)


def linear(fixed_s: float, records_s: float) -> Machine:
    return lambda records, _: fixed_s + records / records_s


@pytest.mark.parametrize("records_s", [1_000, 25_000, 180_000, 500_000])
def test_batches_of_a_backlog_come_to_the_target_and_never_exceed_it_on_a_steady_machine(records_s: int) -> None:
    took = [batch.seconds for batch in batches(linear(0.2, records_s), new(), 30)]
    slow_s = 4 * TARGET_S  # a first batch of 100 s may be that of a cold process
    assert max(took[1:]) <= (slow_s * 1.05 if took[0] > slow_s else COLD_S)
    assert max(took[2:]) <= max(COLD_S, COLD_LEAST / records_s * 1.05)
    assert max(took[COLD + 1 :]) <= TARGET_S * 1.05
    assert took[-1] == pytest.approx(TARGET_S, rel=0.1)


def test_a_cold_process_begins_small_and_grows_by_a_bounded_factor() -> None:
    """Twenty times slower at first, as a JVM is that compiles."""
    limit = new()
    done = list(batches(lambda records, n: 0.3 + records * (1 + 20 * 0.5**n) / 400_000, limit, 20))
    assert done[0].records == FIRST
    assert all(after.records <= GROWTH * before.records for before, after in pairwise(done))
    assert max(batch.seconds for batch in done) < 2 * TARGET_S
    assert done[-1].seconds == pytest.approx(TARGET_S, rel=0.1)


def warming(fixed_s: float, records_s: float, first_s: float, slower: float, warm_after_s: float) -> Machine:
    """A machine whose first batch takes `first_s` longer, and which is `slower` times slower at first."""
    ran_s = 0.0

    def machine(records: int, n: int) -> float:
        nonlocal ran_s
        ran_s = 0.0 if n == 0 else ran_s
        factor = 1 + slower * math.exp(-ran_s / warm_after_s)
        seconds = (first_s if n == 0 else 0.0) + (fixed_s + records / records_s) * factor
        ran_s += seconds
        return seconds

    return machine


def catch_up(machine: Machine, limit: BatchLimit, backlog: int, replay: int, noise: float, seed: int) -> list[float]:
    """Return the seconds of the batches of a process that begins with a replay of so many records, not full, and a backlog."""
    chance, took = random.Random(seed), [machine(replay, 0)]
    limit.measure(Measured(replay, replay * 100, took[0]), is_full=False)
    while backlog > 0:
        records = min(limit.records, backlog)
        took.append(machine(records, len(took)) * math.exp(chance.gauss(0, noise)))
        limit.measure(Measured(records, records * 100, took[-1]), is_full=records == limit.records)
        backlog -= records
    return took


@pytest.mark.parametrize("replay", [500, 15_000, 60_000])
@pytest.mark.parametrize(
    ("fixed_s", "records_s", "first_s", "slower", "warm_after_s"), [(2.0, 120_000, 4, 2, 15), (0.3, 300_000, 3, 5, 8)]
)
def test_batches_of_a_cold_process_do_not_keep_a_backlog_small(
    replay: int, fixed_s: float, records_s: float, first_s: float, slower: float, warm_after_s: float
) -> None:
    """The first batch, a replay of what was planned before the stop, took 8.7 s for 15,000 records; ten small ones followed."""
    backlog = 6_500_000
    machine = warming(fixed_s, records_s, first_s, slower, warm_after_s)
    took = catch_up(machine, new(), backlog, replay, 0.0, 0)
    ideal = list(
        batches(warming(fixed_s, records_s, first_s, slower, warm_after_s), BatchLimit(400_000, 0), backlog // 400_000)
    )
    assert sum(took) < 1.1 * sum(batch.seconds for batch in ideal)
    assert max(took[1:]) < 2 * TARGET_S


def test_no_batch_exceeds_the_ceiling() -> None:
    assert max(batch.records for batch in batches(linear(0.0, 1e9), new(), 20)) == CEILING
    assert BatchLimit(7, TARGET_S).records == 7
    small = BatchLimit(7, TARGET_S)
    assert {batch.records for batch in batches(linear(9.0, 1.0), small, 5)} == {7}


def test_without_a_target_the_limit_is_the_ceiling() -> None:
    assert {batch.records for batch in batches(linear(60.0, 1.0), BatchLimit(CEILING, 0.0), 5)} == {CEILING}


def test_what_reads_all_there_is_leaves_the_limit() -> None:
    """The rate of such a batch is the input's, not the service's."""
    limit = new()
    for _ in range(100):
        limit.measure(Measured(2_000, 200_000, 0.2), is_full=False)
    assert limit.records == FIRST
    limit.measure(Measured(0, 0, 60.0), is_full=False)
    assert limit.records == FIRST, "a batch without records has no rate"


def test_a_slow_batch_that_was_not_full_lowers_the_limit() -> None:
    """Else a service that slows down under a steady load would read ever larger batches."""
    limit = new()
    list(batches(linear(0.2, 500_000), limit, 20))
    limit.measure(Measured(20_000, 2_000_000, 20.0), is_full=False)
    assert limit.records == pytest.approx(5_000, rel=0.01)


def test_larger_records_count_by_their_bytes() -> None:
    """The machine does 50 MB a second. A record has 100 bytes, then 10,000, and most measured batches were of small ones."""
    limit = new()
    list(batches(linear(0.0, 500_000), limit, 20, size=100))
    former = limit.records
    limit.measure(Measured(former, former * 10_000, former / 5_000), is_full=True)
    assert limit.records == pytest.approx(TARGET_S * 5_000, rel=0.01)
    took = [batch.seconds for batch in batches(lambda records, _: records / 5_000, limit, 10, size=10_000)]
    assert max(took) <= TARGET_S * 1.01


def test_the_largest_of_the_last_records_count_for_the_next_batch() -> None:
    """Batches of small and of large records in turn: after a batch of small ones the limit is that for large ones."""
    limit = new()
    took = []
    for n in range(60):
        size, records_s = ((100, 500_000), (10_000, 5_000))[n // 3 % 2]
        batch = Measured(limit.records, limit.records * size, limit.records / records_s)
        took.append(batch.seconds)
        limit.measure(batch, is_full=True)
    assert max(took[10:]) <= TARGET_S * 1.05
    assert max(took[4:]) <= COLD_S


@pytest.mark.parametrize("after_s", [5.1, 6.0, 19.0])
def test_a_cold_batch_of_few_records_says_nothing_of_larger_ones(after_s: float) -> None:
    """The first batch of a demo: 500 records in six seconds."""
    limit = new()
    limit.measure(Measured(500, 50_000, after_s), is_full=False)
    assert limit.records == COLD_LEAST


def test_a_machine_that_is_slow_and_not_cold_has_two_batches_of_four_targets_at_most() -> None:
    """600 records a second, of which the process knows nothing: its first batch takes minutes."""
    took = [batch.seconds for batch in batches(linear(0.0, 600), new(), 12)]
    assert took[0] > 100
    assert max(took[1:]) <= 4 * TARGET_S * 1.01
    assert took[COLD + 1] == pytest.approx(TARGET_S, rel=0.01)


def test_one_slow_batch_cuts_and_the_next_ones_grow_again() -> None:
    """A pause of the machine."""
    limit = new()
    list(batches(linear(0.2, 500_000), limit, 20))
    before = limit.records
    took = [batch.seconds for batch in batches(lambda r, n: r / 500_000 + (30 if n == 0 else 0), limit, 12)]
    assert took[1] < TARGET_S
    assert limit.records == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("fixed_s", [3.0, 6.0, 20.0])
def test_where_every_batch_has_a_large_fixed_cost_the_throughput_does_not_collapse(
    fixed_s: float, noise: float
) -> None:
    """With smaller batches the service would read less than arrives, for ever: 1,000 a second where it could 4,000."""
    chance = random.Random(7)

    def machine(records: int, _: int) -> float:
        return (fixed_s + records / 6_000) * math.exp(chance.gauss(0, noise))

    done = list(batches(machine, new(), 200))[20:]
    rate = sum(batch.records for batch in done) / sum(batch.seconds for batch in done)
    assert rate > 6_000 / 3, "a batch of twice the fixed cost would give half"
    assert statistics.median(batch.seconds for batch in done) < 3 * max(TARGET_S, fixed_s)


@pytest.mark.parametrize("noise", [0.1, 0.2, 0.4])
def test_noise_neither_stops_nor_inflates_the_batches(noise: float) -> None:
    chance = random.Random(7)
    done = list(batches(lambda r, _: (0.2 + r / 300_000) * math.exp(chance.gauss(0, noise)), new(), 300))[20:]
    assert max(batch.seconds for batch in done) < TARGET_S * math.exp(5 * noise)
    rate = sum(batch.records for batch in done) / sum(batch.seconds for batch in done)
    assert rate > 0.75 * 300_000


def test_a_machine_that_becomes_slow_has_one_long_batch() -> None:
    limit = new()
    list(batches(linear(0.2, 450_000), limit, 30))
    took = [batch.seconds for batch in batches(linear(2.0, 45_000), limit, 10)]
    assert took[0] > 40
    assert max(took[1:]) < 1.5 * TARGET_S


def test_a_longer_trigger_is_the_target_because_a_batch_may_fill_it() -> None:
    def of(**service: str) -> BatchLimit:
        return BatchLimit.of(minimal.settings(service=service))

    assert of().target_s == 5
    assert of(target_batch="2 s").target_s == 2
    assert of(target_batch="2 s", trigger="1 m").target_s == 60
    assert of(target_batch="0 s", trigger="1 m").target_s == 0


_OF_A_MILLION_DEVICES = [
    ((101_602, 117_755, 127_362, 81_803, 70_981, 74_055, 75_978, 74_810), (6.6, 7.2, 7.7, 6.1, 4.9, 5.2, 5.2, 11.6)),
    (
        (139_912, 101_995, 123_598, 140_620, 94_485, 124_473, 148_100, 73_919),
        (10.5, 6.4, 6.8, 7.4, 6.7, 7.4, 8.7, 11.0),
    ),
]
"""Records and seconds of the batches of catch-ups. The last one, of few records, was slow by itself. To a line of least squares
that was a fixed cost, and batches of two and four times as many records followed."""


@pytest.mark.parametrize("measured", _OF_A_MILLION_DEVICES)
def test_one_slow_batch_does_not_make_the_next_ones_large(measured: tuple[Sequence[int], Sequence[float]]) -> None:
    sizes, times = measured
    limit, past = new(), [*zip(sizes, times, strict=True)]
    for records, seconds in [past[0]] * COLD + past:
        limit.measure(Measured(records, records * 56, seconds), is_full=True)
    took = [batch.seconds for batch in batches(linear(1.0, 18_000), limit, 3, size=56)]
    assert max(took) < 2 * TARGET_S
