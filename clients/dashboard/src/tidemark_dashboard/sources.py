"""All that the pages read: Redis by tidemark-client, the service over HTTP. One of each per process, however many browsers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tidemark_client import AsyncClient, ContractError, Meta, Place, Progress, Query, TidemarkClientError, queries
from tidemark_dashboard.feed import Feed
from tidemark_dashboard.fleet import Fleet
from tidemark_dashboard.health import Health, now_ms
from tidemark_dashboard.keys import KeysOfViews
from tidemark_dashboard.logins import PasswordFile, without_login
from tidemark_dashboard.options import Options
from tidemark_dashboard.rejects import Rejects
from tidemark_dashboard.service import EVERY_S, TIMEOUT_S, Service

T = TypeVar("T")
Topic = tuple[str, ...]
"""What a page depends on: ("device", id), ("window", view, key), ("keys", view), ("fleet",), ("progress",) or ("service",).

A view has its name in keys, `View.stored`."""

PULSE_S = 1.0
GRACE_S = 60.0
"""So long after the last page was closed, nothing is read any more."""
OLD_MS = 60_000
"""Without a batch for so long, though input is not silent, values are shown as old."""


@dataclass(frozen=True)
class Freshness:
    """Whether what is shown is current. `level` is live, silent, waiting or old; `name` is of a page of the runbook, or ""."""

    level: str
    text: str
    detail: str
    as_of_ms: int
    batch: int | None
    name: str = ""

    @property
    def is_old(self) -> bool:
        return self.level == "old"


@dataclass(frozen=True)
class Step:
    """Something that has to be there before there are values."""

    is_done: bool
    text: str


class Sources:
    """Reads while a page is open. `subscribe` says what to call when a topic changes."""

    def __init__(self, options: Options) -> None:
        self.options = options
        url, more = options.redis, dict[str, Any]()
        if options.password() is not None:
            url, user = without_login(url)
            more["credential_provider"] = PasswordFile(options.password, user)
        if options.sentinel_password() is not None:
            more["sentinel_kwargs"] = {"credential_provider": PasswordFile(options.sentinel_password)}
        if options.ca_file is not None and url.startswith("rediss"):
            more["ssl_ca_certs"] = str(options.ca_file)
        self.client = AsyncClient.from_url(url, options.prefix, cluster=options.cluster, **more)
        self.wanted = asyncio.Event()
        self.redis = Health()
        self.progress: Progress | None = None
        self._asked_s = 0.0
        self.fleet = Fleet(self.client, self.wanted, lambda: self.mark(("fleet",)), self._shows_fleet)
        self.keys = KeysOfViews(self.client)
        self.service = Service(options.service, options.prometheus, self.wanted, lambda: self.mark(("service",)))
        self.rejects = Rejects(options.rejects, lambda device: self.mark(("rejects", device)), self._counted_rejects)
        self._feed = Feed(self.client, self.redis, self.wanted, self._on_places, self._on_lost)
        self._interests: dict[Topic, set[Callable[[], None]]] = {}
        self._on_pulse: set[Callable[[], None]] = set()
        self._until_s = self._fleet_until_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a task has failed."""

    # The life of the tasks.

    def start(self) -> None:
        """Begin to read; to be called inside the event loop."""
        self.want()
        parts = (self._feed.run(), self.fleet.run(), self.service.run(), self._pulse())
        self._tasks = [asyncio.create_task(each) for each in parts]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that fails ends the process instead of leaving old values on the page."""
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "a task of the dashboard ended"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error, "task": task})
            self.on_failure()

    async def close(self) -> None:
        # A client may turn a cancellation into an error of its own, such as a timeout, after which a task would go on.
        while running := [task for task in self._tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=0.2)
        await self.rejects.close()
        await self.client.close()

    def want(self) -> None:
        """Read for at least GRACE_S from now on."""
        self._until_s = time.monotonic() + GRACE_S
        self.wanted.set()

    def want_fleet(self) -> None:
        """Keep the fleet current for at least GRACE_S from now on; it is kept current while a page shows it."""
        self._fleet_until_s = time.monotonic() + GRACE_S

    def _shows_fleet(self) -> bool:
        return ("fleet",) in self._interests or time.monotonic() < self._fleet_until_s

    async def _pulse(self) -> None:
        while True:
            await self.wanted.wait()
            with suppress(TidemarkClientError):
                await self.look()
            for call in tuple(self._on_pulse):
                call()
            if self._on_pulse:
                self.want()
            elif time.monotonic() > self._until_s:
                self.wanted.clear()
                # The next request may come before the reader of the feed has begun again.
                self.fleet.lost()
                self.keys.lost()
            await asyncio.sleep(PULSE_S)

    # What has changed.

    def subscribe(self, call: Callable[[], None], topics: Iterable[Topic], former: Iterable[Topic] = ()) -> None:
        """Call that when one of the topics changes, and not any more for the former ones."""
        for topic in former:
            if (calls := self._interests.get(topic)) is not None:
                calls.discard(call)
                if not calls:
                    del self._interests[topic]
        for topic in topics:
            self._interests.setdefault(topic, set()).add(call)

    def on_pulse(self, call: Callable[[], None], *, on: bool) -> None:
        """Call that about each second, or not any more."""
        (self._on_pulse.add if on else self._on_pulse.discard)(call)

    def mark(self, topic: Topic) -> None:
        """Note that a topic has changed."""
        for call in self._interests.get(topic, ()):
            call()

    def _on_places(self, places: Sequence[Place]) -> None:
        for place in places:
            if place.kind == "window":
                if self.keys.touch(place.view, place.key, place.start or 0):
                    self.mark(("keys", place.view))
                self.mark(("window", place.view, place.key))
            elif place.kind == "progress":
                self.mark(("progress",))
            else:
                if place.kind == "device":
                    self.fleet.touch(place.key)
                self.mark(("device", place.key))

    def _counted_rejects(self) -> float | None:
        """How many rejects the service has published; None where its last answer is old."""
        looks = self.service.looks
        is_old = not looks or time.monotonic() - looks[-1].at_s > EVERY_S + 2 * TIMEOUT_S
        return None if is_old else looks[-1].samples.sum("tidemark_rejects_total")

    def _on_lost(self) -> None:
        self.fleet.lost()
        self.keys.lost()
        for topic in list(self._interests):
            self.mark(topic)

    # What requests ask.

    async def ask(self, query: Query[T]) -> T:
        """The answer to a query; notes whether Redis answers. Raises what the client raises."""
        try:
            answer = await self.client.ask(query)
        except TidemarkClientError as error:
            if isinstance(error, LookupError | ValueError):  # about the question, not about Redis
                raise
            if isinstance(error, ContractError):
                self.redis.answered(str(error))
            else:
                self.redis.failed(str(error))
            raise
        self.redis.answered()
        return answer

    async def ask_all(self, questions: Iterable[Query[Any]]) -> list[Any]:
        """The answers to many queries."""
        return await self.ask(queries.together(questions))

    async def meta(self) -> Meta:
        """The views and measures. Raises ContractError where there are none yet."""
        meta = await self.ask(queries.meta())
        self.redis.answered("")
        return meta

    @property
    def recent(self) -> Progress | None:
        """Progress, None where it was not asked for lately."""
        return self.progress if time.monotonic() - self._asked_s < 3 * PULSE_S else None

    async def look(self) -> Progress | None:
        """Progress, at most PULSE_S old. Raises what the client raises."""
        now_s = time.monotonic()
        if now_s - self._asked_s > PULSE_S / 2 or self.redis.is_away:
            progress = await self.ask(queries.progress())
            if now_s > self._asked_s:  # else a later question was answered before this one
                self.progress, self._asked_s = progress, now_s
        return self.progress

    def awaited(self) -> list[Step]:
        """What has to be there before there are values, in order, and whether it is."""
        redis, service = self.redis, self.service
        prefix = self.options.prefix
        steps = [
            Step(not redis.is_away, "Redis answers" if not redis.is_away else f"Redis does not answer: {redis.reason}")
        ]
        if service.is_known:
            state = service.status.get("state", "")
            if service.health.is_away:
                steps.append(Step(False, f"The service does not answer at {service.url}: {service.health.reason}"))
            else:
                text = f"The service is {state}" if state else f"The service is asked at {service.url}"
                steps.append(Step(state == "running", text))
        has_views = not redis.is_away and not redis.lacks
        views = "has" if has_views else "does not have"
        hint = "" if has_views or redis.is_away else f": {redis.lacks}"
        steps.append(Step(has_views, f"Redis {views} the views of a service under the prefix {prefix!r}{hint}"))
        steps.append(Step(self.progress is not None, "The first batch is published"))
        return steps

    def freshness(self, read: Progress | None = None) -> Freshness:  # noqa: PLR0911 - one for each case
        """Whether what is shown is current, and if not, why. `read` is what a page is as of, None for the newest progress."""
        progress, status, now = self.progress, self.service.status, now_ms()
        as_of = read or progress
        as_of_ms, batch = (as_of.updated, as_of.batch) if as_of else (0, None)
        if self.redis.is_away:
            text = "Redis does not answer. What you see was read before that."
            answered_ms = self.redis.answered_ms if as_of == progress else 0
            return Freshness("old", text, self.redis.reason, answered_ms or as_of_ms, batch)
        if self.redis.lacks and progress is None:
            return Freshness("waiting", "Redis has no values of a service yet.", "", 0, None)
        if progress is None:
            text = "The service has not finished its first batch, or is writing lost values again."
            return Freshness("waiting", text, "", 0, None, "TidemarkNotReady")
        age_ms = now - progress.updated
        if self.service.is_known and self.service.health.is_away:
            text = "The service does not answer. Values are as of its last batch."
            return Freshness("old", text, self.service.health.reason, as_of_ms, batch, "TidemarkAbsent")
        state = status.get("state", "")
        if state and state != "running":
            text = f"The service is {state}. Values are as of its last batch."
            error = status.get("last_error") or {}
            detail = f"{error['code']}: {error['text']}" if error else ""
            return Freshness("old", text, detail, as_of_ms, batch, error.get("code", "TidemarkNotRunning"))
        if progress.silent or self.service.samples.value("tidemark_input_silent") == 1:
            return Freshness("silent", "No device sends anything. Values are complete.", "", as_of_ms, batch)
        if age_ms > OLD_MS:
            text = "No batch has been published for a while. Values are as of the last one."
            return Freshness("old", text, "", as_of_ms, batch, "TidemarkNotReady")
        return Freshness("live", "Live", "", as_of_ms, batch)
