"""Random walks through the past on a broker, Spark, Redis and outlets of files: a few of them, always the same.

`make walks REAL=1 SEED=7 WALKS=20` makes more of them, and shrinks one that fails.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.walks.real import parts
from load.walks.real.walk import play, steps_of

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.thorough]

SEED, STEPS = 7, 12


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_walk_through_the_past_ends_as_plain_lists_say(
    spark: SparkSession, broker_server: Broker, redis_server: Redis, tmp_path: Path, number: int
) -> None:
    with parts.shared(spark):
        seed = f"{SEED}/{number}"
        walk, error = play(parts.Parts(spark, broker_server, redis_server, tmp_path), seed, steps_of(seed, STEPS))
    if error is not None:
        error.add_note("\n".join(walk.said))
        raise error
    assert walk.compared > 100
