"""Which of a record's two places counts: its own, or that of the copy that a replay has sent.

A reject that was sent again is in its topic twice. Whatever today's settings admit, **the copy counts, and the original does
not**: the operator has replaced the record, perhaps with other bytes. The marks name the originals (service/rejects/marks.py).

    the stream               rejects the original as `replayed` if it admits it: a new checkpoint reads it with other settings
    computed from Kafka      republish, rebuild, correct, fill, backfill: the original is left out like a reject of the stream
    views without windows    count a late reading where it is read, and so never its copy (readings.COUNTED)

docs/decisions/0047-the-copy-counts.md has the reasons.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from service.admission import readings
from service.micro_batch import MicroBatch, at
from service.rejects import marks
from service.rejects.marks import Mark
from service.rejects.reject_log import Coordinates, Reject
from service.settings import Kafka

STATES = ("replaying", "replayed")
"""States of rejects that were sent again. A run that was killed may have sent those that are `replaying`, or not: the next run
finds out. Until then they count nowhere, or as their copy."""


def is_counted(reject: Reject) -> bool:
    """Whether views without windows count a rejected reading where it is."""
    return reject.reason in readings.LATE and reject.event_ms is not None and reject.event_ms >= 0


def originals(known: Mapping[Coordinates, Mark]) -> dict[Coordinates, bool]:
    """Return the places of rejects that were sent again, and whether views without windows count the readings there."""
    return {place: bool(mark.details.get("counted")) for place, mark in known.items() if mark.state in STATES}


@dataclass(slots=True)
class Originals:
    """The originals, for the batches of a query. A mark that comes later is of a record that the query has read before: see
    service/commands/replay.py."""

    kafka: Kafka
    _places: dict[Coordinates, bool] | None = field(default=None)

    def of_batch(self, micro_batch: MicroBatch) -> tuple[tuple[int, int, int, bool], ...]:
        """Return the originals in a batch, as BatchContext.replaced. Raises SourceError."""
        if self._places is None:
            self._places = originals(marks.read(self.kafka))
        # The query reads nothing before this batch again, and each batch looks at all places that are kept.
        self._places = {
            place: counted
            for place, counted in self._places.items()
            if place.offset >= at(micro_batch.start, place.topic, place.partition, 0)
        }
        return tuple(self._within(micro_batch))

    def _within(self, micro_batch: MicroBatch) -> Iterator[tuple[int, int, int, bool]]:
        for place, counted in (self._places or {}).items():
            begin, end = (at(each, place.topic, place.partition, 0) for each in (micro_batch.start, micro_batch.end))
            if begin <= place.offset < end:
                code = readings.number_of(place.topic, place.partition, self.kafka.topics)
                yield code, place.offset, place.index, counted
