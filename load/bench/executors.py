"""What one pass gains from executors and from primaries of Redis: the stages of a catch-up on a standalone cluster.

Each executor has one core, the driver one of its own, and each stage begins with an empty checkpoint of BUCKETS buckets. Each
executor compiles its code by itself, which takes most of the first half: `warm_per_second` is the rate of the second one. On a
machine with fewer cores than processes it stops growing where all cores are busy (`busy_cores`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from load.fleet.fleet import Fleet
from load.servers.kafka import CREATE_TIME
from load.servers.redis_cluster import PRIMARIES
from load.servers.spark_cluster import Cluster
from load.testbed import Testbed

STAGES = ((1, 1), (2, 1), (4, 1), (2, PRIMARIES))
"""Executors and primaries."""
BUCKETS = 4
_SHARDS = 12
_OPTIONS = ("--conf", "spark.executor.cores=1", "--conf", "spark.executor.memory=1g")


def stage(folder: Path, fleet: Fleet, executors: int, primaries: int) -> Testbed:
    """Return a testbed with so many executors, and one Redis or a cluster of three primaries."""
    return Testbed(
        folder,
        fleet,
        sections={"sessions": {"buckets": BUCKETS}},
        topic_config=CREATE_TIME,
        submit_options=_OPTIONS,
        supervisor=partial(Cluster, cores=executors, memory=f"{3 + executors}g"),
        cluster_shards=_SHARDS if primaries > 1 else 0,
    )


def warm_rate(batches: Sequence[tuple[int, float]]) -> float:
    """Return the records a second of the second half of a catch-up, from (records, seconds) of its batches in order."""
    half, warm = sum(records for records, _ in batches) / 2, list[tuple[int, float]]()
    for records, seconds in reversed(batches):
        if sum(each for each, _ in warm) >= half:
            break
        warm.append((records, seconds))
    return round(sum(records for records, _ in warm) / sum(seconds for _, seconds in warm))


def ratios(figures: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the warm rates of two and four executors over that of one, and that of three primaries over that of one Redis."""
    rates = {(each["executors"], each["primaries"]): each["warm_per_second"] for each in figures}
    return {
        "executors_2_to_1": rates[2, 1] / rates[1, 1],
        "executors_4_to_1": rates[4, 1] / rates[1, 1],
        "primaries_3_to_1": rates[2, PRIMARIES] / rates[2, 1],
    }
