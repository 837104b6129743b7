"""Windows that lack the readings of before their view was added: how they are marked, and what takes their place."""

from dataclasses import replace

import pytest

from service.checkpoint import view_versions
from service.pipeline.batch_publisher import Sink
from service.publication import covered
from service.publication.policy import WritePolicy
from service.settings import Settings
from tests.integration.redis_target import WINDOW, Target, window_name
from tests.outputs import MINUTE, T0, micro_batch, window, windows

pytestmark = pytest.mark.integration


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
    return target.sink(batch, WritePolicy.republish(), watermark_ms=watermark_ms)


def write_marked(target: Target, values: list[float], batch: int = 1) -> None:
    sink = Sink(added(target.settings), micro_batch(batch))
    sink.write([windows([("device_1m", "d1", T0, values), ("device_1m", "d1", T0 + MINUTE, [1.0])])])
    Sink(added(target.settings), micro_batch(batch, watermark_ms=T0 + MINUTE)).progress()


def test_a_window_that_begins_before_its_view_is_marked_and_a_complete_one_takes_its_place(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    assert target.fields("complete_from", "closed_by") == (str(T0 + 1), "watermark")
    assert "complete_from" not in target.read(window_name(start=T0 + MINUTE)), "it begins later"
    sink = complete(target, 1, T0 + MINUTE)
    assert sink.write([window([1.0, 2.0, 3.0])]).written == 1
    shown = target.read()
    assert (shown["count"], shown["revision"], shown["closed_by"]) == ("3", "1", "watermark")
    assert "complete_from" not in shown
    again = sink.write([window([1.0, 2.0, 3.0])])
    assert (again.written, again.unchanged, target.read()) == (0, 1, shown), "a pass that is repeated"
    other = sink.write([window([1.0, 2.0, 3.0, 4.0])])
    assert (other.written, other.refused_final) == (0, 1), "from now on it is final"


def test_fewer_readings_take_its_place_when_no_more_are_to_come(target: Target) -> None:
    write_marked(target, [1.0, 2.0])
    last = replace(complete(target, 1, T0 + MINUTE), policy=WritePolicy.fill(is_last=True))
    assert last.write([window([1.0])]).written == 1
    shown = target.read()
    assert (shown["count"], shown["revision"]) == ("1", "1")
    assert "complete_from" not in shown
    assert last.scan("parts", "window:device_1m", begins=str(T0)) == 0
    assert last.write([window([1.0])]).unchanged == 1, "a pass that is repeated"


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
    assert target.read(window_name(start=T0 + MINUTE))["count"] == "1"
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
    assert target.fields("count", "mean") == ("2", "1.5")
    assert "sum" in target.read(window_name("d2"))
