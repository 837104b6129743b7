"""What the engine tells of a batch, and the text of offsets; the running query: tests/integration/test_daemon.py."""

import json

from hypothesis import given
from hypothesis import strategies as st

from service.micro_batch import MicroBatch, parse_offsets
from service.pipeline.batch_report import Progress
from service.units import parse_time_ms

OFFSETS = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.dictionaries(st.integers(0, 10_000), st.integers(0, (1 << 63) - 1), min_size=1, max_size=5),
    max_size=3,
)


@given(OFFSETS)
def test_offsets_read_back_as_they_were_written(offsets: dict[str, dict[int, int]]) -> None:
    text = json.dumps({topic: {str(p): o for p, o in partitions.items()} for topic, partitions in offsets.items()})
    assert parse_offsets(text) == offsets


def test_partitions_come_in_numeric_order() -> None:
    assert list(parse_offsets('{"r": {"10": 1, "9": 2, "0": 3}}')["r"]) == [0, 9, 10]


def test_a_cut_counts_the_records_of_all_topics() -> None:
    micro_batch = MicroBatch(1, 0, 0, start={"a": {0: 5, 1: 7}, "b": {0: 0}}, end={"a": {0: 6, 1: 7}, "b": {0: 9}})
    assert micro_batch.rows == 10


def test_progress_is_parsed_from_what_spark_writes() -> None:
    document = {
        "batchId": 4,
        "timestamp": "2026-09-21T12:00:00.500Z",
        "durationMs": {"addBatch": 160, "triggerExecution": 198},
        "stateOperators": [{"operatorName": "transformWithStateInPandasExec", "memoryUsedBytes": 5}],
        "sources": [{"numInputRows": 30}, {"numInputRows": None}],
    }
    progress = Progress.parse(json.dumps(document))
    assert (progress.batch, progress.rows, progress.state_bytes) == (4, 30, 5)
    assert progress.begun_ms == parse_time_ms("2026-09-21T12:00:00.500", 0)


def test_progress_of_a_stateless_query_without_sources_is_parsed_too() -> None:
    progress = Progress.parse('{"batchId": 0, "timestamp": "2026-09-21T12:00:00.000Z"}')
    assert (progress.rows, progress.state_bytes) == (0, 0)
