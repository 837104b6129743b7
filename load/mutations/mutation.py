"""What a mutation is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """`old`, which occurs once in `file` (relative to the tree), becomes `new`."""

    file: str
    old: str
    new: str


class Mutation:
    """One way of being wrong, for which all of `tests` must go red: pytest node ids, with or without parameters.

    `promises` are those that it breaks, by the names of docs/guarantees.md. Spaces separate several promises or tests.
    """

    def __init__(self, name: str, what: str, why: str, promises: str, tests: str, *edits: Edit) -> None:
        self.id = name
        self.what = what
        self.why = why
        self.promises = tuple(promises.split())
        self.tests = tuple(tests.split())
        self.edits = edits
