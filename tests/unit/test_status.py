"""What /status answers, and what people are shown of it."""

import json
from dataclasses import replace
from pathlib import Path

from service.commands.status import lines
from service.errors import SinkError
from service.monitoring.status import KEPT, Status
from service.pipeline.batch_report import Progress
from tests.reports import CUT, REPORT
from tests.served import served

CONFIG = Path("plant 7.toml")


def test_it_tells_the_term_the_query_its_failures_and_its_batches_over_http() -> None:
    with served() as made:
        status = made.status
        assert status.document()["state"] == "waiting"
        status.term(3)
        assert status.document()["state"] == "starting"
        status.query_started()
        status.batch(REPORT)
        status.failed(SinkError("Redis is away", remedy="Start it"))
        status.restarts()
        document = made.document("/status")
    assert document.pop("started_ms") <= document["last_error"].pop("at_ms")
    assert document["batches"][0].pop("finished_ms") > CUT.watermark_ms
    assert document.pop("figures")["restarts"] == "1 of the query"
    assert document == {
        "service": "tidemark",
        "state": "restarting",
        "epoch": 3,
        "query_since_ms": None,
        "restarts": 1,
        "last_error": {"code": "SINK", "text": "Redis is away. Start it"},
        "reference": None,
        "views": None,
        "inputs": [],
        "outlets": {},
        "checkpoint": None,
        "batches": [
            {
                "batch": 7,
                "rows": 9,
                "limit": 100,
                "start": {"r": {"0": 10}},
                "end": {"r": {"0": 15, "1": 4}},
                "phases": {"run": 0.25, "publish": 0.01},
                "watermark_ms": CUT.watermark_ms,
            }
        ],
    }


def test_of_many_batches_the_last_are_kept_and_one_that_is_repeated_is_there_once() -> None:
    status = Status("tidemark")
    for number in [*range(KEPT + 5), KEPT + 4]:
        status.batch(replace(REPORT, micro_batch=replace(CUT, batch=number)))
    assert [each["batch"] for each in status.document()["batches"]] == list(range(5, KEPT + 5))


def test_it_tells_what_the_checkpoint_has_and_how_long_that_took() -> None:
    operators = [
        {
            "memoryUsedBytes": 10,
            "commitTimeMs": 31,
            "customMetrics": {
                "rocksdbGetCount": 1,
                **{f"SnapshotLastUploaded.partition_{n}_default": 8 + n for n in (0, 1)},
            },
        }
    ]
    progress = {
        "batchId": 12,
        "timestamp": "2026-11-24T10:00:00.000Z",
        "durationMs": {"walCommit": 20, "commitOffsets": 7, "addBatch": 300},
        "stateOperators": operators,
    }
    status = Status("tidemark")
    status.committed(Progress.parse(json.dumps(progress)))
    document = status.document() | {"figures": {}}
    assert document["checkpoint"] == {"batch": 12, "log_ms": 27, "state_ms": 31, "snapshot_batches": 5}
    line = "  checkpoint  batch 12 is committed, its logs took 27 ms and its state 31 ms"
    shown = list(lines(document, {"conditions": []}, 1, CONFIG))
    assert f"{line}; the oldest snapshot of" in shown
    assert "              the state is 5 batches behind" in shown
    for metrics in ({}, {"SnapshotLastUploaded.partition_0_default": -1}):
        operators[0]["customMetrics"] = metrics
        status.committed(Progress.parse(json.dumps(progress)))
        assert status.document()["checkpoint"]["snapshot_batches"] is None, "there is no snapshot yet"
        assert line in list(lines(status.document() | {"figures": {}}, {"conditions": []}, 1, CONFIG))


def test_stopping_is_the_last_state() -> None:
    status = Status("tidemark")
    status.becomes("stopping")
    status.query_started()
    assert status.document()["state"] == "stopping"
