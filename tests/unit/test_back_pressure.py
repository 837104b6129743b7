"""The limit of the next batch, from what the last batches took: on machines whose speed is a formula."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from service import settings
from service.pipeline.back_pressure import FIRST, GROWTH, LEAST, BatchLimit, Measured

CEILING, TARGET_S = 3_000_000, 5.0

DOCUMENT = {
    "kafka": {"bootstrap": "nowhere:1", "topics": ["readings"]},
    "input": {"format": "json"},
    "views": [{"name": "all", "window": "1 m", "measures": []}],
    "redis": {"url": "redis://nowhere"},
}

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
    assert max(took[1:]) <= max(TARGET_S * 1.05, LEAST / records_s)
    assert took[-1] == pytest.approx(TARGET_S, rel=0.1)


def test_a_cold_process_begins_small_and_grows_by_a_bounded_factor() -> None:
    """Twenty times slower at first, as a JVM is that compiles."""
    limit = new()
    done = list(batches(lambda records, n: 0.3 + records * (1 + 20 * 0.5**n) / 400_000, limit, 20))
    assert done[0].records == FIRST
    assert all(after.records <= GROWTH * before.records for before, after in pairwise(done))
    assert max(batch.seconds for batch in done) < 2 * TARGET_S
    assert done[-1].seconds == pytest.approx(TARGET_S, rel=0.1)


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
    assert limit.records == 5_000


def test_larger_records_count_by_their_bytes() -> None:
    """The machine does 50 MB a second. A record has 100 bytes, then 10,000, and most measured batches were of small ones."""
    limit = new()
    list(batches(linear(0.0, 500_000), limit, 20, size=100))
    former = limit.records
    limit.measure(Measured(former, former * 10_000, former / 5_000), is_full=True)
    assert limit.records == pytest.approx(TARGET_S * 5_000, rel=0.01)
    took = [batch.seconds for batch in batches(lambda records, _: records / 5_000, limit, 10, size=10_000)]
    assert max(took) <= TARGET_S * 1.01


def test_the_slowest_rate_of_bytes_counts_for_records_of_the_present_size() -> None:
    """A slow network: 10 MB a second of small records. Then 80 MB a second of large ones, which may be 10 again."""
    limit = new()
    limit.measure(Measured(100_000, 10_000_000, 1.0), is_full=True)
    limit.measure(Measured(80_000, 80_000_000, 1.0), is_full=True)
    assert limit.records == TARGET_S * 10_000


def test_one_slow_batch_cuts_and_the_next_ones_grow_again() -> None:
    """A pause of the machine."""
    limit = new()
    list(batches(linear(0.2, 500_000), limit, 20))
    before = limit.records
    took = [batch.seconds for batch in batches(lambda r, n: r / 500_000 + (30 if n == 0 else 0), limit, 12)]
    assert took[1] < TARGET_S
    assert limit.records == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize("fixed_s", [6.0, 20.0, 60.0])
def test_where_every_batch_has_a_cost_above_the_target_the_throughput_does_not_collapse(fixed_s: float) -> None:
    """No limit can meet the target there. Batches that shrink on would read less and less with the same cost."""
    limit = new()
    list(batches(linear(0.2, 500_000), limit, 20))
    done = list(batches(linear(fixed_s, 500_000), limit, 200))[20:]
    rate = sum(batch.records for batch in done) / sum(batch.seconds for batch in done)
    assert min(batch.records for batch in done) > 1_000_000 * TARGET_S / fixed_s / 4
    assert rate > 50_000 / fixed_s


def test_noise_neither_stops_nor_inflates_the_batches() -> None:
    """Each batch takes between half and twice its time."""
    limit, factors = new(), (0.5, 1.7, 0.8, 2.0, 1.1, 0.6, 1.4)
    done = list(batches(lambda r, n: (0.2 + r / 300_000) * factors[n % len(factors)], limit, 300))[10:]
    assert max(batch.seconds for batch in done) < 3 * TARGET_S
    assert min(batch.records for batch in done) > 300_000 * TARGET_S / 10


def test_a_longer_trigger_is_the_target_because_a_batch_may_fill_it() -> None:
    def of(**service: str) -> BatchLimit:
        return BatchLimit.of(settings.parse({**DOCUMENT, "service": {"checkpoint": "c", **service}}))

    assert of().target_s == 5
    assert of(target_batch="2 s").target_s == 2
    assert of(target_batch="2 s", trigger="1 m").target_s == 60
    assert of(target_batch="0 s", trigger="1 m").target_s == 0
