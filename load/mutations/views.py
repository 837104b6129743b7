"""Mutations of views that change while the service runs."""

from load.mutations.mutation import Edit, Mutation

_VERSIONS = "tests/unit/test_view_versions.py::"
_MARKED = "tests/integration/test_marked_windows.py::"
_CHANGES = "tests/integration/test_view_changes.py::"
_REPEATED = _CHANGES + "test_a_batch_is_repeated_with_the_views_that_it_had_and_the_next_one_has_others"
_TAKES_PLACE = _MARKED + "test_a_window_that_begins_before_its_view_is_marked_and_a_complete_one_takes_its_place"
_COMMAND = "tests/unit/test_views_command.py::"
_LUA = "service/publication/publish.lua"

MUTATIONS = (
    Mutation(
        "moved-device-takes-the-window",
        "a marked window with more readings than the computed one stays in the last pass, and is removed then",
        "where a device has moved to another site, the readings of the others of its former site are in no window",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "((is_part and not a.last) or not is_final)",
                "(is_part or not is_final)",
            ),
        ),
        ("tests/integration/test_marked_windows.py::test_fewer_readings_take_its_place_when_no_more_are_to_come",),
    ),
    Mutation(
        "repeated-with-new-views",
        "a batch that was begun is repeated with the views of the settings",
        "its first attempt has written windows that its replay does not complete",
        ("P1",),
        (
            Edit(
                "service/daemon/view_changes.py",
                "return self._is_changed and self._repeated is None",
                "return self._is_changed",
            ),
        ),
        (_REPEATED,),
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
        "views-of-the-start",
        "a term begins with the views that the settings file had when the process started",
        "a standby that takes over removes a view that was added, and a removed one comes back",
        ("P1",),
        (
            Edit(
                "service/daemon/runner.py",
                "                parts.views.ask()  # before this term, another process may have taken changes of the file\n",
                "",
            ),
        ),
        (
            _COMMAND + "test_a_standby_that_takes_over_leaves_the_views_that_the_former_holder_took_from_the_file",
            _COMMAND + "test_a_signal_while_spark_starts_is_not_lost",
            _COMMAND + "test_every_term_begins_with_the_views_of_the_file",
        ),
    ),
    Mutation(
        "refused-takes-back",
        "a term whose settings file is refused has the views of the start of the process",
        "a file with a problem takes back the views that the former holder of the lease had taken",
        ("P1",),
        (
            Edit(
                "service/daemon/view_changes.py",
                "            self._settings = view_versions.kept(self._settings, versions)\n",
                "            pass\n",
            ),
        ),
        (
            _COMMAND
            + "test_a_file_that_is_refused_at_the_begin_of_a_term_leaves_the_views_of_the_checkpoint[unreadable]",
        ),
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
        "returned-under-its-name",
        "a view that was removed and is added again has its former name in keys",
        "windows that were final lack the readings of the time between, for good",
        ("P1", "P2"),
        (
            Edit(
                "service/checkpoint/view_versions.py",
                "number = last.get(wanted.name, 0) + 1",
                "number = 1 if serving is None else last.get(wanted.name, 0) + 1",
            ),
        ),
        (_VERSIONS + "test_a_view_that_was_removed_comes_back_under_another_name_in_keys",),
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
        "part-stays",
        "a complete window does not take the place of a closed one that lacks readings",
        "the first windows of a new view lack readings for good",
        ("P1",),
        (Edit(_LUA, "is_part = a.complete and call('HEXISTS', key, 'complete_from') == 1", "is_part = false"),),
        (_TAKES_PLACE, _MARKED + "test_a_marked_window_with_as_many_readings_loses_its_mark"),
    ),
    Mutation(
        "part-shrinks",
        "a window of fewer readings takes the place of one that is marked",
        "a reader sees a count fall",
        ("P2",),
        (
            Edit(
                _LUA,
                "(is_poorer and ((is_part and not a.last) or not is_final))",
                "(is_poorer and not is_part and not is_final)",
            ),
        ),
        (_MARKED + "test_no_window_of_fewer_readings_takes_the_place_of_a_marked_one",),
    ),
    Mutation(
        "statistic-stays-in-term",
        "a statistic that a view loses while the service runs stays in windows that are written again",
        "a reader finds a sum that is not its count's",
        ("P3",),
        (Edit(_LUA, "is_earlier = its_epoch < epoch or its_batch < (a.since or 0)", "is_earlier = its_epoch < epoch"),),
        (_MARKED + "test_a_statistic_that_a_view_loses_within_a_term_goes_with_the_next_reading",),
    ),
    Mutation(
        "part-covers",
        "a window that lacks readings counts as one that Redis still has",
        "a rebuild leaves it as it is",
        ("P1",),
        (Edit("service/publication/covered.py", "if is_whole and end <= self._final_ms", "if end <= self._final_ms"),),
        (_MARKED + "test_a_marked_window_covers_nothing",),
    ),
)
