"""The pages: each reads what it shows, and names the topics that it depends on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tidemark_dashboard.sources import Sources, Topic

Query = Mapping[str, str]
MOST_NAMES = 20


@dataclass(frozen=True)
class Shown:
    """What a page shows: the context of its templates, and what it depends on."""

    context: Mapping[str, Any]
    topics: frozenset[Topic]

    @staticmethod
    def of(context: Mapping[str, Any], *topics: Topic | Iterable[Topic]) -> Shown:
        """`topics` are single ones and iterables of them."""
        found: set[Topic] = set()
        for each in topics:
            if isinstance(each, tuple) and isinstance(each[0], str):
                found.add(each)
            else:
                found.update(each)  # type: ignore[arg-type]
        return Shown(context, frozenset(found))


class NotFoundError(Exception):
    """There is nothing to show at this address; the message says why."""


@dataclass(frozen=True)
class Page:
    """`parts` are the templates of the parts that change, by name; `words` are the names that its address may have. A word that
    ends with a dot stands for all names that begin with it, at most MOST_NAMES.
    """

    name: str
    path: str
    title: str
    parts: tuple[str, ...]
    words: tuple[str, ...]
    read: Callable[[Sources, Query], Awaitable[Shown]]

    def query(self, given: Query) -> dict[str, str]:
        """The words that are given, in the order of the page: pages with the same words are one page."""
        found = {}
        for word in self.words:
            names = (
                sorted(each for each in given if each.startswith(word))[:MOST_NAMES] if word.endswith(".") else [word]
            )
            found.update({name: given[name] for name in names if given.get(name)})
        return found


def address(path: str, **words: object) -> str:
    """An address with words; those that are empty are left out."""
    query = urlencode({name: str(word) for name, word in words.items() if word not in ("", None)}, quote_via=quote)
    return f"{path}?{query}" if query else path
