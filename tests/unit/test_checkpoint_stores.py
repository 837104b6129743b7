"""Which class of Spark commits the files of a checkpoint, and when S3's jars are on the class path."""

import os
from pathlib import Path

import pytest

from service.errors import SetupError
from service.spark import files, jars, session


@pytest.mark.parametrize(
    ("root", "ending"),
    [
        ("/var/lib/tidemark/checkpoint", ""),
        ("file:///var/lib/tidemark/checkpoint", ""),
        ("hdfs://name-node:8020/tidemark", ".FileContextBasedCheckpointFileManager"),
        ("hdfs:/tidemark", ".FileContextBasedCheckpointFileManager"),
        ("s3a://bucket/tidemark", ".AbortableStreamBasedCheckpointFileManager"),
    ],
)
def test_files_are_committed_as_their_file_system_can(root: str, ending: str) -> None:
    assert files.manager(root).endswith(ending)
    assert bool(files.manager(root)) == bool(ending)


@pytest.mark.parametrize(
    ("root", "folder"),
    [
        ("/srv/tidemark", "/srv/tidemark"),
        ("/srv/C#/line#1", "/srv/C#/line#1"),
        ("/srv/which?", "/srv/which?"),
        ("/srv/100%/a b", "/srv/100%/a b"),
        ("file:/srv/line#1", "/srv/line#1"),
        ("file:///srv/line#1?", "/srv/line#1?"),
        ("file://host/srv", "/srv"),
        ("hdfs://name-node:8020/srv", None),
        ("s3a://bucket/line#1", None),
    ],
)
def test_a_folder_of_this_machine_is_the_one_that_hadoop_takes(root: str, folder: str | None) -> None:
    assert files.local(root) == (folder and Path(folder))


def test_the_settings_for_local_files_are_those_that_another_store_replaces() -> None:
    assert session.conf()[files.MANAGER].endswith(".FileSystemBasedCheckpointFileManager")


def test_fetched_jars_for_s3_are_on_the_class_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    for group in ("spark", "s3"):
        (tmp_path / group).mkdir()
        for jar in jars.locked(group):
            (tmp_path / group / jar.name).write_bytes(b"")
    names = [Path(each).name for each in jars.class_path().split(os.pathsep)]
    assert "hadoop-aws-3.4.2.jar" in names
    assert "netty-nio-client-2.29.52.jar" in names
    assert not {"netty-common-4.1.115.Final.jar", "slf4j-api-1.7.36.jar"} & {*names}, (
        "Spark has its own versions of these"
    )
    (tmp_path / "s3" / "hadoop-aws-3.4.2.jar").unlink()
    with pytest.raises(SetupError, match=r"s3 lacks hadoop-aws-3\.4\.2\.jar\. Run `tidemark jars --group s3`"):
        jars.class_path()
