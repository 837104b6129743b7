"""Who may see the pages, and what a browser may do with them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers as RequestHeaders
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
COOKIE = "tidemark"
STATIC = "/static/"
"""The paths of the package's files."""
OPEN = frozenset({"/login", "/healthz"})
"""Paths that need no token, in addition to those of STATIC. Their answers have nothing of the service."""
WRONG_S = 0.5
"""How long the answer to a wrong token takes."""
MOST_BYTES = 4_096


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
    """Answers only requests to one of the hosts, and only those with the token, if there is one."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, {each.lower() for each in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = RequestHeaders(scope=scope)
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        answer: Response | None = None
        if name not in self._hosts:
            answer = PlainTextResponse(f"This dashboard is not {name!r}: start it with --host {name}\n", 421)
        elif scope["method"] not in {"GET", "HEAD", "POST"}:
            answer = PlainTextResponse("Only GET is answered\n", 405)
        elif self._token and not _is_open(scope["path"]) and not self._is_known(headers):
            answer = self._refusal(scope, headers)
        await (answer or self._app)(scope, receive, send)

    def _is_known(self, headers: RequestHeaders) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(given, self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _equal(cookie.value, proof(self._token))

    def _refusal(self, scope: Scope, headers: RequestHeaders) -> Response:
        if "text/html" not in headers.get("accept", ""):
            return PlainTextResponse("Give the token: Authorization: Bearer ...\n", 401, {"WWW-Authenticate": "Bearer"})
        query = scope["query_string"].decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)


def login(token: str, html: Callable[..., Response], *, is_secure: bool) -> Any:
    """The page that asks for the token, and the answer to it."""

    async def answer(request: Request) -> Response:
        wanted = _local(request.query_params.get("next", "/"))
        context = {"title": "Sign in", "next": wanted, "freshness": None}
        if request.method != "POST":
            return html("login.html", {**context, "is_wrong": False})
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return PlainTextResponse("That is too long for a token\n", 413)
        fields: Mapping[str, list[str]] = parse_qs(body.decode("utf-8", "replace"))
        if not _equal(fields.get("token", [""])[0].strip(), token):
            await asyncio.sleep(WRONG_S)
            return html("login.html", {**context, "is_wrong": True}, 403)
        response = RedirectResponse(wanted, 303)
        response.set_cookie(COOKIE, proof(token), httponly=True, samesite="lax", secure=is_secure, path="/")
        return response

    return answer


async def logout(_: Request) -> Response:
    """Forget the token."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
    return response


def proof(token: str) -> str:
    """What a cookie has in place of the token."""
    return hmac.new(token.encode(), b"tidemark dashboard", hashlib.sha256).hexdigest()


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _local(path: str) -> str:
    """The path if it is one of this host, else the first page."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_local else "/"
