"""What a mutation is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """`old`, which occurs once in `file` (relative to the tree), becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way of being wrong, for which all of `tests` must go red: pytest node ids, with or without parameters.

    `promises` are those that it breaks, by the names of docs/guarantees.md.
    """

    id: str
    what: str
    why: str
    promises: tuple[str, ...]
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
