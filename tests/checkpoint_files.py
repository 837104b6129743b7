"""Which line of service/checkpoint/contents.py a file of a checkpoint belongs to."""

import re

from service.checkpoint import contents
from service.checkpoint.contents import Entry

_WORDS = {"N": r"\d+", "B": r"\d+", "E": r"\d+", "NAME": r"[^/]+", "*": r".+"}


def kind(name: str) -> Entry | None:
    """The only entry that a name fits, None without one."""
    found = [each for each in contents.FILES if _fits(each, name)]
    assert len(found) <= 1, found
    return found[0] if found else None


def _fits(entry: Entry, name: str) -> bool:
    words = re.split(r"(\*|\b(?:NAME|N|B|E)\b)", entry.name)
    return re.fullmatch("".join(_WORDS.get(word, re.escape(word)) for word in words), name) is not None
