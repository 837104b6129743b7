"""The steps that compare values: under load, and while nothing is written."""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlencode

from playwright.sync_api import Page

from load.browser import comparison
from load.browser.comparison import PREFIX
from load.browser.redis_history import Hash
from load.browser.stage import Stage, require
from load.browser.tables import table
from load.fleet.fleet import MEASURES
from load.judge import published
from load.servers.server_process import PATIENCE
from load.testbed import output_of
from service.errors import SetupError

COLUMNS = "type", "site", "model"
LISTS = (("site", "temperature", 60_000), ("type", "power", 10_000), ("device", "power", 60_000))
"""Views whose keys are compared: name, measure, length of a window in ms."""
STATISTICS = (
    ("tail", "pump", ("count", "p99", "rate"), 10_000),
    ("type", "pump", ("count", "sum", "mean", "min", "max", "stddev"), 10_000),
)
"""Views whose statistics are compared: name, key, statistics, length of a window in ms."""
CURRENT_S = 300.0 * PATIENCE
"""Until the page of the fleet has read all devices that changed, at half a core of nice 10 beside a fleet of 100,000."""


def values_under_load(stage: Stage) -> None:
    """Compare each page with what Redis has held since shortly before."""
    _pages(stage)
    before = stage.testbed.metrics()
    with stage.chromium.open(stage.paths["pipeline"]) as page:
        stage.until(lambda: page.query_selector("#pipeline_batches tbody tr"), "batches on the page")
        stage.compare("pipeline", page, lambda: comparison.progress_facts(page))
        status = json.loads(stage.testbed.get("/status")[1])
        stage.note("pipeline", comparison.batches(page, status))
        # What the page shows first may be older than `before`: a page rests after each rendering.
        stage.until(
            lambda: not list(comparison.rejects(page, before, stage.testbed.metrics())),
            "the page to show as many rejects as the service counts",
        )


def newest_rejects(stage: Stage) -> None:
    """Compare the newest rejects of the page with those that `tidemark rejects list` prints later: they only become more."""
    selector = '.scroll[aria-label^="Newest rejects"] table'
    with stage.chromium.open(stage.paths["pipeline"]) as page:
        stage.until(lambda: page.query_selector(f"{selector} tbody tr"), "the newest rejects", 90 * PATIENCE)
        rows = table(page, selector)
    printed = output_of(stage.testbed.command("rejects", "list", "--json"), within_s=120 * PATIENCE)
    listed = [json.loads(line) for line in printed.splitlines()]
    reasons = {f"{each['topic']}[{each['partition']}]@{each['offset']}": each["reason"] for each in listed}
    for place, row in rows.items():
        if row["Reason"].text != reasons.get(place):
            stage.note("newest rejects", [f"{place}: {row['Reason'].text!r}, and it is {reasons.get(place)!r}"])
        stage.values += 1


def values_at_rest(stage: Stage) -> None:
    """Compare the same pages, the counts of all devices, and a CSV file."""
    _pages(stage)
    devices = {key.split(":", 2)[2]: fields for key, fields in published.hashes(stage.client, PREFIX, ("device",))}
    held = list(devices.values())
    with stage.chromium.open(stage.paths["fleet"]) as page:
        with contextlib.suppress(SetupError):
            stage.until(lambda: not [*comparison.counts(page, held)], "the counts of all devices", CURRENT_S)
        stage.note("fleet", comparison.counts(page, held))
    _fleet(stage, devices)
    for view, key, measure in (("site", "leeds", "power"), ("tail", "pump", "temperature")):
        rows = list(csv.DictReader(io.StringIO(stage.fetch("/key.csv", name=view, key=key, measure=measure))))
        require(bool(rows), "The CSV file is empty")
        for row in rows:
            window = stage.client.hgetall(f"{PREFIX}:window:{view}:{measure}:{key}:{row['start']}")
            for name in row.keys() - {"state", "revision", "complete_from"}:
                if (row[name] or None) != (window.get(name) and str(type_of(name)(window[name]))):
                    stage.note(f"CSV, {row['start']}", [f"{name}: {row[name]}, and Redis has {window.get(name)}"])
            stage.values += 1


def _fleet(stage: Stage, devices: Mapping[str, Hash]) -> None:
    """Compare the table of the fleet in several orders and with several filters."""
    some = next(each for each in devices.values() if each["status"] != "offline" and "ref.site" in each)
    facts = {"ref.site": some["ref.site"], "ref.model": some["ref.model"], "status": some["status"]}
    words = urlencode({"f.site": some["ref.site"], "f.model": some["ref.model"], "status": some["status"]})
    checks: list[tuple[str, Callable[[Page], Iterator[str]]]] = [
        ("/?sort=-m.temperature", lambda page: comparison.fleet_order(page, devices, "temperature", True)),
        ("/?sort=m.power", lambda page: comparison.fleet_order(page, devices, "power", False)),
        ("/?sort=last_seen", lambda page: comparison.fleet_order(page, devices, "last_seen", False)),
        (f"/?{words}", lambda page: comparison.fleet_filter(page, devices, **facts)),
    ]
    for path, differences in checks:
        with stage.chromium.open(path) as page:
            with contextlib.suppress(SetupError):
                stage.until(lambda: not [*differences(page)], f"the order of {path}", CURRENT_S)  # noqa: B023
            stage.note(path, differences(page))
        stage.values += 1
    stage.figures["orders_and_filters"] = len(checks)


def type_of(name: str) -> type[int] | type[float]:
    return int if name in {"start", "end", "count", "first", "last"} else float


def statistics(stage: Stage) -> None:
    """Compare every statistic of the views: tab, list, table, plot, and the CSV file once nothing changes a window any more."""

    def progress() -> list[Hash]:
        return stage.history.versions(f"{PREFIX}:progress")

    for view, key, names, window_ms in STATISTICS:
        for statistic in names:
            words = f"name={view}&measure=temperature&stat={statistic}"
            with stage.chromium.open(f"/view?{words}") as page:
                stage.compare(
                    f"view {view}, {statistic}",
                    page,
                    lambda: comparison.view_rows(page, view, "temperature", window_ms, progress(), statistic),  # noqa: B023
                )
            with stage.chromium.open(f"/key?{words}&key={key}") as page:
                shown = page.inner_text("nav[aria-label=Statistic] [aria-current]")
                require(shown == comparison.TITLES[statistic].lower(), f"{page.url} shows {shown}")
                stage.compare(
                    f"key {view}, {statistic}",
                    page,
                    lambda: comparison.window_rows(page, view, "temperature", key, progress()),  # noqa: B023
                )
                stage.compare(
                    f"plot {view}, {statistic}",
                    page,
                    lambda: comparison.plot_points(page, "key_plot", view, key, window_ms),  # noqa: B023
                )
    stage.figures["statistics"] = sum(len(each[2]) for each in STATISTICS)


def _pages(stage: Stage) -> None:
    """Compare all pages of values, each with every table and plot that it has."""

    def progress() -> list[Hash]:
        return stage.history.versions(f"{PREFIX}:progress")

    paths, device, chromium = stage.paths, stage.device, stage.chromium
    with chromium.open(paths["fleet"]) as page:
        stage.compare("fleet", page, lambda: comparison.device_rows(page, COLUMNS, MEASURES))
    for view, measure, window_ms in LISTS:
        with chromium.open(f"/view?name={view}&measure={measure}") as page:
            stage.compare(
                f"view {view}",
                page,
                lambda: comparison.view_rows(page, view, measure, window_ms, progress()),  # noqa: B023 - called at once
            )
    with chromium.open(paths["key"]) as page:
        stage.compare("key", page, lambda: comparison.window_rows(page, "site", "power", "leeds", progress()))
        stage.compare("plot", page, lambda: comparison.plot_points(page, "key_plot", "site", "leeds", 60_000))
    with chromium.open(paths["device"]) as page:
        stage.compare("device", page, lambda: comparison.device_facts(page, device, COLUMNS, MEASURES))
        stage.compare("sessions", page, lambda: comparison.session_rows(page, device, MEASURES))
        stage.compare("plots", page, lambda: comparison.plot_points(page, "device_plots", "device", device, 60_000))
