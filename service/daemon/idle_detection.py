"""Decides when input is silent, and which sessions and devices are due then; without a clock, a thread, Kafka or Redis.

    seen = seen.look(asked_ms, ends, reached, admitted)   note the ends of the topics and what batches have admitted
    line_ms = seen.line_ms(after_ms, watermark_ms)        the event time up to which values are closed; None: not silent
    tables.due(line_ms), tables.step(n, line_ms)          close sessions and devices; of windows, those that end by then are due

Input is silent when no reading was admitted and every record is read. Records that are filtered or rejected do not end a silence.
The idle closer calls it for the service, and the random walks with a clock of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.micro_batch import Offsets, ranges
from state import runs
from state.layout import BucketState, Changes
from state.rules import Rules
from state.table import advance, next_expiry

AWAY_MS = 15_000
"""After so long without a successful poll the idle timer restarts: Kafka was probably away, and delayed records come now."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The last look at the topics was at `asked_ms`. Since `since_ms` no reading was admitted; `admitted` readings were before.

    Committed batches have every record that Kafka had at `read_ms`, or earlier. `unread` are the time of a look and the ends of
    the topics at that time, until committed batches have reached these.
    """

    since_ms: int = 0
    asked_ms: int = 0
    admitted: int = -1
    read_ms: int = 0
    unread: tuple[int, Offsets] | None = None

    def look(self, asked_ms: int, ends: Offsets, reached: Offsets, admitted: int) -> "Seen":
        """Return the state after one more look.

        `asked_ms` is the clock's time just before the request to Kafka, `ends` are the ends of the topics, `reached` the offsets
        up to which batches are committed. `admitted` is the number of readings that these batches have admitted, or more.
        Records that are not read yet have a broker's time of at least `read_ms`.
        """
        was_away = asked_ms - self.asked_ms > AWAY_MS
        since_ms = asked_ms if was_away or admitted != self.admitted else self.since_ms
        # With a record every second some record is unread at almost every look: ends of an earlier look are reached by this one.
        for unread in filter(None, ((asked_ms, ends), self.unread)):
            if all(done >= end for *_, done, end in ranges(reached, unread[1])):
                left = None if unread[0] == asked_ms else (asked_ms, ends)
                return Seen(since_ms, asked_ms, admitted, unread[0], left)
        return Seen(since_ms, asked_ms, admitted, self.read_ms, self.unread or (asked_ms, ends))

    def line_ms(self, after_ms: int, watermark_ms: int = -1) -> int | None:
        """Return the event time up to which values are closed, after `after_ms` (> 0) of silence; None before."""
        line_ms = self.read_ms - after_ms
        return line_ms if line_ms >= self.since_ms and line_ms > watermark_ms else None


class Tables:
    """The states of all buckets that have open sessions, after a batch and after what the idle closer has closed since."""

    def __init__(self, states: Sequence[BucketState], rules: Rules) -> None:
        self._states = [state for state in states if state.runs.num_rows]
        self._rules = rules
        self._none = runs.schema(rules.measures).empty_table()

    def due(self, line_ms: int) -> list[int]:
        """Return the numbers of the states with something to close; they are valid until the next call."""
        self._states = [state for state in self._states if state.runs.num_rows]
        expiries = [next_expiry(state, self._rules) for state in self._states]
        return [number for number, expiry in enumerate(expiries) if expiry is not None and expiry < line_ms]

    def step(self, number: int, line_ms: int) -> tuple[BucketState, Changes]:
        """Return the state and the changes that a watermark of `line_ms` would cause."""
        return advance(self._states[number], self._none, line_ms, self._rules)

    def keep(self, number: int, state: BucketState) -> None:
        """Replace a state after its changes were published."""
        self._states[number] = state
