"""The page of the HTTP API follows from its resources, and its examples run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import PATIENCE_S, Served, filled, options, serving, shared_answers, shared_server, world
from world import World

from load.site import api_page
from tidemark_client import Client
from tidemark_dashboard.options import Options


@pytest.fixture
def served(world: World, options: Options) -> Iterator[Served]:
    """The dashboard of a fleet that has what the examples ask for."""
    world.add(["meter-000017"], site="leeds")
    world.devices["meter-000017"]["measure"] = "temperature"
    for _ in range(15):
        world.step()
    with serving(options) as found:
        yield found


def environment(served: Served) -> dict[str, str]:
    return {**os.environ, "TIDEMARK_URL": served.url}


def test_the_page_follows_from_the_resources() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.text(), "run python -m load.site.api_page"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_example_of_curl_has_an_answer(served: Served) -> None:
    for each in api_page.curls():
        words = shlex.split(each.replace(api_page.ADDRESS, served.url))
        command = [*words, "--fail", "--retry", "10", "--noproxy", "*"]  # while the devices are counted
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, (each, done.stdout, done.stderr)
        assert json.loads(done.stdout), each


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Example.java", ["java"]),
        pytest.param("example.go", ["go", "run"], marks=pytest.mark.thorough),  # compiles Go's library the first time
    ],
)
def test_an_example_shows_the_newest_final_window_and_its_changes(
    served: Served, world: World, tmp_path: Path, name: str, words: list[str]
) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    file = tmp_path / name
    file.write_text(api_page.programs()[name], encoding="utf-8")
    command = [*words, str(file)]
    with Client.from_url(served.site.options.redis) as client:
        window = client.latest_complete("site", "leeds", "temperature")
    assert window is not None
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(served), timeout=4 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(window.start) in done.stdout
    assert str(window.mean) in done.stdout
    follow = [*command, "follow"]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True, env=environment(served)) as stream:
        assert stream.stdout is not None
        try:
            assert str(window.start) in stream.stdout.readline()
            for _ in range(6):  # a window more is final
                world.step()
            assert str(window.start + 60_000) in stream.stdout.readline()
        finally:
            stream.kill()
    wrong = environment(served) | {"TIDEMARK_URL": f"{served.url}/nothing"}
    done = subprocess.run(command, capture_output=True, text=True, env=wrong, timeout=4 * PATIENCE_S, check=False)
    assert done.returncode == 1
