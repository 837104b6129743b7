"""Decides when all input is silent, and which sessions and devices are due then; without a clock, a thread, Kafka or Redis.

    seen = seen.look(asked_ms, reached)               note the ends of the topics
    line_ms = seen.line_ms(after_ms, watermark_ms)    the event time up to which values are closed; None: input is not silent
    tables.due(line_ms), tables.step(n, line_ms)      close sessions and devices; of windows, those that end by then are due

The idle closer calls it for the service; the executors of the transcripts call it with clocks of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.micro_batch import Offsets
from state import runs
from state.layout import BucketState, Changes
from state.rules import Rules
from state.table import advance, next_expiry

AWAY_MS = 15_000
"""After so long without a successful poll the idle timer restarts: Kafka was probably away, and delayed records come now."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The ends of the topics, `reached`, which have not moved since `since_ms`; the last look was at `asked_ms`."""

    reached: Offsets | None = None
    since_ms: int = 0
    asked_ms: int = 0

    def look(self, asked_ms: int, reached: Offsets | None) -> "Seen":
        """Return the state after one more look.

        `asked_ms` is the clock's time just before the request to Kafka. `reached` are the ends of the topics if committed
        batches have all records, else None. Later records have a broker's time of at least `asked_ms`.
        """
        was_away = asked_ms - self.asked_ms > AWAY_MS
        if reached is None or reached != self.reached or was_away:
            return Seen(reached, asked_ms, asked_ms)
        return replace(self, asked_ms=asked_ms)

    def line_ms(self, after_ms: int, watermark_ms: int = -1) -> int | None:
        """Return the event time up to which values are closed, after `after_ms` (> 0) of silence; None before."""
        line_ms = self.asked_ms - after_ms
        return line_ms if self.reached is not None and line_ms >= self.since_ms and line_ms > watermark_ms else None


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
