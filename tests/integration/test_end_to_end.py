"""The whole service, submitted as in production, under load, stopped and killed; in the end every value is compared.

The oracle reads the topic for itself and shares no code with the service.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from load.compare import Verdict, compare
from load.demo import SECTIONS, VIEWS
from load.fleet import Fleet, FleetSettings
from load.generator import Generator, Summary
from load.stage import TOPIC, Stage
from schemas import contract

pytestmark = pytest.mark.end_to_end

RATE = 1_000.0
SECONDS = 15.0
STARTS_S = 180.0
FLEET = FleetSettings(
    devices=500,
    rate=RATE,
    max_delay_ms=2_000,
    dropout_share=0.2,
    dropout_ms=14_000,  # longer than the session gap, so that sessions end and begin again within the run
    dropout_every_ms=30_000,
    evolved=0.3,
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "stage", Fleet(13, FLEET), views=VIEWS, sections=SECTIONS, master="local[2]") as running:
        yield running


def published(stage: Stage) -> int:
    """Records up to which everything is in Redis."""
    return sum(stage.progress().get("offsets", {}).get(TOPIC, {}).values())


def wait_running(stage: Stage) -> None:
    stage.wait(lambda: stage.metrics().get("tidemark_query_running"), STARTS_S, "the query to start")


def ends(summary: Summary) -> Mapping[int, int]:
    return {partition: end for partition, (_, end) in summary.offsets.items()}


def assert_nothing_differs(stage: Stage) -> Verdict:
    verdict = compare(stage.config)
    assert verdict.ok, "\n".join(verdict.examples)
    assert verdict.mismatches == 0
    with stage.redis.client() as client:
        assert contract.check(client, "tidemark") == []
    # An empty comparison finds no difference either.
    assert min(verdict.compared[what] for what in ("windows", "sessions", "devices", "rejects")) > 0, verdict.compared
    return verdict


def test_every_value_is_that_of_the_oracle_after_an_orderly_stop_and_after_a_kill_under_load(stage: Stage) -> None:
    generator = Generator(stage.broker.bootstrap, TOPIC, stage.fleet)

    # A run from start to SIGTERM.
    stage.start_service()
    wait_running(stage)
    first = generator.run(SECONDS)
    assert first.is_whole
    stage.wait_published(ends(first))
    assert stage.stop_service() == 0, stage.log_tail()
    verdict = assert_nothing_differs(stage)
    batch, epoch = verdict.progress["batch"], verdict.progress["epoch"]
    assert published(stage) == first.sent
    with stage.redis.client() as client:
        assert client.get("tidemark:lease") is None

    # It goes on where it stopped, is killed under load, and goes on again while the load does.
    stage.start_service()
    wait_running(stage)
    with ThreadPoolExecutor(1) as load:
        loading = load.submit(generator.run)
        try:
            stage.wait(lambda: published(stage) > first.sent + RATE, STARTS_S, "some of the second load")
            stage.kill_service()
            before = published(stage)
            stage.start_service()
            stage.wait(lambda: published(stage) > before + 5 * RATE, STARTS_S, "more of it after the kill")
        finally:
            generator.stop()
        second = loading.result()
    assert second.is_whole
    stage.wait_published(ends(second))
    assert stage.stop_service() == 0, stage.log_tail()
    verdict = assert_nothing_differs(stage)
    assert published(stage) == first.sent + second.sent
    assert verdict.progress["batch"] > batch
    assert verdict.progress["epoch"] == epoch + 2
