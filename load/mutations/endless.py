"""Mutations of views without windows: what they count, when they begin and end, and what Redis keeps of them."""

from load.mutations.mutation import Edit, Mutation

_BEGINNINGS = "tests/unit/test_beginnings.py::"
_FOLD = "tests/unit/test_partial_aggregation.py::"
_PUBLISH = "tests/integration/test_publish.py::"

MUTATIONS = (
    Mutation(
        "late-reading-lost-to-totals",
        "a view without windows does not count late readings",
        "a total depends on when its readings arrived: a rebuild gives another one",
        ("P1",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "            yield from self._late(pa.concat_tables(late), task)\n",
                "            pass\n",
            ),
        ),
        (_FOLD + "test_a_view_without_windows_counts_what_is_late_and_nothing_else_that_is_rejected",),
    ),
    Mutation(
        "end-is-not-taken-back",
        "a view that ends in an attempt of a batch stays over when the batch is repeated with it",
        "the state goes on with all readings, and Redis says that the view began later",
        ("P1",),
        (
            Edit(
                "service/checkpoint/beginnings.py",
                "ended = None if each.pair in wanted else batch if each.ended is None else each.ended",
                "ended = each.ended if each.ended is not None else None if each.pair in wanted else batch",
            ),
        ),
        (_BEGINNINGS + "test_a_replay_with_the_view_takes_its_end_back",),
    ),
    Mutation(
        "beginning-of-a-frozen-writer",
        "a writer notes beginnings without asking whether there is another one",
        "after a freeze it replaces the beginnings of its successor",
        ("P5",),
        (Edit("service/checkpoint/beginnings.py", "            fence()\n", ""),),
        (_BEGINNINGS + "test_nothing_is_written_without_views_or_by_a_writer_that_is_fenced",),
    ),
    Mutation(
        "total-falls",
        "a smaller count replaces a larger one, though the view began at the same time",
        "readers see a total go back",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "if is_poorer and row.begins and stored.begins < row.begins then",
                "if is_poorer and row.begins then",
            ),
        ),
        (_PUBLISH + "test_a_count_without_windows_falls_only_when_it_begins_later",),
    ),
)
