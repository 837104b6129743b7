"""The manifest as a value: what a start must have in common with its checkpoint, and what the refusal says."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from service.checkpoint import manifest, resume
from service.checkpoint.manifest import Manifest
from service.errors import CheckpointError
from service.micro_batch import format_offsets
from service.spark.files import Local
from tests.stream.records import make_settings


def made(folder: Path, topic_ids: dict[str, str] | None = None, partitions: int = 4, **sections: Any) -> Manifest:
    return Manifest.of(make_settings(folder, **sections), topic_ids or {"readings": "A1"}, partitions)


def refusal(there: Manifest, wanted: Manifest) -> str:
    with pytest.raises(CheckpointError) as caught:
        manifest.require("/checkpoint", there, wanted)
    return str(caught.value)


def test_what_the_state_does_not_depend_on_may_change(tmp_path: Path) -> None:
    first = made(tmp_path)
    views = [{"name": "minute", "window": "1 m"}, {"name": "hour", "by": ["device"], "window": "1 h", "slide": "10 s"}]
    other = made(
        tmp_path,
        partitions=8,
        views=views,
        kafka={"bootstrap": "elsewhere:9092", "topics": ["more", "other"], "starting": "latest", "group": "other"},
        input={"measures": {"humidity": "humidity"}},
        admission={"max_delay": "1 h", "ranges": {"humidity": [0, 100]}},
        sessions={"gap": "1 m", "max_duration": "2 h", "retain": "1 d"},
        redis={"prefix": "other"},
    )
    manifest.require("/checkpoint", first, other)


def test_every_difference_is_named_with_both_values_and_the_way_on(tmp_path: Path) -> None:
    first = made(tmp_path).model_copy(update={"application": "9.9", "state_layout": 7, "query_shape": 0})
    text = refusal(first, made(tmp_path, sessions={"buckets": 32}))
    for part in (
        "/checkpoint was made by version 9.9 and does not fit",
        "the state's layout is 7, this version's is 2",
        "the query's shape is 0, this version's is",
        "sessions.buckets is 4, the settings say 32",
        "Start version 9.9, which made it, or start with a new checkpoint",
        "Set it back, or leave it out; or change the checkpoint with `tidemark checkpoint reshape`, or start with",
        "docs/operator/procedures.md#rebuild-from-kafka",
    ):
        assert part in text, text


def test_a_topic_of_the_same_name_and_another_id_is_another_topic(tmp_path: Path) -> None:
    text = refusal(made(tmp_path), made(tmp_path, {"readings": "B2"}))
    assert "the topic readings has the id A1, the one at kafka.bootstrap has B2" in text
    assert "deleted and created again" in text
    # A broker that tells no ids proves nothing.
    manifest.require("/checkpoint", made(tmp_path, {"readings": ""}), made(tmp_path))
    manifest.require("/checkpoint", made(tmp_path), made(tmp_path, {"readings": ""}))


def test_a_manifest_of_a_later_format_names_the_version_that_reads_it(tmp_path: Path) -> None:
    document = {**json.loads(made(tmp_path).encode()), "format": 3, "application": "3.0", "more": 1}
    (tmp_path / manifest.NAME).write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"is of format 3, this version reads 0, 1 or 2. Start version 3\.0"):
        manifest.read(Local(tmp_path))


def test_a_new_checkpoint_without_a_topic_that_was_read_is_refused_by_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = {"readings": {0: 3}, "meters": {0: 7, 1: 0}}
    monkeypatch.setattr(resume.clients, "reading", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(resume.redis_link, "progress", lambda *_: [format_offsets(read).encode()])
    monkeypatch.setattr(resume, "edges", lambda *_: {"readings": {0: (0, 9)}})
    with pytest.raises(CheckpointError, match=r"read again: meters\[0\] is not read \(kafka\.topics\)\. "):
        resume._require_all_of_it(make_settings(tmp_path))
    monkeypatch.setattr(
        resume, "edges", lambda *_: {topic: dict.fromkeys(each, (0, 9)) for topic, each in read.items()}
    )
    resume._require_all_of_it(make_settings(tmp_path))
