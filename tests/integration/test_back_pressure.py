"""The limit of a running query changes between two batches, and what a replay reads stays as it was planned."""

import pytest
from pyspark.sql import SparkSession

from service.monitoring.metrics import Metrics
from service.pipeline.back_pressure import LEAST, BatchLimit
from service.pipeline.batch import BatchReport, start_query
from service.pipeline.term import Term
from tests.integration.world import Parts, World
from tests.stream.records import reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class Killed(Exception):  # noqa: N818 - what a test raises is no error of the service
    """Ends a query before the driver has looked at the batch."""


def run(world: World, spark: SparkSession, limit: BatchLimit, *, until: int | None = None) -> list[BatchReport]:
    """Read all that there is with this limit; `until` is a batch that is planned and then killed."""
    reports: list[BatchReport] = []
    seen = [0]

    def before_batch(_batch: int) -> None:
        seen[0] += 1
        if until is not None and seen[0] > until:
            raise Killed

    world.redis.set(world.key("epoch"), 1)
    term = Term(spark, world.settings, epoch=1, limit=limit)
    query, publication = start_query(term, before_batch=before_batch, on_batch=reports.append)
    try:
        query.processAllAvailable()
    except Exception:
        if not isinstance(publication.failure, Killed):
            raise
    finally:
        query.stop()
    return reports


@pytest.mark.thorough
def test_batches_shrink_to_the_target_and_grow_to_the_ceiling_in_a_running_query(parts: Parts) -> None:
    world = World(*parts)
    world.send([reading("a", at / 100) for at in range(11_000)])
    reports = run(world, parts.spark, BatchLimit(10_000, target_s=0.001))
    assert [report.micro_batch.rows for report in reports] == [10_000, LEAST]
    assert [report.limit for report in reports] == [10_000, LEAST]
    assert all(report.outcome.read_bytes > 10 * report.micro_batch.rows for report in reports)

    limit = BatchLimit(10_000, target_s=600.0)
    limit.records = LEAST
    world.send([reading("a", 140 + at / 100) for at in range(20_000)])
    reports = run(world, parts.spark, limit)
    assert [report.micro_batch.rows for report in reports] == [1_000, 2_000, 4_000, 8_000, 5_000]
    assert [report.next_limit for report in reports] == [2_000, 4_000, 8_000, 10_000, 10_000]
    metrics = Metrics()
    metrics.limits(world.settings)
    metrics.batch_ends(reports[-1])
    assert metrics.registry.get_sample_value("tidemark_batch_limit_records") == 10_000
    assert metrics.registry.get_sample_value("tidemark_record_bytes_total") == reports[-1].outcome.read_bytes
    world.redis.close()


def test_a_replay_under_a_larger_limit_holds_the_watermark_for_what_its_batch_left_unread(parts: Parts) -> None:
    """The process dies after Spark has planned a small batch, and the next one could read all at once."""
    world = World(*parts)
    quick = [(0, reading("a", at * 40)) for at in range(25)]
    slow = [(1, reading("b", at / 10)) for at in range(75)] + [(1, reading("b", at * 40)) for at in range(25)]
    for partition, record in [*quick, *slow]:
        world.producer.produce(world.topic, record.value, partition=partition, timestamp=record.at)
    assert world.producer.flush(30) == 0
    killed = run(world, parts.spark, BatchLimit(20, target_s=5.0), until=2)
    assert len(killed) == 2
    reports = run(world, parts.spark, BatchLimit(1_000_000, target_s=5.0))
    assert [report.micro_batch.batch for report in reports] == [2, 3]
    assert reports[0].micro_batch.rows <= 20, "a replay reads what was planned"
    assert (reports[0].unread, reports[1].unread) == (2, 0)
    assert sum(report.outcome.by_reason["behind"] for report in [*killed, *reports]) == 0, "unread records are not late"
    windows = [value for name, value in world.values().items() if name.startswith("window:device")]
    assert sum(int(value["count"]) for value in windows) == len(quick) + len(slow)
    world.redis.close()
