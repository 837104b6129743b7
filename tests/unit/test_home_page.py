"""The page at /: what a person sees who opens the service's address in a browser."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from load.fleet.payloads import PAGE
from service.errors import SinkError
from tests.reports import REPORT
from tests.served import Served

ATTACK = " ".join(PAGE)


class Parsed(HTMLParser):
    """The tags, the addresses and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]

    def handle_data(self, data: str) -> None:
        self.text += data


class Service(Served):
    def seen(self, path: str) -> tuple[int, str, Parsed]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                status, kind, body = answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                status, kind, body = error.code, error.headers["Content-Type"], error.read().decode()
        return status, kind, Parsed(body)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service("plant <7>")
    yield made
    made.server.close()


def test_the_page_has_the_state_and_a_link_to_each_place_that_answers(service: Service) -> None:
    status, kind, page = service.seen("/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert "plant <7>" in page.text
    assert "Not ready: the lease is not held yet" in page.text
    assert page.links == ["/status", "/conditions", "/history", "/metrics", "/quality", "/readyz", "/healthz"]
    for link in page.links:
        assert service.seen(link)[0] in {200, 503, 404 if link == "/quality" else 200}


def test_a_running_service_shows_its_figures(service: Service) -> None:
    service.status.term(3)
    service.status.query_started()
    service.status.batch(REPORT)
    service.metrics.batch_ends(REPORT)
    service.metrics.query_running.set(1)
    service.metrics.ready("lease")
    service.metrics.lags({"r": {0: 1_234}})
    text = service.seen("/")[2].text
    assert "Ready." in text
    assert "running, epoch 3" in text
    assert "1,234 records" in text
    assert "run 250 ms, publish 10 ms" in text
    assert "Needs attention" not in text
    assert "More than one record in twenty is rejected, for 0 s (becomes an alert after 600 s)" in text


def test_nothing_needs_attention_where_no_rule_has_an_element(service: Service) -> None:
    service.metrics.query_running.set(1)
    assert "Nothing needs attention." in service.seen("/")[2].text


def test_what_is_wrong_comes_first_with_the_name_of_its_alert(service: Service) -> None:
    service.status.failed(SinkError(f"Redis is away {ATTACK}"))
    service.metrics.unreadable.set(4)
    page = service.seen("/")[2]
    assert "TidemarkUnreadable" in page.text
    assert "4 offsets end every process of plant <7> that reads them" in page.text
    assert page.text.index("Needs attention") < page.text.index("Now")
    assert ATTACK in page.text, "as text"
    assert not page.tags & {"script", "img", "iframe", "svg", "object"}
    assert page.links == ["/status", "/conditions", "/history", "/metrics", "/quality", "/readyz", "/healthz"]


def test_quality_says_how_to_get_a_report_and_unknown_paths_name_the_known_ones(service: Service) -> None:
    status, kind, page = service.seen("/quality")
    assert (status, kind) == (404, "text/html; charset=utf-8")
    for step in ("tidemark profile --out", "[quality]\nexpectations =", "Restart"):
        assert step in page.text
    status, kind, page = service.seen("/statuss")
    assert (status, kind) == (404, "text/plain")
    assert (
        page.text
        == "There is no such page. There are: /, /status, /conditions, /history, /metrics, /quality, /readyz, /healthz\n"
    )
