"""What Tidemark takes from Spark without a promise is in service/spark/internals: an upgrade of Spark checks that package.

tests/integration/test_spark_internals.py runs it on the installed Spark.
"""

import ast
import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.checkpoint import logs
from service.errors import CheckpointError
from service.micro_batch import MicroBatch
from service.spark.files import Local
from service.spark.internals import commit_log, damage, log_files, offset_log, state_files
from service.spark.internals.offset_log import Position

ROOT = Path(__file__).resolve().parents[2]
INTERNALS = ROOT / "service/spark/internals"
PRIVATE = {
    "_jvm",
    "_jsc",
    "_jdf",
    "_jc",
    "_jsq",
    "_jsparkSession",
    "_gateway",
    "_ensure_initialized",
    "_conf",
    "_origin",
}
"""Fields of PySpark's objects that lead into the JVM. `self._jvm` is a field of ours."""
FILES = re.compile(
    r"^(offsets|commits|state|sources)/|stateUniqueIds|stateStoreInfo|org\.apache\.spark\.sql\.execution"
)
"""Names of Spark's files, and of members in them."""
ALLOWED = {"service/spark/home.py", "service/spark/jars.py", "service/spark/session.py", "service/spark/pyworker.py"}
"""They have names of Spark's packages in settings."""
MODULES = [
    path
    for package in ("service", "state")
    for path in sorted((ROOT / package).rglob("*.py"))
    if INTERNALS not in path.parents
]


def private_fields(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and any(isinstance(a, ast.Constant) and a.value in PRIVATE for a in node.args):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def names_of_files(tree: ast.AST) -> Iterator[str]:
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
        if is_text and FILES.search(node.value):
            yield f"line {node.lineno}: {node.value!r}"


def test_no_module_but_those_of_internals_uses_a_private_field_of_pyspark() -> None:
    found = {str(path.relative_to(ROOT)): [*private_fields(ast.parse(path.read_text()))] for path in MODULES}
    assert {name: uses for name, uses in found.items() if uses} == {}


def test_no_module_but_those_of_internals_names_a_file_of_sparks() -> None:
    found = {str(path.relative_to(ROOT)): [*names_of_files(ast.parse(path.read_text()))] for path in MODULES}
    assert {name: uses for name, uses in found.items() if uses and name not in ALLOWED} == {}


CONF = {"conf": {"spark.sql.shuffle.partitions": "8"}}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def offsets(folder: Path, batch: int, *ends: int) -> None:
    line = json.dumps({"readings": {str(p): end for p, end in enumerate(ends)}})
    write(folder / f"offsets/{batch}", f"v1\n{json.dumps(CONF)}\n{line}\n{line}")


def commit(folder: Path, batch: int) -> None:
    write(folder / f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
    write(folder / f"event_time/{batch}", '{"watermark_ms": 5, "newest_ms": 75}')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batches 7 to 9 are committed."""
    write(tmp_path / "metadata", '{"id":"x"}')
    write(tmp_path / "sources/0/0", '\0v1\n{"readings":{"0":3,"1":4}}')
    write(tmp_path / "state/0/_metadata/metadata", "{}")
    for batch in (7, 8, 9):
        offsets(tmp_path, batch, 100 * batch, 1000 * batch)
        commit(tmp_path, batch)
    return tmp_path


def test_a_committed_batch_is_gone_on_from(folder: Path) -> None:
    assert logs.damaged(Local(folder)) == {}
    assert offset_log.position(Local(folder)) == Position(10, {"readings": {0: 900, 1: 9000}})
    assert offset_log.partitions(Local(folder)) == 8


def test_the_last_committed_batch_is_read_with_its_watermark_or_refused(folder: Path) -> None:
    offsets(folder, 10, 1000, 10000)
    ends = {"readings": {0: 900, 1: 9000}}
    assert logs.committed(Local(folder)) == MicroBatch(0, 9, 5, {"readings": {0: 3, 1: 4}}, ends, newest_ms=75)
    assert logs.committed(Local(folder / "new")) is None
    (folder / "offsets/9").unlink()
    with pytest.raises(CheckpointError, match="offsets/9 is missing"):
        logs.committed(Local(folder))


def test_a_batch_that_is_not_committed_is_replayed_from_its_beginning(folder: Path) -> None:
    offsets(folder, 10, 1000, 10000)
    assert logs.damaged(Local(folder)) == {}
    assert offset_log.position(Local(folder)) == Position(10, {"readings": {0: 900, 1: 9000}}, is_repeated=True)


def test_the_first_batch_begins_where_the_source_said(tmp_path: Path) -> None:
    write(tmp_path / "metadata", '{"id":"x"}')
    write(tmp_path / "sources/0/0", '\0v1\n{"readings":{"0":3,"1":4}}')
    assert offset_log.position(Local(tmp_path)) is None
    offsets(tmp_path, 0, 50, 60)
    assert offset_log.position(Local(tmp_path)) == Position(0, {"readings": {0: 3, 1: 4}}, is_repeated=True)


def test_the_checkpoint_of_another_query_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "offsets/0", 'v1\n{}\n{"logOffset":0}')
    write(tmp_path / "commits/0", "v1\n{}")
    with pytest.raises(CheckpointError, match="another program's"):
        offset_log.position(Local(tmp_path))


@pytest.mark.parametrize(
    ("harm", "name", "why"),
    [
        (lambda c: (c / "offsets/9").write_text("v1\n{"), "offsets/9", "cut short"),
        (lambda c: (c / "offsets/9").write_text(""), "offsets/9", "cut short"),
        (lambda c: (c / "commits/9").write_text("v1"), "commits/9", "cut short"),
        (lambda c: (c / "offsets/9").unlink(), "offsets/9", "commits/9 is there"),
        (
            lambda c: (offsets(c, 10, 1, 1), *((c / log / "9").unlink() for log in ("offsets", "commits"))),
            "offsets/9",
            "batch 10 begins where it ends",
        ),
        (lambda c: shutil.rmtree(c / "offsets"), "offsets", "there is state"),
        (lambda c: (c / "metadata").unlink(), "metadata", "missing"),
        (lambda c: (c / "metadata").write_text('{"id'), "metadata", "cut short"),
    ],
)
def test_damage_of_the_logs_is_named(folder: Path, harm: Callable[[Path], object], name: str, why: str) -> None:
    harm(folder)
    found = logs.damaged(Local(folder))
    assert list(found) == [name]
    assert why in found[name]


def test_a_commit_that_is_gone_is_no_damage_its_batch_is_replayed(folder: Path) -> None:
    (folder / "commits/9").unlink()
    assert logs.damaged(Local(folder)) == {}
    assert offset_log.position(Local(folder)) == Position(9, {"readings": {0: 800, 1: 8000}}, is_repeated=True)


def with_sums(path: Path, content: bytes, block: int = 512) -> None:
    """A file, and its checksums as Hadoop keeps them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    sums = [zlib.crc32(content[start : start + block]) for start in range(0, len(content), block)]
    path.with_name(f".{path.name}.crc").write_bytes(struct.pack(f">4sI{len(sums)}I", b"crc\0", block, *sums))


def test_a_local_file_is_compared_with_its_checksums(tmp_path: Path) -> None:
    content = bytes(range(256)) * 6
    path = tmp_path / "x"
    with_sums(path, content)
    assert Local(tmp_path).problem("x") == ""
    flipped = bytearray(content)
    flipped[700] ^= 1
    for damaged, at in (
        (bytes(flipped), 512),
        (content[:512], 512),
        (b"", 0),
        (content[:1500], 1024),
        (content * 2, 1536),
    ):
        path.write_bytes(damaged)
        assert f"from byte {at} on" in Local(tmp_path).problem("x")
    path.unlink()
    assert Local(tmp_path).problem("x") == log_files.MISSING


def test_an_offset_that_has_become_another_number_is_damage(folder: Path) -> None:
    content = (folder / "offsets/9").read_bytes()
    with_sums(folder / "offsets/9", content)
    assert logs.damaged(Local(folder)) == {}
    (folder / "offsets/9").write_bytes(content.replace(b"9000", b"1000"))
    assert "from byte 0 on" in logs.damaged(Local(folder))["offsets/9"]
    assert logs.damaged_files(folder) == [folder / "offsets/9"]


def test_the_changes_since_a_snapshot_must_all_be_there(tmp_path: Path) -> None:
    store = tmp_path / "state/0/1"
    for batch in range(8):
        ids = {"stateUniqueIds": {"0": [[f"{batch}a"], [f"{batch}b"]]}}
        with_sums(tmp_path / f"commits/{batch}", b"v2\n" + json.dumps(ids).encode())
        with_sums(tmp_path / f"state/0/0/{batch + 1}_{batch}a.zip", b"x")
    for name in ("4_3b.zip", *(f"{n}_{n - 1}b.changelog" for n in range(3, 9))):
        with_sums(store / name, b"x")
    assert damage.of_state(Local(tmp_path), last_committed=7) == {}
    for version in (3, 4, 5, 7):  # 3 and 4 are in the snapshot
        (store / f"{version}_{version - 1}b.changelog").unlink()
    with_sums(store / "7_other.changelog", b"x")  # of an attempt that was not committed
    with_sums(store / "9_8b.zip", b"x")  # of a batch that was not committed: it will be made again
    found = damage.of_state(Local(tmp_path), last_committed=7)
    assert found == {f"state/0/1/{n}_{n - 1}b.changelog": log_files.MISSING for n in (5, 7)}
    with_sums(store / "8_other.zip", b"x")
    assert damage.of_state(Local(tmp_path), last_committed=7) == found
    with_sums(store / "8_7b.zip", b"x")
    assert damage.of_state(Local(tmp_path), last_committed=7) == {}


def test_offsets_are_replaced_and_nothing_else(folder: Path) -> None:
    before = (folder / "offsets/9").read_text().split("\n")
    offset_log.replace(Local(folder), 9, {"readings": {0: 5, 1: 6}})
    after = (folder / "offsets/9").read_text().split("\n")
    assert after[:2] == before[:2]
    assert after[2:] == ['{"readings":{"0":5,"1":6}}'] * 2
    offset_log.replace(Local(folder), -1, {"readings": {0: 1}})
    assert (folder / offset_log.FIRST).read_bytes() == b'\0v1\n{"readings":{"0":1}}'
    assert offset_log.first(Local(folder)) == {"readings": {0: 1}}


def test_the_partitions_and_attempts_of_a_batch_are_set_and_nothing_else(folder: Path) -> None:
    files = Local(folder)
    offset_log.set_partitions(files, 9, 3)
    offset_log.set_partitions(files, 11, 3)  # not begun
    assert offset_log.partitions(files) == 3
    assert offset_log.ends(files, 9) == {"readings": {0: 900, 1: 9000}}
    commit_log.set_attempts(files, 9, ["a", "b"])
    assert commit_log.attempts(files, 9) == {"state/0/0": "a", "state/0/1": "b"}
    assert log_files.content(files, "commits/9")["nextBatchWatermarkMs"] == 0
    write(folder / "state/0/_metadata/v2/0", 'v2\n{"stateStoreInfo":[{"storeName":"default","numPartitions":8}]}')
    state_files.set_partitions(files, 3)
    stores = log_files.content(files, "state/0/_metadata/v2/0")["stateStoreInfo"]
    assert stores == [{"storeName": "default", "numPartitions": 3}]
