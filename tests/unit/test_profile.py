"""`make profile`: a sample belongs to the slice of its innermost frame that has one, and shares become CPU of a reading."""

import pytest

from load.bench.profile import DRIVER, JVM, REST, WORKERS, rows, shares, table, wall

SAMPLES = (
    (JVM, "[C2 CompilerThread0 tid=7];start_thread;Compile::Code_Gen 4", "compiling of methods (JIT)"),
    (JVM, "[GC Thread#1 tid=9];clone 2", "garbage collection"),
    (JVM, "[main];org/apache/spark/sql/catalyst/plans/X.map;org/apache/kafka/clients/Fetcher.poll 3", "Kafka client"),
    (JVM, "[main];java/lang/Thread.run 1", REST),
    (WORKERS, 'process 5:"python";main (/v/pyspark/worker.py:3);fold (/t/service/aggregation/fold.py:9) 2', "fold"),
    (
        WORKERS,
        "main (/v/pyspark/worker.py:3);step (/t/service/pipeline/x.py:1);advance (/t/state/bucket.py:2) 5",
        "state",
    ),
    (DRIVER, "run (/t/service/daemon/runner.py:1);call (/v/py4j/java_gateway.py:8) 1", "Py4J and the plan of a batch"),
)


@pytest.mark.parametrize(("process", "line", "slice_"), SAMPLES, ids=[each[2] for each in SAMPLES])
def test_a_sample_belongs_to_the_slice_of_its_innermost_frame_that_has_one(
    process: str, line: str, slice_: str
) -> None:
    assert shares([line], process) == {slice_: int(line.rpartition(" ")[2])}


def test_the_kernels_cpu_is_divided_by_the_samples() -> None:
    found = rows({JVM: {"planning": 3, REST: 1}, WORKERS: {"fold": 7}}, {JVM: 2.0, WORKERS: 1.0}, 1_000_000, 10)
    assert [(row["slice"], row["us_per_reading"], row["ms_per_batch"], row["share"]) for row in found] == [
        ("planning", 1.5, 150.0, 0.5),
        ("fold", 1.0, 100.0, 0.333),
        (REST, 0.5, 50.0, 0.167),
    ]
    assert table({"slices": found}).splitlines()[2] == "| JVM | planning | 1.5 | 150.0 | 50.0% |"


def test_phases_are_ms_of_a_batch() -> None:
    assert wall({'tidemark_batch_seconds_sum{phase="run"}': 1.5, "tidemark_batch": 3.0}, 3) == {"run": 500.0}
