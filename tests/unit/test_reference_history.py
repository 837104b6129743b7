"""Which snapshot each batch has used: what is kept of it, and which attributes a record of the past gets."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from service.admission.readings import number_of
from service.errors import CheckpointError
from service.micro_batch import MicroBatch, Offsets
from service.reference import history, snapshots
from service.reference.current_snapshot import CurrentSnapshot
from service.reference.folder import SharedFolder
from service.reference.history import History, Then

TOPICS = ("readings", "more")


def batch(number: int, start: Offsets) -> MicroBatch:
    return MicroBatch(1, number, 0, start, start)


def table(sites: dict[str, str], **more: list[str]) -> pa.Table:
    return pa.table({"device": [*sites], "site": [*sites.values()], **more})


class Folder:
    """A folder, and the snapshots that batches use one after the other."""

    def __init__(self, path: Path, **sites: str) -> None:
        self.path = path
        snapshots.store(path, table(sites))
        self.current = CurrentSnapshot(path, ("site",))

    def swap(self, **sites: str) -> None:
        snapshots.store(self.path, table(sites))
        self.current.swap()

    def then(self) -> Then:
        newest = self.current.snapshot.attributes()
        found = history.attributes(SharedFolder(self.path), newest, TOPICS, number_of)
        assert isinstance(found, Then)
        return found

    def sites(self, device: str, *places: tuple[str, int, int]) -> list[str | None]:
        """The site of a device for records at some places."""
        codes = np.array([number_of(topic, partition, TOPICS) for topic, partition, _ in places])
        found: dict[int, str | None] = {}
        for rows, attributes in self.then().split(codes, np.array([offset for *_, offset in places])):
            site = attributes.of(pa.array([device]))["site"][0].as_py()
            found |= dict.fromkeys(rows.tolist(), site)
        return [found[row] for row in range(len(places))]


def test_a_record_has_the_attributes_of_the_batch_that_has_read_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path, a="north", b="north")
    folder.current.note(batch(0, {}))
    folder.current.note(batch(1, {"readings": {0: 10, 1: 20}}))
    folder.swap(a="south", b="north")
    folder.current.note(batch(2, {"readings": {0: 15, 1: 25}}))
    folder.swap(b="north")
    folder.current.note(batch(3, {"readings": {0: 15, 1: 30}, "more": {0: 5}}))
    places = [("readings", 0, 14), ("readings", 0, 15), ("readings", 1, 24), ("readings", 1, 29), ("readings", 1, 30)]
    assert folder.sites("a", *places) == ["north", None, "north", "south", None]
    assert folder.sites("b", *places) == ["north"] * 5
    # A topic that came while a snapshot was in use has that one's attributes before the next one.
    assert folder.sites("a", ("more", 0, 0), ("more", 0, 5)) == ["south", None]
    assert folder.then().of(pa.array(["b"]))["site"].to_pylist() == ["north"]


def test_a_batch_that_is_repeated_with_another_snapshot_takes_its_own_place(tmp_path: Path) -> None:
    folder = Folder(tmp_path, a="north")
    folder.current.note(batch(0, {}))
    folder.swap(a="south")
    folder.current.note(batch(1, {"readings": {0: 10}}))
    folder.swap(a="west")
    folder.current.note(batch(1, {"readings": {0: 10}}))
    assert folder.sites("a", ("readings", 0, 9), ("readings", 0, 10)) == ["north", "west"]


def test_some_snapshots_that_were_used_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    folder = Folder(tmp_path, a="s0")
    folder.current.note(batch(0, {}))
    for number in range(1, 6):
        folder.swap(a=f"s{number}")
        folder.current.note(batch(number, {"readings": {0: 10 * number}}))
    found = history.read(SharedFolder(tmp_path))
    assert (len(found.uses), found.is_cut) == (3, True)
    assert folder.sites("a", ("readings", 0, 5), ("readings", 0, 45), ("readings", 0, 50)) == ["s3", "s4", "s5"]
    folder.swap(a="s6")
    assert len([*tmp_path.glob("*.arrow")]) == 4
    monkeypatch.setattr(history, "KEPT_ROWS", 0)
    folder.current.note(batch(6, {"readings": {0: 60}}))
    assert [use.begin for use in history.read(SharedFolder(tmp_path)).uses] == [
        {"readings": {0: 50}},
        {"readings": {0: 60}},
    ]


def test_a_column_that_came_later_has_the_attributes_of_then(tmp_path: Path) -> None:
    folder = Folder(tmp_path, a="north")
    folder.current.note(batch(0, {}))
    snapshots.store(tmp_path, table({"a": "south"}, kind=["pump"]))
    folder.current.swap()
    folder.current.note(batch(1, {"readings": {0: 10}}))
    then = folder.then().only(("kind", "site"))
    ((_, attributes),) = then.split(np.array([0]), np.array([3]))
    assert attributes.of(pa.array(["a"])).to_pydict() == {"kind": ["pump"], "site": ["south"], "known": [True]}


def test_a_snapshot_that_an_older_version_has_removed_is_left_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path, a="north")
    folder.current.note(batch(0, {}))
    for number, site in enumerate(("south", "west"), start=1):
        folder.swap(a=site)
        folder.current.note(batch(number, {"readings": {0: 10 * number}}))
    south = history.read(SharedFolder(tmp_path)).uses[1].version
    (tmp_path / f"{south}.arrow").unlink()
    assert folder.sites("a", ("readings", 0, 5), ("readings", 0, 15), ("readings", 0, 20)) == ["north", "north", "west"]


def test_a_history_that_begins_in_a_running_checkpoint_is_cut(tmp_path: Path) -> None:
    folder = Folder(tmp_path, a="north")
    folder.current.note(batch(7, {"readings": {0: 70}}))
    assert history.read(SharedFolder(tmp_path)).is_cut
    newest = folder.current.snapshot.attributes()
    assert history.attributes(SharedFolder(tmp_path), newest, TOPICS, number_of) is newest


def test_damage_is_named(tmp_path: Path) -> None:
    assert history.read(SharedFolder(tmp_path)) == History()
    for text in ("", "[]", '{"uses": [{}], "is_cut": false}'):
        (tmp_path / history.DOCUMENT.name).write_text(text)
        with pytest.raises(CheckpointError, match=history.DOCUMENT.name):
            history.read(SharedFolder(tmp_path))
