"""Mutations of correcting final values and of writing lost ones again."""

from load.mutations.mutation import Edit, Mutation

_SETTLED = "tests/integration/test_settled.py::"
_CORRECT = "tests/integration/test_correct.py::"
_AS_IF_IN_TIME = _CORRECT + "test_late_readings_are_corrected_as_if_they_had_come_in_time"
_FINISHED = _CORRECT + "test_a_run_that_is_killed_is_finished_by_the_next_whatever_that_is_asked_for"
_CLOSED = "tests/integration/test_closed_sink.py::"
_REPUBLISH = "tests/integration/test_republish.py::"

MUTATIONS = (
    Mutation(
        "rebuild-leaves-holes",
        "nobody asks for the final windows that a rebuild did not write",
        "windows that Redis had lost before the rebuild never come back",
        ("P1",),
        (Edit("service/recompute/republish.py", '            sink.run("mark", servers, mark=mark(ASKED))\n', ""),),
        (_REPUBLISH + "test_a_rebuild_ends_with_the_final_windows_that_redis_did_not_have",),
    ),
    Mutation(
        "settled-after-loss",
        "rows are not compared in a term in which lost or former values are written again",
        "a rebuild takes values back",
        ("P2",),
        (
            Edit(
                "service/recompute/republish.py",
                "if any(shard.republish_mark or shard.rebuild_mark for shard in stored):",
                "if False:",
            ),
        ),
        (_SETTLED + "test_a_term_that_does_not_go_on_where_the_last_one_was_reads_all_rows[republish]",),
    ),
    Mutation(
        "correction-compares-counts",
        "corrected values with as many readings are taken for the same",
        "outlets have the corrected value, and Redis keeps the former one",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "elseif its and new and its ~= new and not (",
                "elseif false and not (",
            ),
        ),
        (
            "tests/integration/test_closed_sink.py::"
            "test_a_window_with_as_many_readings_of_other_values_is_replaced_and_rounding_is_no_difference",
        ),
    ),
    Mutation(
        "attributes-of-now",
        "the past is computed with the reference of now",
        "the readings of a device that has moved count at both sites",
        ("P1",),
        (Edit("service/reference/history.py", "    if not uses or {", "    if True or {"),),
        (
            "tests/integration/test_moved.py::"
            "test_a_late_reading_of_a_device_that_has_moved_or_left_counts_once_and_takes_no_other_with_it",
            "tests/unit/test_reference_history.py::test_a_record_has_the_attributes_of_the_batch_that_has_read_it",
        ),
    ),
    Mutation(
        "correction-not-fenced",
        "a correction is written though another one has begun",
        "a run that was overtaken takes back what the newer one wrote",
        ("P5",),
        (Edit("service/publication/publish.lua", "if newest ~= a.number then", "if false then"),),
        (_CLOSED + "test_only_the_newest_run_writes_and_only_to_a_redis_that_is_whole",),
    ),
    Mutation(
        "correction-may-shrink",
        "a correction replaces a value by one of fewer readings",
        "a repeat, or a topic that lacks some by now, takes readings back",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "return is_poorer and not is_merged and",
                "return false and",
            ),
        ),
        (_CLOSED + "test_a_final_window_gets_more_readings_and_says_so",),
    ),
    Mutation(
        "corrected-too-early",
        "late readings are marked as corrected before the values are written",
        "a crash between the two loses them for good",
        ("P1",),
        (Edit("service/recompute/correct.py", 'self._mark("correcting", ready)', 'self._mark("corrected", ready)'),),
        (_FINISHED,),
    ),
    Mutation(
        "longer-window-forgotten",
        "a late reading is marked as corrected while a longer window that it belongs to is open",
        "the month never gets the reading that its days have",
        ("P1",),
        (Edit("service/recompute/correct.py", "is_whole = next_ms == NO_WINDOW_MS", "is_whole = next_ms >= 0"),),
        ("tests/integration/test_correct.py::test_a_late_reading_does_not_wait_for_the_end_of_the_month",),
    ),
    Mutation(
        "republished-uncorrected",
        "what Redis has lost is published again without the corrections",
        "final values come back poorer than readers saw them, and nobody corrects them again",
        ("P1",),
        (
            Edit(
                "service/recompute/decisions.py",
                "[0]) if in_values else None",
                "[0]) if False else None",
            ),
        ),
        (_AS_IF_IN_TIME,),
    ),
    Mutation(
        "rebuild-uncovered",
        "a new checkpoint that reads the topic again does not ask what is in Redis already",
        "a rebuild makes sessions and windows that never existed, inside of those that readers have",
        ("P1", "P2"),
        (
            Edit(
                "service/recompute/republish.py",
                "if any(is_read_again(progress, committed) for progress in published.values()):",
                "if False:",
            ),
        ),
        (_REPUBLISH + "test_a_new_checkpoint_in_a_prefix_in_use_makes_nothing_inside_what_is_there",),
    ),
    Mutation(
        "view-shape-unchecked",
        "a start compares a view's window, slide and columns with those of the published windows",
        "the windows of both share keys, and readings of the new ones are refused as closed",
        ("P1", "P7"),
        (
            Edit(
                "service/recompute/republish.py",
                "            meta.require_views(self._settings, stored[number].meta)\n",
                "",
            ),
        ),
        (
            "tests/integration/test_republish.py::test_a_view_that_changed_under_its_name_is_refused_and_keeps_its_windows",
        ),
    ),
    Mutation(
        "late-value-decided-again",
        "each recomputation decides again whether an unlisted value of a late reading is a key",
        "when the list is full, the reading counts under its value and under (other)",
        ("P1",),
        (Edit("service/recompute/late.py", "keys.get(name, text) for keys, text", "text for keys, text"),),
        (
            "tests/integration/test_two_places.py::"
            "test_a_value_of_a_column_that_only_a_late_reading_has_stays_its_key_when_the_list_is_full",
        ),
    ),
    Mutation(
        "switch-ahead",
        "a switch does not ask whether the service has published what the other checkpoint has read",
        "rejects and finals of some records are nowhere",
        ("P4",),
        (
            Edit(
                "service/commands/switch.py",
                "        if offset > published.get(",
                "        if False and offset > published.get(",
            ),
        ),
        (
            "tests/integration/test_switch.py::"
            "test_a_checkpoint_that_is_ahead_of_the_service_or_has_read_nothing_is_refused",
        ),
    ),
    Mutation(
        "switch-counts-less",
        "a switch is not refused if views without windows lose readings",
        "readers see their counts fall",
        ("P2",),
        (Edit("service/commands/switch.py", "if after.get(pair, from_ms) > from_ms]", "if False]"),),
        (
            "tests/integration/test_switch.py::"
            "test_values_that_would_lack_readings_refuse_the_switch_unless_that_is_accepted",
        ),
    ),
)
