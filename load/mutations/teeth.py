"""Teeth: breaks the code on purpose, one mutation after the other, and shows that the tests notice.

    python -m load.mutations.teeth [--json FILE] [--id fence-per-key --id ...] [--table]

Each mutation of load/mutations/ is applied to a copy of the tree, where the tests that it names must go red: every one
of them, by a failure of the test itself. Before that the same tests must be green on an unchanged copy. Exit status 0
only when no mutation survives and every text to be replaced was found.

The copy is what is imported: it stands first on PYTHONPATH, which Spark's workers and submitted drivers inherit, and
before the installed package, whose finder is asked last. Were it not, a mutation would survive, so a green
table also proves that.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from load.mutations import MUTATIONS, Mutation, table
from load.report import print_error
from load.servers.machine import check_machine
from service.errors import TidemarkError
from service.spark.places import ROOT

FOLDER = ROOT / ".build" / "teeth"
_COPIED = ("service", "state", "schemas", "load", "tests", "clients", "deploy", "docs", "pyproject.toml")
_LIMIT_S, _CONTROL_LIMIT_S = 540.0, 2_400.0
"""A hang, however slow the machine: for the tests of one mutation, and for those of all of them."""
_RED, _GREEN = 1, 0
"""pytest's exit statuses; every other one means that the tests could not be run."""


@dataclass(frozen=True, slots=True)
class Ran:
    """pytest's result: node ids, parameters included. `broken` are errors outside of the tests, or of pytest itself."""

    green: tuple[str, ...]
    red: tuple[str, ...]
    broken: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Bite:
    """One mutation's result: `killed` when every test that it names went red."""

    id: str
    what: str
    promises: tuple[str, ...]
    killed: bool
    red: tuple[str, ...]
    problem: str
    seconds: float


@dataclass
class Report:
    """What `--json` writes."""

    mutations: int
    survived: int
    control_green: bool
    control_seconds: float
    seconds: float
    bites: list[Bite] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the control was green and nothing survived."""
        return self.control_green and not self.survived


def missing(mutation: Mutation, tree: Path) -> list[str]:
    """What is wrong with the mutation's texts: each must occur exactly once. Empty when it can be applied."""
    problems = []
    for edit in mutation.edits:
        path = tree / edit.file
        count = path.read_text(encoding="utf-8").count(edit.old) if path.is_file() else 0
        if count != 1:
            first = edit.old.strip().splitlines()[0]
            problems.append(f"mutation {mutation.id}: {edit.file} has its text {count} times, not once: {first}")
    return problems


def copy(source: Path, to: Path) -> Path:
    """A copy of what tests need of the tree `source`; what was at `to` is gone."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name in _COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source / name, to / name)
    return to


def apply(mutation: Mutation, tree: Path) -> None:
    """Change the tree; raises TidemarkError naming the text that is not found."""
    if problems := missing(mutation, tree):
        raise TidemarkError("; ".join(problems), remedy="The code has moved on: mend load/mutations/")
    for edit in mutation.edits:
        path = tree / edit.file
        path.write_text(path.read_text(encoding="utf-8").replace(edit.old, edit.new), encoding="utf-8")


def pytest(tree: Path, tests: Iterable[str], limit_s: float = _LIMIT_S) -> Ran:
    """Run the tests in the tree, at most `limit_s` seconds; its output is kept in tree/teeth.log."""
    report, log = tree / "teeth.xml", tree / "teeth.log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (tree, *tree.glob("clients/*/src")))),
        # A mutated file may have the size and second of the original: its bytecode must not be taken for the other's.
        "PYTHONDONTWRITEBYTECODE": "1",
        "TIDEMARK_JARS": os.environ.get("TIDEMARK_JARS") or str(ROOT / ".build" / "jars"),
        "TIDEMARK_NODE_MODULES": os.environ.get("TIDEMARK_NODE_MODULES")
        or str(ROOT / ".build" / "node" / "node_modules"),
    }
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        command += [f"--basetemp={tree / 'tmp'}", *tests]
        with subprocess.Popen(command, cwd=tree, env=environment, stdout=out, stderr=out) as process:
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.terminate()
                return Ran((), (), (f"pytest did not end within {limit_s:.0f} s, see {log}",), limit_s)
            except BaseException:
                process.terminate()
                raise
    seconds = round(time.monotonic() - began, 1)
    if status not in {_RED, _GREEN} or not report.exists():
        return Ran((), (), (f"pytest ended with status {status}, see {log}",), seconds)
    return Ran(*_read(report), seconds)


def _read(report: Path) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Green, red and broken node ids of a JUnit report."""
    green, red, broken = [], [], []
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest has just written it
        node = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if case.find("error") is not None or case.find("skipped") is not None:
            broken.append(node)
        elif case.find("failure") is not None:
            red.append(node)
        else:
            green.append(node)
    return tuple(green), tuple(red), tuple(broken)


def bite(mutation: Mutation, source: Path, tree: Path) -> Bite:
    """Apply one mutation to a copy of `source` at `tree` and run its tests; the copy of one that survives is kept."""

    def result(problem: str, red: tuple[str, ...] = (), seconds: float = 0.0) -> Bite:
        return Bite(mutation.id, mutation.what, mutation.promises, not problem, red, problem, seconds)

    try:
        apply(mutation, copy(source, tree))
    except TidemarkError as error:
        return result(str(error))
    ran = pytest(tree, mutation.tests)
    toothless = [test for test in mutation.tests if not any(_is(node, test) for node in ran.red)]
    # What is broken beside a test that is red for itself is the red test's own wreckage.
    if toothless:
        broken = f"; broken: {', '.join(ran.broken)}" if ran.broken else ""
        return result(f"not red: {', '.join(toothless)}{broken}; see {tree / 'teeth.log'}", ran.red, ran.seconds)
    shutil.rmtree(tree, ignore_errors=True)
    return result("", ran.red, ran.seconds)


def _is(node: str, test: str) -> bool:
    """Whether the node is that test, or one of its parameters' if it is named without any.

    Tests of a client have the names that they have in its folder, where their settings of pytest are.
    """
    return any(test == name or test.endswith(f"/{name}") for name in (node, node.partition("[")[0]))


def run(mutations: Sequence[Mutation]) -> Report:
    """The control, then each mutation; prints as it goes. All start from one copy, whatever becomes of the tree meanwhile."""
    began = time.monotonic()
    snapshot = copy(ROOT, FOLDER / "control")
    unchanged = pytest(snapshot, sorted({test for mutation in mutations for test in mutation.tests}), _CONTROL_LIMIT_S)
    is_green = bool(unchanged.green) and not (unchanged.red or unchanged.broken)
    print(f"control: {len(unchanged.green)} green in {unchanged.seconds:.0f} s", flush=True)
    for node in (*unchanged.red, *unchanged.broken):
        print(f"  NOT GREEN without any mutation: {node}", flush=True)
    report = Report(len(mutations), 0, is_green, unchanged.seconds, 0.0)
    for mutation in mutations:
        result = bite(mutation, snapshot, FOLDER / mutation.id)
        report.bites.append(result)
        report.survived += not result.killed
        verdict = "killed  " if result.killed else "SURVIVED"
        print(f"{verdict} {result.id:24} {result.seconds:5.0f} s  {len(result.red)} red  {result.problem}", flush=True)
    report.seconds = round(time.monotonic() - began, 1)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the control is green and nothing survives, 1 otherwise, an error's own status for an error."""
    parser = argparse.ArgumentParser(prog="make teeth", description="Break the code on purpose: the tests must notice.")
    parser.add_argument(
        "--id", action="append", choices=[each.id for each in MUTATIONS], help="only this one; repeatable"
    )
    parser.add_argument("--table", action="store_true", help="print the mutations as a table and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the table")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTATIONS if not options.id or each.id in options.id]
    if options.table:
        print(table(), end="")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check_machine(folder=ROOT)
        report = run(chosen)
    except TidemarkError as error:
        return print_error(error)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    control = "the control was green" if report.control_green else "THE CONTROL WAS NOT GREEN"
    print(f"{report.mutations} mutations, {report.survived} survived, {control}, {report.seconds:.0f} s")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
