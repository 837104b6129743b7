"""Which line of the table in docs/operator/checkpoint.md a file of a checkpoint belongs to."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/operator/checkpoint.md"
[_TABLE] = re.findall(r"^\| file \|.*?(?=\n\n)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
FILES = re.findall(r"^\| `(.*?)` \|", _TABLE, re.MULTILINE)
"""The kinds of files. Capitals and `*` stand for numbers and other names."""
_WORDS = {"N": r"\d+", "B": r"\d+", "E": r"\d+", "NAME": r"[^/]+", "*": r".+"}


def kind(name: str) -> str | None:
    """The only entry that a name fits, None without one."""
    found = [each for each in FILES if _fits(each, name)]
    assert len(found) <= 1, found
    return found[0] if found else None


def _fits(entry: str, name: str) -> bool:
    words = re.split(r"(\*|\b(?:NAME|N|B|E)\b)", entry)
    return re.fullmatch("".join(_WORDS.get(word, re.escape(word)) for word in words), name) is not None
