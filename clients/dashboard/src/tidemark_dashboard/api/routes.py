"""The routes of the API: an answer as JSON, the same one as server-sent events, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidemark_client import Progress, TidemarkClientError
from tidemark_dashboard.api import BASE, EVENTS, parameters
from tidemark_dashboard.api.documents import text
from tidemark_dashboard.api.openapi import openapi
from tidemark_dashboard.api.parameters import Values
from tidemark_dashboard.api.problems import ProblemError, answer, of_client
from tidemark_dashboard.api.resources import BY_NAME, RESOURCES, Answer, Resource
from tidemark_dashboard.live import MOST, Hub, Live, Rendered
from tidemark_dashboard.sources import Sources, Topic

AT_ONCE = 8
"""Answers that are made at once; more wait."""
_RETRY = {"waiting", "counting", "redis_away", "redis_refuses"}


class Api:
    """The answers of the API. Its streams take turns of their own, so that a large answer delays no page."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.hub = Hub()
        self._turn = asyncio.Semaphore(AT_ONCE)

    def routes(self) -> list[Route]:
        """The routes; an address that is none of them is answered by `no_such_address`."""
        return [
            Route(f"{BASE}/openapi.json", self.document),
            *(Route(f"{BASE}/{each.name}", self.value, name=each.name) for each in RESOURCES),
            *(Route(f"{EVENTS}/{each.name}", self.events, name=f"follow {each.name}") for each in RESOURCES),
        ]

    async def document(self, _: Request) -> Response:
        """The OpenAPI document."""
        return Response(text(openapi()), media_type="application/json")

    async def value(self, request: Request) -> Response:
        """One answer."""
        try:
            resource, given = _asked(request)
            found = await self._read(resource, given)
        except ProblemError as problem:
            return answer(problem, instance(request))
        return Response(text(found.document).encode("utf-8", "replace"), media_type="application/json")

    async def events(self, request: Request) -> Response:
        """The answer now, and each time that it has changed."""
        try:
            if self.hub.browsers >= MOST:
                more = {"limit": MOST, "remedy": "Close a stream, or ask again and again instead"}
                raise ProblemError("too_many_streams", 503, f"{MOST} streams are open", more)
            resource, given = _asked(request)
            await self._read(resource, given)
        except ProblemError as problem:
            if problem.code != "not_found":  # a value may come
                return answer(problem, instance(request))
        words = sorted(
            request.query_params.multi_items(), key=itemgetter(0)
        )  # values keep their order: that of a key counts
        address = f"{resource.name}?{urlencode(words)}"
        return self.hub.answer(request, address, lambda: self._live(resource, given, instance(request)), written)

    def _live(self, resource: Resource, given: Values, address: str) -> Live:
        topics: frozenset[Topic] = frozenset({("progress",), ("service",), ("fleet",)})
        former = topics

        async def render() -> Rendered:
            nonlocal former
            try:
                found = await self._read(resource, given)
            except ProblemError as problem:
                if problem.code in _RETRY and isinstance(problem.__cause__, TidemarkClientError):
                    raise problem.__cause__ from None  # Live asks again
                return Rendered({"problem": text(problem.document(address))}, former | topics)
            former = found.topics
            return Rendered({"answer": text(found.document)}, found.topics)

        def freshness(read: Progress | None) -> dict[str, str]:
            found = self.sources.freshness(read)
            return {"freshness": text({"level": found.level, "text": found.text, "as_of_ms": found.as_of_ms})}

        return Live(self.sources, render, freshness, self.hub.turn)

    async def _read(self, resource: Resource, given: Values) -> Answer:
        self.sources.want()
        async with self._turn:
            try:
                return await resource.read(self.sources, given)
            except TidemarkClientError as error:
                raise of_client(error) from error


def written(parts: Mapping[str, str]) -> str:
    """The events of parts, each under its name; a comment where there is none."""
    return "".join(f"event: {name}\ndata: {data}\n\n" for name, data in parts.items()) or ": nothing has changed\n\n"


def instance(request: Request) -> str:
    """The address of a request."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def no_such_address(request: Request) -> Response:
    """The answer to an address that the API does not have."""
    names: Sequence[str] = [each.name for each in RESOURCES]
    remedy = f"Ask for {BASE}/openapi.json, which has all: {', '.join(names)}"
    detail = f"There is nothing at {request.url.path[:200]}"
    return answer(ProblemError("no_such_address", 404, detail, {"remedy": remedy}), instance(request))


def _asked(request: Request) -> tuple[Resource, dict[str, Any]]:
    resource = BY_NAME[request.url.path.rpartition("/")[2]]
    return resource, parameters.read(resource.parameters, request.query_params.multi_items())
