"""Outlets without the pass: positions, the outbox, deliveries, files, and the example of docs/outlets.md."""

import errno
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from service import clock
from service.checkpoint import view_versions
from service.errors import CheckpointError, FencedError, OutletError, SetupError
from service.micro_batch import MicroBatch
from service.outlets import outlet, recomputed, tables
from service.outlets.kafka import Kafka
from service.outlets.outbox import EntryView, EpochBehindError, Outbox, Scope
from service.outlets.outlet import Entry, Outlet, Position, RefusedRowsError
from service.outlets.parquet import Parquet
from service.outlets.publication import Outlets, whole
from service.recompute.job_log import Log
from service.settings import ParquetOutlet, Settings
from service.spark.files import Local
from state import codec, settled, windows
from state.layout import Changes, session_schema, status_schema
from state.statistics import Shown
from state.window_columns import COLUMNS, PaneReadings, columns_of
from tests.stream.records import BASE_MS, make_settings

ROOT = Path(__file__).resolve().parents[2]
NONE = Position(0, -1)
"""No entry beside a batch."""


def micro_batch(epoch: int, batch: int, start: int = 0) -> MicroBatch:
    return MicroBatch(epoch, batch, BASE_MS + 3_600_000, {"readings": {0: start}}, {"readings": {0: start + 10}})


def test_a_replayed_batch_is_the_same_and_one_of_a_checkpoint_that_begins_again_is_not() -> None:
    reached = Position.of(micro_batch(3, 80, 800))
    assert Position.of(micro_batch(4, 80, 800)).is_in(reached)
    assert not Position.of(micro_batch(4, 80, 500)).is_in(reached)
    assert not Position.of(micro_batch(4, 3)).is_in(reached)
    assert not Position.of(micro_batch(3, 81, 800)).is_in(reached)
    assert Position.of(micro_batch(3, 79, 500)).is_in(reached)
    assert Position.of(micro_batch(2, 90, 900)).is_in(reached)
    assert not Position.of(micro_batch(3, 80)).is_in(None)


def test_a_position_is_read_as_it_was_written_and_damage_is_named() -> None:
    position = Position.of(micro_batch(3, 80)).by(5)
    assert outlet.parse(position.to_json(), "here") == position
    for text in ("", "[]", "{}", '{"epoch": 1}', '{"epoch": 1, "batch": "next"}'):
        with pytest.raises(OutletError, match="here: the position of the outlet cannot be read"):
            outlet.parse(text, "here")


def test_no_writer_of_an_older_epoch_is_let_in() -> None:
    outlet.require_newest(Position(1, 1, writer=5), 5, "here")
    with pytest.raises(FencedError, match="here: epoch 5 has written there, this is epoch 4"):
        outlet.require_newest(Position(1, 1, writer=5), 4, "here")


def closed(*keys: str, view: str = "device", start: int = BASE_MS, count: int = 2) -> bytes:
    """The payload of finals: a closed window for each key."""
    size = len(keys)
    numbers = np.arange(size)
    columns = {name: np.full(size, 1.0) for name in windows.SCHEMA.names if name not in windows.KEY}
    columns |= {"count": np.full(size, count), "first": np.full(size, start), "last": np.full(size, start)}
    table = windows.parts(
        view, "temperature", pa.array(list(keys), pa.string()), numbers, np.full(size, start),
        np.full(size, start + 60_000), columns,
    )  # fmt: skip
    return codec.pack_changes(Changes(session_schema(()).empty_table(), status_schema(()).empty_table(), table))


def entry_of(settings: Settings, position: Position, *payloads: bytes) -> Entry:
    finals = windows.concat([codec.unpack_changes(each).windows for each in payloads])
    chosen = {view.name: view.shown for view in settings.views}
    return Entry(position, tables.windows(finals, chosen, position.epoch, position.batch, "watermark"))


def rows(path: Path) -> list[dict[str, Any]]:
    return ds.dataset(path, format="parquet", partitioning="hive").to_table().to_pylist()


def files(path: Path, **more: Any) -> Parquet:
    return Parquet(ParquetOutlet(name="files", kind="parquet", path=str(path), **more))


def test_an_entry_that_is_written_again_replaces_its_files(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    path = tmp_path / "files"
    entry = entry_of(
        settings, Position.of(micro_batch(1, 7)), closed("a", "b"), closed("c", start=BASE_MS + 86_400_000)
    )
    first = files(path)
    assert first.open(1) is None
    first.write(entry)
    (path / "_position.json").unlink()
    again = files(path)
    assert again.open(2) is None
    again.write(replace(entry, position=entry.position.by(2)))
    found = rows(path)
    assert sorted(row["key"] for row in found) == ["a", "b", "c"]
    assert {(row["view"], row["count"], row["end"].timestamp() - row["start"].timestamp()) for row in found} == {
        ("device", 2, 60.0)
    }
    assert len({row["day"] for row in found}) == 2
    assert files(path).open(3) == entry.position.by(2)
    with pytest.raises(FencedError):
        again.write(replace(entry, position=Position.of(micro_batch(2, 8))))
    with pytest.raises(FencedError):
        files(path).open(2)


def test_many_files_become_one_and_each_key_keeps_its_newest_row(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    path = tmp_path / "files"
    made = files(path, compact_after=5)
    made.open(1)
    for batch in range(12):
        key = f"k{batch}" if batch % 4 else "same"
        made.write(entry_of(settings, Position.of(micro_batch(1, batch, 10 * batch)), closed(key, count=batch + 1)))
    found = {row["key"]: row["count"] for row in rows(path)}
    assert len(rows(path)) == len(found) == 10
    assert found == {"same": 9, **{f"k{batch}": batch + 1 for batch in range(12) if batch % 4}}
    assert len([*path.rglob("*.parquet")]) < 5


def test_a_large_file_is_not_compacted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    path = tmp_path / "files"
    made = files(path, compact_after=5)
    made.open(1)
    sizes = []
    for batch in range(60):
        made.write(entry_of(settings, Position.of(micro_batch(1, batch, 10 * batch)), closed(f"k{batch}")))
        if not batch:
            (first,) = path.rglob("*.parquet")
            monkeypatch.setattr("service.outlets.parquet._LARGE", first.stat().st_size + 20)
        sizes.append(max(pq.read_metadata(each).num_rows for each in path.rglob("*.parquet")))
    assert len(rows(path)) == 60
    assert max(sizes) == 2, "two small files are too many for one that is small"
    assert len([*path.rglob("*.parquet")]) < 40
    opened = []
    read = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda file: opened.append(file) or read(file))
    files(path).open(2)
    assert not opened, "a start does not read the large files"


def test_a_compaction_that_was_cut_off_is_finished_at_the_next_start(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    path = tmp_path / "files"
    made = files(path, compact_after=5)
    made.open(1)
    made._remove = lambda *_: None  # type: ignore[method-assign, assignment]
    for batch in range(5):
        made.write(entry_of(settings, Position.of(micro_batch(1, batch)), closed(f"k{batch}")))
    assert len(rows(path)) == 10
    files(path).open(2)
    assert sorted(row["key"] for row in rows(path)) == [f"k{batch}" for batch in range(5)]


def test_a_compaction_is_finished_that_was_cut_off_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, path = make_settings(tmp_path), tmp_path / "files"
    made = files(path, compact_after=5)
    made.open(1)
    for batch in range(10):
        if batch == 5:
            (first,) = path.rglob("*-compacted-*")
            os.utime(first, (2e9, 2e9))
            monkeypatch.setattr("service.outlets.parquet._LARGE", first.stat().st_size - 1)
            made._remove = lambda *_: None  # type: ignore[method-assign, assignment]
        made.write(entry_of(settings, Position.of(micro_batch(1, batch)), closed(f"k{batch}")))
    assert len(rows(path)) > 10
    files(path).open(2)
    assert sorted(row["key"] for row in rows(path)) == [f"k{batch}" for batch in range(10)]


def test_a_file_that_was_begun_is_removed_at_the_next_start_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    path = tmp_path / "files"
    made = files(path, compact_after=2)
    made.open(1)
    made.write(entry_of(settings, Position.of(micro_batch(1, 0)), closed("a")))
    (file,) = path.rglob("*.parquet")
    begun = [file.with_name(f".{file.name}.new"), path / "._position.json.new"]
    for each in begun:
        each.write_bytes(b"half")
    assert made.open(2) is not None
    assert not [each for each in begun if each.exists()]
    file.write_bytes(b"")
    with pytest.raises(OutletError, match=re.escape(f"{file} cannot be read")):
        made.write(entry_of(settings, Position.of(micro_batch(2, 1, 10)), closed("b")))


def test_json_has_no_field_for_a_number_that_is_not_finite(tmp_path: Path) -> None:
    section = {"name": "events", "kind": "kafka", "topic": "finals", "format": "json"}
    settings = make_settings(tmp_path, outlets=[section])
    found = entry_of(settings, Position.of(micro_batch(1, 0)), closed("a")).rows
    for name, value in (("sum", np.inf), ("stddev", np.nan)):
        found = found.set_column(found.column_names.index(name), name, pa.array([value]))
    (text,) = Kafka(settings.outlets[0], settings)._values(found)
    document = json.loads(text, parse_constant=pytest.fail)
    assert (document["count"], document["mean"]) == (2, 1.0)
    assert not {"sum", "stddev"} & document.keys()


def test_an_older_writer_of_files_is_locked_out_by_open_before_the_first_entry(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    old, new = files(tmp_path / "files"), files(tmp_path / "files")
    assert old.open(56) is None
    assert new.open(57) is None
    with pytest.raises(FencedError, match="epoch 57 has written there, this is epoch 56"):
        old.write(entry_of(settings, Position.of(micro_batch(56, 0)), closed("a")))
    assert "new" in new.check()


def test_the_outbox_keeps_entries_in_order_and_removes_those_of_uncommitted_batches(tmp_path: Path) -> None:
    outbox = Outbox(Local(tmp_path))
    for epoch, batch in ((1, 9), (2, 10), (2, 11)):
        outbox.store(Position.of(micro_batch(epoch, batch)), [closed("a"), closed("b")], "watermark", Scope({}))
    found = Outbox(Local(tmp_path)).entries(10, NONE)
    assert [(each.position.epoch, each.position.batch) for each in found] == [(1, 9), (2, 10)]
    finals = outbox.load(found[0])
    assert finals.closed_by == "watermark"
    assert finals.windows["key"].to_pylist() == ["a", "b"]
    assert finals.sessions.num_rows == 0
    for each in found:
        outbox.remove(each.name)
    assert not outbox.entries(10, NONE)


def test_a_repeated_entry_has_the_time_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for epoch, now_ms in ((1, 5_000), (1, 70_000), (2, 200_000)):
        monkeypatch.setattr(clock, "now_ms", lambda now_ms=now_ms: now_ms)
        outbox = Outbox(Local(tmp_path))
        assert not outbox.entries(8, NONE)
        stored = outbox.store(Position.of(micro_batch(epoch, 9)), [closed("a")], "watermark", Scope({}))
        assert stored.at_ms == 5_000
    (tmp_path / stored.name).write_bytes(b"damaged")
    outbox = Outbox(Local(tmp_path))
    assert not outbox.entries(8, NONE)
    assert outbox.store(Position.of(micro_batch(2, 9)), [closed("a")], "watermark", Scope({})).at_ms == 200_000
    assert outbox.store(Position.of(micro_batch(2, 10)), [closed("a")], "watermark", Scope({})).at_ms == 200_000


@pytest.mark.parametrize("keep", [0, 3, 40, -1])
def test_a_damaged_entry_is_named(tmp_path: Path, keep: int) -> None:
    outbox = Outbox(Local(tmp_path))
    stored = outbox.store(Position.of(micro_batch(1, 9)), [closed("a")], "watermark", Scope({}))
    file = tmp_path / stored.name
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=stored.name):
        outbox.load(stored)


@pytest.mark.parametrize(
    ("member", "damaged"), [("views", []), ("views", {"device": 1}), ("views", {"device": ["a", 1]}), ("outlets", 7)]
)
def test_an_entry_with_a_damaged_header_is_named_at_the_start(tmp_path: Path, member: str, damaged: object) -> None:
    outbox = Outbox(Local(tmp_path))
    stored = outbox.store(Position.of(micro_batch(1, 9)), [closed("a")], "watermark", Scope({}))
    file = tmp_path / stored.name
    content = file.read_bytes()
    size = int.from_bytes(content[:4], "little")
    header = json.dumps({**json.loads(content[4 : 4 + size]), member: damaged}).encode()
    file.write_bytes(len(header).to_bytes(4, "little") + header + content[4 + size :])
    with pytest.raises(CheckpointError, match=stored.name):
        outbox.entries(9, NONE)
    assert not outbox.entries(8, NONE), "an entry that comes again is removed all the same"


class Memory:
    """An outlet in memory that is away, or waits, when it is told to."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.is_away = False
        self.may_write = threading.Event()
        self.may_write.set()

    def check(self) -> str:
        return "is there"

    def open(self, epoch: int) -> Position | None:
        if self.is_away:
            raise OutletError("Memory is away")
        return self.entries[-1].position if self.entries else None

    def write(self, entry: Entry) -> int:
        assert self.may_write.wait(30)
        if self.is_away:
            raise OutletError("Memory is away")
        self.entries.append(entry)
        return 1

    def close(self) -> None:
        """Nothing is open."""

    @property
    def keys(self) -> list[str]:
        return [key for entry in self.entries for key in entry.rows["key"].to_pylist()]

    @property
    def values(self) -> list[tuple[Any, ...]]:
        """Key, count, revision and closed_by of each row."""
        names = ("key", "count", "revision", "closed_by")
        return [tuple(row[name] for name in names) for entry in self.entries for row in entry.rows.to_pylist()]


class Refusing(Memory):
    """Refuses the rows of some keys for themselves."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.refused = {*keys}

    def write(self, entry: Entry) -> int:
        found = {row: f"no {key}" for row, key in enumerate(entry.rows["key"].to_pylist()) if key in self.refused}
        if found:
            raise RefusedRowsError(dict(reversed(found.items())))
        return super().write(entry)


class Watcher:
    """Counts."""

    def __init__(self) -> None:
        self.rows = 0
        self.failures = 0

    def outlet_writes(self, outlet: str, rows: int, size: int) -> None:
        self.rows += rows

    def outlet_fails(self, outlet: str) -> None:
        self.failures += 1


Begin = Callable[..., Outlets]
DEVICE_VIEW = {"device": EntryView("device", Shown(("count", "last")))}
OTHER_VIEWS = [{"name": "other", "by": ["device"], "window": "1 m"}]


@pytest.fixture
def begin(tmp_path: Path, request: pytest.FixtureRequest) -> Begin:
    def start(
        memory: Outlet, *, committed: int = -1, epoch: int = 1, all_views: Sequence[Mapping[str, Any]] = (), **more: Any
    ) -> Outlets:
        section = {"name": "files", "kind": "parquet", "path": "nowhere", "retry_for": 100, **more}
        settings = make_settings(tmp_path, outlets=[section], **({"views": all_views} if all_views else {}))
        made = Outlets(settings, Outbox(Local(tmp_path)), epoch, lambda _: memory, Watcher(), committed=committed)
        made.start()
        request.addfinalizer(made.close)
        return made

    return start


def test_a_view_of_an_entry_is_read_as_it_was_written_also_by_earlier_versions() -> None:
    shown = Shown(("count", "increase", "last"), per_ms=3_600_000, wraps_at=65_536.0)
    for view, stored in (
        (EntryView("meter", shown, "Europe/Rome"), ["meter", [*shown.names], "Europe/Rome", 3_600_000, 65_536.0]),
        (EntryView("meter", shown), ["meter", [*shown.names], "", 3_600_000, 65_536.0]),
        (EntryView("meter", Shown(("count",)), "Europe/Rome"), ["meter", ["count"], "Europe/Rome"]),
        (EntryView("meter", Shown(("count",))), ["meter", ["count"]]),
    ):
        assert view.to_list() == stored
        assert EntryView.parse(stored) == view
    for damaged in (["meter"], ["meter", ["count"], "", 1, 1, 1], 7):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says
            EntryView.parse(damaged)


def test_a_batch_is_in_the_outlet_when_its_publication_returns(begin: Begin, tmp_path: Path) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    made.publish(micro_batch(1, 0), [])
    made.publish(micro_batch(1, 1, 10), [closed("a"), closed("b")])
    assert memory.keys == ["a", "b"]
    made.publish(micro_batch(1, 2, 20), [closed("c")])
    assert memory.keys == ["a", "b", "c"]
    made.close()
    assert not [*(tmp_path / "outlets").iterdir()]


def test_an_outlet_that_is_away_falls_behind_and_catches_up_in_order(begin: Begin, tmp_path: Path) -> None:
    memory = Memory()
    memory.is_away = True
    made = begin(memory)
    for batch in range(4):
        made.publish(micro_batch(1, batch, 10 * batch), [closed(f"k{batch}")])
    progress = made.progress()["files"]
    assert progress.is_behind
    assert progress.pending == 4
    assert "Memory is away" in progress.error
    made.close()
    memory.is_away = False
    after = begin(memory, committed=2, retry_for="30 s")
    after.publish(micro_batch(2, 3, 30), [closed("k3")])  # not committed: comes again
    assert after.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == [f"k{batch}" for batch in range(4)]
    assert not after.progress()["files"].is_behind


@pytest.mark.silent("0.5")
def test_a_row_that_an_outlet_refuses_is_set_aside_and_the_others_go_on(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Refusing("bad", "worse")
    made = begin(memory, retry_for="30 s")
    made.publish(micro_batch(1, 0), [closed("a", "bad", "b", "worse")])
    made.publish(micro_batch(1, 1, 10), [closed("c")])
    assert memory.keys == ["a", "b", "c"]
    assert made.progress()["files"].refused == 2
    (file,) = (tmp_path / "outlets").glob("refused-files-*")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["refused"], line["key"], line["count"]) for line in lines] == [
        ("no bad", "bad", 2),
        ("no worse", "worse", 2),
    ]
    assert (
        f"The outlet files refuses 2 rows of batch 0 of epoch 1, which are set aside in {file}: no bad" in caplog.text
    )
    made.close()
    # They are still reported after a restart, until the file is removed.
    again = begin(memory, committed=1, epoch=2)
    assert again.progress()["files"].refused == 2
    file.unlink()
    again.publish(micro_batch(2, 2, 20), [closed("d")])
    assert again.progress()["files"].refused == 0


def test_an_outlet_that_refuses_many_is_away(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.outlets.delivery.MOST_REFUSED", 1)
    memory = Refusing("bad", "worse")
    made = begin(memory)
    made.publish(micro_batch(1, 0), [closed("a", "bad", "b", "worse")])
    assert "The outlet files refuses 2 of 4 rows: no bad" in made.progress()["files"].error
    assert not [*(tmp_path / "outlets").glob("refused-*")]
    memory.refused = {"bad"}
    assert made.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["a", "b", "worse"]


def test_a_backlog_above_max_pending_makes_batches_wait_and_fail(begin: Begin) -> None:
    memory = Memory()
    memory.is_away = True
    made = begin(memory, max_pending="1 MiB")
    many = closed(*(f"key-{number:06d}" for number in range(5_000)))
    made.publish(micro_batch(1, 0), [many])
    with pytest.raises(OutletError, match="The outlet files lacks 2 batches"):
        made.publish(micro_batch(1, 1, 10), [many])


def test_a_batch_waits_for_an_outlet_that_is_to_be_waited_for(begin: Begin) -> None:
    memory = Memory()
    memory.may_write.clear()
    made = begin(memory, when_away="wait")
    with pytest.raises(OutletError, match="The outlet files lacks 1 batches: it does not answer in time"):
        made.publish(micro_batch(1, 0), [closed("a")])
    memory.may_write.set()
    assert made.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["a"]


def test_a_stop_waits_for_all_outlets_together(term: "Term", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.outlets.publication.ENDING_S", 0.5)
    memories = {name: Memory() for name in ("one", "two", "three")}
    for memory in memories.values():
        memory.may_write.clear()
    made = term(1, -1, **memories)
    made.publish(micro_batch(1, 0), [closed("a")])
    begun_s = clock.monotonic_s()
    made.close()
    assert 0.4 < clock.monotonic_s() - begun_s < 1.0
    for memory in memories.values():
        memory.may_write.set()


def test_only_windows_of_the_outlets_views_are_written(begin: Begin) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s", views=["device"])
    made.publish(micro_batch(1, 0), [closed("x", view="gone"), closed("a")])
    made.publish(micro_batch(1, 1, 10), [closed("y", view="gone")])
    assert memory.keys == ["a"]


def test_the_outlet_in_the_documents_is_exact(begin: Begin, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "outlets.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```\n<!-- end -->", text, re.DOTALL)
    names: dict[str, Any] = {"json": json, "outlet": outlet}
    exec(code, names)  # noqa: S102 - our own document
    folder = names["Folder"](tmp_path / "lines")
    assert folder.check().endswith("is to be created")
    made = begin(folder, retry_for="30 s")
    made.publish(micro_batch(1, 0), [closed("a", "b")])
    made.publish(micro_batch(1, 1, 10), [closed("c")])
    made.close()
    (tmp_path / "lines" / "position").write_text(Position.of(micro_batch(1, 0)).to_json())
    again = begin(folder, retry_for="30 s", committed=0)
    again.publish(micro_batch(2, 1, 10), [closed("c")])
    lines = [
        json.loads(line) for file in (tmp_path / "lines").glob("*.jsonl") for line in file.read_text().splitlines()
    ]
    assert sorted(line["key"] for line in lines) == ["a", "b", "c"]
    (tmp_path / "lines" / "position").write_text(Position(1, 1, writer=9).to_json())
    with pytest.raises(FencedError):
        folder.open(8)


def correct(folder: Path, number: int, payload: bytes, revision: int = 1_790_000_000) -> Outbox:
    """Leave a corrected value for the outlets, as a round of run 7; return the outbox."""
    outbox = Outbox(Local(folder))
    rows = recomputed.with_revision(finals_of(payload).windows, revision)
    recomputed.leave(outbox, 7, number, DEVICE_VIEW, rows, rows.slice(0, 0))
    return outbox


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service looks for corrected values whenever it may."""
    monkeypatch.setattr("service.outlets.publication.LOOK_S", 0.0)


def finals_of(*payloads: bytes) -> Changes:
    tables = [codec.unpack_changes(each).windows for each in payloads]
    return Changes(session_schema(()).empty_table(), status_schema(()).empty_table(), windows.concat(tables))


def test_a_settled_window_has_revisions_of_the_state(begin: Begin, tmp_path: Path) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")

    def publish(batch: int, ends_ms: int, count: int, revision: int) -> None:
        changes = codec.unpack_changes(closed("a", count=count))
        payload = codec.pack_changes(
            replace(changes, windows=settled.with_revision(changes.windows, np.array([revision])))
        )
        made.publish(replace(micro_batch(1, batch, 10 * batch), watermark_ms=ends_ms), [payload])

    before_ms = BASE_MS + 59_999
    # Silence has closed it first: it is not settled with the same content again, and what follows has larger revisions.
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
    publish(5, before_ms, 2, 0)
    publish(6, before_ms, 3, 1)
    publish(7, before_ms, 4, 2)
    publish(8, before_ms + 1, 5, 3)
    assert memory.values == [
        ("a", 2, 0, "idle"),
        ("a", 3, 2, "settled"),
        ("a", 4, 3, "settled"),
        ("a", 5, 4, "watermark"),
    ]
    made.close_idle(micro_batch(1, 8), [], [finals_of(closed("b")).windows])
    assert {key[2] for key in made._silence.known} == {"b"}, "a is final"


def test_what_silence_has_closed_leaves_again_only_changed(begin: Begin, tmp_path: Path) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a", "b")).windows])
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a", "b"), closed("c")).windows])  # b again: nothing new
    assert made.deliveries[0].lacks_at_most(0, 30)
    made.close()
    after = begin(memory, retry_for="30 s", committed=4)  # another process, which finds the file
    after.close_idle(replace(micro_batch(2, 4)), [], [finals_of(closed("a", "b"), closed("c")).windows])
    after.publish(micro_batch(2, 5, 10), [closed("a"), closed("b", count=3), closed("d")])
    after.publish(micro_batch(2, 6, 20), [closed("c", count=4)])
    assert memory.values == [
        ("a", 2, 0, "idle"),
        ("b", 2, 0, "idle"),
        ("c", 2, 0, "idle"),
        ("b", 3, 1, "watermark"),
        ("d", 2, 0, "watermark"),
        ("c", 4, 1, "watermark"),
    ]


def of_quantiles(key: str) -> bytes:
    """The payload of a closed window of a view with p99: it has columns that others lack."""
    statistics = ("count", "p99")
    readings = PaneReadings(np.ones(2), np.full(2, BASE_MS), np.array([0]), np.array([2]))
    columns = {name: COLUMNS[name].fold(readings) for name in columns_of(statistics)}
    start, schema = np.array([BASE_MS]), windows.schema_of_views([statistics])
    keys = pa.array([key], pa.string())
    table = windows.parts("device", "temperature", keys, np.array([0]), start, start + 60_000, columns, schema)
    return codec.pack_changes(Changes(session_schema(()).empty_table(), status_schema(()).empty_table(), table))


def test_a_revision_stays_in_an_entry_of_buckets_whose_windows_have_other_columns(begin: Begin) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
    made.publish(micro_batch(1, 5, 10), [closed("a", count=3), of_quantiles("b")])
    assert memory.values[1:] == [("a", 3, 1, "watermark"), ("b", 2, 0, "watermark")]


def test_an_unnoted_silence_leaves_once(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    with monkeypatch.context() as patch:
        patch.setattr(Local, "replace", dying(Local.replace, "silence"))
        with pytest.raises(KeyboardInterrupt):
            made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a", "b")).windows])
    made.close()
    assert [*(tmp_path / "outlets").glob("0*-000001-*")], "the entry is stored"
    after = begin(memory, retry_for="30 s", committed=4, epoch=2)
    assert not after.progress()["files"].pending
    after.close_idle(micro_batch(2, 4), [], [finals_of(closed("b", "c")).windows])
    after.publish(micro_batch(2, 5, 10), [closed("a", "b")])
    assert after.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["b", "c", "a"]


def test_a_silence_whose_file_was_not_written_is_removed(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    memory.is_away = True
    made = begin(memory)

    def without_file(files: Local, name: str, content: bytes, replace_file: Any = Local.replace) -> None:
        if name == "outlets/silence":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(files, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(Local, "replace", without_file)
        with pytest.raises(SetupError):
            made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
    made.publish(micro_batch(1, 5, 10), [closed("a")])
    made.close_idle(micro_batch(1, 5, 10), [], [finals_of(closed("b")).windows])
    made.close()
    after = begin(memory, committed=5, epoch=2)
    memory.is_away = False
    assert after.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["a", "b"]


def test_a_silence_that_waits_keeps_its_views_and_its_age(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    memory.is_away = True
    monkeypatch.setattr(clock, "now_ms", lambda: 5_000)
    made = begin(memory)
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
    made.close()
    monkeypatch.setattr(clock, "now_ms", lambda: 70_000)
    after = begin(memory, committed=4, epoch=2, all_views=OTHER_VIEWS)  # the view `device` was removed
    assert after.progress()["files"].oldest_ms == 5_000
    memory.is_away = False
    assert after.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["a"]


def test_an_entry_that_0_3_0_may_not_have_stored_is_refused(begin: Begin, tmp_path: Path) -> None:
    made = begin(Memory())
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
    made.close()
    file = tmp_path / "outlets" / "silence"
    # 0.4.0 and 0.5.0 write the fields of 0.3.0 empty.
    rest = {"payload": "", "closed_by": "idle", "views": {}, "outlets": None}
    file.write_text(json.dumps({**json.loads(file.read_text()), **rest}))
    begin(Memory(), committed=4, epoch=2).close()
    file.write_text(json.dumps({**json.loads(file.read_text()), "payload": "VERN"}))
    with pytest.raises(CheckpointError, match=r"outlets/silence has an entry .*Start 0\.4\.0 or 0\.5\.0 on it first"):
        begin(Memory(), committed=4, epoch=3)


def test_a_window_whose_measure_left_its_view_while_it_was_open_does_not_leave(begin: Begin) -> None:
    memory = Memory()
    views = [{"name": "device", "by": ["device"], "window": "1 m", "measures": []}, *OTHER_VIEWS]
    made = begin(memory, retry_for="30 s", all_views=views)
    # The operator still has the open windows of `temperature`, which lack the readings since the change.
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
    made.publish(micro_batch(1, 5, 10), [closed("b"), closed("c", view="other"), closed()])
    made.close_idle(micro_batch(1, 5, 10), [], [finals_of(closed("d"), closed("e", view="other")).windows])
    assert made.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["c", "e"]


def test_only_windows_that_begin_when_their_measure_had_begun_are_whole(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    marked = view_versions.begun(settings).views[0].model_copy(update={"incomplete": {"temperature": BASE_MS + 1}})
    several = windows.concat([finals_of(closed("a", "b")).windows, finals_of(closed("c", start=BASE_MS + 1)).windows])
    found = whole(several, settings.model_copy(update={"views": (marked,)}))
    assert (found["key"].to_pylist(), found["start"].to_pylist()) == (["c"], [BASE_MS + 1])
    assert whole(several, settings) is several


def test_a_silence_forgets_windows_of_removed_views(begin: Begin, tmp_path: Path) -> None:
    made = begin(Memory(), retry_for="30 s")
    made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
    made.close()
    file = tmp_path / "outlets" / "silence"
    document = json.loads(file.read_text())
    others = [[key, [0, 1], 0] for key in (["gone", "temperature", "b", 0], ["device", "gone", "c", 0], ["d0", 0])]
    file.write_text(json.dumps({**document, "known": [*document["known"], *others]}))
    after = begin(Memory(), retry_for="30 s", committed=4)
    after.close_idle(micro_batch(2, 4), [], [finals_of(closed("d")).windows])
    known = {key[2] if len(key) == 4 else key[0] for key, *_ in json.loads(file.read_text())["known"]}
    assert known == {"a", "d", "d0"}


def test_a_silence_forgets_sessions_that_left_before_a_restart(begin: Begin, tmp_path: Path) -> None:
    def of_device(device: str) -> Changes:
        row = {"device": device, "start": BASE_MS, "last": BASE_MS, "count": 1, "state": "closed", "reason": "gap"}
        return replace(finals_of(), sessions=pa.Table.from_pylist([row], schema=session_schema(())))

    def known() -> set[str]:
        return {key[0] for key, *_ in json.loads((tmp_path / "outlets" / "silence").read_text())["known"]}

    memory = Memory()
    made = begin(memory, retry_for="30 s", sessions=True)
    made.close_idle(micro_batch(1, 4), [of_device("a")], [])
    made.publish(micro_batch(1, 5, 10), [codec.pack_changes(of_device("a"))])
    made.close()
    after = begin(memory, retry_for="30 s", committed=5, epoch=2, sessions=True)
    for days in (0, 1, 2):
        of_batch = replace(micro_batch(2, 6 + days, 60 + days), watermark_ms=BASE_MS + days * 86_400_000)
        after.publish(of_batch, [codec.pack_changes(finals_of())])
        after.close_idle(of_batch, [of_device(f"d{days}")], [])
        assert ("a" in known()) is (days < 2)
    assert after.deliveries[0].lacks_at_most(0, 30)
    assert [row["device"] for entry in memory.entries for row in entry.rows.to_pylist()] == ["a", "d0", "d1", "d2"]


@pytest.mark.parametrize("is_closed_again", [True, False])
def test_what_silence_has_closed_leaves_before_all_that_follows_if_its_entry_could_not_be_stored_at_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, is_closed_again: bool
) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    with monkeypatch.context() as patch:
        patch.setattr(Local, "replace", without_room(Local.replace))
        with pytest.raises(SetupError):
            made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a")).windows])
        with pytest.raises(SetupError):
            made.publish(micro_batch(1, 5, 10), [closed("a", "b")])
    if is_closed_again:
        made.close_idle(micro_batch(1, 4), [], [finals_of(closed("a", "b")).windows])
    made.publish(micro_batch(1, 5, 10), [closed("a", "b")])
    assert made.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["a", "b"]


def without_room(replace_file: Callable[[Local, str, bytes], None]) -> Callable[[Local, str, bytes], None]:
    """As on a disk that has room for the file of the silence, and for no entry."""

    def replaced(files: Local, name: str, content: bytes) -> None:
        if name != "outlets/silence":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(files, name, content)

    return replaced


def test_a_term_whose_epoch_is_behind_the_outlets_is_refused_with_theirs(tmp_path: Path) -> None:
    Outbox(Local(tmp_path)).begin(50)
    Outbox(Local(tmp_path)).begin(50)
    with pytest.raises(EpochBehindError) as caught:
        Outbox(Local(tmp_path)).begin(3)
    assert caught.value.newest == 50
    Outbox(Local(tmp_path)).begin(51)


@pytest.mark.usefixtures("looking")
def test_corrected_values_leave_with_the_next_batches_and_once(begin: Begin, tmp_path: Path) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    made.publish(micro_batch(1, 0), [closed("a")])
    outbox = correct(tmp_path, 1, closed("a", "b", count=5))
    made.publish(micro_batch(1, 1, 10), [])
    assert not recomputed.names(outbox)
    correct(tmp_path, 1, closed("a", "b", count=5))  # as if the process had died before it removed the file
    assert recomputed.names(outbox) == ["corrected-7-000001"]
    made.publish(micro_batch(1, 2, 20), [])
    assert made.deliveries[0].lacks_at_most(0, 30)
    assert memory.values == [
        ("a", 2, 0, "watermark"),
        ("a", 5, 1_790_000_000, "watermark"),
        ("b", 5, 1_790_000_000, "watermark"),
    ]


@pytest.mark.silent("0.6")
@pytest.mark.usefixtures("looking")
def test_corrected_values_leave_while_all_input_is_silent(begin: Begin, tmp_path: Path) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    made.publish(micro_batch(1, 0), [closed("a")])
    for number in (1, 2):
        outbox = correct(tmp_path, number, closed("a", count=5))
    for _ in range(3):
        made.close_idle(micro_batch(1, 0), [], [finals_of(closed("z", start=BASE_MS + 3_600_000)).windows])
    assert made.deliveries[0].lacks_at_most(0, 30)
    assert memory.keys == ["a", "z", "a", "a"]
    assert not recomputed.names(outbox)
    made.publish(micro_batch(1, 1, 10), [closed("b")])
    assert memory.keys == ["a", "z", "a", "a", "b"]


def test_a_backfill_does_not_take_the_place_of_values_that_only_outlets_have() -> None:
    """Redis says by its revision that a value has changed; of what has expired, nobody knows."""
    rows = finals_of(closed("a", "b", count=5)).windows
    kept = recomputed.with_revision(rows, 1_790_000_000_000, np.array([1, 0]))
    assert [(row["key"], row["revision"]) for row in kept.to_pylist()] == [("a", 1_790_000_000_000), ("b", 0)]


def test_entries_of_a_resumed_backfill_are_taken_after_those_of_the_runs_between(tmp_path: Path) -> None:
    files = Local(tmp_path)
    rows = recomputed.with_revision(finals_of(closed("a")).windows, 1)

    def part(log: Log, end_ms: int) -> None:
        log.begin()
        log.store(DEVICE_VIEW, rows, rows.slice(0, 0))
        log.reach("windows", end_ms, {}, {})
        log.save()

    part(Log.load(files, (0, 10), ["device"], 100), 5)
    recomputed.leave(Outbox(files), 200, 1, DEVICE_VIEW, rows, rows.slice(0, 0))
    part(Log.load(files, (0, 10), ["device"], 300), 10)
    assert recomputed.names(Outbox(files)) == ["corrected-100-000000", "corrected-200-000001", "corrected-300-000001"]


@pytest.mark.usefixtures("looking")
def test_corrected_values_leave_with_the_views_that_they_were_computed_with(begin: Begin, tmp_path: Path) -> None:
    memory, outbox = Memory(), correct(tmp_path, 1, closed("a", count=5), 1)
    made = begin(memory, retry_for="30 s", committed=4, all_views=OTHER_VIEWS)
    for batch in (5, 6):
        made.publish(micro_batch(1, batch, 10 * batch), [])
    assert made.deliveries[0].lacks_at_most(0, 30)
    assert not recomputed.names(outbox)
    assert memory.values == [("a", 5, 1, "watermark")]
    assert memory.entries[0].rows["mean"].to_pylist() == [None]


@pytest.mark.usefixtures("looking")
def test_corrections_leave_once_after_a_crash(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    made = begin(memory, retry_for="30 s")
    made.publish(micro_batch(1, 0), [])
    outbox = correct(tmp_path, 1, closed("a", count=5))
    with monkeypatch.context() as patch:
        patch.setattr(Local, "remove", dying(Local.remove, "corrected"))
        with pytest.raises(KeyboardInterrupt):
            made.publish(micro_batch(1, 1, 10), [])
    made.close()
    after = begin(memory, retry_for="30 s", committed=0, epoch=2)
    after.publish(micro_batch(2, 1, 10), [])  # the batch comes again
    after.close_idle(micro_batch(2, 1, 10), [], [finals_of(closed("z")).windows])
    after.publish(micro_batch(2, 2, 20), [])
    assert after.deliveries[0].lacks_at_most(0, 30)
    assert not recomputed.names(outbox)
    assert memory.keys == ["a", "z"]


def dying(method: Callable[..., None], name: str) -> Callable[..., None]:
    """As a process that dies before it writes or removes a file of this name."""

    def called(files: Local, file: str, *content: bytes) -> None:
        if name in file:
            raise KeyboardInterrupt
        method(files, file, *content)

    return called


Term = Callable[..., Outlets]


@pytest.fixture
def term(tmp_path: Path, request: pytest.FixtureRequest) -> Term:
    """Outlets by their names, one term after another."""

    def start(epoch: int, committed: int, **memories: Memory) -> Outlets:
        common = {"kind": "parquet", "retry_for": 100}
        sections = [{**common, "name": name, "path": f"/nowhere/{name}"} for name in memories]
        settings = make_settings(tmp_path, outlets=sections)
        outbox = Outbox(Local(tmp_path))
        made = Outlets(settings, outbox, epoch, lambda each: memories[each.name], Watcher(), committed=committed)
        made.start()
        request.addfinalizer(made.close)
        return made

    return start


def test_an_outlet_that_is_added_or_renamed_begins_with_what_becomes_final_after_that(term: Term) -> None:
    one, two, three = Memory(), Memory(), Memory()
    two.is_away = True
    made = term(1, -1, one=one, two=two)
    made.publish(micro_batch(1, 0), [closed("a")])
    made.close_idle(micro_batch(1, 0), [], [finals_of(closed("i")).windows])
    assert made.deliveries[0].lacks_at_most(0, 30)
    made.close()
    assert one.keys == ["a", "i"]
    made = term(2, 0, two=two, three=three)  # `one` is called `three` now
    made.publish(micro_batch(2, 1, 10), [closed("b")])
    made.close()
    assert three.keys == ["b"]
    two.is_away = False
    made = term(3, 1, two=two, three=three)
    assert all(each.lacks_at_most(0, 30) for each in made.deliveries)
    assert (two.keys, three.keys) == (["a", "i", "b"], ["b"])


def test_what_only_an_outlet_lacks_that_the_settings_no_longer_have_is_removed(term: Term, tmp_path: Path) -> None:
    gone, other = Memory(), Memory()
    gone.is_away = True
    made = term(1, -1, gone=gone)
    made.publish(micro_batch(1, 0), [closed("a")])
    made.close_idle(micro_batch(1, 0), [], [finals_of(closed("i")).windows])
    made.close()
    made = term(2, 0, other=other)
    assert not Outbox(Local(tmp_path)).entries(9, NONE)
    made.publish(micro_batch(2, 1, 10), [closed("b")])
    assert other.keys == ["b"]
    assert json.loads((tmp_path / "outlets" / "silence").read_text())["payload"] == ""


def test_an_entry_of_an_older_version_is_for_all_outlets(term: Term, tmp_path: Path) -> None:
    one, two = Memory(), Memory()
    Outbox(Local(tmp_path)).store(Position.of(micro_batch(1, 0)), [closed("a")], "watermark", Scope(DEVICE_VIEW))
    made = term(2, 0, one=one, two=two)
    assert all(each.lacks_at_most(0, 30) for each in made.deliveries)
    assert (one.keys, two.keys) == (["a"], ["a"])
