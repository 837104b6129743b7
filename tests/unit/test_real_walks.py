"""The plain lists of walks on real parts: they must be right on their own."""

from collections.abc import Mapping

from load.walks.real.plain import EITHER, GAP_MS, IN, OUT, Record, Rules, Stream, choices, value

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


def test_each_record_gets_the_first_reason_that_applies() -> None:
    stream = Stream()
    assert took(stream, sent("d1", 0, 1), sent("d1", 300, 2)) == ["", ""]
    assert stream.watermark_ms == BASE_MS + 275_000
    reasons = took(
        stream,
        sent("d1", 10, 5, at=20),
        sent("d1", 10, 5, at=400),
        sent("d1", 310, 500.0),
        sent("d1", 310, 5, at=300),
        sent("d1", 36_000, 5),
        sent("d1", 10_000, 5),
    )
    assert reasons == ["behind", "late", "out_of_range", "early", "ahead", "ahead"]
    assert took(stream, sent("d3", 320, 1), rules=Rules(rejects_unknown=True)) == ["unknown_device"]
    assert stream.watermark_ms == BASE_MS + 275_000


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


def test_a_view_without_windows_counts_a_late_reading_where_it_was_read_first() -> None:
    stream, late = Stream(), sent("d1", 0, 5, at=100)
    took(stream, sent("d1", 100, 1), late)
    stream.replay(late.place, is_counted=True)
    took(stream, sent("d1", 101, 5, has_counted=True, is_copy=True))
    assert stream.totals()["d1"][:2] == (2, 6.0)
    assert counts(stream, "device", "d1") == {1: (2, 6.0)}


def test_a_reading_counts_at_the_site_where_its_device_was_when_it_was_read() -> None:
    stream, late = Stream(), sent("d1", 1, 3, at=200)
    took(stream, sent("d1", 0, 1))
    took(stream, sent("d1", 200, 2), late, sites={"d1": "south"})
    stream.correct([late.place])
    assert counts(stream, "site", "north") == {0: (1, 1.0)}
    assert counts(stream, "site", "south") == {0: (1, 3.0), 3: (1, 2.0)}
    stream.begin_again()
    took(stream, sites={})
    assert counts(stream, "site", "(none)") == {0: (1, 1.0), 3: (1, 2.0)}
    assert late.fate == EITHER, "what was corrected comes back with a correction, or a loss, of the new values"


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


def test_sessions_are_chains_of_readings_and_are_closed_behind_the_watermark() -> None:
    stream = Stream()
    gap = GAP_MS // 1000
    took(stream, sent("d1", 0, 1), sent("d1", gap, 2), sent("d1", 2 * gap + 1, 4), sent("d2", 3 * gap + 20, 1))
    sessions = stream.sessions(stream.devices()["d1"])
    assert {
        (start - BASE_MS) // 1000: (each.readings, each.total, each.is_closed) for start, each in sessions.items()
    } == {
        0: (2, 3.0, True),
        2 * gap + 1: (1, 4.0, False),
    }
