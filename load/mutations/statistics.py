"""Mutations of statistics: how they merge, and when they are absent."""

from load.mutations.mutation import Edit, Mutation

_VIEWS = "tests/unit/test_view_statistics.py::"
_REGISTRY = "tests/unit/test_statistics.py::"
_QUANTILES = "tests/unit/test_quantiles.py::"
_DISTINCT = "tests/unit/test_distinct.py::"
_TRAILS = "tests/unit/test_trails.py::"
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
        "statistic-stays-in-redis",
        "a window that is written again keeps the fields of statistics that its view has no more",
        "readers see a maximum that lacks the newest readings, beside a count that has them",
        ("P2",),
        (Edit("service/publication/publish.lua", "then tidy(key, i, n, 0) end\n", "then known = known end\n"),),
        (_PUBLISH + "test_a_statistic_that_a_view_has_no_more_goes_with_the_next_reading_of_a_window",),
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
        "device-in-two-parts-counts-twice",
        "a device that two parts of a window have counts twice",
        "a device that sends in two batches is two devices",
        ("P1",),
        (
            Edit(
                "state/distinct.py",
                "blobs.are_new(owner, hashed)",
                "np.ones(len(owner), np.bool_)",
            ),
        ),
        (_DISTINCT + "test_large_parts_that_overlap_merge_to_the_sketch_of_all_and_stay_bounded",),
    ),
    Mutation(
        "folded-above-the-watermark",
        "readings of a window are folded before the watermark has passed them",
        "a reading that comes between them is in no step: a counter's increase depends on the order of arrival",
        ("P1",),
        (Edit("state/trails.py", "trails.ms < watermark_ms\n", "trails.ms < watermark_ms + 1_000\n"),),
        (_TRAILS + "test_any_order_within_the_delay_with_any_cuts_gives_the_bits_of_one_pass",),
    ),
    Mutation(
        "devices-of-a-group-in-the-order-of-arrival",
        "the devices of a group are kept in the order of their parts",
        "a device with two parts is two devices: the step between them is in no value of the group",
        ("P1",),
        (
            Edit(
                "state/trail_groups.py",
                "np.lexsort((hashes, owner))",
                'np.argsort(owner, kind="stable")',
            ),
        ),
        (
            "tests/unit/test_view_statistics.py::test_statistics_of_order_are_the_same_text_in_any_order_within_the_delay",
        ),
    ),
)
