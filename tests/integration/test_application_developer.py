"""The examples of docs/application-developer.md, run as they stand there."""

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load.servers import ROOT, Redis, redis_tool
from service.pipeline.batch_publisher import Sink
from service.settings import Settings, View
from tests.outputs import MINUTE, T0, changes, device, micro_batch, session, settings, windows

pytestmark = pytest.mark.integration

URL = "redis://localhost:6379/0"
PAGE = ROOT / "docs" / "application-developer.md"
EXAMPLES = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
KEYS = [f"tidemark:window:device_1m:temperature:d{number}:{T0}" for number in range(60)]


class Page:
    """What the examples define, with a Redis in which a writer is active."""

    def __init__(self, part: Redis) -> None:
        self.settings: Settings = settings(part.url, "tidemark", chunk=10)
        self.client: Any = part.client()
        self.client.set("tidemark:epoch", 1)
        self.url = part.url
        code = "\n\n".join(EXAMPLES.findall(PAGE.read_text(encoding="utf-8")))
        assert code.count(URL) == 1
        self.examples: dict[str, Any] = {}
        exec(code.replace(URL, part.url), self.examples)  # noqa: S102 - our own documentation

    def publish(self, batch: int, watermark_ms: int = T0) -> None:
        """All of a batch, after which each of KEYS has as many readings as the batch's number."""
        sink = Sink(self.settings, micro_batch(batch, watermark_ms=watermark_ms))
        sink.write([windows([("device_1m", f"d{number}", T0, [20.0] * batch) for number in range(len(KEYS))])])
        sink.progress()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with Redis(tmp_path) as part:
        made = Page(part)
        yield made
        made.client.close()
        made.examples["client"].close()


def test_a_window_is_found_by_its_computed_key(page: Page) -> None:
    page.publish(1)
    assert page.examples["window"]("device_1m", "temperature", page.examples["key_of"]("d7"), T0)["mean"] == 20.0
    assert page.examples["window"]("device_1m", "temperature", "nobody", T0) is None
    assert page.examples["key_of"]("a|b", None) == "a%7Cb|(none)"
    assert page.examples["newest_final_start"](MINUTE) == T0 - MINUTE
    assert page.examples["starts"](T0 + 1, 2 * MINUTE, MINUTE) == [T0, T0 - MINUTE]


def test_the_examples_for_redis_cli_show_what_is_there(page: Page) -> None:
    site = View.model_validate({"name": "site", "by": ["site"], "window": "1 m"})
    begun, start = 1_790_000_000_000, time.time_ns() // 60_000_000_000 * MINUTE
    rows = windows([("site", "leeds", at, [20.5]) for at in (start, start + MINUTE)])  # the minute may end meanwhile
    values = changes([session("meter-000017", begun, last=begun)], [device("meter-000017", begun, session=begun)])
    sink = Sink(page.settings.model_copy(update={"views": (site,)}), micro_batch(1, watermark_ms=start))
    sink.write([rows, values])
    sink.progress()
    commands = re.findall(r"^    ((?:now=|redis-cli ).*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    tool = f"""redis-cli() {{ "{redis_tool("redis-cli")}" -u {page.url} "$@"; echo; }}"""
    shell = subprocess.run(
        ["bash", "-euc", "\n".join([tool, *commands])], stdout=subprocess.PIPE, text=True, check=True
    )
    window, known, keys, final, sessions = (answer.splitlines() for answer in shell.stdout.strip().split("\n\n"))
    assert dict(zip(window[::2], window[1::2], strict=True))["mean"] == "20.5"
    assert known == ["online", "20", str(begun), str(begun)]
    assert (keys, final, sessions) == (["leeds", str(start + MINUTE)], [str(start)], [str(begun)])


def test_a_window_is_final_if_progress_says_so(page: Page) -> None:
    def found() -> tuple[float, ...]:
        answer = page.examples["window"]("device_1m", "temperature", "d7", T0)
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
    assert page.examples["newest_final_start"](MINUTE) == T0
    page.client.delete("tidemark:progress")
    assert found() == (3, 0, 1)


def test_the_feed_is_followed_and_a_gap_in_it_is_noticed(page: Page) -> None:
    last = page.examples["end_of_feed"]()
    for batch, more in ((1, ["tidemark:progress"]), (2, [])):
        page.publish(batch)
        entries = page.examples["changes_after"](last)
        assert [key for _, keys in entries for key in keys] == [*KEYS, *more]
        last = entries[-1][0]
    page.client.xtrim("tidemark:changes", maxlen=0, approximate=False)
    page.publish(3)
    with pytest.raises(LookupError, match=f"changes after {last} are lost"):
        page.examples["changes_after"](last)


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
            progress, hashes = page.examples["as_of_one_batch"](KEYS, attempts=1_000)
            assert {fields["count"] for fields in hashes} == {progress["batch"]}
            batches.add(int(progress["batch"]))
    finally:
        ending.set()
        writer.join()
    page.client.hset("tidemark:progress", "writing", "1 99")
    with pytest.raises(TimeoutError, match="in each of 2 attempts"):
        page.examples["as_of_one_batch"](KEYS, attempts=2)


def test_a_record_below_the_offsets_of_progress_is_included(page: Page) -> None:
    Sink(page.settings, micro_batch(1, end={0: 12})).progress()
    assert page.examples["is_included"]("readings", 0, 11)
    assert not page.examples["is_included"]("readings", 0, 12)
    assert not page.examples["is_included"]("readings", 1, 0)
