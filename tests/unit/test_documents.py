"""The pages name files, packages and sections, the code names sections of the pages: all of them exist."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/decisions/README.md",
    "clients/python/README.md",
    "clients/dashboard/README.md",
    "clients/sql/README.md",
    "deploy/runbook.md",
    "schemas/redis.md",
    *sorted(each.relative_to(ROOT).as_posix() for each in (ROOT / "docs").glob("*.md")),
    *sorted(each.relative_to(ROOT).as_posix() for each in (ROOT / "docs" / "operator").glob("*.md")),
]
DECISIONS = sorted(each.relative_to(ROOT).as_posix() for each in (ROOT / "docs" / "decisions").glob("*.md"))
MADE = {"schemas/readings.expectations.json"}
"""What `tidemark profile` writes."""
CODE = [
    each
    for name in ("service", "state", "load", "deploy", "tests")
    for each in sorted((ROOT / name).rglob("*"))
    if each.is_file()
]
CELL = 200
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
FILES = r"`((?:service|state|schemas|deploy|tests|load|docs)/[^`*{}<> :]*)`"


DECIDED = re.compile(r"^\| \[(\d+)\]\(([\w-]+\.md)\) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)


def section(page: str, title: str) -> str:
    """The text below a heading of the second level, up to the next one."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, title
    return match[1]


@pytest.mark.parametrize("name", [*PAGES, *DECISIONS])
def test_every_file_that_a_page_names_exists(name: str) -> None:
    named = set(re.findall(FILES, (ROOT / name).read_text())) - MADE
    assert sorted(file for file in named if not (ROOT / file).exists()) == []


@pytest.mark.parametrize(("title", "package"), [("The packages", "service"), ("The rooms of load", "load")])
def test_the_architecture_page_lists_the_packages_in_the_order_of_the_import_contract(title: str, package: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract.get("containers") == [package]]
    rows = re.findall(r"^\| (`[^|]+`) \|", section(ARCHITECTURE, title), re.MULTILINE)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == [re.split(r" [:|] ", layer) for layer in layers]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(target: str, folder: Path) -> bool:
    """Whether `path#anchor`, relative to the folder, names no file or no heading of it."""
    path, _, anchor = target.partition("#")
    file = folder / path
    return not file.exists() or (bool(anchor) and anchor not in anchors(file))


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_has_its_target(name: str) -> None:
    page = ROOT / name
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if broken(page.name + link if link.startswith("#") else link, page.parent)] == []


def test_every_page_and_section_that_the_code_names_exists() -> None:
    named = {
        (file.relative_to(ROOT).as_posix(), target)
        for file in CODE
        if file.suffix in {".py", ".lua", ".sh", ".conf", ".toml", ".yml", ".service", ".timer", ""}
        for target in re.findall(r"\b(?:docs|deploy|schemas)/[\w/-]+\.md(?:#[\w-]+)?", file.read_text(errors="replace"))
    }
    generated = {each for each in named if each[1].startswith("docs/reference/")}  # by make site
    named -= generated
    assert ("service/checkpoint/manifest.py", "docs/operator/procedures.md#rebuild-from-kafka") in named
    assert sorted(each for each in named if broken(each[1], ROOT)) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_cell_of_a_table_holds_a_phrase(name: str) -> None:
    rows = [
        line.strip().strip("|") for line in (ROOT / name).read_text().splitlines() if line.lstrip().startswith("| ")
    ]
    assert [cell.strip() for row in rows for cell in row.split(" | ") if len(cell.strip()) > CELL] == []


def test_the_operator_guide_lists_each_of_its_pages_once() -> None:
    folder = ROOT / "docs" / "operator"
    listed = re.findall(r"\]\((\w[\w-]*\.md)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted(each.name for each in folder.glob("*.md") if each.name != "README.md")


def test_the_table_of_decisions_has_the_number_and_title_of_each_page_in_order() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(folder.glob("0*.md"))
    titles = [page.read_text().splitlines()[0].removeprefix("# ").split(". ", 1) for page in pages]
    listed = DECIDED.findall((folder / "README.md").read_text())
    assert listed == [(number, page.name, title) for page, (number, title) in zip(pages, titles, strict=True)]


def test_the_picture_of_the_pass_differs_in_nothing_but_colours_between_light_and_dark() -> None:
    light, dark = ((ROOT / "docs" / "pictures" / f"pass-{each}.svg").read_text() for each in ("light", "dark"))
    assert light != dark
    assert re.sub(r"#[0-9a-f]{6}\b", "#", light) == re.sub(r"#[0-9a-f]{6}\b", "#", dark)


def test_every_picture_of_the_page_is_small_and_shown_on_a_page() -> None:
    pictures = sorted((ROOT / "docs" / "pictures").glob("*.png"))
    assert len(pictures) >= 6
    assert [each.name for each in pictures if each.stat().st_size > 200_000] == []
    text = "".join((ROOT / page).read_text() for page in PAGES)
    assert [each.name for each in pictures if each.name not in text] == []


def test_the_first_screen_of_the_readme_has_the_page_a_figure_and_the_commands() -> None:
    first = (ROOT / "README.md").read_text().partition("\n## ")[0]
    assert [
        each
        for each in (
            "docs/pictures/page-fleet-dark.png",
            "docs/operator/sizing.md",
            "tidemark init",
            "tidemark run",
            "make demo",
        )
        if each not in first
    ] == []


def test_the_readme_shows_the_demo_and_the_tests() -> None:
    commands = set(re.findall(r"^    (make \w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"make demo", "make test"} <= commands


def test_every_make_target_has_a_row_on_the_page_of_contributors() -> None:
    lists = dict(re.findall(r"^(VERIFY|PROGRAMS|\.PHONY) *:=? (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = {name for each in lists.values() for name in each.split()} - {"help", "$(PROGRAMS)"}
    rows = re.findall(r"^\| `(?:make )?([\w-]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(targets - set(rows)) == []
    assert set(rows) >= {*lists["VERIFY"].split(), "verify"}


def test_make_help_has_the_commands_of_every_day_and_verify_lists_the_others() -> None:
    shown = subprocess.run(["make", "help"], check=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert re.findall(r"^  make (\w+)", shown, re.MULTILINE) == [
        *("demo", "check", "test", "transcripts", "walks", "bench", "site", "verify")
    ]
    listed = subprocess.run(["make", "verify"], check=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert "faults cluster" in listed
    unknown = subprocess.run(
        ["make", "verify", "WHAT=chart fautls"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert (unknown.returncode, unknown.stdout) == (2, listed), "one that is unknown, and none is run"
    plan = ["make", "--dry-run", "verify", "WHAT=faults", "ID=F1 F3", "SEED=7"]
    commands = subprocess.run(plan, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert "-m load.faults --seed 7 --id F1 F3" in " ".join(commands.split())
