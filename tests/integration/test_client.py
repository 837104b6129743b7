"""The client for Python reads what the service's own publisher has written; the examples of its page run as they stand there."""

import asyncio
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from load.servers.redis import Redis
from service.pipeline.batch_publisher import Sink
from service.settings import Settings
from service.spark.places import ROOT
from tests.outputs import MINUTE, T0, changes, device, micro_batch, session, settings, windows
from tidemark_client import ChangesLostError, Client, queries

pytestmark = pytest.mark.integration

URL = "redis://localhost:6379/0"
EXAMPLES = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SITES = ["leeds", "york"]


class Written:
    """A Redis in which the publisher has written batches."""

    def __init__(self, part: Redis) -> None:
        self.part = part
        made = settings(part.url, "tidemark")
        site = made.views[0].model_copy(update={"name": "site", "by": ["site"]})
        self.settings: Settings = made.model_copy(update={"views": [site, made.views[1]]})
        with part.client() as client:
            client.set("tidemark:epoch", 1)

    def publish(self, batch: int) -> None:
        """The batch with that number: each site has a new window, which the next batch makes final."""
        start = T0 + batch * MINUTE
        sink = Sink(self.settings, micro_batch(batch, watermark_ms=start))
        rows = [("site", site, start, [20.0, 22.0]) for site in SITES]
        sink.write([windows(rows), changes([session("d1", T0)], [device("d1", start)])])
        sink.progress()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    with Redis(tmp_path) as part:
        made = Written(part)
        made.publish(0)
        made.publish(1)
        yield made


@pytest.fixture
def client(written: Written) -> Iterator[Client]:
    with Client.from_url(written.part.url) as made:
        yield made


def test_the_settings_views_are_those_that_the_client_names(written: Written, client: Client) -> None:
    views = client.views()
    assert {name: (view.by, view.measures) for name, view in views.items()} == {
        "site": (("site",), ("temperature", "humidity")),
        "all_1m": ((), ("temperature", "humidity")),
    }
    assert views["site"].retain_ms == written.settings.views[0].retain_ms
    assert client.meta().session_gap_ms == written.settings.sessions.gap_ms


def test_what_is_published_is_what_the_client_answers(client: Client) -> None:
    newest, complete = (
        client.current("site", "leeds", "temperature"),
        client.latest_complete("site", "leeds", "temperature"),
    )
    assert newest is not None
    assert complete is not None
    assert (newest.start, newest.final, newest.mean, newest.count) == (T0 + MINUTE, False, 21.0, 2)
    assert (complete.start, complete.final, complete.closed_by) == (T0, True, "watermark")
    assert client.windows("site", "leeds", since=0 + T0, measure="temperature") == [complete, newest]
    assert [key for key, _ in client.keys("site")] in (SITES, SITES[::-1])
    found = client.device("d1")
    assert found is not None
    assert (found.last_seen, found.latest["temperature"].value) == (T0 + MINUTE, 20.0)
    open_session = client.session("d1")
    assert open_session is not None
    assert (open_session.state, open_session.measures["temperature"].mean) == ("open", 20.0)
    assert open_session.measures["humidity"].mean is None
    snapshot = client.snapshot([queries.device("d1"), queries.session("d1")])
    assert (snapshot.progress.batch, snapshot.answers) == (1, [found, open_session])
    assert snapshot.progress.includes("readings", 0, 9)
    assert [each.id for each in client.devices()] == ["d1"]


def test_what_is_published_is_followed(written: Written, client: Client) -> None:
    changed = client.changes("0-0")
    kinds = {place.kind for change in changed for place in change.places}
    assert kinds == {"window", "session", "device", "progress"}
    assert all(client.value(place) is not None for change in changed for place in change.places)
    end = client.end_of_feed()
    written.publish(2)
    places = [place for change in client.changes(end) for place in change.places]
    assert {(place.view, place.key, place.start) for place in places if place.kind == "window"} == {
        ("site", site, T0 + 2 * MINUTE) for site in SITES
    }
    # The windows that it makes final have one entry, the last one.
    assert [place.kind for place in places].index("progress") == len(places) - 1
    assert client.progress().final == T0 + 2 * MINUTE
    with written.part.client() as redis:
        redis.xtrim("tidemark:changes", maxlen=0, approximate=False)
    with pytest.raises(ChangesLostError):
        client.changes(end)


def test_the_examples_of_its_page_run(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n\n".join(EXAMPLES.findall((ROOT / "clients" / "python" / "README.md").read_text(encoding="utf-8")))
    assert code.count(URL) == 1
    examples: dict[str, Any] = {}
    exec(code.replace(URL, written.part.url), examples)  # noqa: S102 - our own documentation
    assert capsys.readouterr().out.splitlines() == [f"21.0 from 2 readings, final since {T0 + MINUTE}", "1 [2, 2]"]
    assert [each.start for each in examples["means"]] == [T0, T0]
    with pytest.raises(ChangesLostError):
        examples["show_changes"]("0-1")
    final = examples["final_windows"]("0-0")
    assert {(each.key, each.start) for each in islice(final, 2)} == {(site, T0) for site in SITES}
    written.publish(2)
    assert {(each.key, each.start) for each in islice(final, 2)} == {(site, T0 + MINUTE) for site in SITES}
    assert asyncio.run(examples["newest"](written.part.url)) == 21.0
    examples["client"].close()
