"""Files for tasks: a name belongs to one content, and the same content is handed out once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from service.reference import folder
from service.spark import handed_out
from service.spark.handed_out import hand_out


class Context:
    """Spark's part: it refuses another path for a name that it has."""

    def __init__(self, application: str) -> None:
        self.applicationId = application  # Spark's name
        self.paths: dict[str, Path] = {}

    def addFile(self, text: str) -> None:  # noqa: N802 - Spark's name
        path = Path(text)
        assert self.paths.setdefault(path.name, path) == path, "already registered with a different path"


def test_two_queries_with_the_same_content_and_one_that_starts_again_hand_out_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_out.SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    context: Any = Context("one")
    names = [hand_out(context, "columns", content) for content in (b"a", b"a", b"b", b"a")]
    assert len(set(names)) == 2
    assert names[0] == names[1] == names[3]
    assert [context.paths[name].read_bytes() for name in sorted(set(names), key=names.index)] == [b"a", b"b"]
    assert hand_out(context, "devices-1", b"a") != names[0]
    assert {path.parents[1] for path in context.paths.values()} == {tmp_path}, "Spark removes them at its end"
    other: Any = Context("another application")
    assert hand_out(other, "columns", b"a") == names[0]
    assert {*other.paths} == {names[0]}


class Store:
    """A file system that Python's workers cannot read."""

    files: ClassVar[dict[str, bytes]] = {}

    def __init__(self, _spark: object, root: str) -> None:
        self.root = root

    def read(self, name: str) -> bytes:
        return self.files[name]

    def replace(self, name: str, content: bytes) -> None:
        self.files[name] = content


def test_only_a_snapshot_of_the_reference_that_is_handed_out_takes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of devices that never came opens the reference's folder each minute."""
    monkeypatch.setattr(handed_out.SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    monkeypatch.setattr(handed_out.tempfile, "tempdir", str(tmp_path))
    for name in ("__init__", "files", "read", "replace"):
        monkeypatch.setattr(folder.Files, name, getattr(Store, name), raising=False)
    spark: Any = SimpleNamespace(sparkContext=Context("one"))
    for _ in range(3):
        reference = folder.RemoteFolder(spark, "s3a://bucket/reference")
        reference.replace("sent.json", b"{}")
        assert reference.read("sent.json") == b"{}"
    assert [*tmp_path.iterdir()] == []
    reference.replace("0123456789ab.arrow", b"rows")
    copies = [reference.path("0123456789ab.arrow") for _ in range(2)]
    assert copies[0] == copies[1] == next(iter(spark.sparkContext.paths.values()))
    assert copies[0].read_bytes() == b"rows"
    assert copies[0].parents[1] == tmp_path
