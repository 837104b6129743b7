"""Mutations of statistics: how they merge, and when they are absent."""

from load.mutations.mutation import Edit, Mutation

_VIEWS = "tests/unit/test_view_statistics.py::"
_PUBLISH = "tests/integration/test_publish.py::"

MUTATIONS = (
    Mutation(
        "absent-column-counts-as-zero",
        "a window that began without a statistic gets it from its later readings",
        "readers see a maximum or a deviation that lacks the first readings",
        ("P1",),
        (Edit("state/windows.py", "            values[nulls[name]] = 0\n", "            nulls[name][:] = False\n"),),
        (
            _VIEWS + "test_a_window_has_the_statistics_that_it_had_in_all_its_batches_and_those_are_right",
            _PUBLISH + "test_a_window_that_began_without_a_statistic_does_not_get_it",
        ),
    ),
    Mutation(
        "other-columns-of-version-2",
        "a state with the columns of other statistics is written as version 2",
        "an older version does not refuse it by name",
        ("P1",),
        (
            Edit(
                "state/codec.py",
                "VERSION if state.windows.schema.equals(windows.SCHEMA) else 3",
                "VERSION",
            ),
        ),
        (_VIEWS + "test_a_state_of_other_statistics_is_version_3_and_unknown_columns_are_refused_by_name",),
    ),
    Mutation(
        "statistic-stays-in-redis",
        "a window that is written again keeps the fields of statistics that its view has no more",
        "readers see a maximum that lacks the newest readings, beside a count that has them",
        ("P2",),
        (Edit("service/publication/publish.lua", "      if is_earlier then tidy(key, n) end\n", ""),),
        (_PUBLISH + "test_a_statistic_that_a_view_has_no_more_goes_with_the_next_reading_of_a_window",),
    ),
    Mutation(
        "correction-keeps-statistics",
        "a corrected window keeps the fields of statistics that its view has no more",
        "readers see a maximum without the late readings, beside a count that has them",
        ("P1", "P2"),
        (
            Edit(
                "service/recompute/correct.lua",
                "for _, name in ipairs(a.known or {}) do",
                "for _, name in ipairs({}) do",
            ),
        ),
        (
            "tests/integration/test_closed_sink.py"
            "::test_a_corrected_window_keeps_no_statistic_that_its_view_has_no_more",
        ),
    ),
)
