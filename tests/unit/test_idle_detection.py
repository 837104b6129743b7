"""When input is silent: decided from what is seen of the topics, and never while something is left to read."""

from service import clock, settings
from service.daemon.idle_closer import IdleCloser
from service.daemon.idle_detection import AWAY_MS, Seen
from service.micro_batch import Offsets
from service.pipeline.term import Term
from tests.unit.test_settings import document

ENDS = {"readings": {0: 5, 1: 9}}
T0 = 1_700_000_000_000


class Quiet:
    """Looks, one after the other; `reached` is the end by default, and no reading is admitted."""

    def __init__(self, after_ms: int) -> None:
        self.after_ms = after_ms
        self.seen = Seen()

    def look(
        self, asked_ms: int, ends: Offsets, reached: Offsets | None = None, admitted: int = 0, watermark_ms: int = -1
    ) -> int | None:
        self.seen = self.seen.look(asked_ms, ends, ends if reached is None else reached, admitted)
        return self.seen.line_ms(self.after_ms, watermark_ms)


def of(first: int, second: int = 9) -> Offsets:
    return {"readings": {0: first, 1: second}}


def test_silence_closes_up_to_the_clock_less_the_setting_once_it_has_lasted_that_long() -> None:
    quiet = Quiet(10_000)
    assert quiet.look(T0, ENDS) is None
    assert quiet.look(T0 + 9_999, ENDS) is None
    assert quiet.look(T0 + 10_000, ENDS) == T0
    assert quiet.look(T0 + 12_000, dict(ENDS)) == T0 + 2_000


def test_nothing_is_closed_while_something_is_left_to_read() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + 8_000, of(6), ENDS) is None
    assert quiet.look(T0 + 20_000, of(7), ENDS) is None
    assert quiet.look(T0 + 22_000, of(7), of(6)) is None, (
        "what came until the look at 8 s is read, and not what came later"
    )
    assert quiet.look(T0 + 24_000, of(7)) == T0 + 14_000


def test_a_silence_begins_anew_when_a_reading_is_admitted() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + 10_000, of(6), admitted=1) is None
    assert quiet.look(T0 + 12_000, of(6), admitted=1) is None
    assert quiet.look(T0 + 20_000, of(6), admitted=1) == T0 + 10_000


def test_records_of_which_none_is_admitted_end_no_silence_though_one_is_unread_at_every_look() -> None:
    quiet = Quiet(10_000)
    lines = [quiet.look(T0 + 2_000 * n, of(5 + n), of(4 + n)) for n in range(8)]
    assert lines[:6] == [None] * 6
    assert lines[6:] == [T0, T0 + 2_000], "the records that a look has found are read at the next one"


def test_a_time_in_which_kafka_did_not_answer_is_no_silence() -> None:
    quiet = Quiet(20_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + AWAY_MS + 10_001, ENDS) is None
    assert quiet.look(T0 + AWAY_MS + 20_001, ENDS) is None
    assert quiet.look(T0 + AWAY_MS + 30_001, ENDS) == T0 + AWAY_MS + 10_001


def test_the_records_of_a_new_partition_are_read_before_anything_is_closed() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    more = {"readings": {0: 5, 1: 9, 2: 3}}
    assert quiet.look(T0 + 10_000, more, ENDS) is None
    assert quiet.look(T0 + 12_000, more) == T0 + 2_000


def test_silence_closes_nothing_that_the_watermark_has_not_left_open() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + 10_000, ENDS, watermark_ms=T0 - 1) == T0
    assert quiet.look(T0 + 10_000, ENDS, watermark_ms=T0) is None


class Noted(IdleCloser):
    """Notes that there is work, and does none."""

    is_woken = False

    def wake(self) -> None:
        self.is_woken = True


def test_values_that_wait_in_a_backlog_are_left_to_its_next_batch() -> None:
    closer = Noted(Term(None, settings.parse(document(service={"catch_up_update_every": "1 m"})), epoch=1))
    before_ms = clock.steady_ms()
    closer.published(3, 10, moved=True, waiting=5)
    closer.look(before_ms + 59_000, ENDS, of(2))
    assert not closer.is_woken, "it would read the whole state at each look"
    closer.look(clock.steady_ms() + 60_000, ENDS, of(2))
    assert closer.is_woken, "no batch came for as long as values may wait"
