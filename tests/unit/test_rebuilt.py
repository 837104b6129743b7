"""The folders of a rebuild: what is begun, exchanged, undone and removed, and what a crash leaves."""

import json
import shutil
from pathlib import Path

import pytest

from service.checkpoint import rebuilt
from service.checkpoint.rebuilt import Folders, Record, Step
from service.errors import CheckpointError


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders.of(f"file:{tmp_path}/checkpoint/")
    made.used.mkdir()
    (made.used / "offsets").mkdir()
    (made.used / "offsets/7").write_text("former")
    return made


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != rebuilt.NAME
    }


def begun(folders: Folders) -> Folders:
    folders.begin()
    (folders.beside / "offsets").mkdir()
    (folders.beside / "offsets/3").write_text("new")
    return folders


def test_a_rebuild_is_begun_once_and_keeps_what_it_has(folders: Folders) -> None:
    begun(folders)
    record = Record(Step.COMPARED, 5, {"equal": 3})
    folders.write(record)
    folders.begin()
    assert folders.read() == record
    assert content(folders.beside) == {"offsets/3": "new"}
    assert (folders.is_begun, folders.is_switched) == (True, False)


def test_the_names_are_exchanged_and_back(folders: Folders) -> None:
    begun(folders).exchange()
    assert (content(folders.used), content(folders.beside)) == ({"offsets/3": "new"}, {"offsets/7": "former"})
    assert (folders.is_begun, folders.is_switched) == (False, True)
    with pytest.raises(CheckpointError, match="is a rebuilt checkpoint already"):
        folders.begin()
    folders.exchange()
    assert (content(folders.used), content(folders.beside)) == ({"offsets/7": "former"}, {"offsets/3": "new"})
    assert folders.read() == Record()


@pytest.mark.parametrize("is_switched", [False, True])
@pytest.mark.parametrize("crash", ["rmtree", "rmdir"])
def test_a_removal_that_was_cut_off_is_finished_and_the_service_keeps_its_folder(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, crash: str, is_switched: bool
) -> None:
    begun(folders)
    if is_switched:
        folders.exchange()
    kept = content(folders.used)

    def cut(*_: object) -> None:
        raise OSError(5, "cut off")

    with monkeypatch.context() as patched:
        patched.setattr(shutil if crash == "rmtree" else Path, crash, cut)
        with pytest.raises(CheckpointError, match="Repeat the command"):
            folders.remove()
    if folders.is_begun or folders.is_switched:
        with pytest.raises(CheckpointError, match=r"is being removed.*--forget"):
            folders.require_usable()
    folders.remove()
    assert not folders.beside.exists()
    assert content(folders.used) == kept
    assert not (folders.used / rebuilt.NAME).exists()
    folders.remove()


def test_what_cannot_be_is_refused_by_name(folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no rebuild"):
        folders.read()
    with pytest.raises(CheckpointError, match=r"cannot be exchanged: No such file"):
        folders.exchange()
    folders.beside.mkdir()
    (folders.beside / "mine").write_text("of somebody else")
    with pytest.raises(CheckpointError, match=r"it is not of a rebuild.*Move it away"):
        folders.begin()
    folders.remove()
    assert content(folders.beside) == {"mine": "of somebody else"}
    (folders.beside / rebuilt.NAME).write_text('{"format": 2}')
    with pytest.raises(CheckpointError, match="of another version"):
        folders.read()
    (folders.beside / rebuilt.NAME).write_text('{"format": 1')
    with pytest.raises(CheckpointError, match="cannot be read"):
        folders.read()
    with pytest.raises(CheckpointError, match="is not a folder of this machine"):
        Folders.of("s3a://bucket/checkpoint")


def test_the_state_names_its_schemas_where_the_checkpoint_is(folders: Folders) -> None:
    begun(folders)
    metadata, schema = folders.beside / "state/0/_metadata/v2", "state/0/_stateSchema/default/0_a"
    metadata.mkdir(parents=True)
    store = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [f"file:/somewhere/{schema}"]}
    (metadata / "0").write_text("v2\n" + json.dumps({"stateStoreInfo": [store]}))
    (metadata / ".0.crc").write_bytes(b"of the former content")
    for place in (folders.used, folders.beside):
        folders.settle(place)
        head, _, text = (metadata / "0").read_text().partition("\n")
        assert json.loads(text)["stateStoreInfo"] == [{**store, "stateSchemaFilePaths": [f"file:{place}/{schema}"]}]
        assert head == "v2"
    assert not (metadata / ".0.crc").exists()
