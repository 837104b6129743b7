"""The steps of a run. A page that does not do what a step expects raises StepError; everything else is noted on the stage."""

import json
import re
import statistics
import time
import urllib.parse

from playwright.sync_api import Page

from load.browser import cost, hostile
from load.browser.chromium import Scheme
from load.browser.stage import FOLDER, Stage, not_reloaded, require
from load.browser.values import values_at_rest
from load.servers.dashboard import Dashboard
from load.servers.server_process import HOST, PATIENCE
from load.testbed import ROOT

PAINTS = 5
START_S = 150.0 * PATIENCE
MOVING = {"view": "#view_keys", "key": "#key_now", "pipeline": "#pipeline_batches", "fleet": "#fleet_devices"}
"""Parts of pages that change with every batch or so."""
PICTURES: dict[str, tuple[str, str, Scheme]] = {
    "fleet": ("fleet", "laptop", "light"),
    "fleet-dark": ("fleet", "laptop", "dark"),
    "fleet-phone": ("warmest", "phone", "light"),
    "view": ("view", "laptop", "light"),
    "key": ("key", "laptop", "light"),
    "statistic": ("statistic", "laptop", "dark"),
    "device": ("device", "laptop", "light"),
    "pipeline": ("pipeline", "laptop", "light"),
    "pipeline-phone": ("pipeline", "phone", "light"),
    "runbook-phone": ("alert", "phone", "light"),
    "device-phone": ("device", "phone", "dark"),
}
"""By name: the page, the width, the colours."""


def updates(stage: Stage) -> None:
    """Each page changes by itself."""
    for name, selector in MOVING.items():
        with stage.chromium.open(stage.paths[name]) as page:
            _changes(stage, page, selector)


def runbook(stage: Stage) -> None:
    """Each alert of deploy/alerts.yml has a page that says what to do."""
    alerts = re.findall(r"alert: (\w+)", (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))
    with stage.chromium.open("/runbook") as page:
        meanings: dict[str, str] = dict(page.evaluate(_MEANINGS))
        for alert in alerts:
            require(alert in meanings, f"/runbook does not name {alert}")
            page.goto(f"{stage.dashboard.url}/runbook/{alert}")
            more = len(page.inner_text(".prose")) - len(meanings[alert])
            require(more > 30, f"The page of {alert} has its meaning alone, and not what to do")
    stage.figures["alerts"] = len(alerts)


def accessibility(stage: Stage) -> None:
    """Every kind of page by axe-core: on a laptop in light colours, on a phone in dark ones."""
    views: tuple[tuple[str, Scheme], ...] = (("laptop", "light"), ("phone", "dark"))
    for width, scheme in views:
        for name, path in stage.paths.items():
            with stage.chromium.open(path, width, scheme) as page:
                stage.chromium.judge(page, f"{name}, {width}, {scheme}")


def keyboard(stage: Stage) -> None:
    """Everything that can be used is reached by the key Tab, and shows that it has the focus."""
    for name in ("fleet", "key", "pipeline"):
        with stage.chromium.open(stage.paths[name]) as page:
            wanted: int = page.evaluate(_USABLE)
            reached = set()
            for _ in range(wanted + 5):
                page.keyboard.press("Tab")
                at, is_seen = page.evaluate(_FOCUSED)
                require(is_seen, f"{name}: the focus is not seen on {at}")
                reached.add(at)
            require(len(reached - {""}) >= wanted, f"{name}: Tab reaches {len(reached)} of {wanted} elements")


def hostile_names(stage: Stage) -> None:
    """Names that are markup are sent while pages are open, and every page shows them as text."""
    open_, query = stage.chromium.open, urllib.parse.urlencode
    with open_("/?" + query({"q": "<"})) as fleet, open_("/view?name=model") as view:
        shown = ((fleet, "#fleet_devices"), (view, "#view_keys"))

        def both_show() -> bool:
            hostile.send(stage.testbed)
            return all("alert(1)" in page.inner_text(part) for page, part in shown)

        stage.until(both_show, "pages that show the hostile names", 3 * 60 * PATIENCE)
        for page in (fleet, view):
            stage.active += hostile.active_elements(page)
            not_reloaded(page)
    for path in hostile.addresses():
        with stage.without(404), open_(path) as page:
            page.wait_for_load_state("load")
            stage.active += hostile.active_elements(page)
    stage.figures["hostile_pages"] = len(hostile.addresses()) + 2


def first_paint(stage: Stage) -> None:
    """Measure the fleet with all devices, with an empty cache; and a search in it."""
    paints, loads, searches = [], [], []
    for _ in range(PAINTS):
        with stage.chromium.open("/") as page:
            stage.until(lambda: page.evaluate(_PAINT), "the first paint")
            paints.append(page.evaluate(_PAINT))
            loads.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        began = time.monotonic()
        stage.fetch("/", q=stage.testbed.fleet.names[-1][:-2])
        searches.append(1000 * (time.monotonic() - began))
    for name, found in (("first_paint_ms", paints), ("loaded_ms", loads), ("search_ms", searches)):
        stage.figures[name] = round(statistics.median(found), 1)


def pictures(stage: Stage) -> None:
    """Keep the pictures of the README and of the docs."""
    for name, (path, width, scheme) in PICTURES.items():
        with stage.chromium.open(stage.paths[path], width, scheme) as page:
            if page.query_selector("figure"):
                stage.until(lambda: page.query_selector("figure canvas"), "the plots")
            stage.picture(page, name)


def times(stage: Stage) -> None:
    """The reader's zone stands beside times, and a switch shows UTC instead, also on the next page."""
    with stage.chromium.open(stage.paths["pipeline"]) as page:
        shown = "#pipeline_now time:not([data-form=ago])"
        stage.until(lambda: page.query_selector(shown), "times of the pipeline")
        require(
            page.inner_text(shown).rpartition(" ")[2] in {"CET", "CEST"},
            f"The zone is not beside {page.inner_text(shown)!r}",
        )
        page.click("#zone")
        require(page.inner_text(shown).endswith(" UTC"), f"The switch leaves {page.inner_text(shown)!r}")
        page.reload()
        require("UTC" in page.inner_text("#zone"), "The next page has forgotten the zone")
        page.click("#zone")
        require("Copenhagen" in page.inner_text("#zone"), f"The switch does not go back: {page.inner_text('#zone')}")


def zoom(stage: Stage) -> None:
    """A part of a plot that is marked becomes the span of the address; the statistic stays."""
    with stage.chromium.open(stage.paths["statistic"]) as page:
        stage.until(lambda: page.query_selector("figure .u-over"), "the plot")
        box = page.eval_on_selector(
            "figure .u-over", "e => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width]; }"
        )
        left, top, width = box
        page.mouse.move(left + 0.4 * width, top + 40)
        page.mouse.down()
        page.mouse.move(left + 0.9 * width, top + 60, steps=5)
        page.mouse.up()
        page.wait_for_url("**until=*")
        words = urllib.parse.parse_qs(urllib.parse.urlsplit(page.url).query)
        require(words["stat"] == ["p99"], f"The statistic is lost: {page.url}")
        require(250_000 <= int(words["span"][0]) <= 350_000, f"Half of ten minutes was marked: {page.url}")
        plot = json.loads(page.eval_on_selector("figure", "e => e.dataset.plot"))
        axis = round(1000 * (plot["axis"][1] - plot["axis"][0]))
        require(axis == int(words["span"][0]), f"The axis is {axis} ms of {page.url}")


def ten_pages(stage: Stage) -> None:
    """Measure the batches of the service with ten open pages, and without."""
    stage.figures |= cost.compare(stage.testbed, stage.dashboard, stage.args.pairs, stage.args.seconds)


def dashboard_restarts(stage: Stage) -> None:
    """A page whose dashboard goes away says so, and goes on by itself when it is back."""
    troubles = stage.chromium.troubles
    with stage.chromium.open(stage.paths["view"]) as page:
        troubles.is_away = True
        stage.dashboard.stop()
        lost = "This dashboard does not answer"
        stage.until(lambda: lost in page.inner_text("#lost"), "the page to say that the dashboard does not answer")
        stage.dashboard.start()
        stage.until(lambda: not page.is_visible("#lost"), "the page to go on")
        troubles.is_away = False
        _changes(stage, page, "#view_keys")
    stage.wait_for_fleet()


def service_killed(stage: Stage) -> None:
    """Pages say that values are old, keep them, and recover when the service is back."""
    with stage.chromium.open(stage.paths["device"]) as device, stage.chromium.open("/pipeline") as pipeline:
        began = time.monotonic()
        stage.testbed.kill_service()
        for page in (device, pipeline):
            stage.until(lambda: page.query_selector("html[data-old]"), "the page to be old")  # noqa: B023 - called at once
        stage.figures["old_after_s"] = round(time.monotonic() - began, 1)
        require("does not answer" in device.inner_text("#freshness"), "The page does not say why values are old")
        stage.until(lambda: "TidemarkAbsent" in pipeline.inner_text("#pipeline_now"), "what to do about it")
        stage.chromium.judge(pipeline, "pipeline, old")
        stage.picture(pipeline, "old")
        values_at_rest(stage)
        began = time.monotonic()
        stage.testbed.start_service()
        for page in (device, pipeline):
            live = "#freshness [data-level=live]"
            stage.until(lambda: page.query_selector(live), "the page to be live", START_S)  # noqa: B023 - called at once
            not_reloaded(page)
        stage.figures["live_after_s"] = round(time.monotonic() - began, 1)


def redis_away(stage: Stage) -> None:
    """While Redis hangs, the page of the pipeline shows what the service says. It goes on when Redis answers again."""
    away = "Redis does not answer since"
    with stage.chromium.open("/pipeline") as page:
        stage.testbed.redis.pause()
        try:
            # The pages together rest after each rendering: tidemark_dashboard.live.LONGEST_S.
            stage.until(lambda: away in page.inner_text("#pipeline_now"), "the page to say that Redis is away", START_S)
            require(page.query_selector("#pipeline_batches tbody tr") is not None, "The batches are not shown any more")
            stage.chromium.judge(page, "pipeline, Redis away")
            stage.picture(page, "redis-away")
        finally:
            stage.testbed.redis.resume()
        stage.until(lambda: away not in page.inner_text("#pipeline_now"), "the page to go on after Redis", START_S)
        not_reloaded(page)


def redis_empty(stage: Stage) -> None:
    """Where Redis has no value yet, the page waits and says for what."""
    service = f"http://{HOST}:{stage.testbed.metrics_port}"
    with (
        Dashboard(FOLDER / "empty", stage.testbed.redis.url, service, ["--prefix", "nobody"]) as dashboard,
        stage.chromium.at(dashboard.url),
        stage.without(503),
        stage.chromium.open("/") as page,
    ):
        steps = page.inner_text("#waiting")
        require("done" in steps and "awaited" in steps, f"The page does not say what it waits for: {steps!r}")
        stage.chromium.judge(page, "Redis empty")
        stage.picture(page, "redis-empty")


def service_stops(stage: Stage) -> None:
    """The service stops in order after all that."""
    status = stage.testbed.stop_service()
    require(status == 0, f"The service has ended with status {status}")


def _changes(stage: Stage, page: Page, selector: str) -> None:
    shown = page.inner_text(selector)
    stage.until(lambda: page.inner_text(selector) != shown, f"{selector} of {page.url} to change")
    not_reloaded(page)


_MEANINGS = (
    "() => [...document.querySelectorAll('main tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))"
)
_PAINT = "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime || 0"
_USABLE = """() => [...document.querySelectorAll('a[href], button, input:not([type=hidden]), summary, [tabindex="0"]')]
  .filter(each => each.checkVisibility()).length"""
_FOCUSED = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return ['', true];
  window.seen ??= new Map();
  if (!window.seen.has(at)) window.seen.set(at, `${window.seen.size} ${at.outerHTML.slice(0, 80)}`);
  return [window.seen.get(at), getComputedStyle(at).outlineStyle !== 'none' && at.checkVisibility()];
}"""
