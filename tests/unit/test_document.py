"""Own files of the checkpoint: what is written is read back, and an error names the file, the field and the remedy."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from service.checkpoint import document
from service.checkpoint.document import Document
from service.errors import CheckpointError, SetupError
from service.spark.files import Local


@dataclass(frozen=True, slots=True)
class Content:
    format: Literal[1, 2] = field(default=1, kw_only=True)
    offsets: Mapping[str, Mapping[int, int]]


FILE = Document[Content]("folder/file.json", Content, remedy="Do something")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    folder = Local(tmp_path)
    assert FILE.read(folder) is None
    FILE.write(folder, Content({"readings": {0: 7}}))
    assert folder.read(FILE.name) == b'{"format":1,"offsets":{"readings":{"0":7}}}'
    assert FILE.read(folder) == FILE.required(folder) == Content({"readings": {0: 7}})
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file.json"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is damaged: Invalid JSON: EOF.*Do something"),
        (b"\xff", "is damaged: Invalid JSON.*Do something"),
        (b'{"offsets": {"readings": {"x": 7}}}', r"is damaged: offsets\.readings\.x\.\[key\]: .*integer.*Do something"),
        (b'{"format": 2}', "is damaged: offsets: .*equired.*Do something"),
        (b'{"format": 3, "offsets": {}}', "is of format 3, this version reads 1 or 2. Start the version that wrote it"),
    ],
)
def test_a_damaged_file_is_named_with_its_field_and_a_remedy(tmp_path: Path, content: bytes, text: str) -> None:
    folder = Local(tmp_path)
    folder.replace(FILE.name, content)
    for read in (FILE.read, FILE.required):
        with pytest.raises(CheckpointError, match=f"{tmp_path}/folder/file.json {text}"):
            read(folder)


def test_a_file_that_is_missing_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"folder/file\.json cannot be read: .*Do something"):
        FILE.required(Local(tmp_path))
    (tmp_path / FILE.name).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"folder/file\.json cannot be read: .*Do something"):
        FILE.read(Local(tmp_path))


@pytest.mark.parametrize(
    ("number", "family"), [(errno.ENOSPC, SetupError), (errno.EDQUOT, SetupError), (errno.EACCES, CheckpointError)]
)
def test_a_write_that_fails_is_named(tmp_path: Path, number: int, family: type[Exception]) -> None:
    class Failing(Local):
        def replace(self, name: str, content: bytes, *, is_synced: bool = False) -> None:
            raise OSError(
                number, {errno.ENOSPC: "No space left on device", errno.EDQUOT: "Disk quota exceeded"}.get(number, "no")
            )

    for write in (
        lambda: FILE.write(Failing(tmp_path), Content({})),
        lambda: document.store(Failing(tmp_path), FILE.name, b""),
    ):
        with pytest.raises(family, match=r"folder/file\.json cannot be written: "):
            write()


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    """A type that must not lose them on a write forbids them, as the manifest does."""
    folder = Local(tmp_path)
    folder.replace(FILE.name, b'{"format": 1, "offsets": {}, "more": 1}')
    assert FILE.read(folder) == Content({})


def test_a_document_is_synced_unless_each_batch_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def noted(number: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{number}")).name, (tmp_path / FILE.name).exists()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    FILE.write(Local(tmp_path), Content({}))
    assert synced == [(".file.json.new", False), ("folder", True)], "the content before the name, and then the name"
    replace(FILE, is_synced=False).write(Local(tmp_path), Content({}))
    assert len(synced) == 2
