"""What is said of a topic's copies and retention."""

from pathlib import Path

from service.commands import durability
from service.commands.finding import Line
from service.kafka.topics import Topic
from tests.stream.records import make_settings

DAY_MS = 86_400_000
SAFE = {
    "min.insync.replicas": "2",
    "retention.ms": str(7 * DAY_MS),
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
}


def topic(replicas: int = 3, **changes: str) -> Topic:
    return Topic("readings", 4, replicas, {**SAFE, **{key.replace("_", "."): value for key, value in changes.items()}})


def warned(*lines: Line) -> list[str]:
    return [line.detail for line in lines if line.status == "warn"]


def test_three_copies_of_which_two_acknowledge_are_safe() -> None:
    assert list(durability.copies(topic())) == []


def test_each_way_to_lose_an_acknowledged_record_is_a_warning() -> None:
    for given, words in (
        (topic(replicas=1), "one copy"),
        (topic(min_insync_replicas="1"), "min.insync.replicas is 1"),
        (topic(unclean_leader_election_enable="true"), "unclean.leader.election.enable is true"),
        (topic(cleanup_policy="compact,delete"), "cleanup.policy is compact,delete"),
    ):
        (line,) = durability.copies(given)
        assert line.status == "warn"
        assert words in line.detail
        assert line.remedy


def test_retention_is_good_when_an_outage_of_a_day_loses_nothing() -> None:
    (line,) = durability.keeping(topic(), 6.5 * 86_400, DAY_MS)
    assert (line.status, line.detail) == ("ok", "records are kept for 7 d; the service may be down for 156 h")
    assert "down for 90 m before" in warned(*durability.keeping(topic(), 5_430.0, DAY_MS))[0]
    assert "less than a minute" in warned(*durability.keeping(topic(), -5.0, DAY_MS))[0]


def test_what_redis_keeps_longer_than_the_topic_cannot_be_read_again() -> None:
    (line,) = durability.keeping(topic(), 6.5 * 86_400, 7 * DAY_MS)
    assert line.status == "ok"
    assert "Redis keeps values for 8 d" in warned(*durability.keeping(topic(), 6.5 * 86_400, 8 * DAY_MS))[0]


def test_a_limit_in_bytes_is_a_warning_and_lost_records_are_a_failure() -> None:
    assert "retention.bytes is 5" in warned(*durability.keeping(topic(retention_bytes="5"), 1e6, DAY_MS))[0]
    (line, *_) = durability.keeping(topic(), 0.0, DAY_MS)
    assert (line.status, line.exit_status) == ("fail", 5)
    (line,) = durability.keeping(topic(retention_ms="-1"), float("inf"), DAY_MS)
    assert line.status == "ok"
    unreadable = Topic("readings", 1, 3, {})
    assert "not readable" in warned(*durability.keeping(unreadable, None, DAY_MS))[0]


def test_topics_that_take_compressed_records_of_any_size_are_one_warning() -> None:
    limit = {"max.message.bytes": "1048588"}
    takes = [topic(**limit, compression_type=kind) for kind in ("producer", "gzip", "zstd", "lz4", "snappy")]
    (line,) = durability.decompression(takes)
    assert line.status == "warn"
    assert line.detail.count("readings (1048588)") == len(takes)
    assert "compression.type=uncompressed" in line.remedy
    assert list(durability.decompression([topic(**limit, compression_type="uncompressed")])) == []
    assert list(durability.decompression([Topic("readings", 4, 3, {})])) == [], "its configuration is not readable"


def test_what_redis_may_drop_before_it_is_closed_is_named(tmp_path: Path) -> None:
    """max_delay + max_ahead is 25 s, the gap 30 s; silence closes after idle_after."""

    def named(retain: str, of_sessions: str, idle_after: str = "10 s", window: str = "40 s") -> list[str]:
        views = [{"name": "v", "window": window, **({} if window == "none" else {"retain": retain})}]
        admission = {"max_delay": "20 s", "max_ahead": "5 s", "idle_after": idle_after}
        sessions = {"gap": "30 s", "retain": of_sessions}
        made = make_settings(tmp_path, views=views, admission=admission, sessions=sessions)
        return [f"{line.name}: {line.detail}; {line.remedy}" for line in durability.expiry(made)]

    assert named("25 s", "55 s") == []
    view, sessions = named("24 s", "54 s")
    assert view.startswith("view v: retain is 24 s, a window is final up to 25 s after its end")
    assert view.endswith("; Set its retain to 25 s or more")
    assert sessions.startswith("sessions: retain is 54 s, a session is closed up to 55 s after its last reading")
    assert len(named("25 s", "55 s", idle_after="26 s")) == 2, "the last windows of a fleet that falls silent"
    assert named("", "55 s", window="none") == []
