"""The page of advisories is of the versions that are pinned."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operator" / "advisories.md").read_text(encoding="utf-8")
LOCK = (ROOT / "deploy" / "jars.lock").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["lz4-java", "snappy-java", "kafka-clients"])
def test_the_page_is_of_the_pinned_jar(name: str) -> None:
    pinned = re.findall(rf"^spark \S+:{name}:(\S+) ", LOCK, re.MULTILINE)
    assert re.findall(rf"\| {name} ([\d.]+)", PAGE)[:1] == pinned


def test_jars_have_the_version_that_the_page_calls_mended() -> None:
    assert re.findall(r"^spark org\.postgresql:postgresql:(\S+) ", LOCK, re.MULTILINE) == ["42.7.13"]
    assert "42.7.13 since this version" in PAGE
