"""Copies the pages of the repository into a folder, in the same places, so that their links stay valid.

MkDocs takes pages from one folder, and the repository has them in several. A link to a file that is not a page, such as
an example of settings, becomes a link to a page that shows the file. A link to a folder becomes a link to its list of files.
"""

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

PATTERNS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/**/*.md",
    "clients/*/README.md",
    "deploy/*.md",
    "schemas/*.md",
)
PICTURES = {".svg", ".png"}
FILES = "files"
"""The folder of the site with the files that pages link to."""
UNSEARCHED = {Path("CHANGELOG.md"), Path("SECURITY.md")}
"""Pages that the search leaves out, as it does the files: they have every word, and answer no question."""
_NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_ITEM = re.compile(r"([-*]|\d+\.) ")
_LANGUAGES = {".toml": "toml", ".py": "python", ".json": "json", ".yml": "yaml", ".conf": "ini", ".lua": "lua"}


def pages(root: Path) -> list[Path]:
    """Return the pages of the repository, relative to `root`, sorted."""
    return sorted({each.relative_to(root) for pattern in PATTERNS for each in root.glob(pattern)})


def copy_pages(root: Path, target: Path) -> None:
    """Write every page, picture and linked file of the repository `root` below `target`."""
    known = set(pages(root))
    for page in sorted(known):
        text = _LINK.sub(partial(_linked, page=page, root=root, target=target, known=known), (root / page).read_text())
        _write(target / page, (_NO_SEARCH if page in UNSEARCHED else "") + indented(text))
    for picture in (each for each in (root / "docs").rglob("*") if each.suffix in PICTURES):
        copy = target / picture.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, copy)


def indented(text: str) -> str:
    """Return a page with what belongs to an item of a list indented by four spaces, and its code by eight.

    GitHub takes the width of the item's mark as the indentation. Python-Markdown, which MkDocs uses, takes four.
    """
    lines, is_in_list, was_blank, is_code = [], False, True, False
    for line in text.splitlines():
        spaces = len(line) - len(line.lstrip(" "))
        if line.startswith("```"):
            is_code = not is_code
        if line.strip() and not is_code:
            if _ITEM.match(line):
                is_in_list = True
            elif spaces == 0:
                is_in_list = is_in_list and not was_blank
            elif is_in_list:
                line = " " * (4 if spaces < 4 else 8) + line[spaces if spaces < 8 else 8 :]  # noqa: PLW2901
        was_blank = not line.strip()
        lines.append(line)
    return "\n".join(lines) + "\n"


def _linked(match: re.Match[str], page: Path, root: Path, target: Path, known: set[Path]) -> str:
    """Return the link with a target that is on the site; a link that is wrong stays for MkDocs to report."""
    opening, link, anchor, closing = match[1], match[2], match[3] or "", match[4]
    if "://" in link or link.startswith("mailto:"):
        return match[0]
    file = Path(os.path.normpath(page.parent / link))
    if file in known or file.suffix in PICTURES or not (root / file).exists():
        return match[0]
    if (root / file).is_dir():
        shown = file / "README.md" if file / "README.md" in known else Path(FILES) / file / "index.md"
        if shown not in known:
            _write(target / shown, _NO_SEARCH + "\n".join(_listed(root / file, file)))
    else:
        shown = Path(FILES) / f"{file}.md"
        _write(target / shown, _NO_SEARCH + _shown(root / file, file))
    return f"{opening}{os.path.relpath(shown, page.parent)}{anchor}{closing}"


def _listed(folder: Path, name: Path) -> Iterator[str]:
    yield f"# {name}\n"
    for file in sorted(each for each in folder.iterdir() if each.is_file()):
        yield f"## {file.name}\n"
        yield _fenced(file)


def _shown(file: Path, name: Path) -> str:
    return f"# {name}\n\n{_fenced(file)}"


def _fenced(file: Path) -> str:
    text = file.read_text()
    language = "bash" if text.startswith("#!") else _LANGUAGES.get(file.suffix, "text")
    return f"````{language}\n{text.rstrip()}\n````\n"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
