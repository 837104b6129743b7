"""The HTTP API gives the client's answers, and its document describes them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import jsonschema
import openapi_spec_validator
import pytest
from served import (
    DEVICES,
    PATIENCE_S,
    EventStream,
    Server,
    filled,
    options,
    pages,
    serving,
    shared_answers,
    shared_server,
    wait,
    world,
)
from starlette.testclient import TestClient
from world import MEASURES, WINDOW, Answers, World

from tidemark_client import AsyncClient, Client, Device, Meta, Progress, Session, UnavailableError, View, Window
from tidemark_client.aggregate import Aggregate
from tidemark_dashboard.api import BASE, EVENTS
from tidemark_dashboard.api.documents import document, text
from tidemark_dashboard.api.openapi import openapi
from tidemark_dashboard.api.problems import TITLES
from tidemark_dashboard.api.resources import RESOURCES
from tidemark_dashboard.app import build
from tidemark_dashboard.fleet import Fleet
from tidemark_dashboard.options import Options
from tidemark_dashboard.security import WRONG

HOSTILE = ["a|b", "100%", "50%25", 'it\'s "q"', "<b>x</b>", "a/b/../c", "plus+and&=?#", "new\nline", "x:y:12", "(none)"]


def ask(pages: TestClient, name: str, **given: Any) -> Any:
    """The answer of the API, which must be one, and of the form that the document says."""
    response = pages.get(f"{BASE}/{name}", params=given)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    found = response.json()
    described(found, f"{BASE}/{name}")
    return found


def described(found: Any, path: str) -> None:
    """Check an answer with the schema of the document."""
    schema = openapi()["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    strict = json.loads(json.dumps({**schema, "components": openapi()["components"]}))
    for each in strict["components"]["schemas"].values():
        each["additionalProperties"] = False
    jsonschema.Draft202012Validator(strict).validate(found)


def made(kind: Any, found: Any) -> Any:
    """The client's value that a document stands for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        return None if found is None else made(next(each for each in arguments if each is not type(None)), found)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{each.name: made(hints[each.name], found.get(each.name)) for each in dataclasses.fields(kind)})  # type: ignore[operator]
    if origin is not None and issubclass(origin, Mapping):
        return {arguments[0](name): made(arguments[1], each) for name, each in found.items()}
    if origin is tuple:
        return tuple(made(arguments[0], each) for each in found)
    return found


@pytest.fixture
def client(shared_server: Server, world: World) -> Iterator[Client]:
    with Client.from_url(shared_server.url) as found:
        yield found


def test_every_answer_is_the_clients(pages: TestClient, world: World, client: Client) -> None:
    compared = 0

    def same(kind: Any, found: Any, expected: Any) -> None:
        nonlocal compared
        assert made(kind, found) == expected
        compared += 1

    def all_same(kind: Any, found: Sequence[Any], expected: Sequence[Any]) -> None:
        assert len(found) == len(expected)
        for each, other in zip(found, expected, strict=True):
            same(kind, each, other)

    world.correct("site", "power", "leeds", world.now // WINDOW * WINDOW - 3 * WINDOW)
    same(Meta, ask(pages, "meta"), client.meta())
    same(Progress, ask(pages, "progress"), client.progress())
    since = world.now - 8 * WINDOW
    for view in client.views():
        keys = client.keys(view, limit=10_000)
        assert [(each["key"], each["start"]) for each in ask(pages, "keys", view=view, limit=10_000)["keys"]] == keys
        for measure in MEASURES:
            for final in (False, True):
                given = {"view": view, "measure": measure, "final": str(final).lower(), "limit": 50}
                newest: list[Any] = []
                after = ""
                while True:
                    page = ask(pages, "latest", after=after, **given)
                    newest += page["windows"]
                    after = page.get("next", "")
                    if not after:
                        break
                expected = client.latest(view, measure, final=final)
                all_same(Window, newest, [expected[key] for key in sorted(expected)])
            for key, _ in keys[:8]:
                named = {"view": view, "measure": measure, **({"key": key} if client.views()[view].by else {})}
                windows = client.windows(view, key, since=since, measure=measure)
                all_same(Window, ask(pages, "windows", since=since, **named)["windows"], windows)
                until = world.now - 3 * WINDOW
                between = ask(pages, "windows", since=since, until=until, **named)["windows"]
                all_same(Window, between, client.windows(view, key, since=since, until=until, measure=measure))
                if windows:
                    same(Window, ask(pages, "current", **named), client.current(view, key, measure))
                    final_one = client.latest_complete(view, key, measure)
                    same(Window, ask(pages, "current", final="true", **named), final_one)
                    same(Window, ask(pages, "window", start=windows[0].start, **named), windows[0])
                    aggregate = client.aggregate(view, key, since=since, measure=measure)
                    same(Aggregate, ask(pages, "aggregate", since=since, **named), aggregate)
    for device in DEVICES:
        same(Device, ask(pages, "device", device=device), client.device(device))
        same(Session, ask(pages, "session", device=device), client.session(device))
        all_same(Session, ask(pages, "sessions", device=device)["sessions"], client.sessions(device))
    assert compared > 1_000


def test_devices_are_filtered_sorted_and_paged_as_by_the_client(
    pages: TestClient, world: World, client: Client
) -> None:
    world.become(DEVICES[3], "offline")
    world.become(DEVICES[4], "quiet")
    wait(lambda: ask(pages, "devices", status="offline")["matches"] == 1, "the index has the change of status")
    for status in (None, "online", "quiet", "offline"):
        for where in ({}, {"site": "leeds"}, {"site": "leeds", "type": "meter"}, {"colour": "red"}):
            for sort in ("id", "-id", "last_seen", "site", "-model", "power", "-temperature"):
                expected = list(client.devices(status=status, where=where, sort=sort))
                given = {
                    "where": [f"{column}={value}" for column, value in where.items()],
                    "sort": sort,
                    **({"status": status} if status else {}),
                }
                found = ask(pages, "devices", limit=1_000, **given)
                assert [made(Device, each) for each in found["devices"]] == expected, (status, where, sort)
                assert found["matches"] == len(expected)
                second = ask(pages, "devices", limit=5, offset=5, **given)["devices"]
                assert [each["id"] for each in second] == [each.id for each in expected[5:10]]


def test_ids_and_keys_are_what_devices_have_sent(pages: TestClient, world: World, client: Client) -> None:
    world.add_view("by2", ["site", "model"], measures=["power"])
    world.add(HOSTILE)
    world.step(HOSTILE)
    start = world.now // WINDOW * WINDOW
    for each in HOSTILE:
        found = made(Device, ask(pages, "device", device=each))
        assert (found, found.id) == (client.device(each), each)
        measure = next(iter(found.latest))
        window = ask(pages, "window", view="device", key=each, measure=measure, start=start)
        assert made(Window, window) == client.window("device", each, start, measure)
        assert window["key"] == each
        joined = client.views()["by2"].key((each, "50%|"))
        fields = world.redis.hgetall(world.name("window", "device", measure, each, start))
        world.redis.hset(world.name("window", "by2", "power", joined, start), mapping=fields)
        world.redis.zadd(world.name("keys", "by2"), {joined: start})
        for key in ([each, "50%|"], [joined]):
            found = ask(pages, "current", view="by2", key=key, measure="power")
            assert made(Window, found) == client.current("by2", (each, "50%|"), "power")
            assert found["key"] == joined


def test_the_first_answer_after_a_rest_is_of_now(pages: TestClient, world: World, client: Client) -> None:
    sources: Any = pages.app.state.site.sources  # type: ignore[attr-defined]
    ask(pages, "latest", view="site", measure="power")
    ask(pages, "devices", sort="-last_seen")
    sources._until_s = 0.0
    wait(lambda: not sources.wanted.is_set(), "nothing is read any more")
    world.add(["new"])
    for _ in range(7):  # the next window has begun
        world.step()
    found = ask(pages, "latest", view="site", measure="power", limit=1_000)["windows"]
    newest = client.latest("site", "power")
    assert [made(Window, each) for each in found] == [newest[key] for key in sorted(newest)]
    sources._until_s = 0.0
    wait(lambda: not sources.wanted.is_set(), "nothing is read any more")
    world.become("new", "offline")
    response = pages.get(f"{BASE}/devices", params={"status": "offline"})
    assert response.status_code == 503 or response.json()["matches"] == 1, response.json()

    def counted() -> Any:
        return (seen := pages.get(f"{BASE}/devices", params={"status": "offline"})).status_code == 200 and seen.json()

    assert [each["id"] for each in wait(counted, "the devices are counted again")["devices"]] == ["new"]


def test_a_fleet_that_is_being_read_when_the_rest_begins_is_read_again(shared_server: Server, world: World) -> None:
    async def read() -> tuple[bool, bool, int]:
        async with AsyncClient.from_url(shared_server.url) as reader:
            wanted = asyncio.Event()
            fleet = Fleet(reader, wanted, lambda: None if rested else (rested.append(True), fleet.lost())[1])
            await fleet._read_all(fleet._generation)
            first = fleet.is_complete
            await fleet._read_all(fleet._generation)
            return first, fleet.is_complete, len(fleet)

    rested: list[bool] = []
    assert asyncio.run(read()) == (False, True, len(DEVICES))


def test_the_fleet_is_read_when_it_is_shown_and_a_device_without_a_change_is_no_news(
    shared_server: Server, world: World
) -> None:
    calls: list[int] = []
    looks: list[bool] = []

    def is_shown() -> bool:
        looks.append(len(looks) >= 3)
        return looks[-1]

    async def read() -> list[int]:
        async with AsyncClient.from_url(shared_server.url) as reader:
            wanted = asyncio.Event()
            wanted.set()
            fleet = Fleet(reader, wanted, lambda: calls.append(len(fleet)), is_shown)
            reading = asyncio.create_task(fleet.run())
            while len(looks) < 3:
                await asyncio.sleep(0.02)
            sizes = [len(fleet)]
            while not fleet.is_complete:
                await asyncio.sleep(0.02)
            sizes.append(len(fleet))
            while not reading.done():  # a client may turn a cancellation into an error of its own
                reading.cancel()
                await asyncio.wait([reading], timeout=0.2)
            before = len(calls)
            await fleet._read(DEVICES)
            sizes.append(len(calls) - before)
            world.become(DEVICES[0], "offline")
            await fleet._read(DEVICES)
            return [*sizes, len(calls) - before]

    assert asyncio.run(read()) == [0, len(DEVICES), 0, 1]


def test_devices_that_change_without_end_do_not_hide_those_that_expire_and_new_measures(
    shared_server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_dashboard.fleet.REST", 0.0)

    async def keep() -> tuple[int, bool]:
        async with AsyncClient.from_url(shared_server.url) as reader:
            fleet = Fleet(reader, asyncio.Event(), lambda: None)
            await fleet._read_all(fleet._generation)
            world.redis.delete(world.name("device", DEVICES[3]))
            meta = json.loads(world.redis.get(world.name("meta")))
            world.redis.set(world.name("meta"), json.dumps({**meta, "measures": [*MEASURES, "noise"]}))
            fleet._asked_s = 0.0
            fleet.touch(DEVICES[0])
            await fleet._keep_current()
            return len(fleet), fleet.is_complete

    assert asyncio.run(keep()) == (len(DEVICES) - 1, False)


def test_devices_that_changed_wait_for_a_redis_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark_dashboard.fleet.PATROL", 0)

    async def keep() -> tuple[int, int]:
        async with AsyncClient.from_url(server.url) as reader:
            fleet = Fleet(reader, asyncio.Event(), lambda: None)
            await fleet._read_all(fleet._generation)
            made_world.become("d1", "offline")
            fleet.touch("d1")
            server.stop()
            with pytest.raises(UnavailableError):
                await fleet._keep_current()
            server.start()
            await fleet._keep_current()
            return fleet.total.offline, fleet.waiting

    server = Server(tmp_path)
    server.start()
    try:
        made_world = World(server.redis, 1_700_000_000_000)
        made_world.add(["d1", "d2"])
        made_world.step()
        assert asyncio.run(keep()) == (1, 0)
    finally:
        server.redis.close()
        server.stop()


def test_times_may_be_milliseconds_iso_or_a_length_before_now(pages: TestClient, world: World, client: Client) -> None:
    start = world.now // WINDOW * WINDOW - 4 * WINDOW
    named = {"view": "site", "key": "leeds", "measure": "power"}
    expected = ask(pages, "windows", since=start, **named)
    assert len(expected["windows"]) == 5
    iso = datetime.fromtimestamp(start / 1000, UTC).isoformat()
    for given in (iso, iso.replace("+00:00", "Z"), f"{world.now - start + 3_600_000}ms"):
        assert ask(pages, "windows", since=given, **named)["windows"][-5:] == expected["windows"], given
    # "+" in an address that is not escaped is a space.
    response = pages.get(f"{BASE}/windows?{urlencode(named)}&since={iso}")
    assert response.json() == expected
    assert len(ask(pages, "windows", since="2h", **named)["windows"]) == len(
        client.windows("site", "leeds", since=0 + start - 7_200_000, measure="power")
    )


LEEDS = "windows?view=site&key=leeds&measure=power"


@pytest.mark.parametrize(
    ("asked", "status", "code", "parameter", "part"),
    [
        (LEEDS, 400, "wrong_parameter", "since", "since is missing"),
        (f"{LEEDS}&since=0", 400, "too_many_windows", "until", "10000 are the most"),
        (f"{LEEDS}&since=yesterday", 400, "wrong_parameter", "since", "'yesterday'"),
        (f"{LEEDS}&since=2026-01-01T00:00:00", 400, "wrong_parameter", "since", "zone"),
        (f"{LEEDS}&since=9999999999999999", 400, "wrong_parameter", "since", "9998"),
        (f"{LEEDS}&since=0001-01-01T00:00:00Z", 400, "wrong_parameter", "since", "9998"),
        (f"{LEEDS}&since=1h&until=1h", 400, "wrong_parameter", "until", "'1h'"),
        ("current?view=room&key=leeds&measure=power", 404, "unknown_view", "view", "device, site, type, all"),
        ("current?view=site&key=leeds", 404, "unknown_view", "measure", "temperature, power"),
        ("current?view=site&key=leeds&key=cork&measure=power", 400, "wrong_parameter", "key", "is by site"),
        ("current?view=site&measure=power", 400, "wrong_parameter", "key", "is by site"),
        ("current?view=all&key=leeds&measure=power", 400, "wrong_parameter", "key", "over all devices"),
        ("current?view=site&key=york&measure=power", 404, "not_found", None, "'york'"),
        ("current?view=site&key=leeds&measure=power&final=1", 400, "wrong_parameter", "final", "true or false"),
        ("current?view=site&key=leeds&measur=power", 400, "unknown_parameter", "measur", "measure"),
        (f"device?device={'d' * 2001}", 400, "wrong_parameter", "device", "2001 characters"),
        ("device?device=d7&device=d8", 400, "wrong_parameter", "device", "2 times"),
        ("device?device=nobody", 404, "not_found", None, "'nobody'"),
        ("session?device=nobody", 404, "not_found", None, "open session"),
        ("devices?limit=1001", 400, "wrong_parameter", "limit", "1 to 1000"),
        ("devices?limit=-1", 400, "wrong_parameter", "limit", "1 to 1000"),
        ("devices?limit=١", 400, "wrong_parameter", "limit", "1 to 1000"),
        ("devices?status=away", 400, "wrong_parameter", "status", "online, quiet, offline"),
        ("devices?where=site", 400, "wrong_parameter", "where", "site=leeds"),
        ("devices?where=site=leeds&where=site=cork", 400, "wrong_parameter", "where", "several times"),
        ("devices?sort=-last-seen", 400, "wrong_parameter", "sort", "last_seen"),
        ("devices?" + "&".join(["where=a=b"] * 17), 400, "wrong_parameter", "where", "17 times"),
        ("latest?view=site&measure=power&back=0", 400, "wrong_parameter", "back", "1 to 1000"),
        ("windows/site", 404, "no_such_address", None, "windows"),
        ("events/nothing", 404, "no_such_address", None, "openapi.json"),
        ("events/current?view=room&key=leeds&measure=power", 404, "unknown_view", "view", "'room'"),
    ],
)
def test_an_error_names_the_thing_the_place_the_limit_and_the_remedy(
    pages: TestClient, asked: str, status: int, code: str, parameter: str | None, part: str
) -> None:
    response = pages.get(f"{BASE}/{asked}")
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    jsonschema.validate(problem, openapi()["components"]["schemas"]["Problem"])
    assert (problem["code"], problem.get("parameter"), problem["status"]) == (code, parameter, status)
    assert part in problem["detail"] + problem["remedy"]
    assert problem["instance"].startswith(f"{BASE}/{asked.partition('?')[0]}")
    assert problem["title"] == TITLES[code]


def test_only_get_is_answered_and_the_token_is_asked_for(world: World, options: Options, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret-s3cret-s3cret")
    app = build(replace(options, token_file=secret, hosts=("testserver",)))
    with TestClient(app, follow_redirects=False) as pages:
        for path in (f"{BASE}/meta", f"{BASE}/openapi.json", f"{EVENTS}/meta"):
            for accept in ("*/*", "text/html"):
                response = pages.get(path, headers={"Accept": accept})
                assert (response.status_code, response.json()["code"]) == (401, "no_token"), "a client follows no login"
                assert response.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer s3cret-s3cret-s3cret"}
        assert pages.get(f"{BASE}/meta", headers=right).status_code == 200
        response = pages.post(f"{BASE}/meta", headers=right)
        assert (response.status_code, response.json()["code"]) == (405, "no_such_method")
        response = pages.delete(f"{BASE}/meta", headers=right)
        assert (response.status_code, response.json()["code"]) == (405, "no_such_method")
        response = pages.get(f"{BASE}/meta", headers={**right, "Host": "evil.example"})
        assert (response.status_code, response.json()["code"]) == (421, "wrong_host")
        codes = [
            pages.get(f"{BASE}/meta", headers={"Authorization": "Bearer no"}).json()["code"] for _ in range(WRONG + 1)
        ]
        assert codes[-1] == "too_many_tokens"


def test_the_document_is_openapi_and_every_address_of_it_is_served(pages: TestClient) -> None:
    found = pages.get(f"{BASE}/openapi.json").json()
    assert found == json.loads(json.dumps(openapi()))
    openapi_spec_validator.validate(found)
    operations = [each["get"] for each in found["paths"].values()]
    assert len({each["operationId"] for each in operations}) == len(operations) == 2 * len(RESOURCES)
    for path, item in found["paths"].items():
        required = [each["name"] for each in item["get"]["parameters"] if each["required"]]
        response = pages.get(path) if required else None
        assert response is None or (response.status_code, response.json()["parameter"]) == (400, required[0])
    names = set(openapi()["components"]["schemas"])
    assert {"Window", "Device", "Session", "Aggregate", "Meta", "Progress", "View", "Problem"} <= names
    window = found["components"]["schemas"]["Window"]
    assert set(window["properties"]) == {each.name for each in dataclasses.fields(Window)}
    assert "p99" not in window["required"]


def test_a_number_that_json_does_not_have_is_left_out(client: Client) -> None:
    window = next(iter(client.latest("site", "power").values()))
    found = document(replace(window, mean=float("inf"), sum=float("nan"), min=-0.0, max=1e300))
    assert "mean" not in found
    assert "sum" not in found
    assert json.loads(text(found))["max"] == 1e300


def test_status_has_what_the_service_says(pages: TestClient, shared_answers: Answers) -> None:
    shared_answers.need("TidemarkLagGrows", "firing", "Lag has grown for 10 minutes")
    found = wait(lambda: (seen := ask(pages, "status")).get("conditions") and seen, "the service was asked")
    assert found["service"] == shared_answers.status
    assert (
        found["conditions"][0] | {"name": "TidemarkLagGrows", "state": "firing", "severity": "warn", "for_s": 600.0}
        == (found["conditions"][0])
    )
    assert found["freshness"]["level"] in {"live", "old", "silent"}
    shared_answers.conditions = []


class Events(EventStream):
    """A stream of the API: its events so far."""

    def __init__(self, url: str) -> None:
        self.events: list[tuple[str, Any]] = []
        super().__init__(url)

    def take(self, event: str, data: Any) -> None:
        self.events.append((event, data))

    def newest(self, name: str) -> Any:
        return next((data for event, data in reversed(self.events) if event == name), None)


def test_a_stream_has_the_answer_and_each_time_that_it_has_changed(world: World, options: Options) -> None:
    with serving(options) as served, Client.from_url(options.redis) as client:
        named = "view=device&key=new&measure=power"
        stream = Events(f"{served.url}{EVENTS}/current?{named}")
        second = Events(f"{served.url}{EVENTS}/windows?view=site&key=leeds&measure=power&since=1h")
        try:
            problem = wait(lambda: stream.newest("problem"), "a window that is not there yet")
            assert problem["code"] == "not_found"
            first = wait(lambda: second.newest("answer"), "an answer at once")
            world.add(["new-0", "new"])
            world.devices["new"]["measure"] = "power"
            world.step(["new", *DEVICES])
            wait(lambda: stream.newest("answer"), "the window came")
            wait(lambda: second.newest("answer") != first, "the windows of the site changed")
            for _ in range(3):
                world.step(["new", *DEVICES])
            newest = client.current("device", "new", "power")
            wait(lambda: made(Window, stream.newest("answer")) == newest, "the newest window of the device")
            expected = client.windows("site", "leeds", since=world.now - 3_600_000, measure="power")
            wait(
                lambda: [made(Window, each) for each in second.newest("answer")["windows"]][-5:] == expected[-5:],
                "the windows of the site are those of the client",
            )
            assert stream.newest("freshness")["level"] in {
                "live",
                "old",
            }  # a slow machine is minutes behind the fleet's clock
        finally:
            for each in (stream, second):
                each.close()


def test_streams_of_keys_whose_values_are_in_another_order_are_not_one(world: World, options: Options) -> None:
    world.add_view("pair", ["site", "type"])
    start = world.now // WINDOW * WINDOW
    for count, key in ((1, "a|b"), (2, "b|a")):
        fields = {"start": start, "end": start + WINDOW, "count": count, "last": start, **world.stamp()}
        world.redis.hset(world.name("window", "pair", "power", key, start), mapping=fields)
        world.redis.zadd(world.name("keys", "pair"), {key: start})
    with serving(options) as served:
        address = f"{served.url}{EVENTS}/current?view=pair&measure=power"
        streams = [Events(f"{address}&key={first}&key={second}") for first, second in ("ab", "ba")]
        try:
            answers = [wait(lambda each=each: each.newest("answer"), "the window") for each in streams]
            assert [(each["key"], each["count"]) for each in answers] == [("a|b", 1), ("b|a", 2)]
        finally:
            for each in streams:
                each.close()


def test_redis_that_is_away_or_empty_is_a_problem_and_a_stream_goes_on_after_it(
    tmp_path: Path, shared_answers: Answers
) -> None:
    server = Server(tmp_path)
    server.start()
    options = Options(redis=server.url, service="", port=0)
    try:
        with serving(options) as served, httpx2.Client(trust_env=False) as http:

            def code(name: str) -> str:
                response = http.get(f"{served.url}{BASE}/{name}", timeout=PATIENCE_S)
                assert response.status_code == 503
                assert int(response.headers["retry-after"]) > 0
                return str(response.json()["code"])

            assert [code(each) for each in ("meta", "devices", "keys?view=site")] == ["waiting"] * 3
            made_world = World(server.redis, 1_700_000_000_000)
            made_world.add(["d1"])
            made_world.step()
            stream = Events(f"{served.url}{EVENTS}/device?device=d1")
            try:
                wait(lambda: stream.newest("answer"), "the device")
                server.stop()
                wait(
                    lambda: (stream.newest("freshness") or {}).get("level") == "old",
                    "the stream says that Redis is away",
                )
                assert code("device?device=d1") == "redis_away"
                before = len(stream.events)
                server.start()
                made_world.step()
                wait(
                    lambda: any(
                        name == "answer" and data["last_seen"] == made_world.now
                        for name, data in stream.events[before:]
                    ),
                    "the stream goes on",
                )
            finally:
                stream.close()
    finally:
        server.redis.close()
        server.stop()


def test_a_text_that_is_no_utf_8_ends_no_stream(world: World, options: Options) -> None:
    answers = Answers()
    answers.status["service"] = "plant \ud800"
    try:
        with serving(replace(options, service=answers.url)) as served:
            stream = Events(f"{served.url}{EVENTS}/status")
            wait(lambda: "plant ?" in json.dumps(stream.newest("answer")), "the name of the service")
            stream.close()
    finally:
        answers.close()


@pytest.mark.thorough
def test_a_view_that_vanishes_ends_in_a_problem_of_the_stream(world: World, options: Options) -> None:
    with serving(options) as served:
        stream = Events(f"{served.url}{EVENTS}/current?view=site&key=leeds&measure=power")
        try:
            wait(lambda: stream.newest("answer"), "the window")
            meta = json.loads(world.redis.get(world.name("meta")))
            meta["views"] = [each for each in meta["views"] if each["name"] != "site"]
            world.redis.set(world.name("meta"), json.dumps(meta))
            world.step()
            problem = wait(lambda: stream.newest("problem"), "the view has gone")
            assert (problem["code"], problem["status"], problem["parameter"]) == ("unknown_view", 404, "view")
        finally:
            stream.close()
