"""The count of edits in load/newcomer.py."""

import pytest

from load.newcomer import edits


@pytest.mark.parametrize(
    ("run", "count"),
    [(["a", "b", "c"], 0), (["a", "x", "c"], 1), (["a", "c"], 1), (["a", "b", "c", "d", "e"], 2), (["x", "y", "c"], 2)],
)
def test_an_edit_is_a_line_that_was_added_removed_or_changed(run: list[str], count: int) -> None:
    assert edits(["a", "b", "c"], run) == count
