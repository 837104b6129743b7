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
                "            yield from self._late(pa.concat_tables(counted_late), devices)\n",
                "            pass\n",
            ),
        ),
        (_FOLD + "test_a_view_without_windows_counts_what_is_late_and_nothing_else_that_is_rejected",),
    ),
    Mutation(
        "late-reading-makes-a-key",
        "a late reading of a device that is not admitted counts in views without windows",
        "invented device ids make any number of keys, though the limit on devices is reached",
        ("P6",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "            readings = readings.filter(pa.array(are_known(names, devices)[codes]))\n",
                "            del names, codes\n",
            ),
        ),
        (_FOLD + "test_a_view_without_windows_counts_what_is_late_and_nothing_else_that_is_rejected",),
    ),
    Mutation(
        "total-of-two-lives",
        "the state keeps the values of a view without windows that was removed",
        "a view that is added again has a total with a hole, and its complete_from is wrong",
        ("P1",),
        (
            Edit(
                "state/windows.py",
                "    dropped: Bools = (ends >= ENDLESS_MS) & ",
                "    dropped: Bools = (ends < 0) & ",
            ),
        ),
        (
            "tests/unit/test_state_windows.py::test_an_endless_window_takes_parts_of_any_time_until_its_view_and_measure_go",
        ),
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
        "last-measure-without-keys",
        "a view leaves its set of keys with the first of two measures that end one after the other",
        "values of the other measure stay in Redis for ever",
        ("P1",),
        (
            Edit(
                "service/checkpoint/beginnings.py",
                "all(each.ended is not None and each.ended < batch for each",
                "all(each.ended is not None for each",
            ),
        ),
        (_BEGINNINGS + "test_no_measure_of_a_view_is_left_when_the_last_one_is_over",),
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
                "          is_poorer = begins >= ",
                "          is_poorer = begins == nil and 0 >= ",
            ),
        ),
        (_PUBLISH + "test_a_count_without_windows_falls_only_when_it_begins_later",),
    ),
    Mutation(
        "total-keeps-statistics",
        "values of views without windows are not compared in a settled term",
        "a total shows a mean of years ago beside the count of today",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "ends_at <= closed_until or a.endless then",
                "ends_at <= closed_until then",
            ),
        ),
        (_PUBLISH + "test_a_value_without_windows_loses_the_statistics_that_its_view_has_lost_terms_ago",),
    ),
    Mutation(
        "total-expires",
        "a value of a view without windows expires as a window does",
        "the total of a device that was off for a day is gone",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "      if not a.endless then\n        call('PEXPIRE', key, ttl[i])\n",
                "      if ends_at then\n        call('PEXPIRE', key, 1000)\n",
            ),
        ),
        (
            _PUBLISH + "test_a_count_without_windows_falls_only_when_it_begins_later",
            _PUBLISH + "test_a_view_without_windows_is_final_at_no_watermark_and_written_again_as_it_was",
        ),
    ),
)
