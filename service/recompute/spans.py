"""Cut a span of event time into parts that are some seconds of work, and find the offsets of each part."""

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from service.kafka import topics
from service.micro_batch import MicroBatch
from service.recompute import rebuild
from service.recompute.rebuild import Source, Span
from service.settings import Settings

SPAN_S = 5
"""Of work, at the rate, in one job."""


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
        return rebuild.readable(self.spark, self.settings, self.committed, begin_ms, until_ms)

    def parts(self, span: Span, *, oldest_first: bool = False) -> Iterator[Span]:
        """Cut a span into parts of some seconds of work, without those that have no records; the newest first, if not asked else.

        Each is read with what is around it, so a part is not much shorter than that.
        """
        if not topics.have_broker_times(self.settings.kafka):
            yield span
            return
        waiting = [span]
        while waiting:
            begin_ms, end_ms = waiting.pop()
            records = records_of(self.source((begin_ms, end_ms)))
            if records > SPAN_S * self.rate and end_ms - begin_ms > 2 * self.after_ms:
                middle_ms = (begin_ms + end_ms) // 2
                halves = [(begin_ms, middle_ms), (middle_ms, end_ms)]
                waiting += reversed(halves) if oldest_first else halves
            elif records:
                yield begin_ms, end_ms


def around_ms(settings: Settings) -> int:
    """Return how much later than its window's start a reading may reach the broker."""
    return max((view.window_ms for view in settings.closing_views), default=0) + settings.admission.max_delay_ms + 1


def longest_gap_ms(settings: Settings) -> int:
    """Return the longest session gap: the last reading of an open session is less far behind the watermark."""
    reference, sessions = settings.reference, settings.sessions
    has_own_gaps = reference is not None and reference.session_gap is not None
    return sessions.max_duration_ms if has_own_gaps else sessions.gap_ms


def records_of(source: Source) -> int:
    """Return the number of offsets of a range."""
    return sum(
        end - source.begin[topic][partition] for topic, ends in source.end.items() for partition, end in ends.items()
    )
