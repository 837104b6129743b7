"""How values are written, and what the metrics say."""

from __future__ import annotations

from tidemark_dashboard.fleet import Counts, Filter, Standing
from tidemark_dashboard.keys import Keys
from tidemark_dashboard.metrics import Samples, quantile
from tidemark_dashboard.texts import count, duration, moment, number, points, seconds, shown


def test_numbers_have_two_decimals_and_commas() -> None:
    assert [number(each) for each in (0.0, 21.5, -1234.567, 0.001, 1e12, None)] == [
        "0.00",
        "21.50",
        "\u22121,234.57",
        "1.000e-3",
        "1.000e12",
        "\u2013",
    ]
    assert count(1234567.0) == "1,234,567"


def test_lengths_of_time_have_their_two_largest_units() -> None:
    given = (0, 350, 1_000, 59_999, 90_000, 3_600_000, 4_800_000, 90_061_000, -61_000, float("inf"), None)
    assert [duration(each) for each in given] == [
        "0 ms",
        "350 ms",
        "1 s",
        "1 min",
        "1 min 30 s",
        "1 h",
        "1 h 20 min",
        "1 d 1 h",
        "\u22121 min 1 s",
        "unlimited",
        "\u2013",
    ]
    assert [seconds(each) for each in (0.012, 1.25, 300.0)] == ["12 ms", "1.2 s", "5 min"]


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert "9007199254740991000 ms" in moment(9_007_199_254_740_991_000)
    assert "never" in moment(0)
    assert 'title="2023-11-14 22:13:20 UTC"' in moment(1_700_000_000_000)


def test_characters_that_cannot_be_seen_are_written_as_escapes() -> None:
    assert shown("a\x1b[2J\u202eb\n") == "a\\x1b[2J\\u{202e}b\\x0a"
    assert shown("J\u00e4ger \u65e5") == "J\u00e4ger \u65e5"


def test_a_sparkline_is_interrupted_where_there_is_no_value() -> None:
    assert points([1.0, None, 3.0, 2.0]).count("M") == 2
    assert points([]) == ""
    assert points([None]) == ""
    assert "nan" not in points([5.0, 5.0])


def test_a_quantile_is_of_what_was_counted_between_two_answers() -> None:
    before = {"0.1": 10.0, "1.0": 10.0, "+Inf": 10.0}
    after = {"0.1": 10.0, "1.0": 20.0, "+Inf": 20.0}
    assert quantile(0.5, after, before) == 0.1 + 0.9 / 2
    assert quantile(0.5, before, before) is None
    assert quantile(0.99, {"1.0": 0.0, "+Inf": 5.0}, {}) == 1.0


def test_samples_are_found_by_name_and_label() -> None:
    samples = Samples('# TYPE a gauge\na{b="x",c="1"} 2\na{b="x",c="2"} 3\na{b="y",c="1"} NaN\n')
    assert samples.by("a", "b") == {"x": 5.0}
    assert samples.value("a", b="x", c="1") == 2.0
    assert samples.value("a", b="y", c="1") is None
    assert not Samples("")


def test_a_filter_may_ask_for_a_status_and_a_fact() -> None:
    standing = Standing("quiet", True, 1, (("site", "leeds"),))
    assert Filter(status="quiet", column="site", value="leeds").accepts(standing)
    assert Filter(status="skewed").accepts(standing)
    assert not Filter(status="online").accepts(standing)
    assert not Filter(column="site", value="hull").accepts(standing)
    counts = Counts()
    counts.add(standing, 1)
    assert (counts.all, counts.quiet, counts.skewed) == (1, 1, 1)


def test_keys_are_paged_in_their_order_both_ways() -> None:
    keys = Keys()
    assert [keys.touch(each, start) for start, each in enumerate("dbacb")] == [True, True, True, True, False]
    page, total, earlier, later = keys.page("", 2)
    assert ([key for key, _ in page], total, earlier, later) == (["a", "b"], 4, False, True)
    page, _, earlier, later = keys.page("", 2, after="b")
    assert ([key for key, _ in page], earlier, later) == (["c", "d"], True, False)
    assert [key for key, _ in keys.page("", 2, before="c")[0]] == ["a", "b"]
    keys.forget(before=2)
    assert [key for key, _ in keys.page("", 9)[0]] == ["a", "b", "c"]
