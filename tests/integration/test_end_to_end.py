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

from load.demo import SECTIONS, VIEWS
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator, Summary
from load.judge.compare import compare
from load.judge.verdict import Verdict
from load.testbed import TOPIC, Testbed
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
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    folder = tmp_path_factory.mktemp("end_to_end") / "stage"
    options = ("--conf", f"spark.driver.extraJavaOptions={OPERATORS}")
    fleet = Fleet(13, FLEET)
    sections = {**SECTIONS, "reference": {"list_never": True}}
    with Testbed(folder, fleet, views=VIEWS, sections=sections, master="local[2]", submit_options=options) as running:
        yield running


@pytest.fixture(scope="module")
def generator(testbed: Testbed) -> Generator:
    """One for all tests: another one would begin the devices' readings again."""
    return Generator(testbed.broker.bootstrap, TOPIC, testbed.fleet)


def published(testbed: Testbed) -> int:
    """Records up to which everything is in Redis."""
    return sum(testbed.progress().get("offsets", {}).get(TOPIC, {}).values())


def start(testbed: Testbed) -> None:
    """Start the service and wait for its query."""
    testbed.start_service()
    testbed.wait(lambda: testbed.metrics().get("tidemark_query_running"), STARTS_S, "the query to start")


def ends(summary: Summary) -> Mapping[int, int]:
    return {partition: end for partition, (_, end) in summary.offsets.items()}


def verdict_at_rest(testbed: Testbed) -> Verdict:
    """The oracle's verdict on values beside which no batch was published; a running service may have one left to do."""

    def compared() -> Verdict | None:
        before = testbed.progress()
        verdict = compare(testbed.config)
        is_at_rest = testbed.progress() == before and not testbed.metrics().get("tidemark_batch_running_seconds")
        return verdict if verdict.ok or is_at_rest else None

    comparison = testbed.wait(compared, FINALS_S, "a comparison beside no batch")
    assert comparison is not None
    return comparison


def assert_nothing_differs(testbed: Testbed) -> Verdict:
    verdict = verdict_at_rest(testbed)
    assert verdict.ok, "\n".join(verdict.examples)
    assert verdict.mismatches == 0
    with testbed.redis.client() as client:
        assert contract.check(client, "tidemark") == []
        assert client.zcount("tidemark:never", 1, "+inf") == 0, "every device of the reference has sent"
    # An empty comparison finds no difference either.
    assert min(verdict.compared[what] for what in ("windows", "sessions", "devices", "rejects")) > 0, verdict.compared
    return verdict


def flush(testbed: Testbed) -> None:
    with testbed.redis.client() as client:
        client.flushall()


def wait_republished(testbed: Testbed, losses: int) -> None:
    """Until so many losses have been noticed and made good."""

    def whole() -> bool:
        with testbed.redis.client() as client:
            marked = client.get("tidemark:republish")
        noticed = testbed.metrics().get("tidemark_redis_data_lost_total", 0.0)
        return noticed == losses and marked is None and bool(testbed.progress())

    testbed.wait(whole, FINALS_S, f"loss {losses} to be noticed and made good")


def republish(testbed: Testbed) -> str:
    """The command, as an operator gives it."""
    local = {"TMPDIR": str(testbed.folder / "tmp"), "SPARK_LOCAL_DIRS": str(testbed.folder / "tmp")}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("tidemark")), "republish", "--config", str(testbed.config)],
        env={**os.environ, **local},
        cwd=testbed.folder,
        capture_output=True,
        text=True,
        timeout=STARTS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_value_is_that_of_the_oracle_after_a_kill_under_load(testbed: Testbed, generator: Generator) -> None:
    start(testbed)
    with ThreadPoolExecutor(1) as load:
        loading = load.submit(generator.run)
        try:
            testbed.wait(lambda: published(testbed) > SECONDS * RATE, STARTS_S, "some of the load")
            progress = testbed.progress()
            testbed.kill_service()
            before = published(testbed)
            testbed.start_service()
            testbed.wait(lambda: published(testbed) > before + 5 * RATE, STARTS_S, "more of it after the kill")
        finally:
            generator.stop()
        sent = loading.result()
    assert sent.is_whole
    testbed.wait_published(ends(sent))
    verdict = assert_nothing_differs(testbed)
    assert published(testbed) == sent.sent
    assert verdict.progress["batch"] > int(progress["batch"])
    assert verdict.progress["epoch"] == int(progress["epoch"]) + 1


def test_it_listens_on_loopback_keeps_its_files_to_itself_and_adds_an_operators_java_options_to_ours(
    testbed: Testbed,
) -> None:
    if not testbed.metrics():
        start(testbed)
    addresses = exposure.listeners(exposure.tree(testbed.service_pid))
    assert addresses
    assert exposure.beyond_loopback(addresses) == []
    assert exposure.open_to_others(testbed.folder / "checkpoint", testbed.folder / "tmp") == []
    words = psutil.Process(testbed.service_pid).cmdline()
    assert {OPERATORS, "-Dorg.apache.avro.limits.bytes.maxLength=1048576"} <= set(words)


@pytest.mark.thorough
def test_every_value_is_the_oracles_after_a_loss_and_a_stop(testbed: Testbed, generator: Generator) -> None:
    if not testbed.metrics():
        start(testbed)
    before = published(testbed)
    with ThreadPoolExecutor(1) as load:
        loading = load.submit(generator.run, SECONDS)
        testbed.wait(lambda: published(testbed) > before + 5 * RATE, STARTS_S, "some of the load")
        flush(testbed)
        wait_republished(testbed, 1)
        summary = loading.result()
    assert summary.is_whole
    testbed.wait_published(ends(summary))

    # Nothing is sent any more: no batch can notice.
    flush(testbed)
    wait_republished(testbed, 2)
    assert_nothing_differs(testbed)
    samples = testbed.metrics()
    assert samples['tidemark_failures_total{part="never_sent"}'] == 0
    for kind in ("windows", "sessions", "devices"):
        assert samples[f'tidemark_republished_total{{kind="{kind}"}}'] > 0
    assert samples["tidemark_query_running"] == 1

    # By hand, with a service: something has eaten values, and nothing that anybody compares.
    with testbed.redis.client() as client:
        eaten: list[Any] = [*client.scan_iter("tidemark:window:*"), *client.scan_iter("tidemark:session:*")]
        assert client.delete(*eaten) > 100
    assert "holds the lease" in republish(testbed)
    assert_nothing_differs(testbed)
    assert testbed.metrics()["tidemark_redis_data_lost_total"] == 2

    # By hand, without one.
    assert testbed.stop_service() == 0, testbed.log_tail()
    flush(testbed)
    assert "no service runs" in republish(testbed)
    assert_nothing_differs(testbed)
    with testbed.redis.client() as client:
        assert client.get("tidemark:lease") is None
    assert published(testbed) == before + summary.sent
