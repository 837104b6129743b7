"""Cut a span of event time into parts that are some seconds of work, and find the offsets of each part."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from service.kafka import topics
from service.micro_batch import MicroBatch
from service.recompute import decisions, engine
from service.recompute.decisions import Decisions
from service.recompute.engine import Recomputation, Source, Span
from service.settings import Settings

SPAN_S = 5
"""Of work, at the rate, in one job."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of `readings.admit` of a span, the event time (ms) from which they lack no reading, the number of records, and
    what is lacking, for people."""

    admitted: DataFrame
    whole_from_ms: int
    records: int
    lacking: tuple[str, ...] = ()


class Records(Protocol):
    """Where the records of the past are."""

    def parts(self, span: Span, *, oldest_first: bool = False) -> Iterator[Span]:
        """Cut a span into parts of some seconds of work; corrected readings may begin in one that has no records."""

    def read(self, run: Recomputation, span: Span, decided: Decisions) -> Part:
        """Return the admitted readings of values that begin in a span."""

    def ends_ms(self) -> int | None:
        """Return the event time before which values begin that lack no later record; None if all do."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Offsets by spans of event time, as of a committed batch.

    A value that begins in a span has readings that reached the broker at most `before_ms` before the span and `after_ms` behind
    it. With `is_open` the span that ends at `newest_ms` is read up to the batch. `rate` is in records per second.
    """

    spark: SparkSession
    settings: Settings
    committed: MicroBatch
    before_ms: int
    after_ms: int
    newest_ms: int
    is_open: bool
    rate: int

    def source(self, span: Span) -> Source:
        """Return the offsets with all readings of values that begin in a span. Raises SourceError, CheckpointError."""
        begin_ms = max(0, span[0] - self.before_ms)
        until_ms = None if self.is_open and span[1] == self.newest_ms else span[1] + self.after_ms
        return engine.readable(self.spark, self.settings, self.committed, begin_ms, until_ms)

    def parts(self, span: Span, *, oldest_first: bool = False) -> Iterator[Span]:
        """Cut a span into parts of some seconds of work; the newest first, if not asked else.

        Each is read with what is around it, so a part is not much shorter than that.
        """
        if not topics.have_broker_times(self.settings.kafka):
            return iter([span])
        return halves(
            span, self.after_ms, self.rate, lambda part: records_of(self.source(part)), oldest_first=oldest_first
        )

    def read(self, run: Recomputation, span: Span, decided: Decisions) -> Part:
        """Return the admitted readings of values that begin in a span. Raises SourceError, CheckpointError."""
        source = self.source(span)
        return Part(*decisions.admitted(run, source, decided), records_of(source), source.lacking)

    def ends_ms(self) -> int | None:
        """Return None: Kafka has every record that the batch has read."""
        return None


def halves(
    span: Span, after_ms: int, rate: int, records: Callable[[Span], int], *, oldest_first: bool
) -> Iterator[Span]:
    """Cut a span in halves while they are more than some seconds of work and not much shorter than what is read behind them."""
    waiting = [span]
    while waiting:
        begin_ms, end_ms = waiting.pop()
        many = records((begin_ms, end_ms))
        if many > SPAN_S * rate and end_ms - begin_ms > 2 * after_ms:
            middle_ms = (begin_ms + end_ms) // 2
            both = [(begin_ms, middle_ms), (middle_ms, end_ms)]
            waiting += reversed(both) if oldest_first else both
        elif begin_ms < end_ms:
            yield begin_ms, end_ms


def around_ms(settings: Settings) -> int:
    """Return how much later than its window's start a reading may reach the broker."""
    return max((view.window_ms for view in settings.closing_views), default=0) + settings.admission.max_delay_ms + 1


def records_of(source: Source) -> int:
    """Return the number of offsets of a range."""
    return sum(
        end - source.begin[topic][partition] for topic, ends in source.end.items() for partition, end in ends.items()
    )
