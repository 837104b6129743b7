"""The mutations of `make teeth`, as data: what is broken, how, and which tests must go red for it.

Each takes away one mechanism that a promise of docs/guarantees.md rests on, and names the quickest test that notices it. A few
for each promise are enough (docs/decisions/0080-few-mutations.md). `old` must occur exactly once in its file; a
mutation whose text is no longer there fails by name (load/mutations/teeth.py, tests/unit/test_guarantees.py). Every test that is
named must fail by itself, not by an error in its set-up.
"""

from load.mutations import process, records, values
from load.mutations.mutation import Edit, Mutation

__all__ = ["MUTATIONS", "Edit", "Mutation", "table"]

MUTATIONS: tuple[Mutation, ...] = (*values.MUTATIONS, *records.MUTATIONS, *process.MUTATIONS)


def table() -> str:
    """The mutations as a Markdown table."""
    rows = []
    for each in MUTATIONS:
        tests = ", ".join(f"`{test.rpartition('::')[2].partition('[')[0]}`" for test in each.tests)
        rows.append(f"| `{each.id}` | {each.what} | {each.why} | {', '.join(each.promises)} | {tests} |")
    head = "| mutation | what is broken | so that | promise | tests that go red |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows, ""])
