"""States that released versions have stored: read by today's code, gone on with, and written in the layout that they need."""

import base64
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from load.releases import PREVIOUS, RELEASES, extract
from service.checkpoint import manifest
from service.checkpoint.manifest import Manifest
from service.errors import CheckpointError
from state import codec
from state.layout import LIMITS
from state.store import Cache, Store, restore
from tests import stored
from tests.states import contents
from tests.stream.records import make_document, make_settings

DATA = Path(__file__).parent / "data"
ROOT = DATA.parents[2]
NEW = max(codec.VERSIONS) + 1


def document(version: str = PREVIOUS) -> Mapping[str, list[str]]:
    loaded: Mapping[str, list[str]] = json.loads((DATA / f"stored_{version}.json").read_text())
    return loaded


def versions(values: list[str]) -> set[int]:
    return {base64.b64decode(value)[4] for value in values}


def test_there_are_bytes_of_every_release() -> None:
    """A release gets its file, its commit and its place as PREVIOUS when the next version begins: see tests/stored.py."""
    headings = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    present = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = [*({present} - {*RELEASES}), *reversed(RELEASES)]
    assert headings[: len(newest)] == newest
    assert list(RELEASES)[-1] == PREVIOUS
    assert {path.stem.removeprefix("stored_") for path in DATA.glob("stored_*.json")} == {*RELEASES}
    # A head and deltas have version 2; a base has the version that its windows need.
    assert {case: versions(values) for case, values in document().items()} == {"plain": {2}, "statistics": {2, 3}}


@pytest.mark.parametrize("case", stored.VIEWS)
def test_a_bucket_that_a_release_has_stored_is_read_and_gone_on_with(case: str) -> None:
    entries = stored.entries_of(document(), case)
    *_, last = stored.states(case)
    assert contents(restore([entries.states[0][key] for key in sorted(entries.states[0])])) == contents(last)
    store = Store(entries, Cache())
    read = store.load(0)
    assert read is not None
    after = stored.stepped(read.state, case, stored.STEPS)
    store.save(0, read, after)
    again = Store(entries, Cache()).load(0)
    assert again is not None
    assert contents(again.state) == contents(after)
    assert after.windows.num_rows > last.windows.num_rows


def test_statistics_that_are_added_and_removed_keep_the_windows_and_are_written_as_they_need() -> None:
    entries = stored.entries_of(document(), "plain")
    store = Store(entries, Cache())
    read = store.load(0)
    assert read is not None
    # Statistics that need other columns: the state is written in the layout that has them.
    wider = stored.stepped(read.state, "statistics", stored.STEPS)
    store.save(0, read, wider)
    assert entries.states[0][1][4] == 3
    again = Store(entries, Cache()).load(0)
    assert again is not None
    rows = {(row["view"], row["key"]): row for row in again.state.windows.to_pylist()}
    assert rows["device", "device-naïve"]["count"] == 10 * (stored.STEPS + 1)
    assert rows["device", "device-naïve"]["quantiles"] is None
    assert rows["site", "site-naïve"]["quantiles"] is not None
    # Without them again, the windows that have the columns keep them until they are closed.
    narrow = stored.stepped(again.state, "plain", stored.STEPS + 1)
    kept = {(row["view"], row["key"]): row for row in narrow.windows.to_pylist()}
    assert kept["site", "site-naïve"] == rows["site", "site-naïve"]
    assert kept["device", "device-naïve"]["count"] == 10 * (stored.STEPS + 2)


def test_measures_that_are_added_and_removed_keep_sessions_and_windows_of_a_release() -> None:
    entries = stored.entries_of(document(), "plain")
    read = Store(entries, Cache()).load(0)
    assert read is not None
    before = {row["device"]: row for row in read.state.devices.to_pylist()}
    for measures in (("t", "h", "new"), ("h",), ()):
        rules = stored.replaced(measures)
        after = stored.advanced(read.state, stored.STEPS, rules)
        devices = {row["device"]: row for row in after.devices.to_pylist()}
        assert devices["pump-1"]["session"] == before["pump-1"]["session"]
        assert devices["pump-1"]["last_seen"] > before["pump-1"]["last_seen"]
        assert after.windows.num_rows >= read.state.windows.num_rows
        assert not set(LIMITS) & set(after.devices.column_names)


def test_every_layout_has_magic_and_version_where_every_version_looks_for_them() -> None:
    """So that an older program refuses a newer layout by its number, and does not take it for damage."""
    stored = [base64.b64decode(value) for value in document()["plain"]]
    written = codec.encode(restore(stored))
    assert {data[:5] for data in (*stored, written)} == {b"TDMK" + bytes([codec.VERSION])}
    for other in (1, NEW):
        data = bytearray(written)
        data[4] = other
        with pytest.raises(codec.CodecError, match=f"of version {other}; supported is version 2, 3, 4, 5 or 6"):
            codec.decode(bytes(data))


@pytest.mark.parametrize(
    ("layout", "made_by", "way"),
    [(1, "0.1.0", "Nothing converts it, or start with a new checkpoint"), (NEW, "9.0.0", "Start version 9.0.0")],
)
def test_a_checkpoint_of_another_layout_is_refused(tmp_path: Path, layout: int, made_by: str, way: str) -> None:
    expected = Manifest.of(make_settings(tmp_path), {"readings": "A1"}, 2)
    found = expected.model_copy(update={"state_layout": layout, "application": made_by})
    with pytest.raises(CheckpointError, match=f"the state's layout is {layout}, this version's is 2.*{way}"):
        manifest.require("/checkpoint", found, expected)


_OLD = """
import json, sys
from pathlib import Path
from service import settings
from service.checkpoint import manifest
from service.errors import TidemarkError
from service.spark.files import Local

said = []
for folder in sys.argv[2:]:
    try:
        said.append(manifest.read(Local(Path(folder))).settings["sessions.buckets"])
    except TidemarkError as error:
        said.append(f"{error.status} {error}")
try:
    said.append(settings.parse(json.loads(sys.argv[1])).views[0].name)
except TidemarkError as error:
    said.append(f"{error.status} {error}")
print(json.dumps(said))
"""


def test_the_tree_of_a_revision_is_extracted_whatever_its_name(tmp_path: Path) -> None:
    try:
        tree = extract("HEAD^{/.}", tmp_path / "tree")
    except subprocess.CalledProcessError:
        pytest.skip("the history of the repository is not here")
    assert (tree / "service" / "__init__.py").exists()


def test_the_release_before_refuses_by_name_what_it_would_not_keep(tmp_path: Path) -> None:
    """By its own code: a reshape that was interrupted, and a setting that it does not have."""
    try:
        tree = extract(PREVIOUS, tmp_path / "tree")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the history of the repository is not here")
    settings = make_settings(tmp_path)
    folders = []
    for number in (manifest.FORMAT, manifest.SWITCHING):
        folders.append(tmp_path / f"format-{number}")
        folders[-1].mkdir()
        text = Manifest.of(settings, {"readings": "A1"}, 2).model_copy(update={"format": number}).encode()
        (folders[-1] / manifest.NAME).write_bytes(text)
    view = {"name": "total", "by": ["device"], "window": "1 m", "final_after": "5 s"}
    document = make_document(tmp_path, views=[view])
    done = subprocess.run(
        [sys.executable, "-c", _OLD, json.dumps(document), *map(str, folders)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=True,
        capture_output=True,
        text=True,
    )
    plain, switching, settled = json.loads(done.stdout)
    assert plain == settings.buckets
    assert re.match(r"8 .*manifest\.json: the checkpoint is getting another number of buckets", switching)
    assert re.match(r"2 .*\n.*views\.0\.final_after: unknown key", settled)
