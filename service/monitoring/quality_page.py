"""The page at /quality: Great Expectations' report on the last sample."""

from http import HTTPStatus

from service.monitoring import home_page

NONE_YET = "No sample has been checked yet: the first one is, after the first batch\n"


class Page:
    """The page of one service; its methods may be called from any thread."""

    def __init__(self, *, is_on: bool) -> None:
        self._html = b""
        self._instead = NONE_YET
        self._is_on = is_on

    def show(self, html: bytes) -> None:
        """Serve this report."""
        self._html = html

    def failed(self, why: str) -> None:
        """Note that a check failed. The previous report stays; without one the page gives the reason."""
        self._instead = f"No sample could be checked yet: {why}\n"

    def answer(self) -> tuple[HTTPStatus, bytes, str]:
        """Return the HTTP status, the body and its content type."""
        if self._html:
            return HTTPStatus.OK, self._html, home_page.TYPE
        if not self._is_on:
            return HTTPStatus.NOT_FOUND, home_page.no_quality(), home_page.TYPE
        return HTTPStatus.SERVICE_UNAVAILABLE, self._instead.encode(), "text/plain; charset=utf-8"
