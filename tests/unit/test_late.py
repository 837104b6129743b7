"""Which late readings a correction is about."""

from service.recompute.late import Log
from service.rejects.marks import Mark, State
from service.rejects.reject_log import Coordinates, Reject

STATES: tuple[State, ...] = ("open", "correcting", "corrected", "replaying", "replayed")


def place(offset: int) -> Coordinates:
    return Coordinates("readings", 0, offset)


def log() -> Log:
    """One of each state in the span, at offsets 0 to 4, and one of each beyond it, from 10 on; 5 has no mark."""
    offsets = [*range(6), *range(10, 15)]
    rejects = {place(n): Reject(place(n), "late", "", n, 1, 1, None, b"", ()) for n in offsets}
    marks = {place(n): Mark(place(n), STATES[n % 10], {}) for n in offsets if n != 5}
    return Log(rejects, {place(n) for n in range(6)}, marks, -1)


def test_what_is_to_be_corrected() -> None:
    assert [each.offset for each in log().todo(again=False)] == [0, 1, 5, 11]
    assert [each.offset for each in log().todo(again=True)] == [0, 1, 2, 5, 11]
    assert [reject.place.offset for reject in log().in_values()] == [1, 2, 11, 12]
