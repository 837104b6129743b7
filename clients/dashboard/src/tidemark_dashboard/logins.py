"""The login at Redis: the password comes from its file with each connection, so that a replaced one needs no restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

import redis
from redis.credentials import CredentialProvider

from tidemark_dashboard.options import OptionsError

_LOGIN = re.compile(r"(?<=://)(?P<user>[^:@/?#]*)(:[^/?#]*)?@")


def without_login(url: str) -> tuple[str, str]:
    """Return a URL of Redis without user and password, and the user, "" for none."""
    login = _LOGIN.search(url)
    return _LOGIN.sub("", url, count=1), unquote(login["user"]) if login else ""


class PasswordFile(CredentialProvider):
    """Reads the password of a user for each new connection; `read` may raise OptionsError."""

    def __init__(self, read: Callable[[], str | None], user: str = "") -> None:
        self._read, self._user = read, user

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._read() or ""
        except OptionsError as error:  # the file is being replaced: the page says so, and connects again
            raise redis.ConnectionError(str(error)) from error
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()
