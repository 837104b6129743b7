"""A pipeline among several has a Spark session and a pool of its own, also in the thread that Spark runs its query in."""

import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from service.pipeline.side_job import SideJob
from service.spark import session
from tests.stream.records import make_settings

POOL = "spark.scheduler.pool"


def test_a_query_and_its_threads_run_in_the_pool_of_their_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    pools: dict[str, list[str | None]] = {}

    def serve(name: str) -> None:
        settings = make_settings(tmp_path / name, service={"name": name}, sessions={"buckets": 1})
        own = session.of_pipeline(spark, settings)
        session.begin(own, settings)
        seen = pools[name] = [own.conf.get("spark.sql.shuffle.partitions")]

        def look(_frame: DataFrame, _batch: int) -> None:
            seen.append(spark.sparkContext.getLocalProperty(POOL))

        rows = own.readStream.format("rate").load()
        writer: Any = rows.writeStream.foreachBatch(look).trigger(once=True)
        query = writer.option("checkpointLocation", str(tmp_path / name / "checkpoint")).start()
        query.awaitTermination()
        beside = threading.Event()

        class Job(SideJob):
            def work(self) -> None:
                seen.append(spark.sparkContext.getLocalProperty(POOL))
                beside.set()

        job = Job(own, f"job-{name}")
        job.start()
        job.wake()
        assert beside.wait(30)
        job.close()

    former = spark.conf.get("spark.sql.shuffle.partitions")
    threads = [threading.Thread(target=serve, args=[name]) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert pools == {name: ["1", name, name] for name in ("one", "two")}
    assert spark.conf.get("spark.sql.shuffle.partitions") == former, "the settings of one session are its own"
    session.join_pool(spark)
    assert spark.sparkContext.getLocalProperty(POOL) is None, "a process of one pipeline has no pool"
