"""Every page shows what Redis holds and what the service answers."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from served import DEVICES, Server, filled, free_port, options, pages, shared_answers, shared_server, wait, world
from starlette.testclient import TestClient
from world import MEASURES, WINDOW, Answers, World, history

from tidemark_client import Client, View
from tidemark_client.calendars import Calendar
from tidemark_dashboard.app import build
from tidemark_dashboard.course import Course
from tidemark_dashboard.options import Options
from tidemark_dashboard.pages.series import span
from tidemark_dashboard.texts import count, number

NEWEST = 1_800_000_000_000
VIEW = "/view?name=site&measure=power"


class Tables(HTMLParser):
    """The tables of a page: rows of cells of text, without what only a screen reader or a hint has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(dict(attrs).get("class") or "")
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and "tip-text" not in self._open:
            self.rows[-1][-1] += data.strip()


def get(pages: TestClient, path: str, status: int = 200) -> str:
    answer = pages.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def rows(html: str, caption: str) -> list[list[str]]:
    """The rows of a table's body."""
    match = re.search(rf'aria-label="{caption}, table" tabindex="0">(.*?)</table>', html, re.DOTALL)
    body = match[1] if match else ""
    body = body.partition("<tbody>")[2].partition("</tbody>")[0]
    return Tables(re.sub(r"<(rect|path|circle|input)\b[^>]*/?>", "", body)).rows


def tiles(html: str) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r'class="big">([\d,]+)</span><span class="label"', html)]


def test_the_fleet_is_counted_by_status_and_by_each_column(pages: TestClient, world: World) -> None:
    world.become(DEVICES[0], "quiet")
    world.become(DEVICES[1], "offline", skewed=1)
    wait(lambda: tiles(get(pages, "/")) == [120, 118, 1, 1, 1], "the counts follow the feed")
    for column in ("site", "model"):
        expected: dict[str, int] = {}
        for device in world.devices.values():
            expected[device["facts"][column]] = expected.get(device["facts"][column], 0) + 1
        shown = rows(get(pages, f"/?by={column}"), f"Devices by {column}")
        assert {row[0]: int(row[-1]) for row in shown} == expected
    assert [row[0] for row in rows(get(pages, "/?status=quiet"), "Devices")] == [DEVICES[0]]
    assert [row[0] for row in rows(get(pages, "/?status=skewed"), "Devices")] == [DEVICES[1]]


def test_devices_that_have_never_sent_have_a_count_of_their_own_while_there_are_any(
    pages: TestClient, world: World
) -> None:
    world.become(DEVICES[2], "never")
    wait(lambda: tiles(get(pages, "/")) == [120, 119, 0, 0, 1, 0], "the counts follow the feed")
    assert [row[0] for row in rows(get(pages, "/?status=never"), "Devices")] == [DEVICES[2]]
    world.become(DEVICES[2], "online")
    wait(lambda: tiles(get(pages, "/")) == [120, 120, 0, 0, 0], "the count is gone")


def test_a_device_counts_under_its_new_facts_when_the_reference_was_replaced(pages: TestClient, world: World) -> None:
    world.become(DEVICES[0], "online", reference="5c0ffee5", **{"ref.site": "oslo"})
    wait(lambda: ["oslo"] in [row[:1] for row in rows(get(pages, "/?by=site"), "Devices by site")], "the new site")
    assert sum(int(row[-1]) for row in rows(get(pages, "/?by=site"), "Devices by site")) == 120


def test_every_device_is_on_one_page_in_the_order_of_its_id(pages: TestClient, world: World) -> None:
    seen: list[str] = []
    address = "/?q=us-"
    while address:
        html = get(pages, address)
        assert "60 devices with" in html
        seen += [row[0] for row in rows(html, "Devices")]
        following = re.search(r'<a href="([^"]+)" rel="next"', html)
        address = following[1].replace("&amp;", "&") if following else ""
    assert seen == sorted(each for each in DEVICES if each.startswith("us-"))
    assert "51 to 60 of 60, by Device" in html
    beyond = get(pages, "/?q=us-&page=99")
    assert [row[0] for row in rows(beyond, "Devices")] == seen[50:], "behind the last page is the last page"
    assert "No device matches" in get(pages, "/?q=nothing")


def test_a_device_of_the_list_has_its_facts_and_newest_values(pages: TestClient, world: World) -> None:
    with Client(world.redis) as client:
        for row in rows(get(pages, "/"), "Devices"):
            device = client.device(row[0])
            assert device is not None
            values = [device.latest[name].value if name in device.latest else None for name in MEASURES]
            assert row[1] == "online"
            assert row[3:] == [*device.attributes.values(), *map(number, values)]


def test_a_filter_by_a_column_and_a_status_lists_those_devices_alone(pages: TestClient, world: World) -> None:
    chosen = [each for each, device in world.devices.items() if device["facts"]["site"] == "leeds"]
    world.become(chosen[0], "offline")
    path = "/?f.site=leeds&status="
    wait(lambda: [row[0] for row in rows(get(pages, f"{path}offline"), "Devices")] == chosen[:1], "the filter's list")
    assert [row[0] for row in rows(get(pages, f"{path}online"), "Devices")] == sorted(chosen[1:])[:50]


def test_the_warmest_and_the_silent_longest_are_the_first_of_the_table(pages: TestClient, world: World) -> None:
    def warmest(client: Client) -> list[str]:
        devices = [device for each in DEVICES if (device := client.device(each)) is not None]
        warm = [(-each.latest["temperature"].value, each.id) for each in devices if "temperature" in each.latest]
        return [name for _, name in sorted(warm)[:10]]

    with Client(world.redis) as client:
        wait(
            lambda: [row[0] for row in rows(get(pages, "/?sort=-m.temperature"), "Devices")[:10]] == warmest(client),
            "the warmest are the first",
        )
    hour = 3_600_000
    world.become(DEVICES[7], "offline", last_seen=world.now - hour)
    world.become(DEVICES[9], "offline", last_seen=world.now - 2 * hour)
    path = "/?sort=last_seen&q=us"  # DEVICES[7], [9] are eu
    wait(
        lambda: [row[0] for row in rows(get(pages, "/?sort=last_seen"), "Devices")[:2]] == [DEVICES[9], DEVICES[7]],
        "the silent ones are the first",
    )
    assert not {DEVICES[7], DEVICES[9]} & {row[0] for row in rows(get(pages, path), "Devices")}
    html = get(pages, "/?sort=last_seen&f.site=leeds")
    assert re.search(r'aria-sort="ascending" class=""><a class="sort" href="/\?f.site=leeds&amp;sort=-last_seen"', html)


def test_several_filters_hold_at_once_and_one_device_is_one_device(pages: TestClient, world: World) -> None:
    facts = {each: device["facts"] for each, device in world.devices.items()}
    chosen = [each for each in DEVICES if facts[each]["site"] == "cork" and facts[each]["model"] == "EM-9"]
    html = get(pages, "/?f.site=cork&f.model=EM-9")
    assert [row[0] for row in rows(html, "Devices")] == sorted(chosen)
    assert tiles(html)[0] == len(chosen), "the tiles are of the filter"
    world.become(chosen[0], "quiet")
    path = "/?f.site=cork&f.model=EM-9&status=quiet"
    html = wait(lambda: "1 device " in (html := get(pages, path)) and html, "the one device")
    assert [row[0] for row in rows(html, "Devices")] == chosen[:1]
    assert '<option value="EM-9" selected>' in html
    assert "1 devices" not in html


def test_a_device_that_expires_leaves_the_counts_though_nothing_announces_it(pages: TestClient, world: World) -> None:
    world.redis.delete(world.name("device", DEVICES[3]))
    wait(lambda: tiles(get(pages, "/"))[0] == 119, "the device leaves the index")


def test_devices_that_send_only_early_readings_are_counted_too(pages: TestClient, world: World) -> None:
    fields = {"status": "offline", "last_seen": 0, "session": "", "reference": "", "early": 7, "skewed": 1}
    times = {"early.at": world.now, "early.ahead": 90_000, "early.until": world.now + 1}
    world.redis.hset(world.name("device", "lone"), mapping={**fields, **times, **world.stamp()})
    world.become("lone", "offline")
    wait(lambda: tiles(get(pages, "/"))[-1] == 1, "the device is counted")
    assert "1 min 30 s" in get(pages, "/device?id=lone")


def test_a_view_shows_the_newest_complete_window_of_each_key_and_the_open_one_beside_it(
    pages: TestClient, world: World
) -> None:
    with Client(world.redis) as client:
        for view, measure in (("site", "power"), ("site", "temperature"), ("type", "power"), ("all", "power")):
            shown = rows(get(pages, f"/view?name={view}&measure={measure}"), "Newest values")
            assert [row[0] for row in shown] == sorted(key for key, _ in client.keys(view))
            for row in shown:
                key = row[0] if view != "all" else ()
                window = client.latest_complete(view, key, measure)
                newest = client.current(view, key, measure)
                if window is None or newest is None:
                    assert row[2] == f"no readings of {measure}"
                    continue
                assert [row[1], *row[3:6]] == [*map(number, (window.mean, window.min, window.max)), count(window.count)]
                assert row[7] == "final"
                is_open = f"{number(newest.mean)}of {newest.count} reading"
                assert row[8].startswith(is_open if not newest.final else "–")


def test_the_headline_and_the_sparkline_do_not_move_when_a_window_begins(pages: TestClient, world: World) -> None:
    """The newest window is open and has one reading far from the others: neither shows it as the value."""
    with Client(world.redis) as client:
        complete = client.latest_complete("site", "leeds", "power")
    assert complete is not None
    line = re.search(r'data-key="leeds".*?<path d="([^"]+)"', get(pages, VIEW), re.DOTALL)
    start = world.now // WINDOW * WINDOW + WINDOW
    fields = {"start": start, "end": start + WINDOW, "count": 1, "last": start, "mean": 90_000, "min": 90_000}
    name = world.name("window", "site", "power", "leeds", start)
    world.redis.hset(name, mapping={**fields, "max": 90_000, **world.stamp()})
    world.redis.zadd(world.name("keys", "site"), {"leeds": start})
    world.redis.xadd(world.name("changes"), {"kind": "window", "keys": json.dumps([name]), "batch": 1, "epoch": 3})

    def shown() -> list[str]:
        return next(row for row in rows(get(pages, VIEW), "Newest values") if row[0] == "leeds")

    wait(lambda: shown()[8].startswith("90,000.00of 1 reading, until"), "the open window is beside the value")
    assert shown()[1] == number(complete.mean)
    after = re.search(r'data-key="leeds".*?<path d="([^"]+)"', get(pages, VIEW), re.DOTALL)
    assert after is not None
    assert line is not None
    assert after[1] == line[1]
    html = get(pages, "/key?name=site&key=leeds&measure=power")
    assert f'<span class="big">{number(complete.mean)}</span>' in html
    assert "90,000.00<" in html


def test_a_key_without_a_complete_window_has_no_headline(pages: TestClient, world: World) -> None:
    world.progress(final=0)
    row = next(row for row in rows(get(pages, VIEW), "Newest values") if row[0] == "leeds")
    assert row[1:3] == ["–", "no complete window yet"]
    assert "reading" in row[8]
    html = get(pages, "/key?name=site&key=leeds&measure=power")
    assert "no complete window in this span" in html


def test_a_closed_window_that_lacks_readings_is_marked_and_is_no_headline(pages: TestClient, world: World) -> None:
    with Client(world.redis) as client:
        complete = client.latest_complete("site", "leeds", "power")
        assert complete is not None
        before = client.window("site", "leeds", complete.start - WINDOW, "power")
    assert before is not None
    world.redis.hset(
        world.name("window", "site", "power", "leeds", complete.start), "complete_from", complete.start + 30_000
    )
    row = next(row for row in rows(get(pages, VIEW), "Newest values") if row[0] == "leeds")
    assert row[1] == number(before.mean)
    table = rows(get(pages, "/key?name=site&key=leeds&measure=power"), "Windows")
    assert [row[9] for row in table].count("finalincomplete") == 1


def test_keys_of_a_view_are_searched_and_paged(pages: TestClient, world: World) -> None:
    html = get(pages, "/view?name=device&measure=power&q=eu-")
    assert "60 of 120 groups" in html
    first = [row[0] for row in rows(html, "Newest values")]
    following = re.search(r'<a href="([^"]+)" rel="next"', html)
    assert following
    second = [row[0] for row in rows(get(pages, following[1].replace("&amp;", "&")), "Newest values")]
    assert first + second == sorted(each for each in DEVICES if each.startswith("eu-"))[:50]


def test_the_windows_of_a_key_are_those_of_redis_in_the_table_and_in_the_csv_file(
    pages: TestClient, world: World
) -> None:
    corrected = (world.now // WINDOW - 4) * WINDOW
    world.correct("site", "power", "leeds", corrected)
    with Client(world.redis) as client:
        windows = client.windows("site", "leeds", since=world.now - 3_600_000, measure="power")
    path = "name=site&key=leeds&measure=power"
    shown = rows(get(pages, f"/key?{path}"), "Windows")
    expected = [[number(w.mean), count(w.count), *map(number, (w.sum, w.min, w.max, w.stddev))] for w in windows[::-1]]
    assert [row[1:7] for row in shown] == expected
    assert [row[9] for row in shown] == [
        ("final" if w.final else "open") + ("corrected" if w.start == corrected else "") for w in windows[::-1]
    ]
    answer = pages.get(f"/key.csv?{path}")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert [float(row["mean"]) for row in found] == [w.mean for w in windows]
    assert [(int(row["start"]), int(row["count"]), row["state"]) for row in found] == [
        (w.start, w.count, w.closed_by or "open") for w in windows
    ]


def test_every_statistic_of_a_view_has_a_tab_a_plot_a_column_and_a_field_of_the_csv_file(
    pages: TestClient, world: World
) -> None:
    """A view with `count, p99, rate` has no mean: its p99 is shown, and no band."""
    world.add_view("tail", ["site"], measures=["power"], statistics=["count", "last", "p99", "rate"])
    begin = world.now // WINDOW * WINDOW - 5 * WINDOW
    for number_ in (0, 1, 3):  # the third window has no readings
        start = begin + number_ * WINDOW
        fields = {"start": start, "end": start + WINDOW, "count": 3 + number_, "last": start + 1, "p99": 40 + number_}
        rate = {"rate": 0.25} if number_ else {}
        name = world.name("window", "tail", "power", "cork", start)
        world.redis.hset(name, mapping={**fields, **rate, **world.stamp()})
        world.redis.zadd(world.name("keys", "tail"), {"cork": start})
    [row] = rows(get(pages, "/view?name=tail&measure=power"), "Newest values")
    assert row[:2] == ["cork", "43.00"]
    assert row[3] == "6", "the readings stand beside p99"
    [row] = rows(get(pages, "/view?name=tail&measure=power&stat=rate"), "Newest values")
    assert row[1] == "0.25"
    path = "/key?name=tail&key=cork&measure=power"
    html = get(pages, path)
    assert re.findall(r'stat=(\w+)" aria-current="true"', html) == ["p99"]
    assert [each.partition(">")[2] for each in re.findall(r'stat=\w+"[^<]*', html)] == ["readings", "p99", "rate"]
    assert 'P99 of power</dt><dd><span class="big">43.00' not in html
    assert 'p99 of power</dt><dd><span class="big">43.00' in html
    assert "min to max" not in html
    plot = json.loads(unescape(re.findall(r'data-plot="([^"]+)"', html)[0]))
    assert plot["value"] == [40, 41, None, 43], "a gap is a gap"
    assert [round(1000 * each) for each in plot["axis"]] == [begin + 4 * WINDOW - 600_000, begin + 4 * WINDOW]
    plot = json.loads(unescape(re.findall(r'data-plot="([^"]+)"', get(pages, f"{path}&stat=rate"))[0]))
    assert plot["value"] == [None, 0.25, None, 0.25]
    found = list(csv.DictReader(io.StringIO(pages.get(f"/key.csv?{path.partition('?')[2]}").text)))
    assert [(row["count"], row["p99"], row["rate"]) for row in found] == [
        ("3", "40.0", ""),
        ("4", "41.0", "0.25"),
        ("6", "43.0", "0.25"),
    ]


def test_a_statistic_beyond_the_largest_number_is_a_gap(pages: TestClient, world: World) -> None:
    start = (world.now // WINDOW - 3) * WINDOW
    world.redis.hset(world.name("window", "site", "power", "leeds", start), mapping={"sum": "inf", "stddev": "nan"})
    for statistic in ("sum", "stddev"):
        html = get(pages, f"/key?name=site&key=leeds&measure=power&stat={statistic}")
        plot = json.loads(unescape(re.findall(r'data-plot="([^"]+)"', html)[0]))
        assert plot["value"][plot["t"].index((start + WINDOW / 2) / 1000)] is None


def test_all_plots_of_a_device_have_the_axis_of_the_chosen_span(pages: TestClient, world: World) -> None:
    until = world.now // WINDOW * WINDOW
    html = get(pages, f"/device?id={DEVICES[1]}&span=180000&until={until}&stat=max")
    plots = [json.loads(unescape(each)) for each in re.findall(r'data-plot="([^"]+)"', html)]
    assert plots
    assert all(plot["axis"] == [until / 1000 - 180, until / 1000] for plot in plots)
    assert all(plot["max"] == [None] * len(plot["t"]) for plot in plots), "a max has no band"
    assert ">3 min</a>" in html, "a length that was zoomed to is one of the choices"
    fixed = next(each for each in re.findall(r'<a href="([^"]+)" title="The address of this span', html))
    assert unescape(fixed) == f"/device?id={DEVICES[1]}&stat=max&span=180000&until={until}"
    for name in ("Zoom in", "Zoom out"):
        to = unescape(next(iter(re.findall(rf'<a href="([^"]+)">{name}</a>', html))))
        assert "stat=max" in to
        get(pages, to)


@pytest.mark.parametrize(
    ("wanted", "until", "expected"),
    [
        ("", "", (6 * 3_600_000, NEWEST, True)),
        ("600000", "", (600_000, NEWEST, True)),
        ("150000", "", (180_000, NEWEST, True)),  # zoomed to: up to a whole slide
        ("60000", "", (6 * 3_600_000, NEWEST, True)),  # a single window is no plot
        ("86400001", "", (6 * 3_600_000, NEWEST, True)),  # more than the view keeps
        ("9" * 40, "-1", (6 * 3_600_000, NEWEST, True)),
        ("600000", str(NEWEST - 60_000), (600_000, NEWEST - 60_000, False)),
        ("600000", str(NEWEST + 1), (600_000, NEWEST, True)),
    ],
)
def test_a_span_of_an_address_is_one_that_can_be_read(wanted: str, until: str, expected: tuple[int, int, bool]) -> None:
    view = View("device", ("device",), ("power",), WINDOW, WINDOW, 86_400_000)
    found = span(view, NEWEST, wanted, until)
    assert (found.length_ms, found.until, found.is_live) == expected
    assert found.since == found.until - found.length_ms


def test_an_address_can_name_a_stretch_of_the_past(pages: TestClient, world: World) -> None:
    until = (world.now // WINDOW - 3) * WINDOW
    html = get(pages, f"/key?name=site&key=leeds&measure=power&span=600000&until={until}")
    starts = re.findall(r'<th scope="row"><time datetime="([^"]+)"', html)
    assert starts[0] == time.strftime("%Y-%m-%dT%H:%M:00.000Z", time.gmtime(until / 1000 - 60))
    assert ">Newest</a>" in html


def test_a_device_shows_its_values_sessions_and_facts(pages: TestClient, world: World) -> None:
    device = DEVICES[1]
    html = get(pages, f"/device?id={device}")
    with Client(world.redis) as client:
        known, sessions = client.device(device), client.sessions(device)
    assert known is not None
    [session] = sessions
    for reading in known.latest.values():
        assert f'<span class="big">{number(reading.value)}</span>' in html
    for fact in known.attributes.values():
        assert f">{fact}</a>" in html
    [row] = rows(html, "Sessions")
    assert [row[3], row[4]] == [count(session.count), "open"]
    gaps = [session.measures[name].longest_gap for name in MEASURES]
    assert row[-len(MEASURES) :] == [number(gap) for gap in gaps]
    assert f"{MEASURES[0]}, longest gap" in html
    assert f"--device {device}</code>" in html
    assert "Redis has no such device" in get(pages, "/device?id=stranger")


def test_the_pipeline_shows_what_the_service_answers(
    pages: TestClient,
    world: World,
    shared_answers: Answers,
) -> None:
    html = wait(lambda: rows(each := get(pages, "/pipeline"), "Batches") and each, "the service was asked")
    newest = shared_answers.status["batches"][-1]
    first = rows(html, "Batches")[0]
    assert [first[0], first[2]] == [count(newest["batch"]), count(newest["rows"])]
    assert [row[0] for row in rows(html, "Partitions")] == [f"readings {number}" for number in range(4)]
    assert [[row[0], *row[2:]] for row in rows(html, "Rejects by reason")] == [["late", "4", "9"]]
    assert "Nothing needs attention" in html


@pytest.mark.thorough
def test_a_condition_of_the_service_leads_to_what_the_runbook_says(pages: TestClient, shared_answers: Answers) -> None:
    try:
        shared_answers.need("TidemarkRejects", "pending", "More than one record in <twenty> is rejected", "warn")
        shared_answers.need("TidemarkBehind", "firing", "5M records behind", "page")
        html = wait(
            lambda: "5M records" in get(pages, "/pipeline") and get(pages, "/pipeline"), "the condition is shown"
        )
        assert "More than one record in &lt;twenty&gt; is rejected (an alert after 10 min)" in html
        assert html.index("/runbook/TidemarkBehind") < html.index("/runbook/TidemarkRejects"), "what fires comes first"
        assert "Nothing needs attention" not in html
    finally:
        shared_answers.conditions = []
    assert "What to do" in get(pages, "/runbook/TidemarkBehind")


def test_latencies_beyond_the_histogram_are_given_as_its_last_bound(world: World, options: Options) -> None:
    answers = Answers()
    answers.history["recent"] |= {"p50_s": 59.9, "p99_s": 60.0}
    try:
        given = replace(options, service=answers.url, hosts=("testserver",))
        with TestClient(build(given)) as pages:
            html = wait(lambda: "over 60.0 s</dd>" in (html := get(pages, "/pipeline")) and html, "the latency")
            assert ">59.9 s</dd>" in html
    finally:
        answers.close()


def test_alerts_of_prometheus_are_shown(world: World, options: Options) -> None:
    answers = Answers()
    answers.alerts = [
        {
            "labels": {"alertname": "TidemarkSlow", "severity": "warn"},
            "annotations": {"summary": "Readings take 9 s"},
            "state": "firing",
            "activeAt": "2026-01-01T00:00:00Z",
        },
        {"labels": {"alertname": "TidemarkStuck"}, "state": "pending"},
    ]
    try:
        given = replace(options, prometheus=answers.url, hosts=("testserver",))
        with TestClient(build(given)) as pages:
            html = wait(lambda: "Readings take 9 s" in get(pages, "/pipeline") and get(pages, "/pipeline"), "the alert")
            assert "/runbook/TidemarkSlow" in html
            assert "/runbook/TidemarkStuck" not in html
    finally:
        answers.close()


def test_a_redis_without_values_is_a_page_that_waits_and_says_for_what(
    shared_server: Server, options: Options, shared_answers: Answers
) -> None:
    shared_server.redis.flushall()
    with TestClient(build(replace(options, hosts=("testserver",)))) as pages:
        for path in ("/", "/?status=online"):
            assert "does not have the views of a service" in get(pages, path, 503), "and not that there are 0 devices"
        html = get(pages, "/views", 503)
        assert "This page appears by itself" in html
        assert "Redis answers" in html
        assert "Redis does not have the views of a service under the prefix" in html
        wait(lambda: "The service is running" in get(pages, "/views", 503), "what the service says")
        html = get(pages, "/pipeline")
        assert "Old values" not in html
        assert "Redis does not answer" not in html
        assert "Redis has no values of a service yet" in html
        for _ in range(3):  # the answer about progress does not say that there are values
            assert "Redis has no values of a service yet" in get(pages, "/pipeline")


def test_without_redis_the_pipeline_shows_what_the_service_says(
    world: World, shared_answers: Answers, options: Options
) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with TestClient(build(replace(options, redis=nobody, hosts=("testserver",)))) as pages:
        html = wait(lambda: rows(html := get(pages, "/pipeline"), "Batches") and html, "the batches of the service")
        assert "Redis does not answer since" in html
        html = get(pages, "/views", 503)
        assert "Redis does not answer: " in html
        assert "This page appears by itself" in html


def test_the_pipeline_names_inputs_outlets_versions_and_how_to_get_expectations(world: World, options: Options) -> None:
    answers = Answers()
    topics = [{"topic": "readings", "rejects": "readings.rejects"}]
    away = {"kind": "jdbc", "reached": {"epoch": 1, "batch": 1_204, "watermark_ms": world.now}, "is_behind": True}
    away |= {"pending_batches": 7, "pending_bytes": 3 << 20, "age_s": 95, "error": "<refused> by db", "failed_ms": 1}
    fine = {"kind": "parquet", "reached": None, "is_behind": False, "pending_batches": 0, "pending_bytes": 0}
    fine |= {"age_s": 0, "error": "", "failed_ms": None, "refused_rows": 0}
    answers.status |= {"inputs": [{"name": "input", "format": "avro", "topics": topics}]}
    answers.status |= {"outlets": {"history": {**away, "refused_rows": 2}, "files": fine}}
    answers.set('tidemark_outlet_rows_total{outlet="history"}', 812)
    try:
        with TestClient(build(replace(options, service=answers.url, hosts=("testserver",)))) as pages:
            html = wait(
                lambda: "Inputs, table" in (html := get(pages, "/pipeline")) and html, "the look at the service"
            )
        [row] = rows(html, "Inputs")
        assert row[:4] == ["readings", "input", "avro", "2,370"]
        assert row[5] == "readings.rejects"
        history, error, files = rows(html, "Outlets")
        assert history[0] == "historyjdbc"
        assert history[2:5] == ["7", "3.0 MiB", "1 min 35 s"]
        assert history[5].startswith("batch 1,204,")
        assert history[6:] == ["812", "2"]
        assert error[0].startswith("<refused> by db")
        assert [files[1], files[5]] == ["has everything", "–"]
        assert "Tidemark 0.1.0, Spark 4.1.1" in html
        assert "tidemark profile --out readings.expectations.json" in html
    finally:
        answers.close()


def test_the_pipeline_shows_since_when_and_what_happened_with_the_period_of_every_figure(
    world: World, options: Options
) -> None:
    answers, now = Answers(), world.now
    alert = {"kind": "alert", "text": "TidemarkBehind", "at_ms": now - 60_000, "until_ms": None}
    restart = {"kind": "restart", "text": "The query restarts: SINK", "at_ms": now - 90_000, "until_ms": now - 90_000}
    points = [(now - 10_000 * back, float(back), {"late": 1} if back == 3 else {}) for back in (9, 8, 3, 2, 1, 0)]
    answers.history = history(points, now - 100_000, marks=[restart, alert])
    try:
        with TestClient(build(replace(options, service=answers.url, hosts=("testserver",)))) as pages:
            html = wait(lambda: "What happened" in (html := get(pages, "/pipeline")) and html, "the course")
            for name in ("Latency</span>", "Latency, p99, last 8 min", "Records a second, last 30 s"):
                assert name.removesuffix("</span>") in html
            assert ">1.2 s</dd>" in html, "the p99 of the service"
            [row] = rows(html, "Rejects by reason")
            assert [row[0], *row[2:]] == ["late", "4", "9"]
            assert "In the last 8 min" in html
            plots = [json.loads(unescape(each)) for each in re.findall(r'data-plot="([^"]+)" data-kind="course"', html)]
            assert [list(each["series"]) for each in plots][:3] == [["rate"], ["lag"], ["p50_s", "p99_s"]]
            assert plots[0]["series"]["rate"] == [9, 8, None, 3, 2, 1, 0], "a gap is a gap"
            assert plots[-1]["series"] == {"late": [0, 0, None, 6, 0, 0, 0]}, "one in ten seconds is six a minute"
            assert {tuple(each["axis"]) for each in plots} == {(now / 1000 - 3600, now / 1000)}
            assert [each[0] for each in plots[0]["marks"]] == ["alert", "restart", "start"]
            assert [row[1:] for row in rows(html, "What happened")] == [
                ["TidemarkBehind", "it goes on"],
                ["The query restarts: SINK", ""],
                ["The process starts", ""],
            ]
            assert "/runbook/TidemarkBehind" in html
            assert "the last day</a>" in html
    finally:
        answers.close()


def test_a_course_goes_on_over_a_restart_of_the_service_with_a_gap() -> None:
    course = Course()
    alert = {"kind": "alert", "text": "TidemarkBehind", "at_ms": 1_050_000, "until_ms": None}
    course.add(history([(1_040_000, 1.0, {}), (1_050_000, 2.0, {})], 1_000_000, marks=[alert]))
    course.add(history([(1_200_000, 7.0, {})], 1_190_000))
    assert json.loads(course.plot("hour", ["rate"], ""))["series"]["rate"] == [1.0, 2.0, None, 7.0]
    assert [(each.kind, each.at_ms, each.until_ms) for each in course.seen("hour")] == [
        ("start", 1_190_000, 1_190_000),
        ("alert", 1_050_000, 1_050_000),  # it ended with its process, as far as is known
        ("start", 1_000_000, 1_000_000),
    ]
    course.add(history([(1_200_000, 7.0, {}), (1_210_000, 8.0, {})], 1_190_000))
    assert len(course.points["hour"]) == 4, "the same points are there once"


def test_what_does_not_exist_is_a_page_that_says_so(pages: TestClient) -> None:
    for path in (
        "/nothing",
        "/view?name=nothing",
        "/view?name=site&measure=nothing",
        "/key?name=site",
        "/runbook/nothing",
    ):
        assert "Not found" in get(pages, path, 404)
    assert pages.get("/key.csv?name=nothing&key=x").status_code == 404
    assert pages.get("/events/nothing").status_code == 404


def test_a_view_without_windows_shows_one_value_of_each_key_and_from_when_it_is_complete(
    pages: TestClient, world: World
) -> None:
    endless = 1 << 42
    world.add_view("total", ["device"], window_ms=endless, slide_ms=endless, retain_ms=endless)
    fields = {"start": 0, "end": endless, "count": 9, "last": world.now, "mean": 21.5, "min": 1, "max": 40}
    for key, begun in ((DEVICES[0], 0), (DEVICES[1], world.now)):
        name = world.name("window", "total", "temperature", key, 0)
        world.redis.hset(name, mapping={**fields, "complete_from": begun, **world.stamp()})
        world.redis.zadd(world.name("keys", "total"), {key: 0})
    shown = rows(get(pages, "/views"), "Views")
    assert next(row[4:] for row in shown if row[0] == "total") == ["none", "–", "for ever"]
    html = get(pages, "/view?name=total&measure=temperature")
    assert "without windows: all readings since the view began" in html
    found = {row[0]: row for row in rows(html, "Newest values")}
    assert found[DEVICES[0]][-2:] == ["the first record", "open"]
    assert found[DEVICES[0]][1] == "21.50"
    assert found[DEVICES[1]][-2].endswith("UTC")
    html = get(pages, f"/key?name=total&measure=temperature&key={DEVICES[0]}")
    assert "one value of each key, and no course of time" in html
    assert [row[0] for row in rows(html, "Windows")] == ["the first record"]
    assert len(get(pages, f"/key.csv?name=total&measure=temperature&key={DEVICES[0]}").splitlines()) == 2
    assert "total" not in get(pages, f"/device?id={DEVICES[0]}")


def test_windows_of_local_days_have_their_length_in_words_and_their_start_on_the_zone_s_clock(
    pages: TestClient, world: World
) -> None:
    hour = 3_600_000
    of = Calendar(1, 0, "Asia/Kathmandu")
    lengths = {"window_ms": 24 * hour, "slide_ms": hour // 4, "retain_ms": 40 * 24 * hour}
    world.add_view("day", ["device"], calendar=vars(of), **lengths)
    starts = [of.start(world.now - 24 * hour), of.start(world.now)]
    for number_of, start in enumerate(starts):
        fields = {"start": start, "end": of.end(start), "count": 9, "last": start + 1, "mean": 20 + number_of}
        name = world.name("window", "day", "temperature", DEVICES[0], start)
        world.redis.hset(name, mapping={**fields, "local_start": of.local(start), **world.stamp()})
    world.redis.zadd(world.name("keys", "day"), {DEVICES[0]: starts[1]})
    shown = rows(get(pages, "/views"), "Views")
    assert next(row[4:6] for row in shown if row[0] == "day") == ["1 d of Asia/Kathmandu", "–"]
    html = get(pages, "/view?name=day&measure=temperature")
    assert "of 1 d of Asia/Kathmandu" in html
    found = {row[0]: row for row in rows(html, "Newest values")}
    assert found[DEVICES[0]][1] == "20.00"
    address = f"name=day&measure=temperature&key={DEVICES[0]}"
    html = get(pages, f"/key?{address}")
    for row, start in zip(rows(html, "Windows"), reversed(starts), strict=True):
        assert of.local(start) in row[0]
    lines = list(csv.DictReader(io.StringIO(get(pages, f"/key.csv?{address}"))))
    assert [line["local_start"] for line in lines] == [of.local(start) for start in starts]
    assert get(pages, f"/device?id={DEVICES[0]}&name=day")


def test_days_of_the_zone_of_each_key_have_their_length_in_words_and_are_found(pages: TestClient, world: World) -> None:
    hour = 3_600_000
    calendars = {"days": 1, "months": 0, "time_zone_column": "zone", "offset_ms": 0, "offset_months": 0}
    lengths = {"window_ms": 31 * hour, "slide_ms": hour // 4, "retain_ms": 40 * 24 * hour}
    world.add_view("day", ["device", "zone"], calendars=calendars, **lengths)
    starts = {}
    for zone in ("Asia/Kathmandu", "America/New_York"):
        of, key = Calendar(1, 0, zone), f"{DEVICES[0]}|{zone}"
        for start in (of.start(world.now - 24 * hour), of.start(world.now)):
            fields = {"start": start, "end": of.end(start), "count": 9, "last": start + 1, "mean": 20}
            name = world.name("window", "day", "temperature", key, start)
            world.redis.hset(name, mapping={**fields, "local_start": of.local(start), **world.stamp()})
            starts[key] = start
    world.redis.zadd(world.name("keys", "day"), starts)
    shown = rows(get(pages, "/views"), "Views")
    assert next(row[4:6] for row in shown if row[0] == "day") == ["1 d of the zone in zone", "–"]
    html = get(pages, "/view?name=day&measure=temperature")
    assert "of 1 d of the zone in zone" in html
    assert {row[0]: row[1] for row in rows(html, "Newest values")} == dict.fromkeys(starts, "20.00")
    for key, start in starts.items():
        html = get(pages, f"/key?name=day&measure=temperature&key={key.replace('|', '%7C')}")
        newest, _ = rows(html, "Windows")
        assert Calendar(1, 0, key.partition("|")[2]).local(start) in newest[0]
    for key in (DEVICES[0], f"{DEVICES[0]}%7CNowhere"):
        for path in ("key?name=day&", "key.csv?name=day&", "api/v1/windows?view=day&since=1h&"):
            answer = pages.get(f"/{path}measure=temperature&key={key}")
            assert (answer.status_code, "does not fit" in answer.text) == (400 if "api" in path else 404, True)
    world.redis.zadd(world.name("keys", "day"), {f"{DEVICES[0]}|Mars/Olympus": world.now})
    pages.app.state.site.sources.keys.lost()  # type: ignore[attr-defined]
    assert "pip install tzdata" in get(pages, "/view?name=day&measure=temperature", 503)


def test_a_key_costs_no_walk_over_the_keys_of_its_view(pages: TestClient, world: World) -> None:
    world.redis.config_resetstat()
    assert "leeds" in get(pages, "/key?name=site&key=leeds&measure=power")
    assert "cmdstat_zscan" not in world.redis.info("commandstats")


def test_a_view_that_writes_its_open_values_less_often_says_how_old_they_may_be(
    pages: TestClient, world: World
) -> None:
    document = json.loads(world.redis.get(world.name("meta")))
    first, *others = document["views"]
    address = f"name={first['name']}&measure={MEASURES[0]}"
    assert "Open values are written" not in get(pages, f"/view?{address}")
    rolled = {**first, "from": f"{others[0]['name']}@2"}
    world.redis.set(world.name("meta"), json.dumps({**document, "views": [rolled, *others]}))
    assert f'closed windows of <a href="/view?name={others[0]["name"]}">' in get(pages, f"/view?{address}")
    slower = {**first, "update_every_ms": 30_000}
    world.redis.set(world.name("meta"), json.dumps({**document, "views": [slower, *others]}))
    assert "Open values are written at least every 30 s." in get(pages, f"/view?{address}")
    assert "at most 30 s old" in get(pages, f"/key?{address}&key={DEVICES[0]}")
