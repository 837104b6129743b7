"""Ask an HTTP server of a test for a page."""

import http.client
import urllib.error
import urllib.request

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would ask at its own loopback address


def answer(url: str, timeout_s: float = 5.0) -> tuple[int, str]:
    """Return the status and the body, also of an error; status 0 when the server does not answer, or not to the end."""
    try:
        with _opener.open(url, timeout=timeout_s) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
