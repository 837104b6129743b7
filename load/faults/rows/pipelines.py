"""pipelines: two pipelines in one process; the Redis of one hangs or is away, one is stopped and started, the driver is killed.

Both read the same topic and are judged by the oracle. The second one has a Redis, a prefix, views, a checkpoint and a rejects
topic of its own. Whatever happens to it, the first one must go on with batches.
"""

import copy
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.judge.verdict import Verdict
from load.servers.redis import Redis
from load.testbed import PARTITIONS, TOPIC, output_of, to_toml

NAME = "second"
HUNG_S, AWAY_S, STOPPED_S = 15.0, 10.0, 10.0
WITHIN_S = 120.0
BATCHES = 3
"""The first pipeline must publish so many while the second one is in trouble,"""
LONGER, LEAST_S = 4.0, 10.0
"""in at most so many times the time that it took for them right before, and at least so many seconds."""
VIEWS = (
    {"name": "site", "by": ["site"], "window": "30 s", "slide": "10 s", "retain": "1 d"},
    {"name": "all", "window": "20 s", "retain": "1 d"},
)


@row(
    "pipelines",
    "two pipelines in one process, in trouble one after the other, with kills",
    rate=500,
    devices=300,
    testbed={"redis": {"appendonly": "yes", "appendfsync": "always"}},
)
def pipelines(run: Run) -> Figures:
    """Short: one round in place of three."""
    second = Second(run)
    run.begin()
    second.wait_level("the second pipeline to follow")
    ratios: dict[str, float] = {}
    rounds = run.times(3, short=1)
    for number in range(rounds):
        troubles: list[tuple[str, float, Callable[[], object], Callable[[], object]]] = [
            ("Redis of the second hangs", HUNG_S, second.redis.pause, second.redis.resume),
            ("Redis of the second is away", AWAY_S, second.redis.kill, second.redis.start),
            ("the second is stopped", STOPPED_S, partial(second.query, "stop"), partial(second.query, "start")),
        ]
        for name, seconds, begin, end in troubles:
            ratio = _beside(run, second, name, seconds, begin, end)
            ratios[name] = max(ratios.get(name, ratio), ratio)
        # A kill while the second one cannot write, or is stopped: after the restart it runs, and neither lacks anything.
        name, _, begin, end = troubles[run.nemesis.pick((0, 1, 2))]
        begin()
        run.run_on(run.nemesis.between(0.5, 5.0))
        run.kill_driver(number % 2)
        run.recover()
        if name != "the second is stopped":
            end()
        second.wait_level(f"the second pipeline after a kill while {name}")
    run.drain()
    second.wait_level("the second pipeline to publish everything")
    run.stop()
    run.compare()
    verdict = second.compare()
    return {
        "rounds": rounds,
        "batches_beside_to_before": ratios,
        "second_batches": second.batch() + 1,
        "second_mismatches": verdict.mismatches,
        "second_compared": verdict.compared,
    }


class Second:
    def __init__(self, run: Run) -> None:
        self._run = run
        self.redis: Redis = run.part(
            Redis(run.folder / "second-redis", settings={"appendonly": "yes", "appendfsync": "always"})
        )
        testbed = run.testbed
        settings = copy.deepcopy(testbed.settings)
        settings["service"] |= {"checkpoint": str(run.folder / "second-checkpoint")}
        settings["kafka"] |= {"group": NAME, "rejects": "{topic}.second"}
        settings["redis"] |= {"url": self.redis.url, "prefix": NAME}
        settings["views"] = [dict(view) for view in VIEWS]
        self.config: Path = run.folder / f"{NAME}.toml"
        self.config.write_text(to_toml(settings), encoding="utf-8")
        testbed.broker.create_topic(f"{TOPIC}.{NAME}", PARTITIONS)
        testbed.add_pipeline(self.config)

    def progress(self) -> dict[str, str]:
        with self.redis.client() as client:
            found: Any = client.hgetall(f"{NAME}:progress")
        return dict(found)

    def offsets(self) -> dict[str, int]:
        return dict(json.loads(self.progress().get("offsets", "{}")).get(TOPIC, {}))

    def batch(self) -> int:
        """The number of the newest batch, -1 before the first."""
        return int(self.progress().get("batch", -1))

    def query(self, command: str) -> None:
        words = [sys.executable, "-m", "service.cli", "query", command, NAME, "--config", str(self.config)]
        self._run.note("query", command=command, said=output_of(words, within_s=WITHIN_S))

    def wait_level(self, what: str) -> None:
        """Until it has published all records that were there when this was called."""
        self._run.wait_level(self.offsets, what)

    def compare(self) -> Verdict:
        with self.redis.client() as client:
            return self._run.judge(self.config, client, NAME)


def _beside(
    run: Run, second: Second, name: str, seconds: float, begin: Callable[[], object], end: Callable[[], object]
) -> float:
    """Have something happen to the second pipeline for some seconds.

    Return how much longer the first one took for its batches meanwhile than right before, as a ratio.
    """
    before_s = _batches_s(run, STARTS_S)
    run.note("trouble", phase="begin", name=name)
    begin()
    began, batch = time.monotonic(), second.batch() if "stopped" in name else -1
    limit_s = max(LEAST_S, LONGER * before_s)
    took_s = _batches_s(run, limit_s)
    if took_s > limit_s:
        text = f"{name}: {BATCHES} batches of the first pipeline took more than {limit_s:.0f} s, and {before_s:.1f} s before"
        run.violation("P8", text)
    run.run_on(seconds, began)
    if "stopped" in name and second.batch() != batch:
        run.violation("P5", f"{name}, and it published batch {second.batch()}")
    end()
    run.note("trouble", phase="end", name=name, before_s=before_s, beside_s=took_s)
    began = time.monotonic()
    second.wait_level(f"the second pipeline after: {name}")
    run.note("level", name=name, seconds=round(time.monotonic() - began, 1))
    return round(took_s / max(before_s, 0.1), 2)


def _batches_s(run: Run, limit_s: float) -> float:
    """Return how long the first pipeline takes for the next batches, more than `limit_s` if they do not come by then."""
    began, wanted = time.monotonic(), run.observer.progress[1] + BATCHES
    run.wait(lambda: run.observer.progress[1] >= wanted or time.monotonic() - began > limit_s, 2 * limit_s, "batches")
    return round(time.monotonic() - began, 1)
