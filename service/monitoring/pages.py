"""Fetch the pages of a running service at the address and port of [metrics]. Every command asks the service through this module.

No proxy of the environment (HTTP_PROXY, ALL_PROXY) is used: the service is on this host or in this network, and a proxy would ask
at its own loopback address. This module imports neither Spark nor a client, so that `tidemark status` starts fast.
"""

import http.client
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from service.errors import SetupError

if TYPE_CHECKING:
    from service.settings import Metrics

ANSWER_S = 5.0
_ANY = dict.fromkeys(("0.0.0.0", "::"), "127.0.0.1")  # noqa: S104 - an address to listen on is none to ask at
NO_PIPELINE = "There is no such pipeline"
"""How the answer begins to a name that no pipeline of the process has."""
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoServiceError(Exception):
    """No Tidemark service answers. The message has the address, and what to do if another program answers there."""


def host_port(address: str, port: int) -> str:
    """Return `host:port` as URLs have it: an IPv6 address is in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def not_listening(address: str, port: int, error: OSError | UnicodeError) -> SetupError:
    """Return the error for an address and a port that cannot be listened on; UnicodeError: the address is no name of a host."""
    reason = getattr(error, "strerror", None) or error
    what = f"metrics.port = {port}: {host_port(address, port)} cannot be listened on ({reason})"
    remedy = "Stop what holds it, or choose another port; 0 takes a free one. metrics.address must be one of this host"
    return SetupError(what, remedy=remedy)


def address(metrics: "Metrics") -> str:
    """Return the host:port of the service with these settings, as seen from this host."""
    return host_port(_ANY.get(metrics.address, metrics.address), metrics.port)


def fetch(metrics: "Metrics", path: str) -> tuple[int, bytes]:
    """Return the status and the body of a page; `path` begins with a slash. /readyz has a body for each status.

    Raises NoServiceError if nothing answers, or not by HTTP.
    """
    try:
        with _opened(f"http://{address(metrics)}{path}") as answer:
            return answer.status, answer.read()
    except ConnectionError as error:  # also of a program that closes the connection without an answer
        raise absent(metrics) from error
    except http.client.HTTPException as error:
        raise foreign(metrics) from error
    except (OSError, ValueError) as error:  # ValueError: the address makes no URL
        raise absent(metrics) from error


def document(metrics: "Metrics", path: str, *keys: str) -> dict[str, Any]:
    """Return the JSON object of a page, which has one of the keys. Raises NoServiceError, also for another status than 200."""
    status, body = fetch(metrics, path)
    text = body[:1_000].decode("utf-8", "replace").strip()
    if status == HTTPStatus.NOT_FOUND and text.startswith(NO_PIPELINE):
        raise NoServiceError(f"{address(metrics)} answers: {text}")
    try:
        reply = json.loads(body) if status == HTTPStatus.OK else None
    except ValueError as error:
        raise foreign(metrics) from error
    if not isinstance(reply, dict) or reply.keys().isdisjoint(keys):
        raise foreign(metrics)
    return reply


def absent(metrics: "Metrics") -> NoServiceError:
    """Return the error for an address at which nothing answers."""
    return NoServiceError(f"no service answers at {address(metrics)}")


def foreign(metrics: "Metrics") -> NoServiceError:
    """Return the error for an address at which another program answers."""
    return NoServiceError(
        f"{address(metrics)} does not answer as a Tidemark service does. If another program holds the port, choose another one "
        "in [metrics], or name the settings file of the running service with --config"
    )


def _opened(url: str) -> Any:
    """Any: an answer, whose status may be an error's."""
    try:
        return _opener.open(url, timeout=ANSWER_S)
    except urllib.error.HTTPError as error:
        return error
