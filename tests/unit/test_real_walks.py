"""The plain lists of walks on real parts: they must be right on their own."""

from collections.abc import Mapping

from load.walks.real.plain import EITHER, IN, OUT, Record, Rules, Stream, choices, value

SITES = {"d1": "north", "d2": "south"}
MINUTE = 60_000
NOW_MS = 10_000 * MINUTE
BASE_MS = NOW_MS - 100 * MINUTE
ENDS = {0: 10_000}
_offsets = iter(range(ENDS[0]))


def sent(device: str, second: float, number: float, *, at: float | None = None, **more: bool) -> Record:
    """A record at a second after the beginning; the broker has it then, too, unless `at` says otherwise."""
    event_ms = BASE_MS + round(second * 1000)
    broker_ms = event_ms if at is None else BASE_MS + round(at * 1000)
    return Record(0, next(_offsets), broker_ms, device, event_ms, number, **more)


def took(stream: Stream, *records: Record, rules: Rules | None = None, sites: Mapping[str, str] = SITES) -> list[str]:
    """Take records as a batch; returns their reasons."""
    for each in records:
        stream.add(each)
    stream.take(rules or Rules(), sites, NOW_MS, ENDS)
    return [each.reason or "" for each in records]


def counts(stream: Stream, view: str, key: str) -> dict[int, tuple[int, float]]:
    """Count and sum of a view's windows by their minute, of the records that are in them for sure."""
    found = {}
    for (name, of, start), records in stream.windows().items():
        sure = [each for each in records if each.fate == IN]
        if (name, of) == (view, key) and sure:
            found[(start - BASE_MS) // MINUTE] = value(sure)[:2]
    return found


def test_the_copy_counts_and_the_original_does_not_whatever_the_settings_admit() -> None:
    stream, original = Stream(), sent("d1", 5, 500.0)
    took(stream, sent("d1", 0, 1), original)
    wide = Rules(high=1_000, max_delay_ms=NOW_MS)
    stream.replay(original.place, is_counted=False)
    assert took(stream, sent("d1", 5, 500.0, at=5_900, is_copy=True), rules=wide) == [""]
    assert counts(stream, "device", "d1") == {0: (2, 501.0)}
    stream.recomputed(wide)
    assert counts(stream, "device", "d1") == {0: (2, 501.0)}
    stream.begin_again()
    took(stream, rules=wide)
    assert original.reason == "replayed"
    assert counts(stream, "device", "d1") == {0: (2, 501.0)}
    assert stream.totals()["d1"][:2] == (2, 501.0)


def test_what_today_s_settings_admit_or_reject_is_open_in_what_was_computed_again_only() -> None:
    stream = Stream()
    wrong, right, behind = sent("d1", 1, 500.0), sent("d1", 2, 95.0), sent("d1", 3, 1, at=4)
    took(stream, wrong, right, sent("d2", 300, 1))
    took(stream, behind)
    assert [each.fate for each in (wrong, right, behind)] == [OUT, IN, OUT]
    stream.recomputed(Rules(high=90))
    assert [each.fate for each in (wrong, right, behind)] == [OUT, EITHER, OUT]
    stream.recomputed(Rules(high=1_000))
    assert [each.fate for each in (wrong, right, behind)] == [EITHER, EITHER, OUT]
    [records] = [each for (view, *_), each in stream.windows().items() if view == "device" and len(each) == 2]
    assert len(list(choices(records))) == 4
