"""Mutations of views that change while the service runs."""

from load.mutations.mutation import Edit, Mutation

_VERSIONS = "tests/unit/test_view_versions.py::"
_MARKED = "tests/integration/test_marked_windows.py::"
_CHANGES = "tests/integration/test_view_changes.py::"
_REPEATED = _CHANGES + "test_a_batch_is_repeated_with_the_views_that_it_had_and_the_next_one_has_others"
_TAKES_PLACE = _MARKED + "test_a_window_that_begins_before_its_view_is_marked_and_a_complete_one_takes_its_place"
_LUA = "service/publication/publish.lua"

MUTATIONS = (
    Mutation(
        "day-of-24-hours",
        "a local day begins as the clock was set when the zone's records begin",
        "on the days on which clocks change, and all summer, readings of the last hour are in the wrong day",
        ("P1",),
        (Edit("state/calendar.py", "starts = clock_ms - offsets_ms\n", "starts = clock_ms - offsets_ms[0]\n"),),
        (
            "tests/unit/test_partial_aggregation.py::test_a_local_day_holds_exactly_the_readings_of_that_local_day",
            "tests/unit/test_calendar.py::test_a_window_begins_and_ends_as_the_zone_s_clock_says",
        ),
    ),
    Mutation(
        "moved-device-takes-the-window",
        "a marked window with more readings than the computed one stays in the last pass, and is removed then",
        "where a device has moved to another site, the readings of the others of its former site are in no window",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "(phase ~= 'final' or (is_part and not clock.last))",
                "(phase ~= 'final' or is_part)",
            ),
        ),
        ("tests/integration/test_marked_windows.py::test_fewer_readings_take_its_place_when_no_more_are_to_come",),
    ),
    Mutation(
        "views-not-written",
        "the views of a batch are not in the checkpoint when it runs",
        "after a crash the batch is repeated with those of before",
        ("P1",),
        (Edit("service/daemon/view_changes.py", "        self._log.write(batch, after)\n", ""),),
        (_REPEATED,),
    ),
    Mutation(
        "name-moves-early",
        "a new version of a view serves its name before its past is computed",
        "readers find windows that lack readings, or none",
        ("P1",),
        (
            Edit(
                "service/checkpoint/view_versions.py",
                "if view.is_next and not view.incomplete}",
                "if view.is_next}",
            ),
        ),
        (
            _VERSIONS + "test_a_name_moves_when_the_next_version_is_complete_and_in_one_step",
            _VERSIONS + "test_another_length_slide_column_or_filter_is_a_new_version_beside_the_old_one",
        ),
    ),
    Mutation(
        "part-unmarked",
        "windows that begin before their view was added are not marked",
        "a reader takes a part of a window for all of it",
        ("P7",),
        (Edit("service/publication/rows.py", "if marks is not None:", "if False:"),),
        (_TAKES_PLACE,),
    ),
    Mutation(
        "part-shrinks",
        "a window of fewer readings takes the place of one that is marked",
        "a reader sees a count fall",
        ("P2",),
        (
            Edit(
                _LUA,
                "if is_poorer or is_older(",
                "if (is_poorer and not is_part) or is_older(",
            ),
        ),
        (_MARKED + "test_no_window_of_fewer_readings_takes_the_place_of_a_marked_one",),
    ),
)
