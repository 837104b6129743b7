"""Who may see the pages, and what a browser may do with them."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers as RequestHeaders
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark_dashboard.api import BASE, problems

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
"""A browser runs and fetches nothing but the files of the package, whatever a device has sent."""
STATIC = "/static/"
"""The paths of the package's files."""
OPEN = frozenset({"/login", "/healthz"})
"""Paths that need no token, in addition to those of STATIC. Their answers have nothing of the service."""
WRONG_S = 0.5
"""How long the answer to a wrong token takes."""
MOST_BYTES = 4_096
BODY_S = 10.0
"""How long a browser may take to send a token."""
WRONG, WRONG_IN_S = 10, 60.0
"""So many wrong tokens of one client in this time, over all of its connections; then it has to wait."""
SESSION_S = 7 * 86_400.0
"""How long a browser stays signed in."""
MOST_CLIENTS = 1_000
"""Sessions, and clients with wrong tokens, that are remembered."""


class Sessions:
    """The browsers that have given the token, by what their cookies have. They end with the process.

    `port` is part of the cookie's name: a browser gives a cookie to all ports of a host.
    """

    def __init__(self, port: int) -> None:
        self.name = f"tidemark-{port}"
        self._ends_s: OrderedDict[str, float] = OrderedDict()

    def begin(self) -> str:
        """Return the cookie of a new session; the oldest ends when there are too many."""
        cookie = secrets.token_urlsafe(32)
        self._ends_s[cookie] = time.monotonic() + SESSION_S
        if len(self._ends_s) > MOST_CLIENTS:
            self._ends_s.popitem(last=False)
        return cookie

    def end(self, cookie: str) -> None:
        self._ends_s.pop(cookie, None)

    def has(self, cookie: str) -> bool:
        return time.monotonic() < self._ends_s.get(cookie, 0.0)

    def cookie_of(self, headers: RequestHeaders) -> str:
        """Return the cookie of a session, "" for none. http.cookies takes quadratic time for quotes (CVE-2024-7592)."""
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self.name), "")


class Token:
    """The token, and how often each client has given another one. Behind a proxy all clients are one: give it a limit, too."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, client: str) -> int:
        """Return for how many seconds no token of this client is looked at, 0 for none."""
        wrong = self._wrong.get(_network(client), deque())
        return max(0, math.ceil(wrong[0] + WRONG_IN_S - time.monotonic())) if len(wrong) == WRONG else 0

    def is_right(self, given: str, client: str) -> bool:
        """Compare a token, unless the client has to wait: then it is wrong."""
        if self.wait_s(client):
            return False
        if _equal(given, self._token):
            return True
        network = _network(client)
        self._wrong.setdefault(network, deque(maxlen=WRONG)).append(time.monotonic())
        self._wrong.move_to_end(network)
        if len(self._wrong) > MOST_CLIENTS:
            self._wrong.popitem(last=False)
        return False


class Headers:
    """Adds the headers of security to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def start(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["X-Frame-Options"] = "DENY"
                headers["Referrer-Policy"] = "same-origin"
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Cache-Control"] = "no-cache" if scope["path"].startswith(STATIC) else "no-store"
            await send(message)

        await self._app(scope, receive, start if scope["type"] == "http" else send)


class Guard:
    """Answers only requests to one of the hosts, and only those with the token or of a session, if there is a token."""

    def __init__(self, app: ASGIApp, token: Token | None, sessions: Sessions, hosts: Sequence[str]) -> None:
        self._app, self._token, self._sessions = app, token, sessions
        self._hosts = {each.lower() for each in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = RequestHeaders(scope=scope)
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        answer: Response | None = None
        if name not in self._hosts:
            remedy = f"start it with --host {name}"
            answer = refusal(scope, "wrong_host", 421, f"This dashboard is not {name!r}", remedy)
        elif scope["method"] not in {"GET", "HEAD", "POST"}:
            answer = refusal(scope, "no_such_method", 405, f"{scope['method']} is not answered", "use GET")
        elif self._token is not None and not _is_open(scope["path"]):
            cookie = self._sessions.cookie_of(headers)
            scope["is_signed_in"] = lambda: self._sessions.has(cookie)
            if not self._sessions.has(cookie):
                answer = self._of_a_token(self._token, scope, headers)
        await (answer or self._app)(scope, receive, send)

    def _of_a_token(self, token: Token, scope: Scope, headers: RequestHeaders) -> Response | None:
        """Return the refusal of a request without a session, None if it has the token."""
        client, (scheme, _, given) = client_of(scope), headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if token.is_right(given.encode("latin-1").decode("utf-8", "replace"), client):
                scope["is_signed_in"] = lambda: True
                return None
            if wait_s := token.wait_s(client):
                return too_many(wait_s, scope)
        return self._refusal(scope, headers)

    def _refusal(self, scope: Scope, headers: RequestHeaders) -> Response:
        if "text/html" not in headers.get("accept", "") or scope["path"].startswith(f"{BASE}/"):
            more = {"WWW-Authenticate": "Bearer"}
            return refusal(
                scope, "no_token", 401, "The token is missing or wrong", "give Authorization: Bearer ...", more
            )
        query = scope["query_string"].decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)


def login(token: Token, sessions: Sessions, html: Callable[..., Response], *, is_secure: bool) -> Any:
    """The page that asks for the token, and the answer to it."""

    async def answer(request: Request) -> Response:
        wanted = _local(request.query_params.get("next", "/"))
        context = {"title": "Sign in", "next": wanted, "freshness": None}
        if request.method != "POST":
            return html("login.html", {**context, "is_wrong": False})
        body, client = b"", client_of(request.scope)
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > MOST_BYTES:
                        return PlainTextResponse("That is too long for a token\n", 413)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("The token did not arrive in time\n", 408)
        fields: Mapping[str, list[str]] = parse_qs(body.decode("utf-8", "replace"))
        if not token.is_right(fields.get("token", [""])[0].strip(), client):
            if wait_s := token.wait_s(client):
                return too_many(wait_s, request.scope)
            await asyncio.sleep(WRONG_S)
            return html("login.html", {**context, "is_wrong": True}, 403)
        response = RedirectResponse(wanted, 303)
        response.set_cookie(sessions.name, sessions.begin(), httponly=True, samesite="lax", secure=is_secure, path="/")
        return response

    return answer


def logout(sessions: Sessions) -> Any:
    """The answer that ends a session."""

    async def answer(request: Request) -> Response:
        sessions.end(sessions.cookie_of(request.headers))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(sessions.name, path="/", httponly=True, samesite="lax")
        return response

    return answer


def client_of(scope: Scope) -> str:
    """Return the address of the client; of a Unix socket it is ""."""
    return (scope.get("client") or ("",))[0]


def too_many(wait_s: int, scope: Scope) -> Response:
    """Return the answer to a client with too many wrong tokens."""
    more = {"Retry-After": str(wait_s)}
    return refusal(scope, "too_many_tokens", 429, "Too many wrong tokens", f"try again in {wait_s} s", more)


def refusal(
    scope: Scope, code: str, status: int, detail: str, remedy: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the refusal of a request: a problem for the API, else a line of text."""
    if scope["path"].startswith(f"{BASE}/"):
        problem = problems.ProblemError(code, status, detail, {"remedy": remedy})
        return problems.answer(problem, str(scope["path"]), headers)
    return PlainTextResponse(f"{detail}: {remedy}\n", status, headers)


def _network(client: str) -> str:
    """Return what one client has of addresses: of IPv6 the first 64 bits."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv4Address):
        return client
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _local(path: str) -> str:
    """The path if it is one of this host, else the first page."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_local else "/"
