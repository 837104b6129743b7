"""The page at /quality: Great Expectations' report on the last sample."""

from http import HTTPStatus

OFF = "No expectations are set. `tidemark profile` draws some; name the file in [quality] expectations and restart\n"
NONE_YET = "No sample has been checked yet: the first one is, after the first batch\n"


class Page:
    """The page of one service; its methods may be called from any thread."""

    def __init__(self, *, is_on: bool) -> None:
        self._html = b""
        self._instead = NONE_YET if is_on else OFF
        self._status = HTTPStatus.SERVICE_UNAVAILABLE if is_on else HTTPStatus.NOT_FOUND

    def show(self, html: bytes) -> None:
        """Serve this report."""
        self._html = html

    def failed(self, why: str) -> None:
        """Note that a check failed. The previous report stays; without one the page gives the reason."""
        self._instead = f"No sample could be checked yet: {why}\n"

    def answer(self) -> tuple[HTTPStatus, bytes, str]:
        """Return the HTTP status, the body and its content type."""
        if self._html:
            return HTTPStatus.OK, self._html, "text/html; charset=utf-8"
        return self._status, self._instead.encode(), "text/plain; charset=utf-8"
