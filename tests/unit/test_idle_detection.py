"""When all input is silent: decided from what is seen of the topics, and never while something is left to read."""

from collections.abc import Mapping

from service.daemon.idle_detection import AWAY_MS, Seen

ENDS = {"readings": {0: 5, 1: 9}}
T0 = 1_700_000_000_000


class Quiet:
    """Looks, one after the other."""

    def __init__(self, after_ms: int) -> None:
        self.after_ms = after_ms
        self.seen = Seen()

    def look(
        self, asked_ms: int, reached: Mapping[str, Mapping[int, int]] | None, watermark_ms: int = -1
    ) -> int | None:
        self.seen = self.seen.look(asked_ms, reached)
        return self.seen.line_ms(self.after_ms, watermark_ms)


def test_silence_closes_up_to_the_clock_less_the_setting_once_it_has_lasted_that_long() -> None:
    quiet = Quiet(10_000)
    assert quiet.look(T0, ENDS) is None
    assert quiet.look(T0 + 9_999, ENDS) is None
    assert quiet.look(T0 + 10_000, ENDS) == T0
    assert quiet.look(T0 + 12_000, dict(ENDS)) == T0 + 2_000


def test_nothing_is_closed_while_something_is_left_to_read_and_silence_begins_anew_after_it() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + 10_000, None) is None
    assert quiet.look(T0 + 11_000, ENDS) is None
    assert quiet.look(T0 + 20_999, ENDS) is None
    assert quiet.look(T0 + 21_000, ENDS) == T0 + 11_000


def test_records_that_came_and_were_counted_between_two_looks_end_a_silence() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + 10_000, {"readings": {0: 6, 1: 9}}) is None
    assert quiet.look(T0 + 12_000, {"readings": {0: 6, 1: 9}}) is None


def test_a_time_in_which_kafka_did_not_answer_is_no_silence() -> None:
    quiet = Quiet(20_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + AWAY_MS + 10_001, ENDS) is None
    assert quiet.look(T0 + AWAY_MS + 20_001, ENDS) is None
    assert quiet.look(T0 + AWAY_MS + 30_001, ENDS) == T0 + AWAY_MS + 10_001


def test_a_new_partition_ends_a_silence() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + 10_000, {"readings": {0: 5, 1: 9, 2: 0}}) is None


def test_silence_closes_nothing_that_the_watermark_has_not_left_open() -> None:
    quiet = Quiet(10_000)
    quiet.look(T0, ENDS)
    assert quiet.look(T0 + 10_000, ENDS, watermark_ms=T0 - 1) == T0
    assert quiet.look(T0 + 10_000, ENDS, watermark_ms=T0) is None
