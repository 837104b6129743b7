"""Errors as application/problem+json (RFC 9457): the thing, its place in the request, the limit, the remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from tidemark_client import (
    ArgumentError,
    ContractError,
    RefusedError,
    TidemarkClientError,
    TooManyWindowsError,
    UnknownViewError,
)
from tidemark_client.queries import MOST_WINDOWS

TYPE = "urn:tidemark:problem:"
MEDIA = "application/problem+json"
TITLES: Mapping[str, str] = {
    "unknown_parameter": "The request has a parameter that this address does not have",
    "wrong_parameter": "A parameter has a value that nothing can be asked with",
    "unknown_view": "The service has no such view, or the view no such measure",
    "too_many_windows": "The span has more windows than one answer may have",
    "not_found": "Redis has no such value",
    "no_such_address": "The API has no such address",
    "no_such_method": "The address is only read",
    "no_token": "The request has no token, or a wrong one",
    "too_many_tokens": "This client has given too many wrong tokens",
    "wrong_host": "The dashboard does not answer under this name",
    "waiting": "The service has not written its first values",
    "counting": "The devices are being counted",
    "redis_away": "Redis does not answer",
    "redis_refuses": "Redis refuses the dashboard's user",
    "too_many_streams": "As many streams are open as there may be",
}
"""The codes of all problems."""
RETRY_S = {"waiting": 5, "counting": 2, "redis_away": 2, "too_many_streams": 10}


@dataclass
class ProblemError(Exception):
    """A request without an answer. `more` are further members: `parameter`, `limit`, `remedy`."""

    code: str
    status: int
    detail: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def document(self, instance: str) -> dict[str, Any]:
        """The members of the problem. `instance` is the address of the request."""
        head = {"type": TYPE + self.code, "title": TITLES[self.code], "status": self.status, "detail": self.detail}
        return {**head, "instance": instance, "code": self.code, **self.more}


def answer(problem: ProblemError, instance: str, headers: Mapping[str, str] | None = None) -> Response:
    """The response of a problem."""
    retry = {"Retry-After": str(RETRY_S[problem.code])} if problem.code in RETRY_S else {}
    body = json.dumps(problem.document(instance), ensure_ascii=False)
    return Response(body.encode("utf-8", "replace"), problem.status, {**retry, **(headers or {})}, MEDIA)


def wrong(parameter: str, detail: str, remedy: str, limit: object = None) -> ProblemError:
    """The problem of a parameter's value."""
    more = {"parameter": parameter, **({} if limit is None else {"limit": limit}), "remedy": remedy}
    return ProblemError("wrong_parameter", 400, detail, more)


def of_client(error: TidemarkClientError) -> ProblemError:
    """The problem of an error of the client; its message has the thing, the place and the remedy."""
    text = str(error)
    if isinstance(error, TooManyWindowsError):
        more = {"parameter": "until", "limit": MOST_WINDOWS, "remedy": "Ask for a shorter span, several times"}
        return ProblemError("too_many_windows", 400, text, more)
    if isinstance(error, UnknownViewError):
        place = "measure" if "has the measures" in text else "view"
        return ProblemError("unknown_view", 404, text, {"parameter": place, "remedy": "Ask for meta, which has them"})
    if isinstance(error, ArgumentError):
        place = "key" if "does not fit" in text else text.partition(" = ")[0].partition("[")[0]
        return ProblemError("wrong_parameter", 400, text, {"parameter": place, "remedy": "Give another value"})
    if isinstance(error, ContractError):
        return ProblemError("waiting", 503, text, {"remedy": "Ask again when the service has written a batch"})
    if isinstance(error, RefusedError):
        return ProblemError("redis_refuses", 503, text, {"remedy": "Give the dashboard's user its rights"})
    return ProblemError("redis_away", 503, text, {"remedy": "Ask again: the dashboard reconnects by itself"})
