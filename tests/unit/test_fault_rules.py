"""Every rule of the fault runner's checker can fail: a history that breaks it is found, one that does not is not."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from load.faults import recovery
from load.faults.checker import check, main
from load.faults.history import Entry, History, read
from load.faults.recovery import Recovers
from load.faults.row import ORDER, find, rows
from load.faults.rules import EachShard, Loss, Observed, OneWriter, Recorded, Rule, Verdicts
from load.faults.values import GoesBack, Torn
from service.errors import SetupError

START = 1_700_000_040_000
END = START + 60_000


def fields(text: str) -> dict[str, str]:
    """A hash as Redis has it, from its fields as `name=value`."""
    return dict(each.split("=") for each in f"{text} epoch=2 batch=7 updated=1".split())


WINDOW = fields(
    f"start={START} end={END} count=3 sum=60.0 mean=20 min=10 max=30 stddev=8.16 first={START} last={START + 2}"
)
SESSION = fields(
    f"start={START} last={START + 5} count=2 duration=5 state=open reason= closed_by= revision=0 "
    "t.count=2 t.mean=2 t.min=1 t.max=3"
)
DEVICE = fields(f"status=online last_seen={START + 5} session={START} reference=v1 t=3 t.at={START + 5}")
KEYS = {
    "window": f"tidemark:window:all:t:all:{START}",
    "session": f"tidemark:session:d1:{START}",
    "device": "tidemark:device:d1",
}
HASHES: Mapping[str, Mapping[str, str]] = {"window": WINDOW, "session": SESSION, "device": DEVICE}


@pytest.fixture(autouse=True)
def a_fault_is_over_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever TIDEMARK_PATIENCE says."""
    monkeypatch.setattr(recovery, "BACK_S", 60.0)


def entry(what: str, at: float = 0, **facts: Any) -> Entry:
    """`at` in seconds."""
    return {"at": int(at * 1000), "what": what, **facts}


def value(
    kind: str, final: int = -1, silence: Mapping[str, str] = MappingProxyType({}), **changed: str | None
) -> Entry:
    """A sound hash but for what is changed; None takes a field away. `final` and `silence` are of progress at the read before."""
    fields = {name: text for name, text in {**HASHES[kind], **changed}.items() if text is not None}
    return entry("value", key=KEYS[kind], hash=fields, closing={"final": str(final), **silence})


SILENCE = {"idle": str(END), "idle_epoch": "2", "idle_batch": "7"}


def closed(closed_by: str = "watermark", **fields: str) -> Entry:
    """A session."""
    return value("session", closed_by=closed_by, state="closed", reason="gap", **fields)


def broken(rule: Rule, *entries: Entry) -> list[str]:
    """What the rule finds in these entries and at their end."""
    violations = [violation for each in entries for violation in rule.take(each)]
    return [violation.text for violation in [*violations, *rule.end()]]


def progress(epoch: int, batch: int, at: float = 0, watermark: int = 5, offset: int = 10, final: int = 5) -> Entry:
    facts = {"watermark": watermark, "final": final, "offsets": {"readings[0]": offset}}
    return entry("progress", at, epoch=epoch, batch=batch, **facts)


# P1, P4


def verdict(**changed: Any) -> Entry:
    compared = {"windows": 1, "sessions": 1, "devices": 1, "rejects": 1}
    return entry("verdict", **{"kinds": {}, "examples": [], "compared": compared, **changed})


CHECKED = entry("contract", violations=[])


def test_a_clean_verdict_violates_nothing() -> None:
    assert broken(Verdicts(), verdict(), CHECKED) == []


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"kinds": {"window.count": 2}, "examples": ["window.count: w: expected 3, is 2"]}, "P1"),
        ({"kinds": {"reject.missing": 1}}, "P4"),
        ({"kinds": {"partition.sum": 1}}, "P4"),
        ({"compared": {"windows": 1, "sessions": 0, "devices": 1, "rejects": 1}}, "observed"),
    ],
)
def test_a_difference_is_a_violation(changed: dict[str, Any], rule: str) -> None:
    violations = list(Verdicts().take(verdict(**changed)))
    assert [violation.rule for violation in violations] == [rule]


def test_no_verdict_is_a_violation() -> None:
    assert broken(Verdicts(), entry("load", phase="begin")) == ["the oracle gave no verdict"]


def test_a_contract_that_is_broken_or_was_not_checked_is_a_violation() -> None:
    assert broken(Verdicts(), verdict(), entry("contract", violations=["a field too many"])) == ["a field too many"]
    assert broken(Verdicts(), verdict()) == ["the contract was not checked"]


# P2


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (value("window"), value("window", batch="6"), "(epoch, batch) is (2, 6) after (2, 7)"),
        (value("window"), value("window", epoch="1", batch="9"), "(epoch, batch) is (1, 9) after (2, 7)"),
        (value("window"), value("window", batch="8", count="2"), "count falls"),
        # The hash was the same before and after progress called it final.
        (value("window"), value("window", END, sum="61", batch="8"), "closed by watermark and changes: sum"),
        (value("window", END), value("window", END, count="4", batch="8"), "closed by watermark and changes: count"),
        (
            value("window", END),
            value("window", END, revision="1", batch="8"),
            "closed by watermark and changes: revision",
        ),
        (value("window"), value("window", silence=SILENCE, count="4", batch="8"), "closed by idle and changes: count"),
        (closed(), value("session", batch="8"), "closed by watermark and changes"),
        (closed("idle"), value("session", batch="8", count="4"), "closed by idle and changes"),
        (value("window", revision="2"), value("window", batch="8", revision="1"), "revision falls"),
        (value("device"), value("device", batch="8", last_seen=str(START)), "last_seen falls"),
        (value("device"), entry("value", key=KEYS["device"], hash=None, closing={}), "is gone"),
    ],
)
def test_a_value_that_goes_back_is_found(before: Entry, now: Entry, why: str) -> None:
    (text,) = broken(GoesBack(), before, now)
    assert why in text


def test_a_value_that_goes_on_is_fine() -> None:
    onwards = [
        value("window"),
        value("window", epoch="3", batch="0", count="4"),
        value("window", epoch="3", batch="8", count="5", revision="1"),
        value("window", END - 1, SILENCE, epoch="3", batch="9", count="6", revision="1"),
        value("window", END, epoch="3", batch="9", count="6", revision="1", updated="2"),
    ]
    onwards += [
        value("session"),
        closed("idle"),
        value("session", batch="8", count="3", revision="1"),
        closed("idle", batch="9", count="3", revision="1"),
        closed(batch="10", count="3", revision="1"),
    ]
    assert broken(GoesBack(), *onwards, value("device"), value("device", batch="9")) == []
    assert broken(GoesBack(), entry("value", key=KEYS["device"], hash=None, closing={}), value("device")) == []


def test_data_that_redis_lost_may_be_older_once() -> None:
    older = value("window", batch="6")
    assert broken(GoesBack(), value("window"), entry("redis_lost"), older) == []
    assert len(broken(GoesBack(), entry("redis_lost"), value("window"), older)) == 1
    lost = [value("window"), fault(0, "begin"), entry("redis_lost"), value("window"), older, fault(1, "end"), older]
    assert broken(GoesBack(), *lost) == []
    assert len(broken(GoesBack(), *lost, value("window", batch="5"))) == 1


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (progress(2, 6), "progress is at (epoch, batch) (2, 6) after (2, 7)"),
        (progress(1, 9), "progress is at (epoch, batch) (1, 9) after (2, 7)"),
        (progress(3, 8, watermark=4), "the watermark is 4 after 5"),
        (progress(3, 8, final=4), "windows were final up to 5, now to 4"),
        (progress(3, 8, offset=9), "progress is at offset 9 of readings[0] after 10"),
        (progress(3, 1), "progress is at batch 1 after 7"),
    ],
)
def test_progress_that_goes_back_is_found(now: Entry, why: str) -> None:
    assert broken(GoesBack(), progress(2, 7), now)[0] == why
    assert broken(GoesBack(), progress(2, 7), progress(2, 7), progress(3, 7)) == []


def test_a_new_checkpoint_begins_again_under_a_new_epoch() -> None:
    rebuilt = [progress(2, 7), entry("rebuild"), progress(2, 8), progress(3, 0, watermark=0, offset=0)]
    assert broken(GoesBack(), *rebuilt, progress(3, 1)) == []
    falls = progress(3, 0, watermark=0, offset=0, final=4)
    assert broken(GoesBack(), *rebuilt[:3], falls) == ["windows were final up to 5, now to 4"]
    assert len(broken(GoesBack(), *rebuilt, progress(3, 1), progress(4, 0))) == 1
    assert len(broken(GoesBack(), progress(2, 7), entry("rebuild"), progress(1, 8))) == 1


# P3


@pytest.mark.parametrize(
    ("torn", "why"),
    [
        (value("window", sum="61"), "sum is not mean * count"),
        (value("window", count="4"), "sum is not mean * count"),
        (value("window", mean=None), "missing"),
        (value("window", updated=None), "lacks updated"),
        (value("window", start=str(START + 60_000)), "not that of its key"),
        (value("window", min="21"), "min <= mean"),
        (value("window", stddev="11"), "stddev"),
        (value("window", last=str(START + 60_000)), "start <= first"),
        (value("window", count="1", sum="20"), "two times"),
        (value("session", duration="6"), "duration"),
        (value("session", start=str(START - 1), duration="6"), "not that of its key"),
        (value("session", state="closed"), "does not go with the reason"),
        (value("session", merged_into="5"), "merged_into"),
        (value("session", **{"t.count": "3"}), "more than count"),
        (value("session", **{"t.mean": "4"}), "min <= mean"),
        (value("device", status="offline"), "status does not go"),
        (value("device", last_seen=str(START - 1), **{"t.at": str(START - 2)}), "before its session"),
        (value("device", **{"t.at": str(START + 6)}), "after last_seen"),
        (value("device", epoch=None), "lacks epoch"),
    ],
)
def test_a_torn_hash_is_found(torn: Entry, why: str) -> None:
    texts = broken(Torn(), torn)
    assert texts
    assert why in texts[0]


def test_whole_hashes_are_fine() -> None:
    merged = value("session", state="merged", reason="merged", merged_into=str(START - 5))
    offline = value("device", status="offline", session="")
    gone = entry("value", key=KEYS["window"], hash=None, closing={})
    single = value("session", last=str(START), duration="0", count="1", **{"t.count": "1"})
    first = value("device", session=str(START + 5))
    whole = [value("window"), value("session"), value("device"), closed(), merged, offline, gone, single, first]
    assert broken(Torn(), *whole) == []


# P5


def feed(*spans: list[int]) -> Entry:
    return entry("feed", spans=list(spans))


def test_epochs_that_follow_each_other_are_fine() -> None:
    assert broken(OneWriter(), feed([1, 4, 9], [1, 5, 2]), feed([2, 5, 9], [2, 6, 1]), feed([2, 6, 4], [3, 0, 1])) == []


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        (([2, 5, 9], [1, 6, 3]), "overlapping epochs: 3 writes of epoch 1"),
        (([2, 5, 9], [2, 4, 3]), "3 writes of batch 4 after one of batch 5"),
    ],
)
def test_writes_of_an_older_term_after_a_newer_one_are_found(spans: tuple[list[int], list[int]], why: str) -> None:
    for entries in ((feed(*spans),), tuple(feed(span) for span in spans)):
        (text,) = broken(OneWriter(), *entries)
        assert why in text


def test_what_redis_lost_is_published_again_beside_the_stream_as_of_one_batch() -> None:
    before, after = feed([2, 5, 9]), feed([3, 5, 8], [3, 6, 1], [3, 7, 1])
    assert broken(OneWriter(), before, entry("redis_lost"), after, feed([3, 5, 4])) == []
    assert len(broken(OneWriter(), before, after, feed([3, 5, 4]))) == 1
    assert len(broken(OneWriter(), before, entry("redis_lost"), after, feed([3, 6, 4]))) == 1
    assert len(broken(OneWriter(), before, entry("redis_lost"), after, feed([4, 8, 1], [4, 9, 1], [4, 8, 1]))) == 1


def test_terms_compute_the_past_of_views_that_have_changed_beside_the_stream() -> None:
    before, changed, after = feed([2, 5, 9]), entry("views", names=[]), feed([2, 7, 9], [2, 6, 4], [3, 9, 1], [3, 8, 2])
    assert broken(OneWriter(), before, changed, after) == []
    assert len(broken(OneWriter(), before, after)) == 2
    (text,) = broken(OneWriter(), before, changed, after, feed([2, 9, 1]))
    assert "overlapping epochs" in text


def test_a_term_that_was_asked_to_republish_writes_its_state_beside_the_stream() -> None:
    before, asked, after = feed([2, 5, 9]), entry("republish"), feed([3, 5, 9], [3, 6, 9], [3, 5, 4])
    assert broken(OneWriter(), before, asked, after) == []
    assert len(broken(OneWriter(), before, after)) == 1
    assert len(broken(OneWriter(), before, asked, after, feed([4, 7, 1], [4, 6, 1]))) == 1
    assert len(broken(OneWriter(), before, asked, after, feed([2, 9, 1]))) == 1


def test_an_epoch_that_falls_is_found() -> None:
    third, second = entry("epoch", epoch=3), entry("epoch", epoch=2)
    assert broken(OneWriter(), third, second) == ["the epoch is 2 after 3"]
    assert broken(OneWriter(), third, entry("redis_lost"), second, feed([4, 0, 1])) == []
    assert broken(OneWriter(), third, entry("redis_lost"), second, feed([4, 0, 1]), second) == [
        "the epoch is 2 after 3"
    ]


# P7


def test_a_gap_must_be_counted_to_the_record() -> None:
    assert broken(Loss(), entry("gap", records=120), entry("lost", records=120)) == []
    assert len(broken(Loss(), entry("gap", records=120), entry("lost", records=119))) == 1
    assert len(broken(Loss(), entry("gap", records=120))) == 1
    assert len(broken(Loss(), entry("lost", records=1))) == 1


# P8

STEADY = [entry("load", 0, phase="begin", id=1, rate=100.0), *(progress(1, n, at=n) for n in range(11))]


def fault(at: float, phase: str, **facts: Any) -> Entry:
    return entry("fault", at, phase=phase, name="a fault", **facts)


def test_a_lag_that_is_back_in_time_is_fine() -> None:
    rule = Recovers()
    history = [*STEADY, fault(11, "begin"), fault(12, "end"), entry("lag", 13, records=900), progress(1, 11, 14)]
    history += [entry("lag", 15, records=201), entry("lag", 42, records=200), entry("load", 50, phase="end", id=1)]
    assert broken(rule, *history) == []
    assert rule.trigger_s == 1.0
    assert [(each.back_at or 0) - each.ended_at for each in rule.faults] == [30_000]


def test_a_small_lag_without_a_new_batch_is_not_back() -> None:
    history = [*STEADY, fault(11, "begin"), fault(12, "end"), *(entry("lag", 12 + n, records=0) for n in range(70))]
    assert "not under 200" in broken(Recovers(), *history)[0]


def test_after_a_restart_it_takes_a_batch_of_a_new_epoch() -> None:
    killed = [*STEADY, fault(11, "begin", restarts=True), fault(11, "end", restarts=True), progress(1, 11, 12)]
    late = entry("lag", 80, records=0)
    assert len(broken(Recovers(), *killed, late, late)) == 2  # too late, and never
    assert broken(Recovers(), *killed, progress(2, 11, 30), entry("lag", 31, records=0)) == []
    begun, ended = fault(11, "begin", restarts=True), fault(30, "end", restarts=True)
    slow = [*STEADY, begun, progress(2, 11, 25), ended, entry("lag", 31, records=0)]
    assert broken(Recovers(), *slow) == []  # its first batch was there when the fault was said to be over


@pytest.mark.parametrize("records", [201, 5_000])
def test_a_lag_that_is_not_back_after_a_minute_is_found_once(records: int) -> None:
    history = [*STEADY, fault(11, "begin"), fault(12, "end"), progress(1, 11, 13)]
    history += [entry("lag", 14 + n, records=records) for n in range(80)]
    texts = broken(Recovers(), *history, entry("lag", 95, records=0))
    assert len(texts) == 1
    assert "s after 'a fault' the lag is not under 200 records" in texts[0]


def test_a_load_or_a_history_that_ends_too_early_leaves_nothing_undecided() -> None:
    open_end = [*STEADY, fault(11, "begin"), fault(12, "end")]
    assert "the history ends before" in broken(Recovers(), *open_end)[0]
    assert "the load ended before" in broken(Recovers(), *open_end, entry("load", 20, phase="end", id=1))[0]


def test_another_fault_within_the_minute_begins_the_wait_anew() -> None:
    history = [*STEADY, fault(11, "begin"), fault(12, "end"), fault(40, "begin"), fault(41, "end"), progress(1, 12, 90)]
    assert broken(Recovers(), *history, entry("lag", 91, records=10)) == []


def test_a_fault_long_after_the_one_before_does_not_excuse_it() -> None:
    history = [*STEADY, fault(11, "begin"), fault(12, "end"), fault(80, "begin"), fault(81, "end"), progress(1, 12, 90)]
    assert len(broken(Recovers(), *history, entry("lag", 91, records=10))) == 1


# Shards


def shards(number: int, *entries: Entry) -> list[Entry]:
    """What the observer has seen of one shard."""
    return [{**each, "shard": number} for each in entries]


def test_shards_that_are_a_batch_apart_are_fine() -> None:
    history = [*shards(0, progress(1, 5), progress(1, 6)), *shards(1, progress(1, 5)), progress(1, 5)]
    history += [*shards(0, progress(1, 7)), *shards(1, progress(1, 6)), progress(1, 6)]
    assert broken(EachShard(GoesBack), *history) == []
    assert broken(GoesBack(), *history) != []
    feeds = [*shards(0, feed([1, 5, 9], [2, 6, 1])), *shards(1, feed([1, 5, 9])), *shards(0, feed([2, 7, 1]))]
    assert broken(EachShard(OneWriter), *feeds) == []


@pytest.mark.parametrize(
    ("rule", "before", "after", "why"),
    [
        (GoesBack, progress(2, 6), progress(2, 5), "progress is at (epoch, batch) (2, 5)"),
        (GoesBack, progress(2, 6, final=6), progress(2, 6), "windows were final up to 6"),
        (GoesBack, value("window", batch="8"), value("window"), "(2, 7) after (2, 8)"),
        (OneWriter, feed([2, 6, 1]), feed([1, 7, 1]), "overlapping epochs"),
        (OneWriter, entry("epoch", epoch=3), entry("epoch", epoch=2), "the epoch is 2 after 3"),
    ],
)
def test_what_goes_back_in_one_shard_is_found(rule: type[Rule], before: Entry, after: Entry, why: str) -> None:
    texts = broken(EachShard(rule), *shards(0, before), *shards(1, before), *shards(0, before), *shards(1, after))
    assert why in texts[0]


@pytest.mark.parametrize(("lost", "is_fine"), [({}, True), ({"shard": 1}, True), ({"shard": 0}, False)])
def test_what_one_shard_has_lost_the_others_have_not(lost: Mapping[str, int], is_fine: bool) -> None:
    history = [*shards(0, progress(1, 5)), *shards(1, progress(1, 5)), fault(1, "begin", shard=1)]
    history += [entry("redis_lost", **lost), *shards(1, progress(1, 3)), progress(1, 3), fault(2, "end", shard=1)]
    assert (broken(EachShard(GoesBack), *history) == []) == is_fine


def test_a_shard_that_is_seen_late_is_judged_by_what_was_noted_before() -> None:
    again = shards(1, progress(1, 5), progress(2, 0, watermark=3, offset=2))
    assert broken(EachShard(GoesBack), *again) != []
    assert broken(EachShard(GoesBack), entry("rebuild"), *again) == []


def test_a_torn_hash_in_a_shard_is_found() -> None:
    torn = value("window", sum="61")
    key = torn["key"].replace("tidemark", "{tidemark:2}")
    assert broken(Torn(), *shards(2, {**value("window"), "key": key})) == []
    assert broken(Torn(), *shards(2, {**torn, "key": key})) != []


def test_a_lag_is_back_when_all_shards_have_the_batch() -> None:
    history = [
        *STEADY,
        fault(11, "begin"),
        fault(12, "end"),
        *shards(0, progress(1, 11, 14)),
        entry("lag", 15, records=0),
    ]
    assert len(broken(Recovers(), *history)) == 1
    assert broken(Recovers(), *history, progress(1, 11, 16), entry("lag", 17, records=0)) == []


def test_a_shard_without_a_feed_proves_nothing() -> None:
    enough = [entry(what) for what, least in Observed.LEAST.items() for _ in range(least)]
    both = [each for number in (0, 1) for each in shards(number, *enough)]
    run = entry("run", shards=2)
    assert broken(Observed(), run, *enough, *both) == []
    assert broken(Observed(), run, *both) != []
    lacking = [each for each in both if each["what"] != "feed" or each["shard"] == 0]
    assert broken(Observed(), run, *enough, *lacking) == ["0 entries of 'feed': too few to judge by"]


# The rest


def test_a_history_with_too_little_in_it_proves_nothing() -> None:
    enough = [entry(what) for what, least in Observed.LEAST.items() for _ in range(least)]
    assert broken(Observed(), *enough) == []
    assert len(broken(Observed(), *enough[:-1])) == 1
    assert len(broken(Observed())) == len(Observed.LEAST)


def test_what_a_row_found_by_itself_counts() -> None:
    assert broken(Recorded(), entry("violation", rule="P5", text="a duel")) == ["a duel"]


def whole() -> Iterable[Entry]:
    """A history without fault in which every rule has something to judge."""
    yield entry("run", row="U", seed=7)
    yield STEADY[0]
    for n in range(30):
        yield progress(1, n, at=n)
        yield entry("epoch", n, epoch=1)
        yield feed([1, n, 3])
        yield value("window", epoch="1", batch=str(n))
        yield entry("lag", n, records=0)
        yield entry("metrics", n, samples={})
    yield entry("load", 31, phase="end", id=1)
    yield verdict()
    yield CHECKED


def test_the_checker_names_the_first_violation_of_a_file(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for extra, status, text in (([], 0, "row U, seed 7: 0 violations"), ([feed([0, 31, 2])], 1, "the first")):
        history = History(tmp_path / "history.jsonl")
        for each in [*whole(), *extra]:
            facts = {name: fact for name, fact in each.items() if name not in {"at", "what"}}
            history.add(each["what"], **facts)
        history.close()
        assert main([str(history.path)]) == status
        assert text in capsys.readouterr().out
        assert len(check(read(history.path))) == status
    assert main([]) == 2
    assert main([str(tmp_path / "nowhere.jsonl")]) == 2
    assert "nowhere.jsonl is no history" in capsys.readouterr().err


def test_the_rows_are_found_by_id_in_the_tables_order() -> None:
    known = rows()
    assert [each for each in ORDER if each in known] == list(known)
    assert {"U", "F1", "F2", "F3", "F14"} <= set(known)
    assert find("F1").setup.id == "F1"
    with pytest.raises(SetupError, match="F99"):
        find("F99")
