"""The table of the checkpoint's files in docs/operator/checkpoint.md: every file that code names is in it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from service.admission import column_values, device_limit, schema_store
from service.aggregation import seen_keys
from service.checkpoint import beginnings, event_time, manifest, shape, skips, topic_log, view_versions
from service.checkpoint.document import Document
from service.daemon import never_sent, starts
from service.errors import CheckpointError
from service.outlets import outbox, recomputed, silence
from service.outlets.outlet import Position
from service.recompute import job_log
from service.reference import history
from service.rejects import former
from service.spark.files import Local
from service.spark.internals import commit_log, damage, offset_log, state_files
from tests.checkpoint_files import FILES, kind

NAMES = [
    damage.METADATA,
    offset_log.FIRST,
    offset_log.name(7),
    f"{commit_log.FOLDER}/7",
    state_files.snapshot(f"{state_files.OPERATOR}/1", 7, "a-b"),
    manifest.NAME,
    *(f"{event_time.FOLDER}/{name}" for name in ("7", "7.unread", *event_time.REFUSED)),
    f"{view_versions.FOLDER}/7",
    beginnings.DOCUMENT.name,
    column_values.DOCUMENT.name,
    f"{device_limit.FOLDER}/7",
    f"{seen_keys.FOLDER}/3/7-1.delta",
    f"{seen_keys.FOLDER}/3/7-1.base",
    "reference/current",
    "reference/0123456789ab.arrow",
    f"reference/{history.DOCUMENT.name}",
    f"reference/{never_sent.DOCUMENT.name}",
    f"{schema_store.FOLDER}/{schema_store.INDEX}",
    f"{outbox.FOLDER}/{Position(1, 7, 0, 'ab', 0).name}",
    silence.NAME,
    recomputed.name(12, 3),
    f"{outbox.FOLDER}/refused-files-{Position(1, 7, 0, 'ab', 0).name}",
    f"{outbox.FOLDER}/term",
    f"{job_log.FOLDER}/0123.json",
    starts.DOCUMENT.name,
    skips.DOCUMENT.name,
    former.BEGUN.name,
    topic_log.DOCUMENT.name,
    shape.DOCUMENT.name,
]


WRITTEN = {
    topic_log.DOCUMENT: """{"format": 1, "begun": {"plugs": {"0": 500}}, "came": {"plugs": {"0": 700}},
        "left": {"meters": {"offsets": {"0": 90}, "newest_ms": 179}}}""",
    skips.DOCUMENT: """{"format": 1, "skips": [["readings", 2, 1, 3]]}""",
    beginnings.DOCUMENT: """[{"view": "v", "measure": "m", "from_ms": 1, "began": 2, "ended": null},
        {"view": "w", "measure": "m", "from_ms": 1, "began": 2, "ended": 7}]""",
    event_time.AFTER: """{"watermark_ms": 5, "newest_ms": 6, "devices": -1}""",
    event_time.UNREAD: """[["readings", 3]]""",
    manifest.DOCUMENT: """{"format": 2, "application": "0.4.0", "spark": "4.1.4", "state_layout": 2, "query_shape": 2,
        "shuffle_partitions": 4, "settings": {"kafka.topics": ["readings"], "sessions.buckets": 4},
        "topic_ids": {"readings": "A1"}, "by_hand": false}""",
    view_versions.DOCUMENT: """{"last": {"device": 2, "total": 1}, "views": [
        {"name": "device", "window": 60000, "by": ["device"], "title": "device"},
        {"name": "device@2", "window": 120000, "by": ["device"], "title": "device", "is_waiting": true,
            "incomplete": {"temperature": 78}},
        {"name": "total", "window": "none", "by": ["device"], "title": "total"}]}""",
    shape.DOCUMENT: """{"batch": 4, "before": {"buckets": 2, "attempts": ["a", "b"]},
        "after": {"buckets": 1, "attempts": ["c"]}, "is_back": true, "is_done": false}""",
    starts.DOCUMENT: """{"batch": 3, "ends": 1, "running": true, "unreadable": 2}""",
    history.DOCUMENT: """{"is_cut": true, "uses": [
        {"version": "abc", "rows": 5, "columns": ["site"], "from": {"readings": {"0": 7}}}]}""",
    schema_store.DOCUMENT: """{"format": 1, "decided": 3, "refused": {"7": 99}, "all": false,
        "since": {"1": {}, "2": {"readings": {"0": 4}}}}""",
    outbox.TERM: "12",
    column_values.DOCUMENT: """{"line": ["l1", "l2"]}""",
}
"""What 0.4.0 and 0.5.0 write, too: each of these and this version must start on a checkpoint of the other one."""


@pytest.mark.parametrize("document", WRITTEN, ids=lambda each: each.name)
def test_a_document_is_read_and_written_as_by_the_release_before(tmp_path: Path, document: Document[Any]) -> None:
    folder = Local(tmp_path)
    folder.replace(document.name, WRITTEN[document].encode())
    document.write(folder, document.required(folder), "written")
    assert json.loads(folder.read("written")) == json.loads(WRITTEN[document])


@pytest.mark.parametrize("content", [b"", b"{", b'"text"'])
@pytest.mark.parametrize("document", WRITTEN, ids=lambda each: each.name)
def test_a_damaged_document_is_named(tmp_path: Path, document: Document[Any], content: bytes) -> None:
    folder = Local(tmp_path)
    folder.replace(document.name, content)
    with pytest.raises(CheckpointError, match=re.escape(f"/{document.name} is damaged: ")):
        document.read(folder)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_the_service_names_is_in_the_table_once(name: str) -> None:
    assert kind(name) is not None


def test_every_line_of_the_table_is_a_file_that_the_service_names() -> None:
    assert {kind(name) for name in NAMES} == {*FILES}
