"""What closed values in Redis cover: nothing that today's rules make of the same readings is written beside them."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from load.servers.redis import Redis
from service import clock
from service.pipeline.outcome import Outcome
from service.publication import covered
from service.publication.covered import Covered
from service.publication.policy import WritePolicy
from service.settings import View
from tests.integration.redis_target import Target
from tests.outputs import MINUTE, T0, changes, session, windows

pytestmark = pytest.mark.integration

LATER = T0 + 30 * MINUTE


class Later(Target):
    """A Redis to which a term has published, and a later one that publishes the same time again."""

    def publish(self, *rows: pa.RecordBatch, watermark_ms: int = T0 + 10 * MINUTE) -> None:
        self.write(1, *rows)
        self.sink(1, watermark_ms=watermark_ms).progress()

    def covered(self, before_ms: int | None = None, until_ms: int | None = None) -> Covered:
        return covered.read(self.settings, 2, before_ms=before_ms or clock.now_ms() + 1, until_ms=until_ms)[0]

    def again(self, *rows: pa.RecordBatch) -> Outcome:
        return self.write(2, *rows, policy=WritePolicy.republish({0: self.covered()}), epoch=2, watermark_ms=LATER)


@pytest.fixture
def target(redis_server: Redis, prefix: str) -> Iterator[Later]:
    made = Later(redis_server, prefix)
    site = View.model_validate({"name": "site_1m", "by": ["site"], "window": "1 m", "retain": "1 h"})
    made.settings = made.settings.model_copy(update={"views": (*made.settings.views, site)})
    yield made
    assert made.violations() == []
    made.client.close()


def closed(device: str = "d1", first: int = 0, last: int = 0, **fields: Any) -> dict[str, Any]:
    """A closed session between two seconds."""
    times = {"start": T0 + 1000 * first, "last": T0 + 1000 * last}
    return session(device, **{"state": "closed", "reason": "gap", "count": 2, **times, **fields})


def test_no_session_is_made_over_a_closed_one_of_its_device(target: Later) -> None:
    target.publish(changes([closed(first=0, last=200), closed("d2", 0, 50), closed("d2", 120, 200)]))
    target.begin_term(2)
    shorter = [closed(first=0, last=50), closed(first=120, last=200), closed(first=201, last=300)]
    longer = [closed("d2", -100, 200), closed("d2", 300, 400), closed("d3", 120, 200)]
    outcome = target.again(changes([*shorter, *longer]))
    assert (outcome.written, outcome.refused_old, outcome.refused_final) == (3, 2, 1)
    made = {f"d1:{T0 + 201_000}", f"d2:{T0 + 300_000}", f"d3:{T0 + 120_000}"}
    assert target.names("session") == {f"d1:{T0}", f"d2:{T0}", f"d2:{T0 + 120_000}"} | made


def test_a_session_that_the_state_has_open_covers_and_one_of_an_older_term_does_not(target: Later) -> None:
    target.publish(changes([session("old", T0, last=T0 + 200_000, count=9), session("new", T0, last=T0 + 200_000)]))
    target.write(1, changes([closed("idle", 0, 200)]), policy=WritePolicy.idle())
    target.begin_term(2)
    target.write(2, changes([session("new", T0, last=T0 + 200_000)]), policy=WritePolicy.republish(), epoch=2)
    rows = [closed(name, *span) for name in ("old", "new", "idle") for span in ((0, 50), (120, 200))]
    assert target.again(changes(rows)).refused_old == 2
    assert target.names("session") == {f"{n}:{T0}" for n in ("old", "new", "idle")} | {
        f"{n}:{T0 + 120_000}" for n in ("old", "idle")
    }
    assert target.client.hget(f"{target.prefix}:session:new:{T0}", "state") == "open"


def test_a_final_window_covers_its_start_where_the_reference_makes_the_keys(target: Later) -> None:
    before = [(view, "a", T0, [1.0]) for view in ("site_1m", "device_1m")]
    target.publish(windows(before))
    target.begin_term(2)
    rows = [(view, "b", T0 + at, [1.0]) for view in ("site_1m", "device_1m") for at in (0, MINUTE)]
    outcome = target.again(windows(rows))
    assert (outcome.written, outcome.refused_old) == (3, 1)
    assert f"site_1m:temperature:b:{T0}" not in target.names("window")


def test_what_was_not_whole_or_was_written_since_covers_no_window(target: Later) -> None:
    target.publish(windows([("site_1m", "a", T0, [1.0])]))
    target.begin_term(2)
    assert not target.covered(until_ms=T0 + MINUTE - 1).windows
    written_ms = int(target.client.hget(f"{target.prefix}:window:site_1m:temperature:a:{T0}", "updated"))
    assert not target.covered(before_ms=written_ms).windows
    assert target.covered(before_ms=written_ms + 1, until_ms=T0 + MINUTE).windows


def test_a_window_of_another_length_or_slide_covers_its_span(target: Later) -> None:
    target.publish(windows([("device_1m", "a", T0 + at * MINUTE, [1.0]) for at in (0, 1, 2, 5)]))
    target.begin_term(2)
    first, *others = target.settings.views
    longer = first.model_copy(update={"window_ms": 3 * MINUTE, "slide_ms": MINUTE})
    target.settings = target.settings.model_copy(update={"views": (longer, *others)})
    [grid] = target.covered().windows.values()
    assert grid.spans.tolist() == [[T0, T0 + 3 * MINUTE], [T0 + 5 * MINUTE, T0 + 6 * MINUTE]]
    shifted = first.model_copy(update={"window_ms": MINUTE, "slide_ms": MINUTE * 7 // 11})
    target.settings = target.settings.model_copy(update={"views": (shifted, *others)})
    target.again(windows([("device_1m", "b", T0 + at, [1.0]) for at in (-MINUTE, 1, 3 * MINUTE, 4 * MINUTE + 1)]))
    assert {name for name in target.names("window") if ":b:" in name} == {
        f"device_1m:temperature:b:{T0 + at}" for at in (-MINUTE, 3 * MINUTE)
    }
