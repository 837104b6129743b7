"""What is dropped behind the watermark is counted to the last value, by view."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from load.parts import Broker, Redis
from service import pipeline
from service.monitoring.metrics import Metrics
from service.pipeline import BatchReport
from tests.integration.world import World
from tests.stream.records import Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_what_the_engine_drops_is_counted_by_view_to_the_last_value(
    spark: SparkSession, broker_part: Broker, redis_part: Redis, tmp_path: Path, prefix: str
) -> None:
    """One record a batch: the third and the fourth come behind the watermark that the second has moved."""
    world = World(spark, broker_part, redis_part, tmp_path, prefix)
    kafka = world.settings.kafka.model_copy(update={"max_per_batch": 1})
    world.settings = world.settings.model_copy(update={"kafka": kafka})
    world.redis.set(world.key("epoch"), 1)
    records: list[Record] = [reading("a", 0), reading("b", 1000), reading("a", 1), reading("a", 2), reading("c", 990)]
    for record in records:
        world.producer.produce(world.topic, record.value, partition=0, timestamp=record.at)
    assert world.producer.flush(30) == 0
    reports: list[BatchReport] = []
    query, _ = pipeline.start(spark, world.settings, holder=None, epoch=1, gate=lambda: None, on_batch=reports.append)
    try:
        query.processAllAvailable()
        engine = sum(o["numRowsDroppedByWatermark"] for p in query.recentProgress for o in p["stateOperators"])
    finally:
        query.stop()
    counted: Counter[str] = Counter()
    for report in reports:
        counted.update(report.late)
    values = {name: found for name, found in world.values().items() if name.startswith("window:")}
    there = Counter(
        {view: sum(int(v["count"]) for n, v in values.items() if n.split(":")[1] == view) for view in counted}
    )
    assert engine == 0
    assert there + counted == Counter(device=len(records), all=2 * len(records)), (
        "the sliding view has two windows each"
    )
    assert counted == Counter(device=2, all=4)
    metrics = Metrics()
    for report in reports:
        metrics.batch_ends(report)
    said = metrics.registry.get_sample_value
    assert said("tidemark_window_values_dropped_total", {"view": "all"}) == 4
    assert said("tidemark_readings_dropped_total") == sum(report.outcome.dropped for report in reports) == 2
    assert said("tidemark_event_timestamp_seconds", {"topic": world.topic, "partition": "0"}) == records[-1].at / 1000
    world.redis.close()
