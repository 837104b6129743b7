"""When all input is silent, and what silence closes then: the decision alone, without a clock, a thread, Kafka or Redis.

    seen = seen.look(asked_ms, reached)               what a look at the topics finds, and since when
    line_ms = seen.line_ms(after_ms, watermark_ms)    the event time up to which silence closes, None: it closes nothing
    tables.due(line_ms), tables.step(n, line_ms)      what it closes of sessions and devices; of windows, those that end by then

service/daemon/idle_closer.py does so for the service, and the executors of the transcripts with clocks of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.micro_batch import Offsets
from state import runs
from state.layout import BucketState, Changes
from state.rules import Rules
from state.table import advance, next_expiry

AWAY_MS = 15_000
"""Without a look for this long nobody knows what was silent: Kafka, most likely, and what was held up comes now."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What looks at the topics have found: `reached` has been so since `since_ms`; the last look was at `asked_ms`."""

    reached: Offsets | None = None
    since_ms: int = 0
    asked_ms: int = 0

    def look(self, asked_ms: int, reached: Offsets | None) -> "Seen":
        """After one look more.

        `asked_ms` is the clock just before Kafka was asked; `reached` are the topics' ends when all before them is in
        committed batches, None when it is not. What arrives later has a broker's time of at least `asked_ms`.
        """
        was_away = asked_ms - self.asked_ms > AWAY_MS
        if reached is None or reached != self.reached or was_away:
            return Seen(reached, asked_ms, asked_ms)
        return replace(self, asked_ms=asked_ms)

    def line_ms(self, after_ms: int, watermark_ms: int = -1) -> int | None:
        """The event time up to which silence closes, once it has lasted `after_ms` (> 0); None while it closes nothing."""
        line_ms = self.asked_ms - after_ms
        return line_ms if self.reached is not None and line_ms >= self.since_ms and line_ms > watermark_ms else None


class Tables:
    """The states of all buckets after a batch, moved on by silence; a bucket without open sessions is let go of."""

    def __init__(self, states: Sequence[BucketState], rules: Rules) -> None:
        self._states = [state for state in states if state.runs.num_rows]
        self._rules = rules
        self._none = runs.schema(rules.measures).empty_table()

    def due(self, line_ms: int) -> list[int]:
        """The numbers of those that have something to close; they hold until it is asked again."""
        self._states = [state for state in self._states if state.runs.num_rows]
        expiries = [next_expiry(state, self._rules) for state in self._states]
        return [number for number, expiry in enumerate(expiries) if expiry is not None and expiry < line_ms]

    def step(self, number: int, line_ms: int) -> tuple[BucketState, Changes]:
        """What the watermark would do to a state if it were at `line_ms`."""
        return advance(self._states[number], self._none, line_ms, self._rules)

    def keep(self, number: int, state: BucketState) -> None:
        """The step was published: go on from there."""
        self._states[number] = state
