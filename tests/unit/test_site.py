"""The documentation site: every page is in its navigation, generated pages cover their sources, and links are valid."""

import json
import re
from pathlib import Path

import pytest

from load.site import contract_page, pages, settings_page
from load.site.__main__ import CONFIG, build, configuration, stage
from schemas.contract import CONTRACT
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"(\S+\.md)$", configuration(ROOT, CONFIG.read_text()), re.MULTILINE)
    assert sorted(page.as_posix() for page in pages.pages(ROOT) if page.as_posix() not in listed) == []


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    assert build(stage(ROOT, folder)) == 0, "the lines above name the broken links"
    return folder / "html"


def test_the_site_has_no_broken_link_and_draws_diagrams(html: Path) -> None:
    assert 'class="mermaid"' in (html / "docs" / "architecture.html").read_text()
    assert "latest_complete" in (html / "docs" / "reference" / "client.html").read_text()


def test_the_search_finds_what_newcomers_type_and_leaves_out_files_and_changes(html: Path) -> None:
    entries = json.loads((html / "search" / "search_index.json").read_text())["docs"]
    places = {each["location"].partition("#")[0] for each in entries}
    assert [place for place in places if place.startswith(("files/", "CHANGELOG", "SECURITY"))] == []
    texts = {each["location"]: f"{each['title']} {each['text']}".lower() for each in entries}
    for words in (
        "time zone",
        "mqtt",
        "docker",
        "helm",
        "grafana",
        "dead letter",
        "exactly once",
        "average per hour",
        "kafka streams",
        "telegraf",
        "timescale",
        "flink",
    ):
        assert any(words in text for text in texts.values()), words


def test_a_page_of_the_site_loads_nothing_from_another_host(html: Path) -> None:
    loaded = r"<(?:script|img|source|iframe)[^>]+(?:src|srcset)=\"(https?:)?//|<link[^>]+href=\"https?://"
    assert [page for page in html.rglob("*.html") if re.search(loaded, page.read_text())] == []


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """Of a site with one page: the plug-ins and their strictness are those of the real one."""
    page = tmp_path / "pages" / "index.md"
    page.parent.mkdir()
    settings, nav, _ = configuration(ROOT, CONFIG.read_text()).partition("\nnav:\n")
    assert nav
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"{settings}{nav}- index.md\n")
    for target, is_well in (("index.md", True), ("nowhere.md", False)):
        page.write_text(f"# Page\n\n[a link]({target})\n")
        assert (build(config) == 0) == is_well, target


def test_a_link_to_a_file_becomes_a_link_to_a_page_that_shows_it(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "target"
    (root / "bin").mkdir(parents=True)
    (root / "docs").mkdir()
    (root / "bin" / "run").write_text("#!/bin/sh\nexec true\n")
    (root / "docs" / "a.md").write_text("See [run](../bin/run) and [b](b.md#top) and [out](https://example.com/x).\n")
    (root / "docs" / "b.md").write_text("# Top\n")
    pages.copy_pages(root, target)
    assert (target / "docs" / "a.md").read_text() == (
        "See [run](../files/bin/run.md) and [b](b.md#top) and [out](https://example.com/x).\n"
    )
    assert (
        (target / "files" / "bin" / "run.md")
        .read_text()
        .endswith("# bin/run\n\n````bash\n#!/bin/sh\nexec true\n````\n")
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1. one\n\n   two\n", "1. one\n\n    two\n"),
        ("1. one\n\n       code\n", "1. one\n\n        code\n"),
        ("- one\n\nend\n\n    code\n", "- one\n\nend\n\n    code\n"),
    ],
)
def test_what_belongs_to_an_item_is_indented_by_four(text: str, shown: str) -> None:
    assert pages.indented(text) == shown


def test_every_setting_is_listed_with_a_description() -> None:
    page = settings_page.page()
    entries = {entry.split()[0]: entry.split("\n\n")[2] for entry in re.split(r"^### ", page, flags=re.MULTILINE)[1:]}
    sections = {name: settings_page.fields_of(field.annotation) for name, field in Settings.model_fields.items()}
    assert set(entries) == {
        f"{name}.{field.alias or key}" for name, fields in sections.items() for key, field in fields.items()
    }
    assert [name for name, text in entries.items() if not text.rstrip().endswith(".")] == []
    assert 'duration; default `"30 s"`.' in page
    assert "whole number; more than 0; at most 1024; default `1`." in page


def test_every_kind_of_key_is_listed_with_its_fields() -> None:
    page = contract_page.page(ROOT)
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(json.loads(CONTRACT.read_text())["keys"])
    assert "| <code>count</code> | yes | " in page
    assert "| <code>stddev</code> |  | number" in page
