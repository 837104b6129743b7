"""The pages of HTML at / and /quality. Those of the service itself have no script and load nothing."""

from collections.abc import Iterable, Mapping
from html import escape
from http import HTTPStatus
from typing import Any

from service import clock
from service.monitoring import attention

TYPE = "text/html; charset=utf-8"
REFRESH_S = 5
NONE_YET = "No sample has been checked yet: the first one is, after the first batch\n"
PLACES = (
    ("/status", "the state and the last 50 batches, as JSON"),
    ("/conditions", "the alert rules as this process evaluates them, as JSON"),
    ("/history", "the figures of the last hour and day with what happened, as JSON"),
    ("/metrics", "all metrics, for Prometheus"),
    ("/quality", "the report on the last sample of readings"),
    ("/readyz", "200 when the service is ready to serve, else 503 and the reason"),
    ("/healthz", "200 when the process is alive, else 503: restart it"),
)
_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}th{font-weight:600}"
    ".bad{color:#b3261e;font-weight:600}@media(prefers-color-scheme:dark){.bad{color:#ff8a80}}code,pre{font-size:.9em}"
)


class Quality:
    """The page at /quality: Great Expectations' report on the last sample; its methods may be called from any thread."""

    def __init__(self, *, is_on: bool) -> None:
        self._html = b""
        self._instead = NONE_YET
        self._is_on = is_on

    def show(self, html: bytes) -> None:
        self._html = html

    def failed(self, why: str) -> None:
        """Note that a check failed. The previous report stays; without one the page gives the reason."""
        self._instead = f"No sample could be checked yet: {why}\n"

    def answer(self) -> tuple[HTTPStatus, bytes, str]:
        """Return the HTTP status, the body and its content type."""
        if self._html:
            return HTTPStatus.OK, self._html, TYPE
        if not self._is_on:
            return HTTPStatus.NOT_FOUND, _no_quality(), TYPE
        return HTTPStatus.SERVICE_UNAVAILABLE, self._instead.encode(), "text/plain; charset=utf-8"


def home(document: Mapping[str, Any], conditions: Mapping[str, Any], reason: str, query: str = "") -> bytes:
    """Return the page at /: the state, what needs attention, links. `reason` is why the service is not ready, "" when it is.

    `document` and `conditions` are those of /status and /conditions. `query` follows each link: it names the pipeline, where
    there are several.
    """
    name = escape(document["service"])
    parts = [
        f"<h1>{name}</h1>",
        f"<p>{'Ready.' if not reason else f'<span class=bad>Not ready:</span> {escape(reason)}.'}</p>",
    ]
    error = document["last_error"]
    if error is not None:
        shown = f"{_since_s(error['at_ms'])} s ago: {escape(error['code'])}: {escape(error['text'])}"
        parts.append(f"<p><span class=bad>Last error</span>, {shown}</p>")
    active = attention.active(conditions)
    for title, state in (("Needs attention", "firing"), ("May need attention", "pending")):
        rows = [(each["alert"], _shown(each, alert)) for each, alert in active if alert["state"] == state]
        if rows:
            parts.append(f"<h2>{title}</h2>" + _table(rows))
    parts.append(
        "<p>deploy/runbook.md has a row for each of these names.</p>" if active else "<p>Nothing needs attention.</p>"
    )
    parts.append("<h2>Now</h2>" + _table(document["figures"].items()))
    links = ((f'<a href="{path}{query}">{path}</a>', escape(text)) for path, text in PLACES)
    parts.append("<h2>Pages</h2>" + _rows(links))
    parts.append(
        "<p>Counts are those of the last ten minutes. <code>tidemark status --watch</code> shows the same in a terminal;"
    )
    parts.append("<code>tidemark-dashboard</code> shows devices, views and the pipeline in the browser.</p>")
    return page(name, parts, refresh_s=REFRESH_S)


def several(path: str, pipelines: Iterable[tuple[str, str, str]]) -> bytes:
    """Return a page of links to the page `path` of each pipeline: (name, state, what is wrong or "")."""
    rows = []
    for name, state, reason in pipelines:
        shown = escape(state) if not reason else f"<span class=bad>{escape(state)}</span>: {escape(reason)}"
        rows.append((f'<a href="{path}?pipeline={escape(name)}">{escape(name)}</a>', shown))
    return page("Pipelines", ["<h1>Pipelines</h1>", _rows(rows)], refresh_s=REFRESH_S)


def _no_quality() -> bytes:
    """Return the page at /quality of a service without [quality] expectations."""
    parts = [
        "<h1>No expectations of the readings are set</h1>",
        "<p>This page shows how far samples of the readings meet a data engineer's expectations. Three steps:</p>",
        "<ol><li>Draw expectations from the newest records: <pre>tidemark profile --out readings.expectations.json</pre></li>",
        "<li>Read the file and edit it. Then name it in the settings:",
        '<pre>[quality]\nexpectations = "readings.expectations.json"</pre></li>',
        "<li>Restart the service. It checks a sample every five minutes and shows the report here.</li></ol>",
        '<p><a href="/">The service</a></p>',
    ]
    return page("No expectations", parts)


def page(title: str, parts: Iterable[str], *, refresh_s: int = 0) -> bytes:
    """Return a page of HTML that reloads itself after `refresh_s` seconds, 0 for never. `title` and `parts` are HTML already."""
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{refresh}<title>{title}</title>'
    body = "\n".join(parts)
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'.encode()


def _shown(each: Mapping[str, Any], alert: Mapping[str, Any]) -> str:
    wait = "" if alert["state"] == "firing" else f" (becomes an alert after {each['for_s']:.0f} s)"
    return f"{alert['summary']}, for {_since_s(alert['since_ms'])} s{wait}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return _rows((escape(name), escape(value)) for name, value in rows)


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return (
        "<table>" + "".join(f"<tr><th scope=row>{name}</th><td>{value}</td></tr>" for name, value in rows) + "</table>"
    )


def _since_s(ms: int) -> int:
    return max(0, clock.now_ms() - ms) // 1000
