"""Where a correction writes: closed values in Redis, by correct.lua, and what it has to know of Redis before."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from service import clock, failpoint
from service.errors import SinkError
from service.micro_batch import MicroBatch, parse_offsets
from service.publication.rows import Call, Rows, Stamp
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.redis.link import Budget, Link, Place, Reply, link
from service.settings import Settings

SCRIPT = Path(__file__).with_name("correct.lua").read_bytes()
_AGAIN = "Nothing is lost: run it again"
_PAGE = 1_000

# How correct.lua treats rows: the field that says whether a value is closed, and the fields that, equal, say the same.
_HOW: Mapping[str, Mapping[str, Any]] = {
    "window": {"seal": ("final", "1"), "same": ("count", "end")},
    "session": {"seal": ("state", "closed"), "same": ("count", "last", "reason")},
}


@dataclass(frozen=True, slots=True)
class Written:
    """What became of rows: `same` were right already, `poorer` have more readings in Redis, `gone` were to be merged."""

    written: int = 0
    same: int = 0
    poorer: int = 0
    opened: int = 0
    gone: int = 0


@dataclass(frozen=True, slots=True)
class ClosedSink:
    """Writes as of `micro_batch`, which is what progress held, for the run with this number of the fence, to one run of Redis.

    `server` names that run, as `server` below gave it before `micro_batch` was read. `mark` is the mark of a republish that
    writes corrected values again. Raises SinkError when Redis does not answer, was restarted, has lost data or is being
    republished to by another; FencedError when another run has begun.
    """

    settings: Settings
    micro_batch: MicroBatch
    number: int
    server: str
    mark: str = ""

    def write(self, rows: Rows) -> Written:
        """Windows that are final and sessions that are closed or merged, as `rows.as_of_watermark` gives them."""
        if not len(rows):
            return Written()
        what = f"{rows.kind.name}s"
        replies = self._run(self._calls(rows), what)
        found = Written(*(sum(map(int, column)) for column in zip(*replies, strict=True)))
        if found.opened and not self.mark:  # a republish goes on: what is open the daemon writes
            msg = f"{self._place(what)}: {found.opened} are open, though progress says that they are closed"
            raise SinkError(msg, remedy=_AGAIN)
        return found

    def confirm(self) -> None:
        """Raise SinkError unless the run of Redis that was written to still answers."""
        self._run([], "the values")

    def keys(self, view: str, scores: list[int], members: list[bytes | None], ttl_ms: int) -> None:
        """Keys of a view by last event time; those that a reader of the view would not see any more are left out."""
        floor = self.micro_batch.watermark_ms - ttl_ms
        young = [(score, member) for score, member in zip(scores, members, strict=True) if score > floor]
        name, stamp = Keys(self.settings.redis.prefix).view(view), self._stamp()
        for start in range(0, len(young), _PAGE):
            part = young[start : start + _PAGE]
            pairs = {"scores": [score for score, _ in part], "members": [member for _, member in part]}
            call = stamp.call("keys", number=str(self.number), mark=self.mark, key=name, ttl=ttl_ms, **pairs)
            self._run([call], "a view's keys")

    def _calls(self, rows: Rows) -> Iterator[Call]:
        stamp, size = self._stamp(), self.settings.redis.chunk
        for start in range(0, len(rows), size):
            if start:
                failpoint.hit("half_corrected")
            part = rows.take(range(start, min(start + size, len(rows))))
            yield stamp.call(
                "write",
                number=str(self.number),
                mark=self.mark,
                kind=rows.kind.name,
                keys=part.keys,
                ttl=part.ttl,
                fields=list(part.fields),
                columns=list(part.fields.values()),
                **_HOW[rows.kind.name],
            )

    def _run(self, calls: Iterable[Call], what: str) -> list[Reply]:
        place = self._place(what)
        replies = _link(self.settings).run(calls, Budget(self.settings.redis.retry_for_ms, place), self.server)
        for reply in replies:
            if reply[0] == -1:
                msg = f"{place}: refused, {_text(reply[1])}"
                raise SinkError(msg, remedy=_AGAIN)
        return replies

    def _place(self, what: str) -> Place:
        return Place(redis_client.address(self.settings.redis), f"{what} of correction {self.number}")

    def _stamp(self) -> Stamp:
        micro_batch = self.micro_batch
        feed, now = self.settings.redis.feed_length, str(clock.now_ms())
        return Stamp(str(micro_batch.epoch), str(micro_batch.batch), now, feed, (micro_batch.epoch, micro_batch.batch))


def server(settings: Settings) -> str:
    """Which run of Redis answers; raises SinkError."""
    place = Place(redis_client.address(settings.redis), "the beginning of a correction")
    return _link(settings).server(Budget(settings.redis.retry_for_ms, place))


def _link(settings: Settings) -> Link:
    keys = Keys(settings.redis.prefix)
    return link(settings.redis, SCRIPT, (keys.correction, keys.changes, keys.progress, keys.republish))


def held(settings: Settings, mark: str = "") -> MicroBatch:
    """What progress in Redis says; raises SinkError when there is none, or values are republished under another mark."""
    keys, place = (
        Keys(settings.redis.prefix),
        Place(redis_client.address(settings.redis), "the beginning of a correction"),
    )
    budget = Budget(settings.redis.retry_for_ms, place)
    with redis_client.client(settings.redis) as client:
        found = budget.attempt(lambda: client.hgetall(keys.progress))
        republishing = budget.attempt(lambda: client.get(keys.republish))
    if _text(republishing or b"") != mark:
        msg = f"{place}: values are being republished"
        raise SinkError(msg, remedy=f"Run it again when {keys.republish} is gone")
    said = {_text(name): _text(value) for name, value in found.items()}
    if not {"epoch", "batch", "watermark", "offsets"} <= said.keys():
        msg = f"{place}: there is no progress"
        raise SinkError(msg, remedy="Start the service first: it has published nothing yet")
    ends = parse_offsets(said["offsets"])
    return MicroBatch(
        int(said["epoch"]), int(said["batch"]), int(said["watermark"]), {}, ends, said.get("reference", "")
    )


def session_starts(settings: Settings, devices: Iterable[str]) -> dict[str, list[int]]:
    """Where the sessions of the devices begin that Redis has, open or closed, in no order. Raises SinkError.

    There is no index of a device's sessions, so all sessions' names are read, a thousand at a time.
    """
    prefix = Keys(settings.redis.prefix).session("", 0).removesuffix(":0")
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
    budget = Budget(
        settings.redis.retry_for_ms, Place(redis_client.address(settings.redis), "the sessions that there are")
    )
    wanted, found = set(devices), dict[str, list[int]]()
    with redis_client.client(settings.redis) as client:
        cursor = None
        while cursor != 0:
            cursor, names = budget.attempt(partial(client.scan, cursor or 0, match=pattern, count=_PAGE))
            for name in names:
                device, _, start = _text(name).removeprefix(prefix).rpartition(":")
                if device in wanted and budget.attempt(partial(client.hget, name, "state")) in {b"open", b"closed"}:
                    found.setdefault(device, []).append(int(start))
    return found


def _text(value: bytes | int) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
