"""What a device has sent is text on every page, and nobody sees a page who may not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from served import DEVICES, Server, filled, options, pages, shared_answers, shared_server, wait, world
from starlette.datastructures import Headers
from starlette.testclient import TestClient
from world import Answers, World

from load.fleet.payloads import PAGE, TERMINAL
from tidemark_client import TidemarkClientError, queries
from tidemark_dashboard import command, runbook, security
from tidemark_dashboard.app import build
from tidemark_dashboard.options import Options, OptionsError
from tidemark_dashboard.pages import pipeline
from tidemark_dashboard.security import Sessions, Token
from tidemark_dashboard.service import Service
from tidemark_dashboard.sources import Sources

ROOT = Path(__file__).parents[3]
HOSTILE = [text for text in (*PAGE, *TERMINAL) if text != "\ud800"]
"""The last one is no UTF-8 and cannot be a key of Redis."""
ELEMENTS = set(
    re.findall(
        r"\w+",
        """html head meta title link script body a header nav img div span strong p main section h1 h2 h3 ul li svg
        circle path rect table thead tbody tr th td form label input select option button details summary dl dt
        dd footer figure figcaption i time code pre""",
    )
)
ADDRESSES = {"href", "src", "action"}
PATHS = ("/", "/view?name=device&measure=power", "/view?name=site&measure=power", "/pipeline", "/views")


class Elements(HTMLParser):
    """Collects what a browser would take for active: elements, handlers, addresses and styles that are not of the templates."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.active: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ELEMENTS:
            self.active.append(tag)
        if tag == "script" and not (dict(attrs).get("src") or "").startswith("/static/"):
            self.active.append("inline script")
        for name, value in attrs:
            if name.startswith("on") or name in {"style", "srcdoc"}:
                self.active.append(f"{tag} {name}")
            if name in ADDRESSES and not re.match(r"/(?!/)|#", value or ""):
                self.active.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def hostile(world: World) -> World:
    """Devices, facts and keys of views that are hostile texts."""
    for number, text in enumerate(HOSTILE):
        world.add([text], site=text, model=HOSTILE[-number])
    for each in DEVICES:
        world.devices[each]["sends"] = False
    world.step()
    return world


def test_no_text_of_a_device_is_markup_on_any_page(hostile: World, pages: TestClient) -> None:
    addresses = [*PATHS, *(f"/?by={column}&groups=all" for column in ("site", "model"))]
    for text in HOSTILE:
        named = quote(text, safe="")
        addresses += [
            f"/?q={named}",
            f"/?f.site={named}",
            f"/?f.{named}={named}&sort=ref.{named}",
            f"/device?id={named}",
        ]
        addresses += [f"/key?name={view}&key={named}&measure=power" for view in ("device", "site")]
        addresses += [
            f"/view?name={named}",
            f"/runbook/{named}",
            f"/view?name=device&q={named}",
            f"/?by={named}&sort={named}&page={named}",
        ]
    for address in addresses:
        answer = pages.get(address)
        assert answer.status_code in {200, 404}, address
        assert Elements(answer.text).active == [], address


def test_hostile_texts_are_shown_with_every_character_visible(hostile: World, pages: TestClient) -> None:
    text = Elements(pages.get("/device?id=" + quote(PAGE[0])).text).text
    assert PAGE[0] in text
    text = Elements(pages.get("/device?id=" + quote("\u202etxt.exe")).text).text
    assert "\\u{202e}txt.exe" in text
    assert "\u202e" not in text


def test_texts_of_the_service_and_of_prometheus_are_no_markup(world: World, options: Options) -> None:
    answers = Answers()
    bad = PAGE[0]
    answers.status |= {"state": "restarting", "last_error": {"code": bad, "text": bad, "at_ms": 1}}
    answers.status["reference"]["failure"] = {"reason": bad, "text": bad, "at_ms": 1}
    labels = {"alertname": bad, "severity": bad}
    answers.alerts = [{"labels": labels, "annotations": {"summary": bad}, "state": "firing", "activeAt": bad}]
    answers.set(f'tidemark_quality_expectation_met{{expectation="{bad}"}}', 0)
    answers.set("tidemark_quality_expectations_met_ratio", 0.5)
    try:
        given = replace(options, service=answers.url, prometheus=answers.url, hosts=("testserver",))
        with TestClient(build(given)) as pages:
            wait(lambda: pages.get("/pipeline").text.count("&lt;script") > 4, "the texts are shown")
            for path in PATHS:
                assert Elements(pages.get(path).text).active == []
    finally:
        answers.close()


def test_every_answer_forbids_scripts_frames_and_other_hosts(pages: TestClient) -> None:
    for path in (*PATHS, "/nothing", "/static/page.js", "/key.csv?name=x", "/healthz"):
        headers = pages.get(path).headers
        policy = dict(each.partition(" ")[::2] for each in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_host_that_is_not_named_is_refused(pages: TestClient) -> None:
    for host in ("evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example:9500"):
        assert pages.get("/", headers={"Host": host}).status_code == 421
    for host in ("localhost", "127.0.0.1:9500", "[::1]:9500", "[::1]"):
        assert pages.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("2001:db8::7", "[2001:db8::7]")]
)
def test_the_address_where_it_listens_is_answered(address: str, host: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    app = build(Options(address=address, token_file=tmp_path / "token", hosts=("fd00::9",)))
    for each in (host, "[fd00::9]"):
        assert TestClient(app).get("/healthz", headers={"Host": f"{each}:9500"}).status_code == 200


def test_two_dashboards_of_a_host_have_sessions_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    jar: dict[str, str] = {}
    pages = []
    for port in (9500, 9501):
        app = build(Options(port=port, token_file=tmp_path / "token", hosts=("testserver",)))
        pages.append(TestClient(app, follow_redirects=False))
        jar |= dict(pages[-1].post("/login", data={"token": "0123456789abcdef"}).cookies)
    cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())}
    assert [each.get("/runbook", headers=cookies).status_code for each in pages] == [200, 200]


def test_only_reading_is_answered(pages: TestClient) -> None:
    for method in ("PUT", "DELETE", "PATCH", "POST"):
        assert pages.request(method, "/").status_code == 405


def test_a_token_is_asked_for_and_kept_by_the_browser(world: World, options: Options, tmp_path: Path) -> None:
    secret = "-".join(["0123456789abcdef", "tök\u20acn"])
    (tmp_path / "token").write_text(f"{secret}\n")
    app = build(replace(options, token_file=tmp_path / "token", hosts=("testserver",)))
    html = {"Accept": "text/html"}
    with TestClient(app, follow_redirects=False) as pages:
        for path in ("/", "/key.csv?name=x", "/events/fleet", "/device?id=x", "/runbook"):
            assert pages.get(path, headers={"Accept": "*/*"}).status_code == 401
        away = pages.get("/device?id=eu-001", headers=html)
        assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Fdevice%3Fid%3Deu-001")
        assert pages.head("/events/fleet", headers=html).status_code == 303
        assert pages.get("/static/page.css").status_code == 200
        assert pages.get("/", headers={"Authorization": f"Bearer {secret}".encode()}).status_code == 200
        assert pages.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert pages.post("/login", data={"token": "wrong"}).status_code == 403
        signed = pages.post("/login?next=%2Fdevice%3Fid%3Deu-001", data={"token": secret})
        assert (signed.status_code, signed.headers["location"]) == (303, "/device?id=eu-001")
        cookie = signed.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert secret not in cookie
        assert "eu-001" in pages.get("/device?id=eu-001", headers=html).text
        stolen = {**html, "Cookie": cookie.partition(";")[0]}
        assert pages.post("/logout").status_code == 303
        assert pages.get("/", headers=html).status_code == 303
        assert pages.get("/", headers=stolen).status_code == 303, "a cookie has ended with its session"
        for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
            answer = pages.post(f"/login?next={quote(elsewhere, safe='')}", data={"token": secret})
            assert answer.headers["location"] == "/"


@pytest.mark.hostile
@pytest.mark.quick
def test_a_client_with_many_wrong_tokens_waits_whatever_its_connections(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, now_s = "0123456789abcdef", [1_000.0]
    (tmp_path / "token").write_text(secret)
    monkeypatch.setattr(security, "WRONG_S", 0.0)
    monkeypatch.setattr(security.time, "monotonic", lambda: now_s[0])
    app = build(replace(options, token_file=tmp_path / "token", hosts=("testserver",)))

    def ask(client: str, token: str, *, by_form: bool = False) -> int:
        pages = TestClient(app, client=(client, 1), follow_redirects=False)  # a connection of its own
        if by_form:
            return pages.post("/login", data={"token": token}).status_code
        return pages.get("/runbook", headers={"Authorization": f"Bearer {token}"}).status_code

    for number in range(security.WRONG - 1):
        assert ask("192.0.2.1", f"wrong {number}", by_form=number % 2 > 0) in {401, 403}
    assert [ask("192.0.2.1", "wrong"), ask("192.0.2.1", secret), ask("192.0.2.1", secret, by_form=True)] == [
        429,
        429,
        429,
    ]
    assert [ask("192.0.2.2", secret), ask("192.0.2.2", secret, by_form=True)] == [200, 303], "another client"
    for number in range(security.WRONG):
        ask(f"2001:db8:0:1::{number + 1:x}", "wrong")
    assert [ask("2001:db8:0:1:ffff::9", secret), ask("2001:db8:0:2::1", secret)] == [429, 200], "IPv6 by its network"
    now_s[0] += security.WRONG_IN_S
    assert ask("192.0.2.1", secret) == 200


def test_a_cookie_of_any_form_takes_no_time() -> None:
    """http.cookies took ten seconds for the first one, which needs no token (CVE-2024-7592)."""
    began, cookie_of = time.monotonic(), Sessions(7).cookie_of
    for cookie in ('tidemark-7="' + '\\"' * 120_000 + '"', "tidemark-7=;" * 25_000, "=;" * 100_000, "tidemark-7"):
        assert cookie_of(Headers({"cookie": cookie})) in {cookie.partition("=")[2], ""}
    assert time.monotonic() - began < 5
    assert cookie_of(Headers({"cookie": "a=b; tidemark=y; tidemark-7=the-one; tidemark-7=x"})) == "the-one"


def test_what_is_remembered_of_clients_is_bounded() -> None:
    token, sessions = Token("0123456789abcdef"), Sessions(9500)
    first = sessions.begin()
    for number in range(2 * security.MOST_CLIENTS):
        token.is_right("wrong", f"10.0.{number >> 8}.{number & 255}")
        sessions.begin()
    assert len(token._wrong) == len(sessions._ends_s) == security.MOST_CLIENTS
    assert not sessions.has(first)
    assert not sessions.has("")


@pytest.mark.parametrize("path", ["/login", "/loginx", "/static/none", "/healthzx"])
def test_who_has_no_token_sees_nothing_of_the_service(path: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    app = build(Options(token_file=tmp_path / "token", hosts=("testserver",)))
    error = {"code": "SOURCE", "text": "Kafka at kafka-1.internal:9093 does not answer", "at_ms": 1}
    app.state.site.sources.service.status = {"state": "restarting", "last_error": error}
    app.state.site.sources.redis.failed("Redis at redis.internal:6379 does not answer")
    answer = TestClient(app).get(path, headers={"Accept": "text/html"})
    assert "internal" not in answer.text
    assert "freshness" not in answer.text


def test_options_that_would_show_the_fleet_to_everybody_are_refused(tmp_path: Path) -> None:
    short, good = tmp_path / "short", tmp_path / "good"
    short.write_text("12345")
    good.write_text("0123456789abcdef")
    for given, words in (
        (Options(address="0.0.0.0"), "--token-file"),  # noqa: S104
        (Options(address="10.0.0.7"), "--token-file"),
        (Options(address="0.0.0.0", token_file=good), "--host"),  # noqa: S104
        (Options(token_file=short), "16"),
        (Options(token_file=tmp_path / "none"), "--token-file"),
        (Options(certificate=good), "--key"),
        (Options(port=99_999_999), "--port"),
        (Options(service="file:///etc/passwd"), "--service"),
        (Options(service="http://u:hunt/er2@h:9400"), "--service 'h:9400'"),
        (Options(service="http://[::1"), "--service"),
        (Options(service="http://h:99999"), "--service"),
        (Options(service="http://h:port/x"), "--service"),
        (Options(service="http://"), "--service"),
        (Options(service="127.0.0.1:9400"), "--service"),
        (Options(prometheus="http://h\n"), "--prometheus"),
    ):
        with pytest.raises(OptionsError, match=words):
            given.check()
    Options(address="10.0.0.7", token_file=good).check()
    Options(service="http://[::1]:9400/?pipeline=plant", prometheus="https://u:p@prom/x").check()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--redis", "localhost:6379"], "--redis: the URL has no scheme of Redis"),
        (["--redis", "redis://h1,h2"], "give --cluster"),
        (["--unit", "power"], "--unit 'power': give a measure and its unit"),
        (["--redis", "redis://h:6379/0?socket_timeout=x"], "--redis: Invalid value for 'socket_timeout'"),
        (["--redis", "redis://:hunter2/3@h:6379"], "write %2F for /"),
        (
            ["--certificate", "/nowhere/cert", "--key", "/nowhere/key"],
            "--certificate /nowhere/cert, --key /nowhere/key:",
        ),
    ],
)
def test_an_option_that_cannot_be_used_is_a_line_and_status_2(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--port", "0", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tidemark-dashboard: ")
    assert text in line
    assert "hunter2" not in line


def test_the_end_by_ctrl_c_is_no_error() -> None:
    # What a shell runs in the background, as these tests may be, ignores Ctrl-C.
    heard = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    run = f"{heard}; runpy.run_module('tidemark_dashboard', run_name='__main__', alter_sys=True)"
    words = ["-c", run, "--port", "0", "--redis", "redis://127.0.0.1:1", "--service", ""]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert re.search(r"The page: http://127.0.0.1:[1-9]\d+/", process.stderr.readline()), (
            "the port that it was given"
        )
        time.sleep(1.0)  # uvicorn takes signals from now on
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait(30)) == ("", 130)


def test_the_password_of_redis_is_on_no_page(shared_server: Server, world: World, options: Options) -> None:
    url = options.redis.replace("redis://", "redis://reader:hunter2@")
    with TestClient(build(replace(options, redis=url, hosts=("testserver",)))) as pages:
        for path in ("/", "/views", "/pipeline"):
            assert "hunter2" not in pages.get(path).text


def test_a_certificate_for_redis_does_not_count_without_tls(world: World, options: Options) -> None:
    """As in the service, whose settings `tidemark dashboard` has it from."""
    with TestClient(build(replace(options, ca_file=Path("/nowhere"), hosts=("testserver",)))) as pages:
        assert pages.get("/views").status_code == 200


def test_a_replaced_password_of_redis_is_read_with_the_next_connection(tmp_path: Path) -> None:
    """The URL's password counts no more where there is a file. While the file is gone, the error names it."""
    server, file = Server(tmp_path), tmp_path / "password"
    server.start()

    async def lose_connection(sources: Sources) -> None:
        server.redis.execute_command("CLIENT", "KILL", "USER", "reader")
        with contextlib.suppress(TidemarkClientError):  # the first request may find that it is closed
            await sources.ask(queries.progress())

    async def play() -> None:
        sources = Sources(Options(redis=server.url.replace("//", "//reader:url@"), password_file=file, service=""))
        try:
            await sources.ask(queries.progress())
            server.redis.acl_setuser("reader", enabled=True, passwords=["-first", "+second"])
            file.write_text("second\n")
            await lose_connection(sources)
            await sources.ask(queries.progress())
            file.unlink()
            await lose_connection(sources)
            with pytest.raises(TidemarkClientError, match="--password-file"):
                await sources.ask(queries.progress())
            file.write_text("second")
            await sources.ask(queries.progress())
        finally:
            await sources.close()

    try:
        server.redis.acl_setuser("reader", enabled=True, passwords=["+first"], keys=["*"], categories=["+@all"])
        file.write_text("first\n")
        asyncio.run(play())
    finally:
        server.stop()


def test_the_login_of_an_address_is_on_no_page() -> None:
    async def ask() -> Service:
        service = Service("http://u:hunter2@svc:9400", "https://u:hunt%40er2@prom", asyncio.Event(), lambda: None)
        transport = httpx2.MockTransport(lambda _: httpx2.Response(502))
        async with httpx2.AsyncClient(transport=transport) as client:
            await service._ask_service(client)
            await service._ask_prometheus(client)
        return service

    service = asyncio.run(ask())
    for reason, address in ((service.health.reason, "http://svc"), (service.alerts_health.reason, "https://prom")):
        assert "hunt" not in reason
        assert address in reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ('{"pipelines": {"plant": {}, "fleet": {}}}', "has the pipelines plant, fleet: --service ends with"),
        ('{"batches": [{"batch": 1}]}', "finished_ms"),
    ],
)
def test_a_service_whose_status_cannot_be_shown_is_away_and_the_reason_is_named(status: str, reason: str) -> None:
    answers = {"/status": status, "/metrics": "", "/conditions": '{"conditions": []}', "/history": "{}"}

    async def ask() -> Service:
        service = Service("http://svc:9400", "", asyncio.Event(), lambda: None)
        transport = httpx2.MockTransport(lambda request: httpx2.Response(200, text=answers[request.url.path]))
        async with httpx2.AsyncClient(transport=transport) as client:
            await service._ask_service(client)
        return service

    assert reason in asyncio.run(ask()).health.reason


def test_a_clock_that_is_set_back_changes_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    now_ms = itertools.count(1_800_000_000_000, -3_600_000)
    monkeypatch.setattr("tidemark_dashboard.service.now_ms", lambda: next(now_ms))

    async def ask() -> float | None:
        service = Service(answers.url, "", asyncio.Event(), lambda: None)
        async with httpx2.AsyncClient() as client:
            for _ in range(3):
                await service._ask_service(client)
        return pipeline._rate(service.looks)

    try:
        assert asyncio.run(ask()) == 0.0
    finally:
        answers.close()


def test_the_login_of_an_address_is_not_in_the_message_that_refuses_it() -> None:
    with pytest.raises(OptionsError, match="'svc:9400'") as caught:
        Options(service="u:hunter2@svc:9400").check()
    assert "hunter2" not in str(caught.value)


def test_the_runbook_of_the_package_is_that_of_the_repository() -> None:
    assert runbook.text(runbook.RUNBOOK) == (ROOT / "deploy" / "runbook.md").read_text(encoding="utf-8")
    assert runbook.text(runbook.REFERENCE) == (ROOT / "docs" / "operator-reference.md").read_text(encoding="utf-8")


def test_the_page_of_an_alert_has_more_than_its_meaning() -> None:
    """Some rows of the runbook refer to a section below, also to that of another alert."""
    for name, (meaning, _) in runbook.alerts().items():
        assert len(re.sub("<[^>]+>", "", str(runbook.answer(name)))) > len(meaning) + 40, name
    assert "partition" in str(runbook.answer("TidemarkPartitionsApart")).partition("</p>")[2]


def test_everything_in_the_runbook_has_its_page_and_names_in_it_lead_to_theirs(pages: TestClient) -> None:
    pending, linked = re.findall(r'href="(/runbook/[^"]+)"', pages.get("/runbook").text), dict[str, list[str]]()
    assert len(pending) > 40
    while pending:
        link = pending.pop()
        if link in linked:
            continue
        html = pages.get(link).text
        body = html.partition('class="prose">')[2].partition("</main>")[0]
        assert "Not found" not in html, link
        assert Elements(html).active == [], link
        assert len(Elements(body).text.strip()) > 20, link
        linked[link] = re.findall(r'href="(/runbook/[^"#]+)"', body)
        assert link not in linked[link], "no page leads to itself"
        bare = set(re.findall(r"(?<!>)<code>(Tidemark\w+)</code>", body)) - {link.rpartition("/")[2]}
        assert not bare & runbook.alerts().keys(), f"{link} names alerts without a link"
        pending += linked[link]
    assert sum(map(len, linked.values())) > 5


def test_nothing_is_loaded_from_elsewhere() -> None:
    package = Path(runbook.__file__).parent
    for file in [*package.glob("static/*.*"), *package.glob("templates/**/*.html")]:
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", file.read_text(encoding="utf-8"))
        assert [each for each in found if "www.w3.org/2000/svg" not in each and "www.w3.org" not in each] == [], file
    assert "Permission is hereby granted" in (package / "static" / "uplot" / "LICENSE").read_text()
    assert "1.6.32" in (package / "static" / "uplot" / "uPlot.iife.min.js").read_text()[:200]
