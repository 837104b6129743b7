"""What comes behind the watermark is late and can be found; a partition that has unread records is waited for."""

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from service.monitoring.metrics import Metrics
from service.pipeline.batch import BatchReport, start_query
from service.pipeline.term import Term
from service.recompute import backfill, correct
from service.rejects import reject_log
from service.rejects.reject_log import Coordinates
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def run(world: World, spark: SparkSession, records: list[tuple[int, Record]], max_per_batch: int) -> list[BatchReport]:
    """All of (partition, record), in batches of that size at most."""
    world.limit(max_per_batch)
    world.redis.set(world.key("epoch"), 1)
    for partition, record in records:
        world.producer.produce(world.topic, record.value, partition=partition, timestamp=record.at)
    assert world.producer.flush(30) == 0
    reports: list[BatchReport] = []
    query, _ = start_query(Term(spark, world.settings, epoch=1), on_batch=reports.append)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return reports


def test_what_comes_behind_the_watermark_is_rejected_as_late(parts: Parts) -> None:
    """One record a batch: the third and the fourth come behind the watermark that the second has moved."""
    world = World(*parts)
    records: list[Record] = [reading("a", 0), reading("b", 1000), reading("a", 1), reading("a", 2), reading("c", 990)]
    reports = run(world, parts.spark, [(0, record) for record in records], max_per_batch=1)
    values = {name: row for name, row in world.values().items() if name.startswith("window:")}
    count = Counter[str]()
    for name, value in values.items():
        count[name.split(":")[1]] += int(value["count"])
    assert count == Counter(device=3, all=6), "the sliding view has two windows each"
    rejects = sorted(reject_log.read(world.settings.kafka), key=lambda reject: reject.place.offset)
    assert [(each.place, each.reason) for each in rejects] == [
        (Coordinates(world.topic, 0, offset), "behind") for offset in (2, 3)
    ]
    assert (rejects[0].event_ms, rejects[0].detail) == (BASE_MS + 1_000, "")
    assert rejects[0].watermark_ms == BASE_MS + 1_000_000 - world.settings.admission.watermark_delay_ms
    metrics = Metrics()
    metrics.limits(world.settings)
    for report in reports:
        metrics.batch_ends(report)
    sample = metrics.registry.get_sample_value
    assert sample("tidemark_readings_behind_total") == 2
    assert sample("tidemark_rejects_total", {"reason": "behind"}) == 2
    assert sample("tidemark_event_timestamp_seconds", {"topic": world.topic, "partition": "0"}) == records[-1].at / 1000
    world.redis.close()


@pytest.mark.thorough
def test_a_partition_with_unread_records_holds_the_watermark(parts: Parts) -> None:
    """Partition 1 has four times as many records for the same time, first of all many of its beginning."""
    world = World(*parts)
    quick = [(0, reading("a", at * 40)) for at in range(25)]
    slow = [(1, reading("b", at / 10)) for at in range(75)] + [(1, reading("b", at * 40)) for at in range(25)]
    reports = run(world, parts.spark, [*quick, *slow], max_per_batch=20)
    assert len(reports) > 5
    assert max(report.held_ms for report in reports) > 100_000, "the partitions were read at different times"
    assert max(report.unread for report in reports) == 2
    assert (reports[-1].held_ms, reports[-1].unread) == (0, 0)
    assert (
        sum(report.outcome.by_reason["behind"] for report in reports)
        == sum(report.outcome.rejects for report in reports)
        == 0
    )
    windows = [value for name, value in world.values().items() if name.startswith("window:device")]
    assert sum(int(value["count"]) for value in windows) == len(quick) + len(slow)
    world.redis.close()


@pytest.mark.thorough
@pytest.mark.silent("1.3")
def test_a_backlog_of_hours_holds_the_watermark_for_as_long_as_it_is_read(parts: Parts) -> None:
    """After an outage one partition has five hours of one device, the other the last ten minutes of many. Both end now."""
    world = World(*parts)
    hours, minutes = 5 * 3600, 600
    sparse = [(0, reading("a", at)) for at in range(0, hours, 10)]
    dense = [(1, reading(f"b{at % 20}", hours - minutes + at / 20)) for at in range(minutes * 20)]
    reports = run(world, parts.spark, [*sparse, *dense], max_per_batch=2_000)
    assert (
        sum(report.outcome.by_reason["behind"] for report in reports)
        == sum(report.outcome.rejects for report in reports)
        == 0
    )
    counts = Counter[str]()
    for name, value in world.values().items():
        if name.startswith("window:device:"):
            counts[name.split(":")[3][0]] += int(value["count"])
    assert counts == Counter(a=len(sparse), b=len(dense))
    assert max(report.held_ms for report in reports) > 3 * 3_600_000, "for longer than max_hold, which is an hour"
    world.redis.close()


def both(world: World, *records: Record) -> None:
    """A term that reads these from partition 0, in one batch."""
    world.term(*(each for record in records for each in (record, Record(b"{}", record.at))))


@pytest.mark.parametrize("pattern", [pytest.param("*", marks=pytest.mark.thorough), "progress"])
def test_a_reading_behind_the_watermark_is_in_no_value_that_comes_back(parts: Parts, pattern: str) -> None:
    """The reading would also join a closed session to an open one."""
    world = World(*parts)
    delay_s = world.settings.admission.watermark_delay_ms // 1000
    both(world, reading("a", 0), reading("a", 50), reading("b", 45 + delay_s))
    both(world, reading("a", 25), reading("b", 46 + delay_s))
    assert [each.reason for each in reject_log.read(world.settings.kafka) if each.place.partition == 0] == ["behind"]
    before = world.values()
    assert {before[f"session:a:{BASE_MS + at * 1000}"]["state"] for at in (0, 50)} == {"closed", "open"}
    world.lose(pattern)
    both(world, reading("b", 47 + delay_s))
    after = world.values()
    assert world.session("a", 0)["count"] == world.session("a", 50)["count"] == "1"
    of_a = {name for name in before if ":a:" in name}
    assert {name: after[name] for name in of_a} == {name: before[name] for name in of_a}
    world.redis.close()


@pytest.mark.thorough
def test_a_reading_that_a_new_checkpoint_admits_is_in_all_that_is_computed_again(parts: Parts) -> None:
    """The first checkpoint has rejected it as behind; the second one reads everything at once."""
    world = World(*parts)
    both(world, reading("a", 0), reading("b", 1_000))
    both(world, reading("a", 1))
    assert world.window("a")["count"] == "1"
    world.prefix += "anew"
    redis = world.settings.redis.model_copy(update={"prefix": world.prefix})
    world.begin_again(parts.folder / "anew", redis=redis)
    both(world, reading("b", 1_001))
    assert world.window("a")["count"] == "2"
    assert correct.correct(world.settings, 0, None, print, spark=parts.spark).corrected == 0
    backfill.backfill(world.settings, (BASE_MS, BASE_MS + 60_000), [], print, spark=parts.spark)
    assert world.window("a")["count"] == "2"
    world.lose()
    both(world, reading("b", 1_002))
    assert world.window("a")["count"] == "2"
    both(world, reading("a", 2))  # behind for this checkpoint, too
    world.lose()
    both(world, reading("b", 1_003))
    assert world.window("a")["count"] == "2"
    assert correct.correct(world.settings, 0, None, print, spark=parts.spark).corrected == 1
    assert world.window("a")["count"] == "3"
    world.redis.close()
