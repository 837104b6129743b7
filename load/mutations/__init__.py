"""The mutations of `make teeth`, as data: what is broken, how, and which tests must go red for it.

Each takes away one thing that a guarantee of docs/guarantees.md rests on: one for each thing that the page names, rarely two.
A second way of breaking the same thing is not added. `old` must occur exactly once in its file; a
mutation whose text is no longer there fails by name (load/mutations/teeth.py, tests/unit/test_guarantees.py). Every test that is
named must fail by itself, not by an error in its set-up, and no test is named that would not be missed.
"""

from load.mutations import (
    checkpoint,
    daemon,
    duplicates,
    endless,
    inputs,
    operations,
    outlets,
    pipelines,
    publication,
    readings,
    recompute,
    rejects,
    state,
    statistics,
    store,
    views,
)
from load.mutations.mutation import Edit, Mutation

__all__ = ["MUTATIONS", "Edit", "Mutation", "table"]

MUTATIONS: tuple[Mutation, ...] = (
    *store.MUTATIONS,
    *publication.MUTATIONS,
    *outlets.MUTATIONS,
    *recompute.MUTATIONS,
    *rejects.MUTATIONS,
    *readings.MUTATIONS,
    *inputs.MUTATIONS,
    *state.MUTATIONS,
    *statistics.MUTATIONS,
    *endless.MUTATIONS,
    *duplicates.MUTATIONS,
    *daemon.MUTATIONS,
    *pipelines.MUTATIONS,
    *operations.MUTATIONS,
    *views.MUTATIONS,
    *checkpoint.MUTATIONS,
)


def table() -> str:
    """The mutations as a Markdown table."""
    rows = []
    for each in MUTATIONS:
        tests = ", ".join(f"`{test.rpartition('::')[2].partition('[')[0]}`" for test in each.tests)
        rows.append(f"| `{each.id}` | {each.what} | {each.why} | {', '.join(each.promises)} | {tests} |")
    head = "| mutation | what is broken | so that | promise | tests that go red |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows, ""])
