"""The pages name files, packages and sections: all of them exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
FILES = r"`((?:service|state|schemas|deploy|tests|load|docs)/[^`*{}<> :]*)`"


def section(page: str, title: str) -> str:
    """The text below a heading of the second level, up to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


@pytest.mark.parametrize("name", sorted(set(re.findall(FILES, ARCHITECTURE))))
def test_every_file_that_the_architecture_page_names_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_architecture_page_lists_the_packages_in_the_order_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.split(r" [:|] ", layer) for contract in contracts for layer in contract.get("layers", ())]
    rows = re.findall(r"^\| (`[^|]+`) \|", section(ARCHITECTURE, "The packages"), re.MULTILINE)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == layers
