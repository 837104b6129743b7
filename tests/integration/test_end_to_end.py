"""The whole service, submitted as in production, under load: killed, with a Redis that loses everything, and stopped.

After each of these every value is compared with the oracle, which reads the topic for itself and shares no code with the
service. The tests share one set of servers; each of them starts the service unless it runs.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from load.compare import Verdict, compare
from load.demo import SECTIONS, VIEWS
from load.fleet import Fleet, FleetSettings
from load.generator import Generator, Summary
from load.stage import TOPIC, Stage
from schemas import contract
from tests import exposure

pytestmark = pytest.mark.end_to_end

OPERATORS = "-Dtidemark.operator=us"
RATE = 1_000.0
SECONDS = 15.0
STARTS_S = 180.0
FINALS_S = 60.0
"""Within this everything that was lost must be there again."""
FLEET = FleetSettings(
    devices=500,
    rate=RATE,
    max_delay_ms=2_000,
    dropout_share=0.2,
    dropout_ms=14_000,  # longer than the session gap, so that sessions end and begin again within the run
    dropout_every_ms=30_000,
    evolved=0.3,
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("end_to_end") / "stage"
    options = ("--conf", f"spark.driver.extraJavaOptions={OPERATORS}")
    fleet = Fleet(13, FLEET)
    with Stage(folder, fleet, views=VIEWS, sections=SECTIONS, master="local[2]", submit_options=options) as running:
        yield running


@pytest.fixture(scope="module")
def generator(stage: Stage) -> Generator:
    """One for all tests: another one would begin the devices' readings again."""
    return Generator(stage.broker.bootstrap, TOPIC, stage.fleet)


def published(stage: Stage) -> int:
    """Records up to which everything is in Redis."""
    return sum(stage.progress().get("offsets", {}).get(TOPIC, {}).values())


def start(stage: Stage) -> None:
    """Start the service and wait for its query."""
    stage.start_service()
    stage.wait(lambda: stage.metrics().get("tidemark_query_running"), STARTS_S, "the query to start")


def ends(summary: Summary) -> Mapping[int, int]:
    return {partition: end for partition, (_, end) in summary.offsets.items()}


def verdict_at_rest(stage: Stage) -> Verdict:
    """The oracle's verdict on values beside which no batch was published; a running service may have one left to do."""

    def compared() -> Verdict | None:
        before = stage.progress()
        verdict = compare(stage.config)
        is_at_rest = stage.progress() == before and not stage.metrics().get("tidemark_batch_running_seconds")
        return verdict if verdict.ok or is_at_rest else None

    found = stage.wait(compared, FINALS_S, "a comparison beside no batch")
    assert found is not None
    return found


def assert_nothing_differs(stage: Stage) -> Verdict:
    verdict = verdict_at_rest(stage)
    assert verdict.ok, "\n".join(verdict.examples)
    assert verdict.mismatches == 0
    with stage.redis.client() as client:
        assert contract.check(client, "tidemark") == []
    # An empty comparison finds no difference either.
    assert min(verdict.compared[what] for what in ("windows", "sessions", "devices", "rejects")) > 0, verdict.compared
    return verdict


def flush(stage: Stage) -> None:
    with stage.redis.client() as client:
        client.flushall()


def wait_republished(stage: Stage, losses: int) -> None:
    """Until so many losses have been noticed and made good."""

    def whole() -> bool:
        with stage.redis.client() as client:
            marked = client.get("tidemark:republish")
        noticed = stage.metrics().get("tidemark_redis_data_lost_total", 0.0)
        return noticed == losses and marked is None and bool(stage.progress())

    stage.wait(whole, FINALS_S, f"loss {losses} to be noticed and made good")


def republish(stage: Stage) -> str:
    """The command, as an operator gives it."""
    local = {"TMPDIR": str(stage.folder / "tmp"), "SPARK_LOCAL_DIRS": str(stage.folder / "tmp")}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("tidemark")), "republish", "--config", str(stage.config)],
        env={**os.environ, **local},
        cwd=stage.folder,
        capture_output=True,
        text=True,
        timeout=STARTS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_value_is_that_of_the_oracle_after_a_kill_under_load(stage: Stage, generator: Generator) -> None:
    start(stage)
    with ThreadPoolExecutor(1) as load:
        loading = load.submit(generator.run)
        try:
            stage.wait(lambda: published(stage) > SECONDS * RATE, STARTS_S, "some of the load")
            progress = stage.progress()
            stage.kill_service()
            before = published(stage)
            stage.start_service()
            stage.wait(lambda: published(stage) > before + 5 * RATE, STARTS_S, "more of it after the kill")
        finally:
            generator.stop()
        sent = loading.result()
    assert sent.is_whole
    stage.wait_published(ends(sent))
    verdict = assert_nothing_differs(stage)
    assert published(stage) == sent.sent
    assert verdict.progress["batch"] > int(progress["batch"])
    assert verdict.progress["epoch"] == int(progress["epoch"]) + 1


def test_it_listens_on_loopback_keeps_its_files_to_itself_and_adds_an_operators_java_options_to_ours(
    stage: Stage,
) -> None:
    if not stage.metrics():
        start(stage)
    found = exposure.listeners(exposure.tree(stage.service_pid))
    assert found
    assert exposure.beyond_loopback(found) == []
    assert exposure.open_to_others(stage.folder / "checkpoint", stage.folder / "tmp") == []
    words = psutil.Process(stage.service_pid).cmdline()
    assert {OPERATORS, "-Dorg.apache.avro.limits.bytes.maxLength=1048576"} <= set(words)


def test_every_value_is_that_of_the_oracle_after_redis_has_lost_it_and_after_an_orderly_stop(
    stage: Stage, generator: Generator
) -> None:
    if not stage.metrics():
        start(stage)
    before = published(stage)
    with ThreadPoolExecutor(1) as load:
        loading = load.submit(generator.run, SECONDS)
        stage.wait(lambda: published(stage) > before + 5 * RATE, STARTS_S, "some of the load")
        flush(stage)
        wait_republished(stage, 1)
        summary = loading.result()
    assert summary.is_whole
    stage.wait_published(ends(summary))

    # Nothing is sent any more: no batch can notice.
    flush(stage)
    wait_republished(stage, 2)
    assert_nothing_differs(stage)
    samples = stage.metrics()
    for kind in ("windows", "sessions", "devices"):
        assert samples[f'tidemark_republished_total{{kind="{kind}"}}'] > 0
    assert samples["tidemark_query_running"] == 1

    # By hand, with a service: something has eaten values, and nothing that anybody compares.
    with stage.redis.client() as client:
        eaten: list[Any] = [*client.scan_iter("tidemark:window:*"), *client.scan_iter("tidemark:session:*")]
        assert client.delete(*eaten) > 100
    assert "holds the lease" in republish(stage)
    assert_nothing_differs(stage)
    assert stage.metrics()["tidemark_redis_data_lost_total"] == 2

    # By hand, without one.
    assert stage.stop_service() == 0, stage.log_tail()
    flush(stage)
    assert "no service runs" in republish(stage)
    assert_nothing_differs(stage)
    with stage.redis.client() as client:
        assert client.get("tidemark:lease") is None
    assert published(stage) == before + summary.sent
