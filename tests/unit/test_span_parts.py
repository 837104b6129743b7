"""The parts into which a span of event time is cut."""

import itertools

from service.recompute.sources import halves

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
