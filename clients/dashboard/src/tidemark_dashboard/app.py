"""The application: routes, templates, and the events of the pages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tidemark_client import ContractError, KeyTextError, Progress, TidemarkClientError
from tidemark_dashboard import runbook, statistics
from tidemark_dashboard.api import BASE
from tidemark_dashboard.api.routes import Api, no_such_address
from tidemark_dashboard.glossary import GLOSSARY, REASONS
from tidemark_dashboard.live import MOST, Hub, Live, Rendered, events_of
from tidemark_dashboard.options import Options, OptionsError
from tidemark_dashboard.pages import NotFoundError, Page, address, device, fleet, key, pipeline, views
from tidemark_dashboard.security import STATIC, Guard, Headers, Sessions, Token, login, logout, refusal
from tidemark_dashboard.sources import Sources
from tidemark_dashboard.texts import FILTERS

PAGES = (fleet.PAGE, views.VIEWS, views.VIEW, key.PAGE, device.PAGE, pipeline.PAGE)
LONGEST = 2_000
"""Characters of a word of an address."""


class Site:
    """The pages with their sources."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sources = Sources(options)
        self.hub = Hub()
        self.api = Api(self.sources)
        loader = PackageLoader("tidemark_dashboard")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        self._templates.filters.update(FILTERS)
        self._templates.globals.update(
            address=address,
            glossary=GLOSSARY,
            reasons=REASONS,
            units=options.units,
            quote=quote,
            title_of=statistics.title,
            name_of=statistics.name,
            unit_of=lambda statistic, measure, view: statistics.unit(statistic, options.units.get(measure, ""), view),
            text_of=statistics.text,
            statistics_of=statistics.plotted,
            banded=statistics.BANDED,
            has_token=bool(options.token_file),
        )
        # Each page asks for it each second.
        self.freshness_part = lru_cache(maxsize=16)(lambda found: self.part("freshness", {"freshness": found}))

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.sources.start()
        try:
            yield
        finally:
            self.hub.is_closing = self.api.hub.is_closing = True
            await self.sources.close()

    def html(self, template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        """A page; it says how fresh its values are, unless the context has None for `freshness`."""
        text = self._templates.get_template(template).render(
            {"events": "", "page": "", "title": "", "freshness": self.sources.freshness(), **context}
        )
        return HTMLResponse(text, status)

    def part(self, name: str, context: Mapping[str, Any]) -> str:
        """One part of a page."""
        return self._templates.get_template(f"parts/{name}.html").render(context)

    async def show(self, page: Page, request: Request) -> Response:
        """A page as a whole."""
        self.sources.want()
        query = _query(page, request)
        try:
            shown = await page.read(self.sources, query)
        except (NotFoundError, KeyTextError) as error:
            return self.html("missing.html", {"title": "Not found", "reason": str(error)}, 404)
        except TidemarkClientError as error:
            title = "Waiting for values" if isinstance(error, ContractError) else "Redis does not answer"
            context: dict[str, Any] = {"title": title, "steps": self.sources.awaited(), "events": _events(page, query)}
            context["reason"] = "" if self.sources.redis.is_away or self.sources.redis.lacks else str(error)
            return self.html("waiting.html", context, 503)
        context = {
            **shown.context,
            "page": page.name,
            "title": page.title,
            "events": _events(page, query),
            "query": query,
        }
        return self.html(f"{page.name}.html", context)

    def events(self, page: Page, request: Request) -> Response:
        """The events of a page."""
        if self.hub.browsers >= MOST:
            return PlainTextResponse(f"{MOST} pages are open: the most that this dashboard serves\n", 503)
        query = _query(page, request)

        async def render() -> Rendered:
            try:
                shown = await page.read(self.sources, query)
            except (NotFoundError, KeyTextError):  # what the address names has gone: the page stays as it was
                return Rendered({}, frozenset({("progress",)}))
            context = {**shown.context, "query": query}
            return Rendered({name: self.part(name, context) for name in page.parts}, shown.topics)

        def freshness(read: Progress | None) -> dict[str, str]:
            parts = {"freshness": self.freshness_part(self.sources.freshness(read))}
            if self.sources.redis.is_away or self.sources.redis.lacks:  # a page that waits has a part more
                parts["waiting"] = self.part("waiting", {"steps": self.sources.awaited()})
            return parts

        def make() -> Live:
            return Live(self.sources, render, freshness, self.hub.turn)

        return self.hub.answer(request, _events(page, query), make, events_of)

    async def csv(self, request: Request) -> Response:
        """The windows of a key as CSV."""
        try:
            text = await key.read_csv(self.sources, _query(key.PAGE, request))
        except (NotFoundError, KeyTextError) as error:
            return PlainTextResponse(f"{error}\n", 404)
        except TidemarkClientError as error:
            return PlainTextResponse(f"{error}\n", 503)
        headers = {"Content-Disposition": 'attachment; filename="windows.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    async def runbook(self, request: Request) -> Response:
        """What to do about one thing that has failed, or the list of all."""
        name = request.path_params.get("name", "")
        if not name:
            context = {"title": "What to do", "page": "runbook", "alerts": runbook.alerts(), "codes": runbook.codes()}
            return self.html("runbook.html", context)
        answer = runbook.answer(name)
        if answer is None:
            return self.html(
                "missing.html", {"title": "Not found", "reason": f"The runbook has nothing about {name!r}"}, 404
            )
        context = {"title": runbook.title(name), "page": "runbook", "answer": answer, "name": name}
        return self.html("problem.html", context)


def _query(page: Page, request: Request) -> dict[str, str]:
    return page.query({name: value[:LONGEST] for name, value in request.query_params.items()})


def _events(page: Page, query: Mapping[str, str]) -> str:
    return address(f"/events/{page.name}", **query)


def build(options: Options) -> Starlette:
    """The application. Raises OptionsError."""
    options.check()
    try:
        site = Site(options)
    except ValueError as error:  # of the client, or of redis-py for an option in the URL
        msg = f"--redis: {error}".replace("cluster=True", "--cluster")
        raise OptionsError(msg) from error
    token = Token(options.token()) if options.token_file else None
    sessions = Sessions(options.port)
    by_name = {page.name: page for page in PAGES}

    async def events(request: Request) -> Response:
        page = by_name.get(request.path_params["name"])
        return site.events(page, request) if page else PlainTextResponse("no such page\n", 404)

    async def missing(request: Request, _: Exception) -> Response:
        if request.url.path.startswith(f"{BASE}/"):
            return no_such_address(request)
        if request.url.path.startswith(STATIC):  # a path that needs no token
            return PlainTextResponse("no such file\n", 404)
        return site.html("missing.html", {"title": "Not found", "reason": "There is no page at this address"}, 404)

    async def no_method(request: Request, _: Exception) -> Response:
        return refusal(request.scope, "no_such_method", 405, f"{request.method} is not answered here", "use GET")

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes: list[Route | Mount] = [
        *(Route(page.path, _shows(site, page)) for page in PAGES),
        Route("/key.csv", site.csv),
        Route("/events/{name}", events),
        Route("/runbook", site.runbook),
        Route("/runbook/{name}", site.runbook),
        Route("/healthz", healthz),
        *site.api.routes(),
        Mount("/static", StaticFiles(directory=str(files("tidemark_dashboard") / "static"))),
    ]
    if token is not None:
        is_secure = options.certificate is not None
        routes += [
            Route("/login", login(token, sessions, site.html, is_secure=is_secure), methods=["GET", "POST"]),
            Route("/logout", logout(sessions), methods=["POST"]),
        ]
    app = Starlette(
        routes=routes,
        lifespan=site.lifespan,
        exception_handlers={404: missing, 405: no_method},
        middleware=[
            Middleware(Headers),
            Middleware(Guard, token=token, sessions=sessions, hosts=options.allowed_hosts),
            Middleware(GZipMiddleware, minimum_size=1_000),
        ],
    )
    app.state.site = site
    return app


def _shows(site: Site, page: Page) -> Any:
    async def show(request: Request) -> Response:
        return await site.show(page, request)

    return show
