"""Where views without windows begin: the event time from which each has all readings.

    endless/views.json    in the checkpoint: an entry for each view and measure

A view begins with the first batch that runs with it, and ends with the first batch that runs without it. The entry is written
before that batch runs, so that a replay has the same. The state drops a view's values in the batch in which the view ends
(state/windows.py); Redis keeps them until the next batch begins, when the batch without the view is committed.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from service import clock
from service.checkpoint.document import Document
from service.kafka import offsets
from service.micro_batch import MicroBatch
from service.settings import Kafka
from service.spark.files import Folder

Pair = tuple[str, str]
"""View and measure."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A view and measure without windows: `began` is its first batch, `ended` the first one without it."""

    view: str
    measure: str
    from_ms: int
    began: int
    ended: int | None = None

    @property
    def pair(self) -> Pair:
        return self.view, self.measure


DOCUMENT = Document[tuple[Beginning, ...]]("endless/views.json", tuple[Beginning, ...])


@dataclass(slots=True)
class Beginnings:
    """The entries, for the one writer. Raises CheckpointError or SetupError (a full disk)."""

    files: Folder
    _entries: tuple[Beginning, ...] | None = None

    def over(self, batch: int) -> dict[str, list[str]]:
        """Return the measures by view that ended before this batch: their values are to be removed from Redis."""
        gone: dict[str, list[str]] = {}
        for each in self._all():
            if each.ended is not None and each.ended < batch:
                gone.setdefault(each.view, []).append(each.measure)
        return gone

    def is_over(self, view: str, batch: int) -> bool:
        """Whether no measure of a view has values in a batch: all ended before it, with the batch before at the latest."""
        return all(each.ended is not None and each.ended < batch for each in self._all() if each.view == view)

    def of_batch(
        self, batch: int, wanted: Collection[Pair], complete_from: Callable[[], int], fence: Callable[[], object]
    ) -> dict[Pair, int]:
        """Return the event time from which each wanted view and measure has all readings, in a batch that begins with these.

        `complete_from` is that of a view that begins with the batch. `fence` is called before the entries are written, and raises
        FencedError when there is another writer. What is `over` is forgotten.
        """
        entries = []
        for each in self._all():
            if each.ended is not None and each.ended < batch:
                continue
            # A replay may run with other settings than the attempt before it: the view then ends, or does not end, in this batch.
            ended = None if each.pair in wanted else batch if each.ended is None else each.ended
            entries.append(replace(each, ended=ended))
        known = {each.pair for each in entries}
        if new := [pair for pair in wanted if pair not in known]:
            from_ms = complete_from()
            entries += [Beginning(*pair, from_ms, batch) for pair in new]
        if tuple(entries) != self._all():
            fence()
            DOCUMENT.write(self.files, tuple(entries))
            self._entries = tuple(entries)
        return {each.pair: each.from_ms for each in entries if each.ended is None}

    def _all(self) -> tuple[Beginning, ...]:
        if self._entries is None:
            self._entries = read(self.files)
        return self._entries


def read(folder: Folder) -> tuple[Beginning, ...]:
    """Return the entries of a checkpoint. Raises CheckpointError."""
    return DOCUMENT.read(folder) or ()


def stored(folder: Folder, wanted: Collection[Pair]) -> dict[Pair, int]:
    """Return the event time from which each wanted view and measure has all readings, without those that have not begun."""
    return {each.pair: each.from_ms for each in read(folder) if each.pair in wanted} if wanted else {}


def complete_from_ms(kafka: Kafka, micro_batch: MicroBatch, max_ahead_ms: int) -> int:
    """Return the event time from which the records from a batch's start on have all readings; 0 if they are all records.

    Earlier records are not younger than the first one that is read (LogAppendTime), and a reading is at most `max_ahead_ms` ahead
    of its record. Raises SourceError.
    """
    starts = {
        (t, p): offset for t, partitions in micro_batch.start.items() for p, offset in partitions.items() if offset
    }
    if not starts:
        return 0
    now_ms, written = clock.now_ms(), offsets.written(kafka, starts)
    return max(written.get(place, now_ms) for place in starts) + max_ahead_ms + 1
