"""The newest rejects are those that the command of --rejects prints, on the page of the pipeline and of a device."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from served import DEVICES, Server, filled, options, shared_answers, shared_server, wait, world
from starlette.testclient import TestClient
from test_dashboard_security import Elements
from world import World

from load.fleet.payloads import PAGE
from tidemark_dashboard import rejects
from tidemark_dashboard.app import build
from tidemark_dashboard.options import Options
from tidemark_dashboard.rejects import REST, Rejects

PROGRAM = """
import json, sys, pathlib
folder = pathlib.Path(__file__).parent
with (folder / "asked").open("a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\\n")
device = next((word[9:] for word in sys.argv if word.startswith("--device=")), None)
for line in (folder / "rejects").read_text().splitlines():
    if device is None or json.loads(line)["device"] == device:
        print(line)
print("no JSON", file=sys.stdout)
sys.exit(int((folder / "status").read_text()) if (folder / "status").exists() else 0)
"""


class Command:
    """A program that lists rejects, as `tidemark rejects list --json` prints them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "list.py").write_text(PROGRAM)
        self.put()

    @property
    def words(self) -> tuple[str, ...]:
        return sys.executable, str(self.folder / "list.py")

    @property
    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]

    def put(self, *found: dict[str, Any]) -> None:
        usual = {"topic": "readings", "partition": 2, "broker_ms": 1_790_000_000_000, "reason": "out_of_range"}
        lines = [json.dumps({**usual, "offset": number, **each}) for number, each in enumerate(found)]
        (self.folder / "rejects").write_text("\n".join(lines))


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@contextmanager
def pages(options: Options, command: tuple[str, ...]) -> Iterator[TestClient]:
    app = build(replace(options, hosts=("testserver",), rejects=command))
    with TestClient(app, follow_redirects=False) as client:
        yield client


def shown(client: TestClient, path: str, text: str) -> str:
    """The page, once it shows a text."""

    def page() -> str:
        html = client.get(path).text
        return html if text in html else ""

    return str(wait(page, text))


def test_the_pipeline_shows_the_newest_rejects_decoded(world: World, options: Options, command: Command) -> None:
    command.put(
        {"device": "eu-001", "detail": "temperature 999 is not within -60 and 120"},
        {"device": None, "detail": "no Avro", "broker_ms": 1_790_000_005_000},
        {"device": "eu-003", "detail": "of an array", "broker_ms": 1_790_000_009_000, "index": 3},
    )
    with pages(options, command.words) as client:
        html = shown(client, "/pipeline", "temperature 999 is not within")
        places = re.findall(r'<tr data-key="(readings\[\d\]@[\d#]+)"', html)
        assert places == ["readings[2]@2#3", "readings[2]@1", "readings[2]@0"]
        assert '<a class="id" href="/device?id=eu-001">' in html
    assert command.asked == [["--json", "-n", "20", "--since", "10m"]]


def test_a_device_shows_its_own_rejects(world: World, options: Options, command: Command) -> None:
    command.put({"device": "eu-001", "detail": "of this one"}, {"device": "eu-003", "detail": "of another one"})
    with pages(options, command.words) as client:
        assert "of another one" not in shown(client, "/device?id=eu-001", "of this one")
    assert command.asked[0][-1] == "--device=eu-001"


def test_an_answer_is_kept_and_not_asked_for_again_at_once(world: World, options: Options, command: Command) -> None:
    with pages(options, command.words) as client:
        shown(client, "/pipeline", "None in the last 10 minutes")
        for _ in range(20):
            client.get("/pipeline")
    assert len(command.asked) == 1


def test_a_command_that_takes_long_rests_longer(command: Command) -> None:
    async def rest_s() -> float:
        slow = Rejects((sys.executable, "-c", "import time; time.sleep(2)"), lambda _: None)
        slow.newest()
        await asyncio.gather(*slow._tasks.values())
        return slow._runs[""].until_s - slow._runs[""].ended_s

    assert asyncio.run(rest_s()) > REST * 2


def test_the_command_does_not_run_again_while_the_service_counts_no_new_reject(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "REST"):
        monkeypatch.setattr(rejects, name, 0.0)

    async def runs() -> list[int]:
        asked = []
        counts: list[float | None] = [5, 5, 6, None, None]
        newest = Rejects(command.words, lambda _: None, lambda: counts[0])
        while counts:
            newest.newest()
            await asyncio.gather(*newest._tasks.values())
            asked.append(len(command.asked))
            counts.pop(0)
        return asked

    assert asyncio.run(runs()) == [1, 1, 2, 3, 4]
    command.put({"device": "eu-001", "detail": "found"})
    monkeypatch.setattr(rejects, "KEPT_S", 0.0)
    assert asyncio.run(runs()) == [5, 6, 7, 8, 9], "rejects that are older than ten minutes by now go"


def test_an_answer_without_rejects_is_of_now_while_the_service_counts_no_new_ones(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms, counts = [1_000], [5.0]
    monkeypatch.setattr(rejects, "now_ms", lambda: now_ms[0])

    async def times() -> list[int]:
        newest = Rejects(command.words, lambda _: None, lambda: counts[0])
        newest.newest()
        await asyncio.gather(*newest._tasks.values())
        found = []
        for now_ms[0], counts[0] in ((2_000, 5.0), (3_000, 6.0)):
            answer = newest.newest()
            assert answer is not None
            found.append(answer.at_ms)
        return found

    assert asyncio.run(times()) == [2_000, 1_000]


def test_a_device_of_any_name_is_one_word_of_the_command_and_its_rejects_are_text(
    world: World, options: Options, command: Command
) -> None:
    names = [*PAGE, "--config=/etc/passwd", "; touch here", "$(touch here)"]
    command.put(*({"device": name, "detail": f"found {name}"} for name in names))
    with pages(options, command.words) as client:
        for name in (PAGE[0], *names[-3:]):
            html = shown(client, f"/device?id={quote(name, safe='')}", "out_of_range")
            assert Elements(html).active == []
            assert command.asked[-1][-1] == f"--device={name}"
        assert Elements(shown(client, "/pipeline", "out_of_range")).active == []
    assert not (command.folder / "here").exists()


def test_a_command_that_fails_is_named_with_what_it_said(world: World, options: Options, command: Command) -> None:
    (command.folder / "status").write_text("5")
    with pages(options, command.words) as client:
        shown(client, "/pipeline", "The command of --rejects has ended with status 5")
    with pages(options, ("/nowhere/at/all",)) as client:
        shown(client, "/pipeline", "The newest rejects are not known")


def test_a_command_that_hangs_is_ended_with_the_dashboard(
    world: World, options: Options, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)")
    with pages(options, hangs) as client:
        assert "Reading the rejects" in client.get("/pipeline").text
    monkeypatch.setattr(rejects, "PATIENCE_S", 0.2)
    with pages(options, hangs) as client:
        shown(client, "/pipeline", "has not ended within")


def test_without_a_command_the_page_names_the_one_that_lists_them(world: World, options: Options) -> None:
    with pages(options, ()) as client:
        assert "tidemark rejects list --config tidemark.toml" in client.get("/pipeline").text
        assert "--device eu-001" in client.get(f"/device?id={DEVICES[1]}").text
