"""Views that change while the service runs: as a process, with a real broker and Redis."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from schemas import contract
from service.checkpoint import event_time
from service.checkpoint.view_versions import ViewsChangedError
from service.daemon.view_changes import ViewChanges
from service.monitoring.metrics import Metrics
from service.settings import Settings, parse
from service.spark.files import Local
from service.spark.internals.offset_log import Position
from state.watermark import EventTime
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until
from tests.stream.records import make_document

pytestmark = pytest.mark.integration

ADMISSION = """
[admission]
max_delay = "2 s"
max_ahead = "1 s"
"""
TOTAL = '\n[[views]]\nname = "total"\nwindow = "5 s"\n'


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> DaemonWorld:
    topic = f"views-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    broker_server.create_topic(f"{topic}.rejects", partitions=2)
    return DaemonWorld(broker_server, redis_server, tmp_path, topic)


class Views:
    """What readers see of the views of a world."""

    def __init__(self, world: DaemonWorld) -> None:
        self._world = world

    def meta(self) -> dict[str, dict[str, Any]]:
        text = self._world.redis.get(f"{self._world.topic}:meta")
        return {view["name"]: view for view in json.loads(text or "{}").get("views", ())}

    def counts(self, view: str, length_s: int) -> Counter[int]:
        """Readings by the start of a window of this length, of windows that begin with one."""
        counts: Counter[int] = Counter()
        for key in self._world.redis.keys(f"{self._world.topic}:window:{view}:*"):
            start, count = map(int, self._world.redis.hmget(key, "start", "count"))
            counts[start // (length_s * 1000)] += count
        return counts

    def final_ms(self) -> int:
        return int(self._world.progress().get("final", -1))

    def marked(self) -> list[str]:
        """Windows that lack readings."""
        keys = self._world.redis.keys(f"{self._world.topic}:window:*")
        return [key for key in keys if self._world.redis.hexists(key, "complete_from")]


def edit(world: DaemonWorld, old: str, new: str) -> None:
    text = world.config.read_text()
    assert old in text
    world.config.write_text(text.replace(old, new))


def keep_sending(world: DaemonWorld, condition: Any, what: str) -> None:
    """Send readings until a condition holds: views change with batches, and the watermark moves with readings."""

    def met() -> Any:
        world.send(40)
        return condition()

    until(met, 120, what)


@pytest.mark.thorough
def test_views_are_added_changed_and_removed_while_it_runs(world: DaemonWorld) -> None:
    views = Views(world)
    world.config.write_text(world.config.read_text().replace('window = "10 s"', 'window = "5 s"') + ADMISSION)
    with world.start("service") as service:
        world.send(1_000)
        until(service.is_ready, STARTS_S, "the first batch")
        until(lambda: world.counted() == 1_000, 60, "all readings in windows")
        epoch = int(world.progress()["epoch"])
        keep_sending(world, lambda: len(views.counts("device", 5)) > 2, "windows of the past")

        # A view that is added is marked, fills its past, and is complete.
        edit(world, "[redis]", f"{TOTAL}\n[redis]")
        os.kill(service.process.pid, signal.SIGHUP)
        keep_sending(world, lambda: "total" in views.meta(), "the view is in meta")
        assert views.meta()["total"]["complete_from"] > 0
        keep_sending(world, lambda: "complete_from" not in views.meta()["total"], "the past of the view")
        assert views.marked() == []
        final_s = views.final_ms() // 5_000
        assert contract.check(world.redis, world.topic) == []
        device, total = views.counts("device", 5), views.counts("total", 5)
        past = {start: count for start, count in device.items() if start < final_s}
        assert past
        assert {start: total[start] for start in past} == past

        # Another length is a version of its own, and takes the name when it is complete.
        edit(world, 'by = ["device"]\n            window = "5 s"', 'by = ["device"]\n            window = "10 s"')
        os.kill(service.process.pid, signal.SIGHUP)
        keep_sending(world, lambda: "device@2" in views.meta(), "the next version is in meta")
        meta = views.meta()
        assert "of" not in meta["device"]
        assert (meta["device@2"]["of"], meta["device@2"]["next"]) == ("device", True)
        keep_sending(world, lambda: "device" not in views.meta(), "the name moves")
        assert views.meta()["device@2"].items() >= {"of": "device", "window_ms": 10_000}.items()
        assert not views.meta()["device@2"].keys() & {"next", "complete_from"}
        assert views.marked() == []
        final_s = views.final_ms() // 10_000
        total, device = views.counts("total", 10), views.counts("device@2", 10)
        past = {start: count for start, count in total.items() if start < final_s}
        assert {start: device[start] for start in past} == past

        # What is refused changes nothing, and says why.
        edit(world, 'window = "10 s"', 'window = "7 s"\n            slide = "5 s"')
        os.kill(service.process.pid, signal.SIGHUP)
        until(lambda: service.status()["views"]["refused"], 60, "the refusal")
        assert "must be a whole multiple of slide" in service.status()["views"]["refused"]["text"]
        assert service.metric("view_changes_total", result="refused") == 1
        edit(world, 'window = "7 s"\n            slide = "5 s"', 'window = "10 s"')

        # A view that is removed is in meta no more.
        with world.start("standby") as standby:
            until(lambda: "holds the lease" in standby.get("/readyz")[1], STARTS_S, "another process stands by")
            edit(world, TOTAL, "")
            os.kill(service.process.pid, signal.SIGHUP)
            keep_sending(world, lambda: "total" not in views.meta(), "the view is gone")
            assert service.status()["views"]["refused"] is None
            assert service.process.poll() is None
            assert int(world.progress()["epoch"]) == epoch
            assert contract.check(world.redis, world.topic) == []
            standby_takes_over(world, service, standby, views)


def standby_takes_over(world: DaemonWorld, service: Service, standby: Service, views: Views) -> None:
    """With the views of the file, which has changed since the standby was started."""
    assert service.stop() == 0
    assert " ERROR MicroBatchExecution" not in service.log.read_text(), "a restart for other views is planned"
    batch, meta = int(world.progress()["batch"]), views.meta()
    # The first batch may be one that was begun before, which has its former views in any case.
    keep_sending(world, lambda: int(world.progress()["batch"]) > batch + 2, "batches of the standby")
    assert views.meta() == meta
    assert standby.status()["views"]["refused"] is None
    assert contract.check(world.redis, world.topic) == []
    assert standby.stop() == 0


def changes(settings: Settings) -> ViewChanges:
    """Without Spark: the checkpoint is a folder of this machine."""
    return ViewChanges(cast(SparkSession, None), settings, Metrics(), lambda _: None)


def names(settings: Settings) -> list[tuple[str, int | None]]:
    return [(view.name, view.complete_from("temperature")) for view in settings.views]


def test_a_batch_is_repeated_with_the_views_that_it_had(redis_server: Redis, tmp_path: Path, prefix: str) -> None:
    document = make_document(tmp_path, redis={"url": redis_server.url, "prefix": prefix})
    one, two = {"name": "one", "window": "1 m"}, {"name": "two", "window": "1 m"}
    before, after = (parse({**document, "views": views}) for views in ([one], [one | {"by": ["device"]}, two]))
    times = event_time.Log(Local(tmp_path / "checkpoint"))
    assert names(changes(before).open(None, before)) == [("one", None)]
    times.note(0, EventTime(100, 500))
    times.note(1, EventTime(100, 700))

    # Batch 1 was begun: it has the views of before, whatever the settings say by now, and the next one has others.
    restarted = changes(after)
    assert names(restarted.open(Position(1, {}, is_repeated=True), after)) == [("one", None)]
    restarted.before_batch(1)
    assert not restarted.is_due
    restarted.committed()
    assert restarted.is_due
    with pytest.raises(ViewsChangedError):
        restarted.before_batch(2)
    now = [("one", None), ("one@2", 701), ("two", 701)]
    assert names(changes(after).open(Position(2, {}, is_repeated=True), after)) == now

    # A crash before batch 2 began, with the settings of before again: nothing was published under the new names.
    back = changes(before).open(Position(2, {}), before)
    assert names(back) == [("one", None)]
    assert names(changes(after).open(Position(1, {}, is_repeated=True), after)) == [("one", None)]
