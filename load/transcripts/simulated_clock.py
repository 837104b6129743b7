"""A clock that only the transcript moves, and what silence makes of it, by service/daemon/idle_detection.py."""

from collections import Counter
from collections.abc import Iterable

from load.transcripts.transcript import Fields, Output, Record
from service.daemon.idle_detection import Seen

EVERY_MS = 2_000
"""How often the topics are looked at."""


class SimulatedClock:
    """Silence, as it is seen by somebody who looks at a topic every two seconds."""

    def __init__(self, after_ms: int) -> None:
        self.now_ms = 0
        self.after_ms = after_ms
        self.admitted = 0
        """The readings that were admitted."""
        self._seen = Seen()
        self._ends: Counter[int] = Counter()

    def arrive(self, records: Iterable[Record]) -> None:
        """The clock is never behind the broker's."""
        for record in records:
            self._ends[record.partition] += 1
            self.now_ms = max(self.now_ms, record.at_ms)

    def wait(self, ms: int, unread: Iterable[Record]) -> None:
        """So much time passes, in which nothing arrives, and these records are not read."""
        ends = dict(self._ends)
        reached = ends | {number: ends[number] - n for number, n in Counter(each.partition for each in unread).items()}
        until_ms = self.now_ms + ms
        for asked_ms in (*range(self.now_ms, until_ms, EVERY_MS), until_ms):
            self._seen = self._seen.look(asked_ms, {"readings": ends}, {"readings": reached}, self.admitted)
        self.now_ms = until_ms

    def line_ms(self, watermark_ms: int) -> int | None:
        """Up to where silence closes now, None for nothing."""
        return self._seen.line_ms(self.after_ms, watermark_ms)


def without_revision(output: Output) -> Output:
    """`revision` tells what readers have seen on the way."""
    return {item: _but(fields, "revision") for item, fields in output.items()}


def content(fields: Fields) -> object:
    """Return the content of a window or session. If it changes after silence has closed it, the value is revised."""
    carried = tuple(fields.get(name) for name in ("increase", "integral", "longest_gap"))  # from before the window
    return fields["count"], fields.get("last"), carried


def _but(fields: Fields, name: str) -> Fields:
    return {each: value for each, value in fields.items() if each != name}
