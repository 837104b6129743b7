"""The command `tidemark-dashboard`."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from tidemark_dashboard.app import build
from tidemark_dashboard.connections import BACKLOG, Listener, most, protocol
from tidemark_dashboard.options import Options, OptionsError

HEAD_BYTES = 16_384
"""Of the head of a request."""
STOP_S = 2
"""How long open pages may keep a server that stops."""
NICE = 10
"""The page gives way to the service and to Redis where they share a machine."""
_log = logging.getLogger("tidemark_dashboard")


def main(words: Sequence[str] | None = None) -> int:
    """Serve until the process is told to stop; returns the exit status, 2 for options that cannot be used, 130 after Ctrl-C.

    Raises SystemExit after a failure that is logged.
    """
    handler = logging.StreamHandler()
    handler.addFilter(Bounded())
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=[handler])
    for name in ("httpx2", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        serve(_options(words))
    except OptionsError as error:
        print(f"tidemark-dashboard: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:  # uvicorn gives it on when it has stopped
        return 130
    return 0


def serve(options: Options) -> None:
    """Serve until the process is told to stop. Raises OptionsError, and SystemExit after a failure that is logged."""
    app = build(options)
    with listen(options) as listener:
        made = server(app, options, listener)
        if hasattr(os, "nice"):
            os.nice(NICE)
        is_secure = options.certificate is not None
        if options.token_file and not is_secure and not options.is_loopback:
            _log.warning(
                "The token crosses the network unencrypted: give --certificate and --key, or put a proxy with TLS in front"
            )
        port = listener.getsockname()[1]
        _log.info("The page: %s://%s:%d/", "https" if is_secure else "http", options.host, port)
        has_failed = False

        def stop() -> None:
            nonlocal has_failed
            has_failed = made.should_exit = True

        app.state.site.sources.on_failure = stop
        made.run(sockets=[listener])
        if has_failed:
            raise SystemExit(1)


def listen(options: Options) -> Listener:
    """Return the socket of the page. Raises OptionsError."""
    try:
        return Listener(options.address, options.port, most())
    except OSError as error:
        raise OptionsError(f"--address {options.address}, --port {options.port}: {error.strerror}") from error


def server(app: Starlette, options: Options, listener: Listener) -> uvicorn.Server:
    """Return the server that runs on the listener. Raises OptionsError."""
    config = uvicorn.Config(
        app,
        http=protocol(listener),
        ws="none",
        loop="asyncio",  # uvloop accepts connections by itself
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_S,
    )
    try:
        config.load()
    except OSError as error:
        msg = f"--certificate {options.certificate}, --key {options.key}: {error}. Give files in PEM that this user may read"
        raise OptionsError(msg) from error
    return uvicorn.Server(config)


class Bounded(logging.Filter):
    """Lets LINES pass in SECONDS, so that whoever sends requests fills no disk. The next line says how many are left out."""

    LINES = 50
    SECONDS = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._since_s, self._passed, self._left_out = 0.0, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s - self._since_s > self.SECONDS:
            if self._left_out:
                record.msg = f"{record.getMessage()} ({self._left_out} lines before this one were left out)"
                record.args = ()
            self._since_s, self._passed, self._left_out = now_s, 0, 0
        self._passed += 1
        self._left_out += self._passed > self.LINES
        return self._passed <= self.LINES


def _options(words: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="tidemark-dashboard",
        description="A page that shows what Tidemark keeps in Redis, and how its service runs.",
    )
    add = parser.add_argument
    usual = Options()
    add("--redis", default=usual.redis, metavar="URL", help="Redis, with a user that only reads (%(default)s)")
    add("--prefix", default=usual.prefix, help="the service's redis.prefix (%(default)s)")
    add("--cluster", action="store_true", help="the URL names nodes of a Redis Cluster")
    add("--password-file", type=Path, metavar="FILE", help="the password of Redis")
    add("--sentinel-password-file", type=Path, metavar="FILE", help="the password of the sentinels")
    add("--ca-file", type=Path, metavar="FILE", help="certificates to trust, for rediss://")
    add(
        "--service",
        default=usual.service,
        metavar="URL",
        help="the service's own HTTP address, '' for none (%(default)s)",
    )
    add("--prometheus", default="", metavar="URL", help="a Prometheus, whose alerts are shown")
    add(
        "--rejects",
        default="",
        metavar="COMMAND",
        help="lists rejects as JSON, such as 'tidemark rejects list --config tidemark.toml': the page shows the newest ones",
    )
    add("--address", default=usual.address, help="where to listen (%(default)s)")
    add("--port", type=int, default=usual.port, help="(%(default)s)")
    add(
        "--host",
        dest="hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="a name in the page's address; may be repeated",
    )
    add("--token-file", type=Path, metavar="FILE", help="who opens a page must give this token")
    add("--certificate", type=Path, metavar="FILE", help="for https, in PEM")
    add("--key", type=Path, metavar="FILE", help="the certificate's key, in PEM")
    add(
        "--unit",
        dest="units",
        action="append",
        default=[],
        metavar="MEASURE=UNIT",
        help="the unit of a measure; may be repeated",
    )
    given = vars(parser.parse_args(words))
    hosts, units = tuple(given["hosts"]), dict(map(_unit, given["units"]))
    return Options(**{**given, "rejects": _words(given["rejects"]), "hosts": hosts, "units": units})


def _unit(text: str) -> tuple[str, str]:
    measure, sign, unit = text.partition("=")
    if not sign:
        raise OptionsError(f"--unit {text!r}: give a measure and its unit, such as power=W")
    return measure, unit


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise OptionsError(f"--rejects {command!r}: {error}. Give a command as a shell takes it") from error
