"""F12: partitions fall silent, one is added, and then all are silent; what is open must close on time in all three."""

from collections.abc import Mapping, Sequence
from typing import Any

from load.demo import SECTIONS
from load.faults.by_hand import add_partition
from load.faults.raw import Reading, send_readings
from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.judge import feed, published
from load.testbed import TOPIC, to_toml
from service.clock import now_ms

MAX_DELAY_S, MAX_AHEAD_S, IDLE_S, GAP_S, WINDOW_S = 30, 2, 5, 5, 5
SLACK_S = 6.0
NOTICED_S = 12.0
"""What a batch may take on a small machine that others use, too; and with it a look at the topic and reading the state."""
VIEWS = (
    {"name": "device", "by": ["device"], "window": f"{WINDOW_S} s", "retain": "1 d"},
    {"name": "site", "by": ["site"], "window": f"{2 * WINDOW_S} s", "slide": f"{WINDOW_S} s", "retain": "1 d"},
    {"name": "all", "window": f"{WINDOW_S} s", "retain": "1 d"},
)
_SECTIONS = {
    **SECTIONS,
    "admission": {
        **SECTIONS["admission"],
        "max_delay": f"{MAX_DELAY_S} s",
        "max_ahead": f"{MAX_AHEAD_S} s",
        "idle_after": f"{IDLE_S} s",
    },
    "sessions": {**SECTIONS["sessions"], "gap": f"{GAP_S} s"},
}
REPLAY = "replay"

Hash = Mapping[str, str]


@row("F12", "one partition silent, a new one, all silent", testbed={"views": VIEWS, "sections": _SECTIONS})
def silence(run: Run) -> Figures:
    """About three minutes, the replay from the topic's beginning included."""
    run.start()
    figures: Figures = {}
    figures["one_partition_delay_s"] = _one_alone(run, 0, "while one partition alone was fed")
    figures["new_partition_delay_s"] = _one_alone(run, add_partition(run), "while only the new partition was fed")
    silent_ms = now_ms()
    _wait_closed(run)
    figures |= _closed_by_silence(run, silent_ms)
    figures["corrected"] = _correct(run)
    run.load()
    run.steady()
    run.drain()
    _wait_closed(run)
    run.stop()
    run.compare()
    return {**figures, **_replay(run)}


def _one_alone(run: Run, partition: int, when: str) -> float:
    load = run.load(options=("--partitions-by", str(partition)))
    run.steady()
    begun_ms = now_ms()
    run.run_on(MAX_DELAY_S + MAX_AHEAD_S + WINDOW_S + SLACK_S)
    delay_s = _on_time(run, begun_ms, when)
    run.unload(load)
    return delay_s


def _wait_closed(run: Run) -> None:
    within_s = IDLE_S + GAP_S + 2 * WINDOW_S + 4 * SLACK_S
    run.until(lambda: _open(run) == (0, 0, 0), within_s, "silence to close all")


def _hashes(run: Run, kind: str, prefix: str = "tidemark", within: str = "") -> dict[str, Hash]:
    with run.testbed.redis.client(encoding_errors="surrogateescape") as client:
        values = published.hashes(client, prefix, (kind,), within)
        return {key.removeprefix(f"{prefix}:"): fields for key, fields in values}


def _open(run: Run, prefix: str = "tidemark") -> tuple[int, int, int]:
    """Windows that are open, open sessions, devices that are online."""
    windows = sum(not window["closed_by"] for window in _hashes(run, "window", prefix).values())
    if windows:
        return windows, -1, -1
    sessions = sum(session["state"] == "open" for session in _hashes(run, "session", prefix).values())
    return 0, sessions, sum(device["status"] == "online" for device in _hashes(run, "device", prefix).values())


def _closed_at_ms(run: Run, end_ms: int) -> int:
    """When it was seen first that a window with this end is closed."""
    return next(at for at, final, idle in run.observer.closed if end_ms <= max(final, idle))


def _on_time(run: Run, begun_ms: int, when: str) -> float:
    """The longest time from a window's end to its being final, of those that began after that moment; in seconds."""
    values = _hashes(run, "window", within="all:").values()
    windows = [each for each in values if each["closed_by"] and int(each["start"]) >= begun_ms]
    if not windows:
        run.violation("on time", f"{when} no window became final")
        return 0.0
    delay_s = max(_closed_at_ms(run, end) - end for end in {int(each["end"]) for each in windows}) / 1000
    limit_s = MAX_DELAY_S + MAX_AHEAD_S + SLACK_S
    if delay_s > limit_s or any(each["closed_by"] != "watermark" for each in windows):
        run.violation("on time", f"{when} a window became final {delay_s} s after its end, {limit_s} s are allowed")
    return round(delay_s, 1)


def _closed_by_silence(run: Run, silent_ms: int) -> Figures:
    """All is closed: by silence, and late by no more than it takes to notice; the oracle judges the values at the end."""
    windows = [each for each in _hashes(run, "window").values() if each["closed_by"] == "idle"]
    sessions = [each for each in _hashes(run, "session").values() if each["closed_by"] == "idle"]
    if not windows or not sessions:
        run.violation("on time", f"silence closed {len(windows)} windows and {len(sessions)} sessions")
        return {}
    delays = {
        "windows": max(_closed_at_ms(run, end) - max(end, silent_ms) for end in {int(each["end"]) for each in windows}),
        "sessions": max(int(each["updated"]) - max(int(each["last"]) + GAP_S * 1000, silent_ms) for each in sessions),
    }
    limit_s = IDLE_S + NOTICED_S
    for what, delay in delays.items():
        if delay > limit_s * 1000:
            run.violation("on time", f"silence closed {what} after {delay} ms, {limit_s} s are allowed")
    seconds = {f"silence_{what}_delay_s": round(delay / 1000, 1) for what, delay in delays.items()}
    return {**seconds, "silence_windows": len(windows), "silence_sessions": len(sessions)}


def _correct(run: Run) -> int:
    """A reading for a session, and its windows, that silence has closed: it is counted, and everything says so."""
    sessions = {key: each for key, each in _hashes(run, "session").items() if each["closed_by"] == "idle"}
    key = max(sessions, key=lambda each: int(sessions[each]["last"]))
    device, at_ms = key.removeprefix("session:").rpartition(":")[0], int(sessions[key]["last"])
    start_ms = at_ms // (WINDOW_S * 1000) * WINDOW_S * 1000
    names = [key, f"device:{device}", f"window:device:temperature:{device}:{start_ms}"]
    names.append(f"window:all:temperature:all:{start_ms}")
    if now_ms() - at_ms > (MAX_DELAY_S - 1) * 1000:
        run.violation("observed", f"the silence took so long to close that a reading {now_ms() - at_ms} ms old is late")
    with run.testbed.redis.client(encoding_errors="surrogateescape") as client:
        before = _values(run, names)
        newest: Any = client.xrevrange("tidemark:changes", count=1)
        send_readings(run, [Reading(device, at_ms)])
        count = int(before[0]["count"]) + 1
        run.until(lambda: client.hget(f"tidemark:{names[0]}", "count") == str(count), 30, "the reading to be counted")
        run.until(lambda: client.hget(f"tidemark:{names[1]}", "status") == "online", 10, "the device to be online")
        after = _values(run, names)
        changed_keys = {entry["key"] for _, entry in feed.changes(client, after=newest[0][0])}
    for name, was, now in zip(names, before, after, strict=True):
        if f"tidemark:{name}" not in changed_keys:
            run.violation("corrected", f"the feed does not say that {name} changed")
        grown = "count" in was and int(now["count"]) != int(was.get("count", 0)) + 1
        if grown or ("revision" in was and int(now["revision"]) != int(was["revision"]) + 1):
            run.violation("corrected", f"{name} was {was} and is {now}")
    return len(names)


def _values(run: Run, names: Sequence[str]) -> list[Hash]:
    """As `_hashes`, of some keys; a session, a device and windows."""
    values = {name: fields for kind in published.KINDS for name, fields in _hashes(run, kind).items() if name in names}
    return [values.get(name, {}) for name in names]


def _replay(run: Run) -> Figures:
    """The same topic, in one go and without a silence in between, under another prefix: it must end the same."""
    with run.testbed.redis.client() as client:
        epoch: Any = client.get("tidemark:epoch")
    settings = {**run.testbed.settings, "redis": {**run.testbed.settings["redis"], "prefix": REPLAY}}
    config = run.folder / "replay.toml"
    config.write_text(to_toml(settings), encoding="utf-8")
    again = run.instance("replay", "replay-checkpoint", config)
    again.start()
    ends = {str(partition): end for partition, end in run.observer.ends().items()}
    with run.testbed.redis.client() as client:

        def is_done() -> bool:
            progress: Any = client.hgetall(f"{REPLAY}:progress")
            has_offsets = f'"{TOPIC}"' in progress.get("offsets", "")
            return has_offsets and "idle" in progress and _open(run, REPLAY) == (0, 0, 0)

        run.until(is_done, STARTS_S, f"the replay up to {ends} to be closed")
    run.end(again)
    with run.testbed.redis.client() as client:
        verdict = run.judge(config, client, REPLAY)
    different = [name for kind in ("window", "session", "device") for name in _differ(run, kind)]
    if different:
        run.violation("replay", f"{len(different)} values are not as they were live, the first: {different[0]}")
    return {"replay_compared": verdict.compared, "replay_differences": len(different), "epoch": int(epoch)}


_SAME = ("count", "first", "last", "min", "max", "state", "reason", "closed_by", "status", "last_seen", "session")


def _differ(run: Run, kind: str) -> list[str]:
    """Keys whose values are not the same; sums and means are the oracle's to judge, up to their last digits."""
    live, again = (
        {k: [v.get(f) for f in _SAME] for k, v in _hashes(run, kind, prefix).items() if v.get("state") != "merged"}
        for prefix in ("tidemark", REPLAY)
    )
    return [
        f"{key}: {live.get(key)}, {again.get(key)}"
        for key in live.keys() | again.keys()
        if live.get(key) != again.get(key)
    ]
