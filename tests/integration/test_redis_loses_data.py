"""Redis loses everything, under load, in silence and while no service runs; each time it equals the oracle again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from load.demo import SECTIONS, VIEWS
from load.fleet import Fleet
from load.generator import Generator
from load.stage import TOPIC, Stage
from tests.integration.test_end_to_end import (
    FLEET,
    RATE,
    STARTS_S,
    assert_nothing_differs,
    ends,
    published,
    wait_running,
)

pytestmark = pytest.mark.end_to_end

FINALS_S = 60.0
"""Within this everything must be there again."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "stage", Fleet(29, FLEET), views=VIEWS, sections=SECTIONS, master="local[2]") as running:
        yield running


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


def test_every_value_is_that_of_the_oracle_after_each_loss(stage: Stage) -> None:
    stage.start_service()
    wait_running(stage)
    generator = Generator(stage.broker.bootstrap, TOPIC, stage.fleet)
    with ThreadPoolExecutor(1) as load:
        loading = load.submit(generator.run, 25.0)
        stage.wait(lambda: published(stage) > 10 * RATE, STARTS_S, "some of the load")
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
    assert published(stage) == summary.sent
