"""What both clients answer, from a real Redis. The values are written by hand, as schemas/redis.md of Tidemark has them."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import Server, running

from tidemark_client import (
    ArgumentError,
    AsyncClient,
    ChangesLostError,
    Client,
    ContractError,
    KeyTextError,
    Place,
    RefusedError,
    TooManyWindowsError,
    UnavailableError,
    UnknownViewError,
    queries,
)
from tidemark_client.connection import failure
from tidemark_client.names import Names

MINUTE = 60_000
T0 = 1_700_000_040_000
STAMP = {"epoch": "2", "batch": "7", "updated": "1700000100000"}
VIEWS = [
    {"name": "site", "by": ["site"], "measures": ["temperature", "power"], "window_ms": MINUTE, "slide_ms": MINUTE},
    {"name": "fast", "by": ["device"], "measures": ["power"], "window_ms": 3 * MINUTE, "slide_ms": MINUTE},
    {"name": "model", "by": ["site", "model"], "measures": ["power"], "window_ms": MINUTE, "slide_ms": MINUTE},
    {"name": "all", "by": [], "measures": ["power"], "window_ms": MINUTE, "slide_ms": MINUTE},
]
META = {
    "contract": 3,
    "measures": ["temperature", "power"],
    "views": [{**view, "retain_ms": 86_400_000} for view in VIEWS],
    "sessions": {"gap_ms": 30_000, "max_duration_ms": 3_600_000, "retain_ms": 86_400_000},
}


@pytest.fixture(autouse=True)
def service(server: Server) -> None:
    server.redis.set("tidemark:meta", json.dumps(META))
    progress(server, T0)


def progress(server: Server, watermark: int, **fields: str) -> None:
    offsets = json.dumps({"readings": {"0": 10, "1": 20}})
    times = {"watermark": str(watermark), "final": str(watermark)}
    values = {**STAMP, **times, "offsets": offsets, "reference": "abc", **fields}
    server.redis.delete("tidemark:progress")
    server.redis.hset("tidemark:progress", mapping=values)


def silence(until: int, epoch: str = STAMP["epoch"], batch: str = STAMP["batch"]) -> dict[str, str]:
    """Fields of progress after a silence that began with that batch."""
    return {"idle": str(until), "idle_epoch": epoch, "idle_batch": batch}


def window(server: Server, name: str, start: int, *, length: int = MINUTE, count: int = 2, **more: str) -> None:
    """A window `<view>:<measure>:<key>`, in which the last reading comes five seconds after its start."""
    fields = {
        "start": start,
        "end": start + length,
        "count": count,
        "first": start,
        "last": start + 5_000,
        "sum": 3.5 * count,
    }
    fields |= {"mean": 3.5, "min": 1, "max": 6, "stddev": "1e-7"}
    server.redis.hset(f"tidemark:window:{name}:{start}", mapping={**fields, **STAMP, **more})
    view, _, key = name.split(":", 2)
    server.redis.zadd(f"tidemark:keys:{view}", {key: start}, gt=True)


def device(server: Server, name: str, **fields: str) -> None:
    own = {"status": "online", "last_seen": str(T0), "session": "", "reference": "abc"}
    server.redis.hset(f"tidemark:device:{name}", mapping={**own, **STAMP, **fields})


def announce(server: Server, *keys: str) -> str:
    entry = {"kind": keys[0].split(":")[1], "keys": json.dumps(keys), "epoch": "2", "batch": "7"}
    return str(server.redis.xadd("tidemark:changes", entry))


def test_the_service_says_what_its_views_are(client: Any) -> None:
    views = client.views()
    assert list(views) == ["site", "fast", "model", "all"]
    assert (views["model"].by, views["model"].measures) == (("site", "model"), ("power",))
    assert views["fast"].starts(T0 + 1) == [T0, T0 - MINUTE, T0 - 2 * MINUTE]
    assert client.meta().session_gap_ms == 30_000


def test_what_is_not_there_is_named(client: Any, server: Server, connect: Any) -> None:
    with pytest.raises(UnknownViewError, match="no view 'sight'; its views are site, fast, model, all"):
        client.current("sight", "leeds")
    with pytest.raises(UnknownViewError, match="'site' has the measures temperature, power; no measure was given"):
        client.current("site", "leeds")
    with pytest.raises(UnknownViewError, match="'watts' is none of them"):
        client.current("site", "leeds", "watts")
    with pytest.raises(KeyTextError, match="by site, model; 'leeds' does not fit"):
        client.current("model", "leeds")
    with pytest.raises(KeyTextError, match="over all devices; 'leeds' does not fit"):
        client.current("all", "leeds")
    with pytest.raises(ContractError, match=r"no other:meta[.] Is 'other' the service's redis.prefix"):
        connect(server.url, prefix="other").views()
    server.redis.set("tidemark:meta", json.dumps({**META, "contract": 4}))
    with pytest.raises(ContractError, match="contract 4, this package reads 3"):
        client.current("all")


@pytest.mark.parametrize(
    ("view", "key", "text"),
    [
        ("all", (), "all"),
        ("fast", "a|b:c%", "a|b:c%"),
        ("fast", [None], "(none)"),
        ("model", ("a|b", "50%"), "a%7Cb|50%25"),
        ("model", (None, ""), "(none)|"),
    ],
)
def test_a_window_is_found_whatever_its_key(client: Any, server: Server, view: str, key: Any, text: str) -> None:
    length = 3 * MINUTE if view == "fast" else MINUTE
    window(server, f"{view}:power:{text}", T0, length=length)
    found = client.window(view, key, T0)
    assert (found.view, found.measure, found.key, found.start, found.end) == (view, "power", text, T0, T0 + length)
    assert (found.count, found.sum, found.mean, found.stddev, found.final, found.closed_by) == (
        2,
        7,
        3.5,
        1e-7,
        False,
        "",
    )
    assert found.revision == 0
    assert (found.written.epoch, found.written.batch) == (2, 7)
    assert client.current(view, key) == found
    assert client.window(view, key, T0 + MINUTE) is None


def test_current_and_latest_complete_are_the_newest_ones_with_readings(client: Any, server: Server) -> None:
    progress(server, T0 + 6 * MINUTE + 1)
    for number in range(8):
        window(server, "site:power:leeds", T0 + number * MINUTE)
    window(server, "site:power:york", T0 - 500 * MINUTE)
    window(server, "site:power:hull", T0 + 7 * MINUTE)
    assert client.current("site", "leeds", "power").start == T0 + 7 * MINUTE
    assert client.latest_complete("site", "leeds", "power").start == T0 + 5 * MINUTE
    # One that has been silent for long, in the middle of others; and one that has no final window.
    assert client.latest_complete("site", "york", "power").start == T0 - 500 * MINUTE
    assert client.latest_complete("site", "hull", "power") is None
    assert client.latest_complete("site", "bath", "power") is None
    assert client.current("site", "bath", "power") is None
    # Its newest window has no hash: it has expired, or holds no such measure.
    server.redis.delete(f"tidemark:window:site:power:leeds:{T0 + 5 * MINUTE}")
    assert client.latest_complete("site", "leeds", "power").start == T0 + 4 * MINUTE


def test_nothing_is_complete_before_there_is_progress(client: Any, server: Server) -> None:
    progress(server, T0 + MINUTE)
    for start in (T0, -MINUTE):
        window(server, "all:power:all", start)
    assert client.latest_complete("all").start == T0
    server.redis.delete("tidemark:progress")
    assert client.progress() is None
    assert client.latest_complete("all") is None
    assert (client.current("all").start, client.current("all").final) == (T0, False)
    assert not client.window("all", (), -MINUTE).final


def test_a_window_is_final_from_its_end_on(client: Any, server: Server) -> None:
    window(server, "all:power:all", T0)
    for final, closed_by in ((T0 + MINUTE - 1, ""), (T0 + MINUTE, "watermark")):
        progress(server, final)
        found = client.window("all", (), T0)
        assert (found.final, found.closed_by) == (closed_by != "", closed_by)
        assert client.current("all") == client.windows("all", since=T0)[0] == found
        assert client.latest_complete("all") == (found if found.final else None)
    # The watermark of a writer that reads the topic again is behind.
    progress(server, T0, final=str(T0 + MINUTE))
    assert client.latest_complete("all") == found


def ask_slowly(
    server: Server, query: queries.Query[Any], write: "Callable[[], None] | None" = None, after: int = 0
) -> "tuple[Any, list[int]]":
    """The answer to a query if `write` comes after that many of its commands, and the commands of each round trip."""
    steps, replies, sent = query.steps(Names()), None, list[int]()
    while True:
        try:
            commands: Any = next(steps) if replies is None else steps.send(replies)
        except StopIteration as end:
            return end.value, sent
        replies = []
        for number, command in enumerate(commands, sum(sent)):
            if number == after and write is not None:
                write()
            replies.append(server.redis.execute_command(*command))
        sent.append(len(commands))


@pytest.mark.parametrize(
    "query",
    [
        queries.window("all", (), T0),
        queries.current("all"),
        queries.latest_complete("all"),
        queries.windows("all", since=T0),
        queries.value(Place("window", "all", "all", "power", T0)),
    ],
)
@pytest.mark.parametrize("after", range(5))
def test_a_window_that_is_said_to_be_final_has_its_last_reading(
    server: Server, query: queries.Query[Any], after: int
) -> None:
    def write() -> None:
        window(server, "all:power:all", T0, count=3)
        progress(server, T0 + MINUTE)

    window(server, "all:power:all", T0, count=2)
    answer, _ = ask_slowly(server, query, write, after)
    found = answer[0] if isinstance(answer, list) else answer
    assert found is None or found.count == 3 or not found.final
    assert after or found.final


def test_windows_of_a_span_are_those_that_touch_it(client: Any, server: Server) -> None:
    for number in (0, 1, 4):
        window(server, "fast:power:d1", T0 + number * MINUTE, length=3 * MINUTE)

    def starts(since: int, until: "int | None" = None) -> "list[int]":
        return [(each.start - T0) // MINUTE for each in client.windows("fast", "d1", since=since, until=until)]

    assert starts(T0 - 500 * MINUTE) == [0, 1, 4]
    assert starts(T0 + 3 * MINUTE) == [1, 4]
    assert starts(T0 + 3 * MINUTE - 1) == [0, 1, 4]
    assert starts(T0, T0 + MINUTE) == [0]
    assert starts(T0 + 5 * MINUTE, T0 + 9 * MINUTE) == [4]
    assert starts(T0 + 9 * MINUTE) == []
    assert client.windows("fast", "nobody", since=0) == []
    with pytest.raises(TooManyWindowsError, match=r"10000 are the most[.] Ask for less at once"):
        client.windows("fast", "d1", since=0)


def test_a_device_has_its_state_attributes_and_newest_values(client: Any, server: Server) -> None:
    values = {"power": "1e-7", "power.at": str(T0 - 1), "temperature": "19.5", "temperature.at": str(T0)}
    early = {"early": "3", "early.at": "5", "early.ahead": "7", "early.until": "9", "skewed": "1"}
    device(server, "d:1|%", session=str(T0), **values, **early, **{"ref.site": "leeds", "ref.model.at": "x"})
    found = client.device("d:1|%")
    assert (found.id, found.status, found.last_seen, found.session) == ("d:1|%", "online", T0, T0)
    assert found.attributes == {"site": "leeds", "model.at": "x"}
    assert {name: (each.value, each.at) for name, each in found.latest.items()} == {
        "power": (1e-7, T0 - 1),
        "temperature": (19.5, T0),
    }
    assert found.skewed
    assert (found.early.count, found.early.at, found.early.ahead_ms, found.early.until) == (3, 5, 7, 9)
    device(server, "plain")
    plain = client.device("plain")
    assert (plain.session, plain.early, plain.skewed, plain.latest, plain.attributes) == (None, None, False, {}, {})
    assert client.device("nobody") is None


def test_a_session_is_the_open_one_or_that_of_a_start(client: Any, server: Server) -> None:
    fields = {"start": T0, "last": T0 + 9, "count": 3, "duration": 9, "state": "open", "reason": "", "closed_by": ""}
    sums = {"power.count": 3, "power.mean": 2.5, "power.min": 1, "power.max": 4, "temperature.count": 0}
    server.redis.hset(f"tidemark:session:d1:{T0}", mapping={**fields, **sums, "revision": 0, **STAMP})
    merged = {"state": "merged", "reason": "merged", "merged_into": T0, "start": T0 + 20}
    server.redis.hset(f"tidemark:session:d1:{T0 + 20}", mapping={**fields, **merged, "revision": 1, **STAMP})
    assert client.session("d1") is None
    device(server, "d1", session=str(T0))
    found = client.session("d1")
    assert (found.device, found.start, found.last, found.count, found.duration, found.state) == (
        "d1",
        T0,
        T0 + 9,
        3,
        9,
        "open",
    )
    assert (found.measures["power"].mean, found.measures["power"].max, found.merged_into) == (2.5, 4, None)
    assert (found.measures["temperature"].count, found.measures["temperature"].mean) == (0, None)
    assert client.session("d1", T0) == found
    assert client.session("d1", T0 + 20).merged_into == T0
    assert client.session("d1", T0 + 1) is None
    assert client.sessions("d1") == []
    server.redis.zadd("tidemark:sessions:d1", {str(T0 + each): T0 + each for each in (-9, 0, 20)})
    assert client.sessions("d1") == [found], "one has expired, one became part of another"
    assert (client.sessions("d1", T0), client.sessions("d1", T0 + 1)) == ([found], [])
    device(server, "d1", session=str(T0 + 5))
    assert client.session("d1") is None


def test_devices_are_those_of_the_prefix_whatever_its_characters(server: Server, connect: Any) -> None:
    device(server, "d:1")
    server.redis.hset("a*[b]:device:x", mapping=server.redis.hgetall("tidemark:device:d:1"))
    server.redis.hset("aa[b]:device:y", mapping=server.redis.hgetall("tidemark:device:d:1"))
    assert [each.id for each in connect(server.url, prefix="a*[b]").devices()] == ["x"]


def test_many_questions_take_the_round_trips_of_one(client: Any, server: Server) -> None:
    progress(server, T0 + 3 * MINUTE)
    for number in range(30):
        window(server, f"site:power:s{number}", T0 + number % 3 * MINUTE)
    device(server, "d1")
    questions = [queries.latest_complete("site", f"s{number}", "power") for number in range(30)]
    client.ask_all([])
    before = server.redis.info("commandstats")
    answers = client.ask_all([*questions, queries.device("d1"), queries.keys("site", limit=1)])
    assert [each.key if each else None for each in answers[:-2]] == [f"s{number}" for number in range(30)]
    assert (answers[-2].id, len(answers[-1])) == ("d1", 1)
    after = server.redis.info("commandstats")
    with pytest.raises(TypeError, match="a snapshot is not asked together"):
        client.ask_all([queries.snapshot([])])
    # Of all questions the progress, once to begin and once with the windows; of each its window; and the device.
    assert after["cmdstat_hgetall"]["calls"] - before.get("cmdstat_hgetall", {"calls": 0})["calls"] == 2 + 30 + 1
    assert after["cmdstat_get"]["calls"] - before.get("cmdstat_get", {"calls": 0})["calls"] == 1, "meta, once for all"


def test_progress_says_what_is_included(client: Any, server: Server) -> None:
    found = client.progress()
    assert found.includes("readings", 0, 9)
    assert not found.includes("readings", 0, 10)
    assert not found.includes("readings", 2, 0)
    assert not found.includes("others", 0, 0)
    assert (found.epoch, found.batch, found.watermark, found.reference, found.idle) == (2, 7, T0, "abc", None)
    assert (found.final, found.closed_until, found.silent) == (T0, T0, False)
    progress(server, T0, **silence(T0 + 5))
    found = client.progress()
    assert (found.final, found.idle, found.closed_until, found.silent) == (T0, T0 + 5, T0 + 5, True)
    progress(server, T0, **silence(T0 + 5), batch="8")
    assert (client.progress().idle, client.progress().silent) == (T0 + 5, False)
    # The watermark of a writer that reads the topic again is behind.
    progress(server, T0, final=str(T0 + 7))
    assert (client.progress().watermark, client.progress().final) == (T0, T0 + 7)


def test_changes_are_followed_and_what_they_name_is_read(client: Any, server: Server) -> None:
    start = client.end_of_feed()
    assert start == "0-0"
    device(server, "d:1")
    window(server, "fast:power:d:1", T0, length=3 * MINUTE)
    ids = [
        announce(server, f"tidemark:window:fast:power:d:1:{T0}", f"tidemark:window:model:power:a%7Cb|x:{-T0}"),
        announce(server, f"tidemark:session:d:1:{T0}"),
        announce(server, "tidemark:device:d:1"),
        announce(server, "tidemark:progress"),
    ]
    following = client.follow(start)
    found = [next(following) for _ in ids]
    assert [each.id for each in found] == ids
    assert [each.kind for each in found] == ["window", "session", "device", "progress"]
    assert found[0].places == (
        Place("window", "d:1", "fast", "power", T0),
        Place("window", "a%7Cb|x", "model", "power", -T0),
    )
    assert [each.places[0] for each in found[1:]] == [
        Place("session", "d:1", start=T0),
        Place("device", "d:1"),
        Place("progress", ""),
    ]
    assert client.value(found[0].places[0]) == client.window("fast", "d:1", T0)
    assert client.value(found[0].places[1]) is None
    assert client.value(found[1].places[0]) is None
    assert client.value(found[2].places[0]) == client.device("d:1")
    assert client.value(found[3].places[0]) == client.progress()
    # Goes on where it was, and waits for what is new.
    again = client.follow(ids[1])
    assert [next(again).id, next(again).id] == ids[2:]
    timer = threading.Timer(0.3, announce, (server, "tidemark:device:d2"))
    timer.start()
    assert next(again).places == (Place("device", "d2"),)
    timer.join()
    assert client.changes(ids[-1])[0].places == (Place("device", "d2"),)
    assert client.changes(client.end_of_feed(), block_s=0.01) == []


def test_changes_after_an_entry_are_read_with_that_entry_alone(client: Any, server: Server) -> None:
    entry = {"kind": "device", "keys": '["tidemark:device:d1"]', "epoch": "2", "batch": "7"}
    for each in ("1-1", "1-5", "1-9"):
        server.redis.xadd("tidemark:changes", entry, id=each)
    client.changes("1-1")
    server.redis.config_resetstat()
    assert [each.id for each in client.changes("1-1")] == ["1-5", "1-9"]
    assert client.changes("1-9") == []
    calls = {name: each["calls"] for name, each in server.redis.info("commandstats").items() if "_x" in name}
    assert calls == {"cmdstat_xrange": 2}
    assert [each.id for each in client.changes("1-6")] == ["1-9"], "after an id of no entry"


def test_following_outlives_a_restart_of_redis(connect: Any, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        client = connect(server.url)
        first = announce(server, "tidemark:device:d1")
        following = client.follow("0-0")
        assert next(following).id == first
        server.stop()
        restart = threading.Timer(0.5, server.start)
        restart.start()
        late = threading.Thread(target=lambda: (restart.join(), announce(server, "tidemark:device:d2")))
        late.start()
        assert next(following).places == (Place("device", "d2"),)
        late.join()
        server.stop()
        with pytest.raises(UnavailableError, match=rf"Redis \(.*port {server.port}.*\) does not answer: .*ask again"):
            next(client.follow(first, retry_for_s=0.2))
        with pytest.raises(UnavailableError):
            client.device("d1")
        with pytest.raises(UnavailableError):
            list(client.devices())
        server.start()
        assert client.device("d1") is None


def test_a_refusal_is_no_outage(client: Any, server: Server, connect: Any) -> None:
    server.redis.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "resetkeys", "~other:*", "+@all")
    try:
        stranger = connect(server.url.replace("//", "//reader:secret@"))
        with pytest.raises(RefusedError, match=r"refuses: .*Reading takes a user with"):
            stranger.device("d1")
        with pytest.raises(RefusedError):
            connect(server.url.replace("//", "//reader:wrong@")).device("d1")
    finally:
        server.redis.execute_command("ACL", "DELUSER", "reader")


def test_a_connection_that_answers_with_bytes_is_refused(server: Server) -> None:
    with redis.Redis.from_url(server.url) as connection, pytest.raises(TypeError, match="decode_responses=True"):
        Client(connection)


# What somebody who did not write the client found.


def test_what_silence_has_closed_is_complete(client: Any, server: Server) -> None:
    for number in range(5):
        window(server, "site:power:leeds", T0 + number * MINUTE)

    def complete() -> tuple[int, str, int]:
        found = client.latest_complete("site", "leeds", "power")
        assert found == client.window("site", "leeds", found.start, "power")
        return (found.start - T0) // MINUTE, found.closed_by, found.revision

    progress(server, T0 + 2 * MINUTE, **silence(T0 + 9 * MINUTE))
    assert complete() == (4, "idle", 0)
    # Input goes on. What silence has closed is final, until a later batch changes it: then it is open again.
    progress(server, T0 + 2 * MINUTE, **silence(T0 + 9 * MINUTE), batch="8")
    assert complete() == (4, "idle", 0)
    window(server, "site:power:leeds", T0 + 4 * MINUTE, count=3, batch="8", revision="1")
    assert complete() == (3, "idle", 0)
    reopened = client.window("site", "leeds", T0 + 4 * MINUTE, "power")
    assert (reopened.final, reopened.closed_by, reopened.revision) == (False, "", 1)
    # A batch of a later term is later, whatever its number.
    window(server, "site:power:leeds", T0 + 3 * MINUTE, count=3, epoch="3", batch="1", revision="1")
    assert complete() == (2, "idle", 0)
    # All input is silent once more; then the watermark passes the windows.
    progress(server, T0 + 2 * MINUTE, **silence(T0 + 12 * MINUTE, "3", "1"))
    assert complete() == (4, "idle", 1)
    progress(server, T0 + 5 * MINUTE, **silence(T0 + 12 * MINUTE))
    assert complete() == (4, "watermark", 1)
    progress(server, T0 + 2 * MINUTE)
    assert complete() == (1, "watermark", 0)


def test_a_settled_window_is_complete_before_it_is_final(client: Any, server: Server) -> None:
    for number in range(4):
        window(server, "site:power:leeds", T0 + number * MINUTE)
    lines = json.dumps({"site": T0 + 2 * MINUTE, "gone": T0 + 9 * MINUTE})
    # Silence has closed more; it takes no settled window for its own.
    for more, causes in (({}, ["", ""]), (silence(T0 + 3 * MINUTE), ["idle", ""])):
        progress(server, T0 + MINUTE, settled=lines, **more)
        found = client.windows("site", "leeds", since=T0, measure="power")
        assert [each.closed_by for each in found] == ["watermark", "settled", *causes]
        assert client.latest_complete("site", "leeds", "power") == [each for each in found if each.final][-1]
    assert client.progress().settled == json.loads(lines)


def test_only_windows_that_may_be_final_are_looked_at(server: Server) -> None:
    def rounds() -> list[int]:
        found, sent = ask_slowly(server, queries.latest_complete("site", "leeds", "power"))
        assert found.start == T0 + MINUTE
        return sent

    for number in range(10):
        window(server, "site:power:leeds", T0 + number * MINUTE, batch="7" if number < 2 else "8")
    progress(server, T0 + 2 * MINUTE)
    assert rounds() == [1, 2, 2], "meta; the last event time and progress; progress and one window"
    # Those that were closed by silence and may be open again are looked at together.
    progress(server, T0 + MINUTE, **silence(T0 + 5 * MINUTE))
    assert rounds() == [1, 2, 1 + 5]


def test_silence_closes_windows_up_to_its_time_alone(client: Any, server: Server) -> None:
    for number in range(2):
        window(server, "fast:power:d1", T0 + number * MINUTE, length=3 * MINUTE)
    progress(server, T0, **silence(T0 + 3 * MINUTE))
    assert [each.closed_by for each in client.windows("fast", "d1", since=T0)] == ["idle", ""]
    assert client.latest_complete("fast", "d1").start == T0


def test_a_measure_that_is_sent_more_rarely_than_others_has_a_newest_window(client: Any, server: Server) -> None:
    window(server, "site:temperature:leeds", T0 - 40 * MINUTE)
    window(server, "site:power:leeds", T0)
    assert client.current("site", "leeds", "temperature").start == T0 - 40 * MINUTE
    assert client.latest_complete("site", "leeds", "temperature").start == T0 - 40 * MINUTE


def test_the_search_for_a_window_ends(client: Any, server: Server) -> None:
    meta = {**META, "views": [{**META["views"][3], "window_ms": 1_000, "slide_ms": 1_000}]}
    server.redis.set("tidemark:meta", json.dumps(meta))
    server.redis.zadd("tidemark:keys:all", {"all": T0})
    assert client.current("all") is None
    assert client.latest_complete("all") is None


def test_a_feed_that_has_gone_back_is_a_lost_one(client: Any, server: Server) -> None:
    entry = {"kind": "device", "keys": '["tidemark:device:d1"]', "epoch": "2", "batch": "7"}
    for number in ("900-0", "950-0"):
        server.redis.xadd("tidemark:changes", entry, id=number)
    assert [change.id for change in client.changes("900")] == ["950-0"]
    with pytest.raises(ChangesLostError, match="or Redis has lost them"):
        client.changes("1000-0")


def test_a_quiet_feed_is_no_outage_however_soon_the_connection_gives_up(connect: Any, server: Server) -> None:
    client = connect(server.url, socket_timeout=0.4)
    assert client.changes("0-0", 1.0) == []
    timer = threading.Timer(1.2, announce, (server, "tidemark:device:d1"))
    timer.start()
    assert next(client.follow(retry_for_s=0.1)).places == (Place("device", "d1"),)
    timer.join()


def run_until_it_is_killed(server: Server) -> None:
    """A script that runs until SCRIPT KILL. Its connection has no timeout: it would end before the script on a slow machine."""
    connection = redis.Redis.from_url(server.url, socket_timeout=None)
    with connection, pytest.raises(redis.ResponseError, match="killed"):
        connection.eval("while true do end", 0)


def ask_until_it_fails(client: Any) -> None:
    while True:
        client.device("d1")


def test_a_redis_that_is_busy_with_a_script_is_away(connect: Any, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.redis.config_set("lua-time-limit", 50)
        client = connect(server.url)
        with ThreadPoolExecutor(1) as thread:
            script = thread.submit(run_until_it_is_killed, server)
            try:
                with pytest.raises(UnavailableError, match="BUSY"):
                    ask_until_it_fails(client)
            finally:
                server.redis.script_kill()
            script.result()
        assert client.device("d1") is None


def test_the_key_of_an_answer_can_be_asked_again(client: Any, server: Server) -> None:
    window(server, "model:power:a%7Cb|(none)", T0)
    [(key, _)] = client.keys("model")
    found = client.current("model", key)
    assert found == client.current("model", found.key) == client.current("model", ("a|b", None))


def test_windows_are_found_before_their_key_is_listed(client: Any, server: Server) -> None:
    window(server, "site:power:leeds", T0)
    server.redis.delete("tidemark:keys:site")
    assert [each.start for each in client.windows("site", "leeds", since=T0, until=T0 + MINUTE, measure="power")] == [
        T0
    ]
    assert client.windows("site", "leeds", since=T0, measure="power") == []


def test_the_open_session_is_open(client: Any, server: Server) -> None:
    """A batch writes sessions before devices."""
    fields = {
        "start": T0,
        "last": T0,
        "count": 1,
        "duration": 0,
        "state": "closed",
        "reason": "gap",
        "closed_by": "watermark",
    }
    server.redis.hset(f"tidemark:session:d1:{T0}", mapping={**fields, "revision": 0, **STAMP})
    device(server, "d1", session=str(T0))
    assert client.session("d1") is None
    assert client.session("d1", T0).state == "closed"
    earlier = T0 - 5_000
    changed = {"state": "merged", "reason": "merged", "merged_into": earlier}
    server.redis.hset(f"tidemark:session:d1:{T0}", mapping=changed)
    opened = {**fields, "start": earlier, "state": "open", "reason": "", "closed_by": ""}
    server.redis.hset(f"tidemark:session:d1:{earlier}", mapping={**opened, "revision": 0, **STAMP})
    assert client.session("d1").start == earlier, "a late reading has begun it earlier; the device is not written yet"


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "null", "{}", '{"contract": 3}', '{"contract": 3, "sessions": 5, "views": []}']
)
def test_a_meta_of_something_else_is_named(client: Any, server: Server, text: str) -> None:
    server.redis.set("tidemark:meta", text)
    with pytest.raises(ContractError, match="tidemark:meta is"):
        client.views()


def test_arguments_that_nothing_can_be_asked_with_are_named(client: Any, server: Server) -> None:
    for block_s in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="give seconds"):
            client.changes("0-0", block_s)
    for page in (0, -1):
        with pytest.raises(ArgumentError, match="give 1 or more"):
            list(client.devices(page))
    for key in (5, ("a", "b"), [5], {"a"}):
        with pytest.raises(KeyTextError):
            client.current("site", key, "power")
    with pytest.raises(ArgumentError, match="cannot be sent to Redis"):
        raise failure(server.redis, UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda client: client.windows("site", "a", since=1.5, measure="power"),
            "since = 1.5: give whole milliseconds",
        ),
        (lambda client: client.windows("site", "a", since=0, until="1", measure="power"), "until = '1': give whole"),
        (lambda client: client.window("site", "a", 2.0, "power"), "start = 2.0: give whole milliseconds"),
        (lambda client: client.keys("site", since=True), "since = True: give whole milliseconds"),
        (lambda client: client.keys("site", limit="9"), "limit = '9': give a whole number"),
        (lambda client: client.skewed(limit=1.0), "limit = 1.0: give a whole number"),
        (lambda client: client.device(7), "device_id = 7: give text"),
        (lambda client: client.sessions("d1", since=1e12), "since = 1000000000000.0: give whole milliseconds"),
        (lambda client: client.session("d1", start="x"), "start = 'x': give whole milliseconds"),
        (lambda client: client.current(["site"]), r"view = \['site'\]: give text"),
        (lambda client: client.latest_complete("site", "a", 5), "measure = 5: give text"),
        (lambda client: list(client.devices("10")), "page = '10': give a whole number"),
        (lambda client: client.changes("0-0", "1"), "block_s = '1': give seconds"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(client: Any, ask: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        ask(client)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("localhost:6379", "the URL has no scheme of Redis"),
        ("http://user:secret@localhost", "the URL has no scheme of Redis"),
        ("redis://localhost:abc", "the URL cannot be read"),
        ("redis://[::1", "the URL cannot be read"),
        ("redis://:secret/2@localhost:6379/0", "write %2F for /"),
        ("redis+sentinel://:secret/2@localhost:26379", "write %2F for /"),
        (b"redis://localhost", "url is of the type bytes"),
    ],
)
def test_a_url_that_is_none_is_named_without_its_password(kind: Any, url: Any, text: str) -> None:
    for cluster in (False, True):
        with pytest.raises(ArgumentError) as caught:
            kind.from_url(url, cluster=cluster)
        assert text in str(caught.value) or cluster
        assert "secret" not in f"{caught.value}{caught.value.__cause__}", "a log has the cause, too"
    with pytest.raises(ArgumentError, match="prefix = 5: give text"):
        kind.from_url("redis://localhost", 5)


def test_a_connection_of_the_other_kind_is_refused(server: Server) -> None:
    with (
        redis.Redis.from_url(server.url, decode_responses=True) as connection,
        pytest.raises(TypeError, match=r"one of redis[.]asyncio"),
    ):
        AsyncClient(connection)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Client takes a connection of redis"):
        Client(redis.asyncio.Redis.from_url(server.url, decode_responses=True))  # type: ignore[arg-type]


def test_a_view_without_windows_has_one_window_that_says_from_when_it_is_complete(client: Any, server: Server) -> None:
    endless = 1 << 42
    lengths = {"window_ms": endless, "slide_ms": endless, "retain_ms": endless}
    view = {"name": "total", "by": ["device"], "measures": ["power"], **lengths}
    server.redis.set("tidemark:meta", json.dumps({**META, "views": [*META["views"], view]}))
    window(server, "total:power:d7", 0, length=endless, complete_from=str(T0))
    window(server, "site:power:leeds", T0)
    progress(server, T0 + MINUTE, **silence(T0 + 5 * MINUTE))
    assert [each.endless for each in client.views().values()] == [False] * 4 + [True]
    found = client.current("total", "d7")
    assert (found.start, found.end, found.complete_from, found.final) == (0, endless, T0, False)
    assert client.window("total", "d7", 0) == found
    assert client.windows("total", "d7", since=T0) == [found]
    assert client.latest_complete("total", "d7") is None
    assert client.keys("total") == [("d7", 0)]
    assert client.current("site", "leeds", "power").complete_from is None


CALENDARS = [
    {"days": 1, "months": 0, "time_zone": "Europe/Rome", "offset_ms": 0, "offset_months": 0},
    {"days": 0, "months": 1, "time_zone": "Asia/Kathmandu", "offset_ms": 6 * 60 * MINUTE, "offset_months": 0},
]
HOUR = 60 * MINUTE
MARCH_29 = 1_774_738_800_000
"""Midnight in Rome before the day on which clocks go forward."""


def calendar_meta(server: Server) -> None:
    lengths = {"slide_ms": HOUR, "retain_ms": 40 * 24 * HOUR, "by": ["device"], "measures": ["power"]}
    views = [
        {"name": "day", "window_ms": 25 * HOUR, "calendar": CALENDARS[0], **lengths},
        {"name": "month", "window_ms": 31 * 24 * HOUR, "calendar": CALENDARS[1], **lengths},
    ]
    server.redis.set("tidemark:meta", json.dumps({**META, "tzdata": "2026f", "views": views}))


def test_windows_of_local_days_are_found_on_both_sides_of_a_change_of_clocks(client: Any, server: Server) -> None:
    calendar_meta(server)
    starts = [MARCH_29 - 24 * HOUR, MARCH_29, MARCH_29 + 23 * HOUR, MARCH_29 + 47 * HOUR]
    for start, end in zip(starts, [*starts[1:], starts[-1] + 24 * HOUR]):
        window(server, "day:power:d1", start, length=end - start, local_start=f"local {start}")
    progress(server, starts[2])
    day = client.views()["day"]
    assert client.meta().tzdata == "2026f"
    assert day.calendar is not None
    assert (day.calendar.text, day.starts(MARCH_29 + 22 * HOUR), day.end(MARCH_29)) == (
        "1 d of Europe/Rome",
        [MARCH_29],
        MARCH_29 + 23 * HOUR,
    )
    assert day.calendar.local(MARCH_29) == "2026-03-29T00:00:00+01:00"
    assert [each.start for each in client.windows("day", "d1", since=MARCH_29 - 1)] == starts
    assert [each.start for each in client.windows("day", "d1", since=MARCH_29, until=starts[3])] == starts[1:3]
    assert client.current("day", "d1").start == starts[3]
    assert client.latest_complete("day", "d1").start == MARCH_29
    found = client.window("day", "d1", MARCH_29)
    assert (found.end, found.local_start) == (MARCH_29 + 23 * HOUR, f"local {MARCH_29}")


def test_a_view_that_is_put_together_of_another_one_has_its_name(client: Any, server: Server) -> None:
    lengths = {"slide_ms": HOUR, "retain_ms": HOUR, "by": ["device"], "measures": ["power"]}
    hour = {"name": "hour@3", "of": "hour", "from": "minute@2", "window_ms": HOUR, **lengths}
    minute = {"name": "minute@2", "of": "minute", "window_ms": 60_000, **lengths, "slide_ms": 60_000}
    server.redis.set("tidemark:meta", json.dumps({**META, "views": [hour, minute]}))
    assert {name: view.source for name, view in client.views().items()} == {"hour": "minute", "minute": None}


def test_windows_of_each_key_are_found_in_the_time_zone_of_that_key(client: Any, server: Server) -> None:
    calendars = {"days": 1, "months": 0, "time_zone_column": "zone", "offset_ms": 0, "offset_months": 0}
    lengths = {"window_ms": 31 * HOUR, "slide_ms": HOUR // 4, "retain_ms": 40 * 24 * HOUR, "measures": ["power"]}
    view = {"name": "day", "by": ["device", "zone"], "calendars": calendars, **lengths}
    server.redis.set("tidemark:meta", json.dumps({**META, "tzdata": "2026f", "views": [view]}))
    # The reading is of the 29th in Rome, of the 30th in Kathmandu, and of the 29th in UTC, which is that of no zone.
    at = MARCH_29 + 20 * HOUR
    spans = {
        "Europe/Rome": (MARCH_29, 23 * HOUR),
        "Asia/Kathmandu": (MARCH_29 + 19 * HOUR + HOUR // 4, 24 * HOUR),
        "(none)": (MARCH_29 + HOUR, 24 * HOUR),
        "(other)": (MARCH_29 + HOUR, 24 * HOUR),
    }
    for zone, (start, length) in spans.items():
        window(server, f"day:power:d1|{zone}", start, length=length)
    progress(server, MARCH_29 + 23 * HOUR)
    view = client.views()["day"]
    assert (view.calendar, view.calendars.text) == (None, "1 d of the zone in zone")
    for zone, (start, length) in spans.items():
        key = ("d1", zone)
        assert client.current("day", key).start == start
        assert [each.start for each in client.windows("day", key, since=at, until=at + 1)] == [start]
        assert client.aggregate("day", key, since=at).end == start + length
        of_key = view.of_key(f"d1|{zone}")
        assert (of_key.starts(at), of_key.end(start)) == ([start], start + length)
    assert client.latest_complete("day", ("d1", "Europe/Rome")).start == MARCH_29
    assert client.latest_complete("day", ("d1", "Asia/Kathmandu")) is None


def test_the_newest_month_is_found_behind_months_without_readings(client: Any, server: Server) -> None:
    calendar_meta(server)
    month = client.views()["month"]
    [start] = month.starts(MARCH_29)
    assert month.calendar.local(start) == "2026-03-01T06:00:00+05:45"
    window(server, "month:power:d1", start, length=31 * 24 * HOUR)
    server.redis.zadd("tidemark:keys:month", {"d1": month.end(start)})
    assert client.current("month", "d1").start == start
    assert client.latest_complete("month", "d1") is None
    progress(server, month.end(start))
    assert client.latest_complete("month", "d1").start == start


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America"])
def test_a_zone_that_is_not_known_here_is_named_with_the_remedy(client: Any, server: Server, zone: str) -> None:
    calendar_meta(server)
    document = json.loads(server.redis.get("tidemark:meta"))
    document["views"][0]["calendar"]["time_zone"] = zone
    server.redis.set("tidemark:meta", json.dumps(document))
    server.redis.zadd("tidemark:keys:day", {"d1": MARCH_29})
    with pytest.raises(ContractError) as caught:
        client.current("day", "d1")
    assert f"time zone {zone!r}, which is not known here: pip install tzdata" in str(caught.value)
