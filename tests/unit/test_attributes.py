"""Attributes of devices: which row they come from, and which snapshot."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from service.errors import ReferenceDataError
from service.reference import attributes, snapshots
from service.reference.attributes import SERVING, Index, Serving, Stored


def snapshot(**sites: str | None) -> pa.Table:
    return pa.table({"device": [*sites], "site": pa.array([*sites.values()], pa.string())})


def serve(folder: Path, table: pa.Table) -> Path:
    """Store it as the snapshot that serves; the path of its file."""
    stored = snapshots.store(folder, table)
    (folder / SERVING).write_text(stored.version, encoding="ascii")
    return stored.path


def test_each_device_has_its_row_and_an_unknown_one_nulls() -> None:
    rows = Index(snapshot(a="north", b=None, c="south")).of(pa.array(["c", "x", "b", "a"]))
    assert rows.to_pydict() == {"site": ["south", None, None, "north"], "known": [True, False, True, True]}


def test_a_reference_of_nothing_knows_nobody_and_no_devices_have_no_rows() -> None:
    assert Index(snapshot()).of(pa.array(["a"])).to_pydict() == {"site": [None], "known": [False]}
    assert Index(snapshot(a="north")).of(pa.array([], pa.string())).num_rows == 0


def test_two_devices_of_one_hash_are_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash of two values: nearly all share theirs, and one that is not there has that of those that are."""
    monkeypatch.setattr(attributes, "_hash", lambda devices: np.array([len(d) % 2 for d in devices.to_pylist()], "u8"))
    names = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]
    index = Index(snapshot(**{name: f"at-{name}" for name in names}))
    rows = index.of(pa.array([*reversed(names), "g", "hh"]))
    assert rows["site"].to_pylist() == [*(f"at-{name}" for name in reversed(names)), None, None]
    assert rows["known"].to_pylist() == [True] * 6 + [False] * 2


def test_who_needs_one_column_gets_one_and_who_needs_none_is_told_who_is_known() -> None:
    table = snapshot(a="north").append_column("type", pa.array(["pump"]))
    assert Index(table).only(["type"]).of(pa.array(["a"])).to_pydict() == {"type": ["pump"], "known": [True]}
    assert Index(table).only([]).of(pa.array(["x", "a"])).to_pydict() == {"known": [False, True]}


def test_a_stored_snapshot_is_found_by_its_index_and_an_old_file_without_one_too(tmp_path: Path) -> None:
    names = [f"d{n}" for n in range(1000)]
    table = pa.table({"device": names, "site": names})
    stored = snapshots.store(tmp_path, table)
    wanted = pa.array(["d7", "d999", "x"])
    assert stored.attributes().of(wanted)["site"].to_pylist() == ["d7", "d999", None]
    with pa.OSFile(str(tmp_path / "old.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=64)
    assert Stored(tmp_path / "old.arrow", ("site",)).of(wanted)["site"].to_pylist() == ["d7", "d999", None]


def test_a_snapshot_is_read_once_and_the_next_one_when_it_serves(tmp_path: Path) -> None:
    serving = Serving(tmp_path, ("site",))
    first = serve(tmp_path, snapshot(a="old"))
    assert serving.of(pa.array(["a"]))["site"].to_pylist() == ["old"]
    first.unlink()
    assert pickle.loads(pickle.dumps(serving)).of(pa.array(["a"]))["site"].to_pylist() == ["old"]  # noqa: S301 - our own
    serve(tmp_path, snapshot(a="new", b="new"))
    assert serving.of(pa.array(["a", "b"]))["site"].to_pylist() == ["new", "new"]


def test_a_worker_without_the_snapshot_says_which_file_and_what_to_do(tmp_path: Path) -> None:
    serve(tmp_path, snapshot(a="north")).unlink()
    with pytest.raises(
        ReferenceDataError, match=r"\.arrow: an executor cannot read .*same on the driver and every executor"
    ):
        Serving(tmp_path, ("site",)).of(pa.array(["a"]))
