"""docs/guarantees.md names files, tests and mutations: all of them are there, and every mutation can be applied."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from load import mutations
from load.mutations import MUTATIONS, Edit, Mutation, teeth
from service.errors import TidemarkError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PROMISES = {f"P{number}" for number in range(1, 10)}
NAMED = sorted(set(re.findall(r"`((?:service|state|schemas|deploy|tests|load|docs)/[^`]+)`", PAGE)))


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def has_test(node: str) -> bool:
    """Whether the file of a pytest node id has such a function."""
    file, _, name = node.partition("[")[0].partition("::")
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in parsed(file).body)


def is_thorough(node: str) -> bool:
    """Whether `make test` leaves a test out: by the mark of the function or of its file. A mark of cases leaves the others."""
    file, _, name = node.partition("[")[0].partition("::")
    marks: list[ast.AST] = []
    for each in parsed(file).body:
        if isinstance(each, ast.FunctionDef) and each.name == name:
            marks += [mark for mark in each.decorator_list if "parametrize" not in ast.unparse(mark)]
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark":
            marks.append(each.value)
    return any("pytest.mark.thorough" in ast.unparse(each) for each in marks)


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_is_there(name: str) -> None:
    assert has_test(name) if "::" in name else (ROOT / name).exists()


def test_the_page_has_every_promise_and_says_where_it_is_kept() -> None:
    parts = dict(re.findall(r"^## (P\d) [^\n]+\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
    assert set(parts) == PROMISES
    for promise, text in parts.items():
        assert re.search(r"`(service|state|load)/", text), promise
        assert re.search(r"^Tests?: `|`make faults`", text, re.MULTILINE), promise


@pytest.mark.parametrize("promise", sorted(PROMISES))
def test_make_test_has_a_test_on_real_parts_of_every_promise(promise: str) -> None:
    text = PAGE.partition(f"## {promise} ")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:tests/(?:integration|stream)|clients)/[^`]+::[^`]+)`", text)
    assert [each for each in named if not is_thorough(each)] != []


def test_every_promise_has_a_mutation_and_every_mutation_breaks_a_promise() -> None:
    assert {promise for each in MUTATIONS for promise in each.promises} == PROMISES
    assert [each.id for each in MUTATIONS if not each.promises] == []


def test_make_test_turns_red_for_every_mutation() -> None:
    assert [each.id for each in MUTATIONS if all(map(is_thorough, each.tests))] == []


def test_every_mutation_is_one_row_of_the_table() -> None:
    rows = mutations.table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [each.id for each in MUTATIONS]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_a_mutation_can_be_applied_and_names_tests_that_there_are(mutation: Mutation) -> None:
    assert mutation.edits
    assert teeth.missing(mutation, ROOT) == []
    for edit in mutation.edits:
        source = (ROOT / edit.file).read_text().replace(edit.old, edit.new)
        if edit.file.endswith(".py"):
            ast.parse(source)
    assert mutation.tests
    assert [test for test in mutation.tests if not has_test(test)] == []


def test_a_mutation_whose_text_has_gone_fails_by_name(tmp_path: Path) -> None:
    gone = Mutation("gone", "w", "y", "P1", "t", Edit("service/micro_batch.py", "no such text", ""))
    with pytest.raises(
        TidemarkError, match=r"mutation gone: service/micro_batch\.py has its text 0 times, not once: no such"
    ):
        teeth.apply(gone, teeth.copy(ROOT, tmp_path / "tree"))
    result = teeth.bite(gone, ROOT, tmp_path / "bite")
    assert (result.killed, result.red) == (False, ())
    assert "service/micro_batch.py has its text 0 times" in result.problem


@pytest.mark.thorough
def test_only_a_test_that_fails_by_itself_is_red(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef part():\n    raise RuntimeError\n@pytest.fixture(params=[1, 2])\ndef n(request):\n"
        "    return request.param\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_good(): pass\ndef test_bad(): assert False\ndef test_part(part): pass\ndef test_some(n): assert n == 1\n"
    )
    ran = teeth.pytest(tmp_path, ["test_it.py"])
    assert (ran.green, ran.red, ran.broken) == (
        ("test_it.py::test_good", "test_it.py::test_some[1]"),
        ("test_it.py::test_bad", "test_it.py::test_some[2]"),
        ("test_it.py::test_part",),
    )
    nothing = teeth.pytest(tmp_path, ["test_it.py::test_gone"])
    assert (nothing.green, nothing.red) == ((), ())
    assert "pytest ended with status 4" in nothing.broken[0]


@pytest.mark.parametrize(
    ("node", "named", "same"),
    [
        ("tests/unit/test_x.py::test_a", "tests/unit/test_x.py::test_a", True),
        ("tests/unit/test_x.py::test_a[1]", "tests/unit/test_x.py::test_a", True),
        ("tests/unit/test_x.py::test_a[1]", "tests/unit/test_x.py::test_a[1]", True),
        ("tests/unit/test_x.py::test_a[2]", "tests/unit/test_x.py::test_a[1]", False),
        ("tests/unit/test_x.py::test_ab", "tests/unit/test_x.py::test_a", False),
        # pytest finds the settings of a client in its folder, and names its tests from there.
        ("tests/test_y.py::test_a[1]", "clients/dashboard/tests/test_y.py::test_a", True),
        ("tests/test_y.py::test_a", "clients/dashboard/tests/test_z.py::test_a", False),
    ],
)
def test_a_red_test_is_known_by_its_name_also_in_a_client(node: str, named: str, *, same: bool) -> None:
    assert teeth._is(node, named) is same
