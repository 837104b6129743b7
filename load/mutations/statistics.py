"""Mutations of statistics: how they merge, and when they are absent."""

from load.mutations.mutation import Edit, Mutation

_VIEWS = "tests/unit/test_view_statistics.py::"
_REGISTRY = "tests/unit/test_statistics.py::"
_QUANTILES = "tests/unit/test_quantiles.py::"
_DISTINCT = "tests/unit/test_distinct.py::"
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
        (Edit("service/publication/publish.lua", "      if is_earlier or is_part then tidy(key, n) end\n", ""),),
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
    Mutation(
        "first-value-by-arrival",
        "the first and the last value of merged parts are those of the part that is merged last",
        "they depend on the order of arrival: a replay publishes other values than the batches",
        ("P1",),
        (
            Edit(
                "state/statistics.py",
                "np.where(mine == edges, value, -np.inf), np.where(other == edges, another, -np.inf)",
                "value, np.where(other == edges, another, value)",
            ),
        ),
        (_REGISTRY + "test_the_first_and_the_last_value_depend_on_the_set_of_readings_only",),
    ),
    Mutation(
        "first-value-of-any-tie",
        "of several values at the earliest event time, that of the first part is the first value",
        "two devices with one event time give a view by site a first value that depends on the cuts of tasks",
        ("P1",),
        (
            Edit(
                "state/statistics.py",
                "largest: Values = np.maximum.reduceat(np.where(is_at_edge, values, -np.inf), heads)",
                "largest: Values = values[np.maximum.reduceat(np.where(is_at_edge, np.arange(len(values)), -1), heads)]",
            ),
        ),
        (_REGISTRY + "test_the_first_and_the_last_value_depend_on_the_set_of_readings_only",),
    ),
    Mutation(
        "rate-of-no-time",
        "a rate is written as 0 where a window has readings at one event time only",
        "readers take a rate that nothing is known of for a value that stands still",
        ("P2",),
        (Edit("state/statistics.py", "out=np.full(len(seconds), np.nan), where", "out=np.zeros(len(seconds)), where"),),
        (_PUBLISH + "test_a_rate_is_absent_until_a_window_has_readings_at_two_times",),
    ),
    Mutation(
        "bins-of-two-levels",
        "the bins of a fine sketch are merged with those of a coarse one as they are",
        "a quantile is that of numbers that no reading had",
        ("P1",),
        (Edit("state/quantiles.py", "parts.number >> (level[owner] - parts.level[parts.owner])", "parts.number"),),
        (_QUANTILES + "test_a_small_part_and_a_large_one_merge_to_the_sketch_of_both",),
    ),
    Mutation(
        "sketch-of-its-parts",
        "a sketch becomes coarse by the number of readings, not of different values",
        "what a window publishes depends on how its readings were cut into parts",
        ("P1",),
        (
            Edit(
                "state/quantiles.py",
                "is_over = np.bincount(owner, minlength=len(level)) > limit",
                "is_over = np.bincount(owner, count, minlength=len(level)) > np.where(level == 0, EXACT, np.inf)",
            ),
        ),
        (_QUANTILES + "test_a_hundred_thousand_values_keep_the_bound_of_their_level_and_a_bounded_size",),
    ),
    Mutation(
        "quantile-of-the-next-rank",
        "a quantile is one reading too high",
        "the median of 1, 2, 3 is 3",
        ("P1",),
        (Edit("state/quantiles.py", "-(-size * share // 100)\n", "-(-size * share // 100) + 1\n"),),
        (_QUANTILES + "test_a_window_with_few_different_values_has_exact_quantiles",),
    ),
    Mutation(
        "sketch-not-in-the-delta",
        "a delta of the state leaves the sketches of changed windows as they were",
        "after a restart a quantile lacks the readings since the last base",
        ("P1",),
        (Edit("state/delta.py", "    rows[change.changed] = change.size + np.arange(changed)\n", ""),),
        (_VIEWS + "test_a_window_has_the_statistics_that_it_had_in_all_its_batches_and_those_are_right",),
    ),
    Mutation(
        "device-in-two-parts-counts-twice",
        "a device that two parts of a window have counts twice",
        "a device that sends in two batches is two devices",
        ("P1",),
        (
            Edit(
                "state/distinct.py",
                "(owner[1:] != owner[:-1]) | (hashed[1:] != hashed[:-1])",
                "True",
            ),
        ),
        (_DISTINCT + "test_large_parts_that_overlap_merge_to_the_sketch_of_all_and_stay_bounded",),
    ),
    Mutation(
        "devices-without-end",
        "a sketch keeps the hashes of all devices",
        "each window of a million devices has 8 MB of state",
        ("P1",),
        (
            Edit(
                "state/distinct.py",
                "hashed[rank < MOST], np.minimum(lengths, MOST)",
                "hashed[rank >= 0], lengths",
            ),
        ),
        (_DISTINCT + "test_large_parts_that_overlap_merge_to_the_sketch_of_all_and_stay_bounded",),
    ),
)
