"""What the dashboard is started with, and the rules that these options must meet."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

SHORTEST_TOKEN = 16
"""Characters of a token."""
LARGEST_PORT = 65_535


class OptionsError(Exception):
    """An option that the dashboard does not start with; the message says which, and what to give."""


@dataclass(frozen=True)
class Options:
    """`service` and `prometheus` are base URLs, or "" for none. `rejects` is a command, see `tidemark_dashboard.rejects`.
    `units` are the units of measures, for people.
    """

    redis: str = "redis://localhost:6379/0"
    prefix: str = "tidemark"
    cluster: bool = False
    password_file: Path | None = None
    sentinel_password_file: Path | None = None
    ca_file: Path | None = None
    service: str = "http://127.0.0.1:9400"
    prometheus: str = ""
    rejects: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    port: int = 9500
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    hosts: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return self.address == "localhost"

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The names in the header Host that are answered; others are refused, against DNS rebinding."""
        own = ("localhost", "127.0.0.1", "[::1]") if self.is_loopback else ()
        return (*own, self.host, *map(_in_url, self.hosts))

    @property
    def host(self) -> str:
        """The address as a URL has it."""
        return _in_url(self.address)

    def token(self) -> str:
        """Return the token, "" for none. Raises OptionsError."""
        return _secret(self.token_file, "--token-file") or ""

    def password(self) -> str | None:
        """Return the password of Redis, None for none or for that of the URL. Raises OptionsError."""
        return _secret(self.password_file, "--password-file")

    def sentinel_password(self) -> str | None:
        """Return the password of the sentinels, None for none. Raises OptionsError."""
        return _secret(self.sentinel_password_file, "--sentinel-password-file")

    def check(self) -> None:
        """Raise OptionsError unless the dashboard may start with these options."""
        token = self.token()
        if not self.is_loopback and not token:
            msg = (
                f"--address {self.address} can be reached from other hosts: give a --token-file. "
                "The page shows every device; without a token it listens on a loopback address only"
            )
            raise OptionsError(msg)
        if not self.is_loopback and not self.hosts and self.address in {"0.0.0.0", "::"}:  # noqa: S104
            msg = f"--address {self.address}: give the names in the page's address, such as --host metrics.example.com"
            raise OptionsError(msg)
        if token and len(token) < SHORTEST_TOKEN:
            raise OptionsError(f"the token in --token-file has {len(token)} characters; {SHORTEST_TOKEN} are the least")
        if not 0 <= self.port <= LARGEST_PORT:
            raise OptionsError(f"--port {self.port}: give 0 to {LARGEST_PORT}")
        if (self.certificate is None) != (self.key is None):
            raise OptionsError("--certificate and --key belong together: give both")
        for name, url in (("--service", self.service), ("--prometheus", self.prometheus)):
            if url and not _is_http(url):
                msg = f"{name} {url.rpartition('@')[2]!r}: give a URL such as http://127.0.0.1:9400, or https://"
                raise OptionsError(msg)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_http(url: str) -> bool:
    """Whether the HTTP client takes the URL: it raises InvalidURL for others at each request, which would end the polling."""
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    has_port = parts.port is None or 0 < parts.port <= LARGEST_PORT
    return parts.scheme in {"http", "https"} and bool(parts.host) and has_port


def _secret(path: Path | None, option: str) -> str | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"{option} {path}: {error}") from error
    if not text:
        raise OptionsError(f"{option} {path} is empty")
    return text
