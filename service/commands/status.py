"""`tidemark status`: the running service on one screen: figures, outlets, what is over its limit, and the next command to type.

No line is longer than WIDTH, but for a name or a command that is. Without a service, Redis says when the last batch was.
This module imports neither Spark nor, before it is needed, a client of Redis, so that `tidemark status` starts fast.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service import clock
from service.monitoring import attention
from service.printing import aligned, command_line, counted, printable
from service.units import rough_bytes, rough_seconds

if TYPE_CHECKING:
    from service.settings import Settings

WIDTH = 100
FIRING = 3
"""The exit status with --strict when the query runs and an alert fires."""
REDIS_S = 1.0
"""For how long Redis is asked when no service answers."""
_NAME = 12


def lines(document: Mapping[str, Any], conditions: Mapping[str, Any], batches: int, config: Path) -> Iterator[str]:
    """Format the documents of /status and /conditions as lines, with the last `batches` batches, the newest last."""
    epoch = "no epoch yet" if document["epoch"] is None else f"epoch {document['epoch']}"
    yield f"{document['service']}: {document['state']}, {epoch}"
    for name, text in _rows(document):
        yield from _row(name, text)
    yield from _table(document["batches"][-batches:] if batches > 0 else [])
    yield ""
    yield from _needs(conditions, config, is_running=document["state"] == "running")


def absent(settings: "Settings", config: Path) -> Iterator[str]:
    """Yield what Redis has of a service that does not answer: its last batch and its lease, and what to look at."""
    import redis  # noqa: PLC0415 - its import takes 60 ms, which a running service need not wait for

    from service.redis import client as redis_client  # noqa: PLC0415
    from service.redis.keys import shards  # noqa: PLC0415

    options, keys = settings.redis, shards(settings.redis)[0]
    seconds = {"socket_timeout": REDIS_S, "socket_connect_timeout": REDIS_S}
    holder: str | None = None
    try:
        client = redis_client.client(options, keys, **seconds)
        try:
            progress, lease, ttl_ms = client.hgetall(keys.progress), client.get(keys.lease), client.pttl(keys.lease)
        finally:
            client.close()
        holder = None if lease is None else lease.decode(errors="replace")
    except (redis.RedisError, OSError) as error:
        yield from _row(
            "Redis", f"{redis_client.address(options, keys)} does not answer: {' '.join(str(error).split())}"
        )
    else:
        yield from _row("last batch", _last_batch({name.decode(): value.decode() for name, value in progress.items()}))
        what = "nobody has it: no service runs with this prefix"
        yield from _row("lease", what if holder is None else f"{_place(holder)} has it for {ttl_ms / 1000:.0f} s more")
    yield ""
    if holder is not None:
        yield from _row(
            "look at", f"the service on {holder.partition(':')[0]}: [metrics] there, if this file has another port"
        )
    else:
        log = "the end of its log, and its supervisor: systemctl status tidemark, or deploy/driver status"
        yield from _row("look at", log)
    yield f"next: {command_line('check', config)}"


def _last_batch(progress: Mapping[str, str]) -> str:
    if not progress:
        return "none: Redis has no progress under this prefix"
    updated_ms, watermark_ms = int(progress["updated"]), int(progress["watermark"])
    watermark = f"; the watermark is at {_time(watermark_ms)}" if watermark_ms > 0 else ""
    return (
        f"{int(progress['batch']):,} of epoch {progress['epoch']}, {_ago(updated_ms)} ({_time(updated_ms)}){watermark}"
    )


def _place(holder: str) -> str:
    """Return host and process of a lease's holder (service/daemon/owner.py)."""
    host, _, rest = holder.partition(":")
    return f"process {rest.partition(':')[0]} on {host}" if rest else host


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    error, since = document["last_error"], document["query_since_ms"]
    query = f"since {_time(since)}" if since is not None else "none"
    restarts = counted(document["restarts"], "restart")
    yield "query", f"{query}, {restarts}; the process since {_time(document['started_ms'])}"
    for name, text in document["figures"].items():
        if name not in {"state", "restarts", "reference"}:
            yield name, text
    if error is not None:
        yield "last error", f"{_ago(error['at_ms'])} ({_time(error['at_ms'])}) {error['code']}: {error['text']}"
    reference = document["reference"]
    if reference is not None:
        age = rough_seconds(1000 * reference["age_s"])
        yield "reference", f"{counted(reference['rows'], 'device')}, read {age} ago, version {reference['version']}"
        failure = reference["failure"]
        if failure is not None:
            kept = f"the last good one stays in use since {_time(failure['at_ms'])}: {failure['reason']}: {failure['text']}"
            yield "", kept
    for name, outlet in document["outlets"].items():
        yield "outlet", f"{name} {_outlet(outlet)}"
    checkpoint = document["checkpoint"]
    if checkpoint is not None:
        yield "checkpoint", f"batch {checkpoint['batch']:,} is committed, {_written(checkpoint)}"


def _outlet(outlet: Mapping[str, Any]) -> str:
    parts = ["has everything"]
    if outlet["pending_batches"]:
        batches = counted(outlet["pending_batches"], "batch").replace("batchs", "batches")
        since = rough_seconds(1000 * outlet["age_s"])
        parts = [f"lacks {batches} ({rough_bytes(outlet['pending_bytes'])}), the oldest for {since}"]
    if outlet["error"]:
        parts.append(f"is away: {outlet['error']}")
    if outlet["refused_rows"]:
        rows = counted(outlet["refused_rows"], "row")
        parts.append(f"refuses {rows}: docs/outlets.md#rows-that-an-outlet-refuses")
    return "; ".join(parts)


def _written(checkpoint: Mapping[str, Any]) -> str:
    behind = checkpoint["snapshot_batches"]
    written = f"its logs took {checkpoint['log_ms']} ms and its state {checkpoint['state_ms']} ms"
    return written if behind is None else f"{written}; the oldest snapshot of the state is {behind} batches behind"


def _needs(conditions: Mapping[str, Any], config: Path, *, is_running: bool) -> Iterator[str]:
    """Yield what is over its limit, and the command that shows more of the first of it."""
    active = attention.active(conditions)
    commands: list[str] = []
    for title, state in (("over its limit:", "firing"), ("over its limit, not for long enough yet:", "pending")):
        rows = [row for row in active if row[1]["state"] == state]
        if rows:
            yield title
        for each, alert in rows:
            for_ = attention.duration(conditions, each, alert)
            yield f"  {each['alert']} ({each['severity']}) for {for_}"
            where = {} if each["value"] is None or each["limit"] is None else each
            limit = (
                f" ({attention.amount(each, each['value'])}, limit {attention.amount(each, each['limit'])})"
                if where
                else ""
            )
            yield from _wrapped(f"{alert['summary']}{limit}", " " * 6)
            yield from _wrapped(each["runbook"], " " * 6)
            commands.append(each["command"])
    if not active:
        yield "nothing is over its limit"
    if not active and not is_running:
        commands.append("check")
    yield from (f"next: {command_line(each, config)}" for each in list(dict.fromkeys(commands))[:2])


def _table(batches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the batches; phases that took least are left out where the lines would be longer than WIDTH."""
    if not batches:
        return
    phases = list(batches[-1]["phases"])
    while True:
        rows = [["batch", "records", "limit", *phases, "watermark", "finished"]]
        for each in batches:
            seconds = [f"{each['phases'].get(name, 0.0):.3f}" for name in phases]
            times = [_clock(each["watermark_ms"]), _clock(each["finished_ms"])]
            rows.append([str(each["batch"]), f"{each['rows']:,}", f"{each['limit']:,}", *seconds, *times])
        shown = list(aligned(rows, is_right=True))
        if max(map(len, shown)) <= WIDTH - 2 or not phases:
            break
        phases.remove(min(phases, key=lambda name: sum(each["phases"].get(name, 0.0) for each in batches)))
    yield ""
    yield "the last batches, phases in seconds, times in UTC:"
    yield from (f"  {line}" for line in shown)


def _row(name: str, text: str) -> Iterable[str]:
    return _wrapped(text, " " * (_NAME + 2), f"  {name:<{_NAME}}")


def _wrapped(text: str, indent: str, first: str | None = None) -> Iterable[str]:
    begins = indent if first is None else first
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=begins,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [begins.rstrip()]


def _ago(ms: int) -> str:
    return f"{rough_seconds(clock.now_ms() - ms)} ago"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if ms > 0 else "-"


def _clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S") if ms > 0 else "-"
