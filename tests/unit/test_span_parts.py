"""The parts into which a span of event time is cut, and the pauses between them."""

import itertools
from collections.abc import Iterator
from typing import Any

from service.recompute import job
from service.recompute.decisions import Decisions
from service.recompute.sources import Part, halves

HOUR = 3_600_000


def test_the_parts_of_a_span_have_the_times_without_records() -> None:
    """All devices were offline from hour 4 to 12, and what they sent at hour 13 was corrected."""
    after_ms, rate = HOUR, 1

    def records(span: tuple[int, int]) -> int:
        until = span[1] + after_ms
        online = [(0, 4 * HOUR), (12 * HOUR, 16 * HOUR)]
        return sum(max(0, min(until, end) - max(span[0], begin)) for begin, end in online) // 1000

    parts = list(halves((0, 16 * HOUR), after_ms, rate, records, oldest_first=True))
    assert len(parts) > 2
    assert parts[0][0] == 0
    assert parts[-1][1] == 16 * HOUR
    assert all(before[1] == part[0] for before, part in itertools.pairwise(parts))
    newest_first = list(halves((0, 16 * HOUR), after_ms, rate, records, oldest_first=False))
    assert newest_first == parts[::-1]
    assert not list(halves((HOUR, HOUR), after_ms, rate, records, oldest_first=True))


class Hundred:
    """A hundred records in each second of event time."""

    def parts(self, span: tuple[int, int], rate: int, *, oldest_first: bool) -> Iterator[tuple[int, int]]:
        assert oldest_first
        return iter([(ms, ms + 1000) for ms in range(*span, rate * 10)])

    def read(self, run: Any, span: tuple[int, int], _decided: Decisions) -> Part:
        return Part(run, span[0], 100)

    def ends_ms(self) -> None:
        return None


def test_no_more_records_are_read_in_a_second_than_the_rate() -> None:
    rests: list[float] = []
    run: Any = None
    parts = job.parts(run, Hundred(), (0, 3000), Decisions({}), 100, oldest_first=True, rest=rests.append)
    for number, (span, read) in enumerate(parts):
        assert (span[0], read.whole_from_ms, len(rests)) == (number * 1000, number * 1000, number)
    assert len(rests) == 3
    assert all(0.0 < each <= 1.0 for each in rests)
