"""Windows that lack the readings of before their view was added: how they are marked, and what takes their place."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from load.servers.redis import Redis
from schemas import contract
from service.checkpoint import view_versions
from service.pipeline.batch_publisher import Sink
from service.publication import covered
from service.publication.policy import WritePolicy
from service.settings import Settings
from tests.integration.test_publish import WINDOW, Target
from tests.outputs import MINUTE, T0, micro_batch, window, windows

pytestmark = pytest.mark.integration


@pytest.fixture
def target(redis_server: Redis, prefix: str) -> Iterator[Target]:
    made = Target(redis_server, prefix)
    yield made
    made.client.close()


def added(settings: Settings) -> Settings:
    """The settings when all of their views were added at T0 + 1 ms."""
    versions = view_versions.begun(settings)
    views = tuple(
        view.model_copy(update={"incomplete": dict.fromkeys(settings.view_measures(view), T0 + 1)})
        for view in versions.views
    )
    return view_versions.applied(settings, replace(versions, views=views))


def complete(target: Target, batch: int, watermark_ms: int) -> Sink:
    """The sink of values of the past."""
    return Sink(target.settings, micro_batch(batch, watermark_ms=watermark_ms), policy=WritePolicy.republish())


def write_marked(target: Target, values: list[float], batch: int = 1) -> None:
    sink = Sink(added(target.settings), micro_batch(batch))
    sink.write([windows([("device_1m", "d1", T0, values), ("device_1m", "d1", T0 + MINUTE, [1.0])])])
    Sink(added(target.settings), micro_batch(batch, watermark_ms=T0 + MINUTE)).progress()


def test_a_window_that_begins_before_its_view_is_marked_and_a_complete_one_takes_its_place(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    assert (target.read()["complete_from"], target.read()["closed_by"]) == (str(T0 + 1), "watermark")
    assert "complete_from" not in target.read(WINDOW.replace(str(T0), str(T0 + MINUTE))), "it begins later"
    assert contract.check(target.client, target.prefix) == []
    sink = complete(target, 1, T0 + MINUTE)
    assert sink.write([window([1.0, 2.0, 3.0])]).written == 1
    shown = target.read()
    assert (shown["count"], shown["revision"], shown["closed_by"]) == ("3", "1", "watermark")
    assert "complete_from" not in shown
    again = sink.write([window([1.0, 2.0, 3.0])])
    assert (again.written, again.unchanged, target.read()) == (0, 1, shown), "a pass that is repeated"
    other = sink.write([window([1.0, 2.0, 3.0, 4.0])])
    assert (other.written, other.refused_final) == (0, 1), "from now on it is final"
    assert contract.check(target.client, target.prefix) == []


def test_a_marked_window_with_as_many_readings_loses_its_mark(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    assert complete(target, 1, T0 + MINUTE).write([window([1.0, 2.0])]).written == 1
    assert "complete_from" not in target.read()


def test_no_window_of_fewer_readings_takes_the_place_of_a_marked_one(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    assert complete(target, 1, T0 + MINUTE).write([window([1.0])]).refused_old == 1
    assert (target.read()["count"], target.read()["complete_from"]) == ("2", str(T0 + 1))


def test_fewer_readings_take_its_place_when_no_more_are_to_come(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    last = replace(complete(target, 1, T0 + MINUTE), policy=WritePolicy.fill(is_last=True))
    assert last.write([window([1.0])]).written == 1
    shown = target.read()
    assert (shown["count"], shown["revision"]) == ("1", "1")
    assert "complete_from" not in shown
    assert last.scan("parts", "window:device_1m", begins=str(T0)) == 0
    assert last.write([window([1.0])]).unchanged == 1, "a pass that is repeated"


def test_a_stream_does_not_replace_a_marked_window_that_is_closed(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    late = target.write(3, window([1.0, 2.0, 3.0]))
    assert (late.refused_final, target.read()["count"]) == (1, "2")


def test_a_marked_window_covers_nothing(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    target.client.hset(target.key("progress"), "final", T0 + MINUTE)
    until = {"before_ms": 1 << 50, "until_ms": T0 + MINUTE}
    marked = covered.read(target.settings, 1, **until)[0].windows
    complete(target, 1, T0 + MINUTE).write([window([1.0, 2.0, 3.0])])
    whole = covered.read(target.settings, 1, **until)[0].windows
    assert (list(marked), list(whole)) == ([], [("device_1m", "temperature")])


def test_marked_windows_that_are_left_when_a_view_is_complete_are_removed(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    sink = complete(target, 1, T0 + MINUTE)
    assert sink.scan("parts", "window:device_1m", begins=str(T0 + 1)) == 0, "Kafka has no more of its readings"
    assert sink.scan("parts", "window:device_1m", begins=str(T0)) == 1
    assert target.read() == {}
    assert target.read(WINDOW.replace(str(T0), str(T0 + MINUTE)))["count"] == "1"
    entry = target.feed()[-1][1]
    assert (entry["kind"], entry["key"]) == ("window", target.key(WINDOW))


def test_a_statistic_that_a_view_loses_within_a_term_goes_with_the_next_reading(target: Target) -> None:
    target.write(1, windows([("device_1m", "d1", T0, [1.0]), ("device_1m", "d2", T0, [1.0])]))
    begun = view_versions.begun(target.settings)
    views = [view.model_copy(update={"statistics": ("count", "mean", "last")}) for view in begun.views]
    versions = view_versions.since(2, begun, replace(begun, views=tuple(views)))
    sink = Sink(view_versions.applied(target.settings, versions), micro_batch(2))
    sink.write([windows([("device_1m", "d1", T0, [1.0, 2.0])], ("count", "mean", "last"))])
    assert {"sum", "min", "stddev"}.isdisjoint(target.read())
    assert (target.read()["count"], target.read()["mean"]) == ("2", "1.5")
    assert "sum" in target.read(WINDOW.replace(":d1:", ":d2:"))
