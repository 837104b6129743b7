"""Mutations of values: equal to a recomputation (P1), they never go back (P2), each is from one batch (P3)."""

from load.mutations.mutation import Edit, Mutation

_PUBLISH = "tests/integration/test_publish.py::"
_STORE = "tests/unit/test_state_store.py::"
_TIME = "tests/unit/test_watermark.py::"
_UNIT = "tests/unit/test_outlets.py::"

MUTATIONS = (
    Mutation(
        "commit-before-publish",
        "Spark commits a batch before it is published",
        "a crash between the two loses the batch",
        "P1",
        "tests/integration/test_publication.py::test_a_step_that_fails_leaves_those_before_it_done_and_those_after_it_and_the_commit_undone[publish_values]",
        Edit(
            "service/pipeline/batch.py",
            "                self._run(frame, batch)\n",
            "                ready = frame.localCheckpoint()\n"
            "                late, self.late = self.late, (lambda: self._run(ready, batch))\n"
            "                late()\n",
        ),
        Edit(
            "service/pipeline/batch.py",
            "    failure: BaseException | None = None\n",
            "    failure: BaseException | None = None\n    late: Callable[[], None] = lambda: None\n",
        ),
    ),
    Mutation(
        "calls-not-repeated",
        "calls whose answer was lost with the connection are not made again",
        "a restart of Redis loses the rows in flight",
        "P1",
        _PUBLISH + "test_a_redis_killed_and_restarted_during_a_publish_loses_and_repeats_nothing",
        Edit(
            "service/redis/link.py",
            "connection = self._connected()\n                sent = 0\n",
            "connection = self._connected()\n                waiting.clear()\n                sent = 0\n",
        ),
    ),
    Mutation(
        "writes-lost-unseen",
        "a Redis that has the epoch, and progress from before the last batch, is written to",
        "values that were lost stay old, and become final like that",
        "P1 P7",
        "tests/integration/test_writes_lost.py::test_no_step_is_carried_out_when_progress_is_behind_what_is_known",
        Edit("service/publication/publish.lua", "if a.after then", "if false then"),
    ),
    Mutation(
        "expires-after-last-reading",
        "a window expires `retain` after its last reading",
        "a device that sends once at the start of a window loses the window before it is final",
        "P1",
        "tests/unit/test_publish_rows.py::test_a_window_has_the_fields_of_the_contract_and_its_views_expiry",
        Edit("service/publication/rows.py", "[ms and ms + to_end for", "[ms for"),
    ),
    Mutation(
        "silence-seals",
        "publish.lua takes a window that silence has closed for one that the watermark has passed",
        "a reading that comes after a silence, and was admitted, is not counted",
        "P1",
        _PUBLISH + "test_a_reading_after_a_silence_corrects_the_window_and_its_revision_grows",
        Edit("service/publication/publish.lua", "if its_end <= clock.final then", "if its_end <= closed_until then"),
    ),
    Mutation(
        "settled-leaves-once",
        "a window that has left before it is final does not leave again when a reading changes it",
        "outlets keep a value that lacks readings, and nothing says so",
        "P1",
        "tests/unit/test_settled.py::test_a_window_leaves_when_it_is_settled_and_with_each_change_and_once_for_each_content",
        Edit(
            "state/windows.py",
            "goes = are_settled & (is_other | (left == settled.NEVER))",
            "goes = are_settled & (left == settled.NEVER)",
        ),
    ),
    Mutation(
        "filled-for-ever",
        "a window without a reading is there as long as the state has a row for it",
        "a reading that holds no more is shown",
        "P1",
        "tests/unit/test_fill.py::test_a_window_that_begins_when_the_last_reading_ceases_to_hold_is_not_there",
        Edit(
            "state/windows.py",
            'are_shown |= ints(windows, "last") + hold_ms > ints(windows, "start")',
            "are_shown |= hold_ms > 0",
        ),
    ),
    Mutation(
        "correction-compares-counts",
        "corrected values with as many readings are taken for the same",
        "outlets have the corrected value, and Redis keeps the former one",
        "P1",
        "tests/integration/test_closed_sink.py::test_a_window_with_as_many_readings_of_other_values_is_replaced_and_rounding_is_no_difference",
        Edit(
            "service/publication/publish.lua", "elseif its and new and its ~= new and not (", "elseif false and not ("
        ),
    ),
    Mutation(
        "final-not-guarded",
        "publish.lua writes final windows and closed sessions again",
        "a value that readers were told is final changes",
        "P1 P2",
        _PUBLISH
        + "test_a_final_window_does_not_change"
        + " "
        + _PUBLISH
        + "test_a_closed_session_does_not_change_and_an_open_one_may_shed_fields",
        Edit(
            "service/publication/publish.lua",
            "return (phase ~= 'final' or is_part) and 'revise' or 'closed'",
            "return 'write'",
        ),
    ),
    Mutation(
        "older-batch-wins",
        "publish.lua accepts an older batch of the same epoch",
        "a value goes back when a late answer is repeated",
        "P2",
        _PUBLISH + "test_an_older_batch_is_refused" + " " + _PUBLISH + "test_progress_never_goes_back",
        Edit(
            "service/publication/publish.lua",
            "return stored_epoch > epoch or (stored_epoch == epoch and stored_batch > batch)",
            "return stored_epoch > epoch",
        ),
    ),
    Mutation(
        "count-may-fall",
        "publish.lua lets a newer epoch replace a richer window by a poorer one",
        "a rebuild from Kafka takes every value back before it catches up",
        "P2",
        _PUBLISH + "test_a_writer_that_reads_the_topic_from_its_beginning_takes_no_value_back",
        Edit("service/publication/publish.lua", "stored.ends == row.ends_text and (", "false and ("),
    ),
    Mutation(
        "torn-value",
        "a hash is written in two commands, one field after the others",
        "a reader between them sees a sum that is not its count's",
        "P3",
        _PUBLISH + "test_no_reader_sees_a_torn_value",
        Edit(
            "service/pipeline/batch_publisher.py",
            "yield from part.calls(stamp, chunk)",
            "for names in ({*part.fields} - {'sum'}, {'sum', 'count', 'end'}):\n"
            "                    some = {name: column for name, column in part.fields.items() if name in names}\n"
            "                    yield from Rows(part.kind, part.keys, part.ttl, some).calls(stamp, 1)",
        ),
        Edit(
            "service/publication/publish.lua", "if not is_part and (phase ~= 'open' or is_repeat) and", "if false and"
        ),
    ),
    Mutation(
        "writing-unmarked",
        "progress does not say that a batch is being written",
        "a reader takes the keys of two batches for one state",
        "P3",
        "tests/integration/test_application_developer.py::test_several_keys_are_read_as_of_one_batch[InPython]",
        Edit(
            "service/pipeline/batch_publisher.py",
            "begun = [] if self.policy.is_complete else",
            "begun = [] if self else",
        ),
    ),
    Mutation(
        "outlet-replay-twice",
        "a batch that is replayed under a larger epoch is taken for another one",
        "a topic has each final value of the batch twice",
        "P1",
        _UNIT + "test_a_replayed_batch_is_the_same_and_one_of_a_checkpoint_that_begins_again_is_not",
        Edit(
            "service/outlets/outlet.py",
            "            return (self.batch, self.part, self.digest) == (reached.batch, reached.part, reached.digest)\n",
            "            return False\n",
        ),
    ),
    Mutation(
        "states-told-twice",
        "what a batch changes of the statuses that have left is forgotten when the process dies after it",
        "an alarm gets the return of a device again, from an outage that is over",
        "P1",
        "tests/unit/test_transitions.py::test_silence_takes_a_device_offline_once_and_its_next_reading_brings_it_back",
        Edit("service/outlets/transitions.py", "        after.settle(committed)\n", ""),
    ),
    Mutation(
        "status-goes-back",
        "a status follows a line that goes back",
        "a device that is silent is online again while a backlog is read",
        "P1",
        "tests/unit/test_status_delay.py::test_a_device_is_offline_while_its_session_waits_for_late_readings",
        Edit("state/devices.py", "np.maximum(word, self._word_before), word)", "word, word)"),
    ),
    Mutation(
        "outlet-row-refused-stops",
        "an outlet that refuses a row takes the row again and again",
        "later finals of all views wait behind one row for ever",
        "P1 P6",
        _UNIT + "test_a_row_that_an_outlet_refuses_is_set_aside_and_the_others_go_on",
        Edit(
            "service/outlets/delivery.py",
            "            except RefusedRowsError as error:\n",
            "            except ZeroDivisionError as error:\n",
        ),
    ),
    Mutation(
        "backfill-sessions-cut-before",
        "a backfill does not read what is before a part",
        "sessions of the past are lacking at the edges of parts",
        "P1",
        "tests/integration/test_backfill.py::test_a_backfill_equals_the_stream_in_redis_and_outlets_and_leaves_richer_values",
        Edit("service/recompute/sources.py", "cls(before_ms + longest_ms", "cls(before_ms"),
    ),
    Mutation(
        "attributes-of-now",
        "the past is computed with the reference of now",
        "the readings of a device that has moved count at both sites",
        "P1",
        "tests/unit/test_reference_history.py::test_a_record_has_the_attributes_of_the_batch_that_has_read_it",
        Edit("service/reference/history.py", "    if not uses or {", "    if True or {"),
    ),
    Mutation(
        "correction-waits-for-nothing",
        "late readings of sessions that are open are corrected like all others",
        "they are marked as corrected, and no session ever has them",
        "P1",
        "tests/unit/test_late_sessions.py::test_what_would_change_an_open_session_waits_and_what_would_not_does_not",
        Edit("state/late_sessions.py", "        if not drop.any():\n", "        if True:\n"),
    ),
    Mutation(
        "window-in-two-buckets",
        "the bucket of a window depends on what else its task has read",
        "parts of one window do not meet, and each of them is published as the whole",
        "P1",
        "tests/unit/test_partial_aggregation.py::test_all_parts_of_a_window_have_one_bucket_whatever_else_their_tasks_have_read",
        Edit(
            "service/aggregation/partial_aggregation.py",
            "windows.buckets_of(view.name, groups.keys, self.screen.buckets)",
            "np.arange(len(groups.keys), dtype=np.int32) % self.buckets",
        ),
    ),
    Mutation(
        "watermark-by-now",
        "windows are final by this machine's clock, not by the event time of the readings",
        "windows are sealed while their readings are still on the way, and a replay seals others",
        "P1",
        _TIME + "test_it_follows_the_newest_event_time_and_never_goes_back",
        Edit("state/watermark.py", "min([line_ms, *bounds])", "__import__('time').time_ns() // 1_000_000"),
    ),
    Mutation(
        "unread-waits-for-nothing",
        "a partition with unread records does not hold the watermark",
        "readings that were there in time are late, because their partition is read more slowly than the others",
        "P1 P7",
        _TIME + "test_a_partition_with_unread_records_holds_it_at_what_it_may_still_give",
        Edit("state/watermark.py", "        if each.is_unread\n", "        if False\n"),
    ),
    Mutation(
        "kept-state-trusted",
        "a worker uses the state that it keeps of a bucket whatever is stored",
        "a replay counts readings of the attempt that failed, and another worker's batches are lost",
        "P1",
        _STORE
        + "test_a_replay_does_not_use_the_state_of_the_attempt_that_failed"
        + " "
        + _STORE
        + "test_another_worker_reads_everything_and_after_that_only_the_deltas_that_it_has_not_seen",
        Edit("state/store.py", "if kept is None or kept.head.token == head.token:", "if True:"),
        Edit("state/store.py", "        if token != head.token:\n            return None\n", ""),
    ),
    Mutation(
        "window-forgets",
        "a part replaces what a window has instead of being merged into it",
        "windows have the readings of their last batch only",
        "P1",
        "tests/unit/test_state_windows.py::test_windows_batch_by_batch_are_those_of_a_plain_recomputation",
        Edit(
            "state/windows.py",
            "merged, new_values = COLUMNS[name].pair(left, right), parts",
            "merged, new_values = right[name], parts",
        ),
    ),
    Mutation(
        "first-value-by-arrival",
        "the first and the last value of merged parts are those of the part that is merged last",
        "they depend on the order of arrival: a replay publishes other values than the batches",
        "P1",
        "tests/unit/test_statistics.py::test_the_first_and_the_last_value_depend_on_the_set_of_readings_only",
        Edit(
            "state/window_columns.py",
            "np.where(mine == edges, value, -np.inf), np.where(other == edges, another, -np.inf)",
            "value, np.where(other == edges, another, value)",
        ),
    ),
    Mutation(
        "device-in-two-parts-counts-twice",
        "a device that two parts of a window have counts twice",
        "a device that sends in two batches is two devices",
        "P1",
        "tests/unit/test_distinct.py::test_large_parts_that_overlap_merge_to_the_sketch_of_all_and_stay_bounded",
        Edit("state/distinct.py", "blobs.are_new(owner, hashed)", "np.ones(len(owner), np.bool_)"),
    ),
    Mutation(
        "folded-above-the-watermark",
        "readings of a window are folded before the watermark has passed them",
        "a reading that comes between them is in no step: a counter's increase depends on the order of arrival",
        "P1",
        "tests/unit/test_trails.py::test_any_order_within_the_delay_with_any_cuts_gives_the_bits_of_one_pass",
        Edit("state/trails.py", "trails.ms < watermark_ms\n", "trails.ms < watermark_ms + 1_000\n"),
    ),
    Mutation(
        "sessions-fold-ahead",
        "the trail of a session folds readings that the watermark has not passed",
        "a late reading between them has no place, and the session loses its increase",
        "P1",
        "tests/unit/test_session_order.py::test_a_late_reading_joins_what_is_folded_of_a_session_in_the_same_cell",
        Edit("state/table.py", "walk.settled(changed, watermark_ms, ", "walk.settled(changed, watermark_ms + 5_000, "),
    ),
    Mutation(
        "late-reading-lost-to-totals",
        "a view without windows does not count late readings",
        "a total depends on when its readings arrived: a rebuild gives another one",
        "P1",
        "tests/unit/test_partial_aggregation.py::test_a_view_without_windows_counts_what_is_late_and_nothing_else_that_is_rejected",
        Edit(
            "service/aggregation/partial_aggregation.py",
            "            yield from self._late(pa.concat_tables(late), task)\n",
            "            pass\n",
        ),
    ),
    Mutation(
        "copies-in-one-batch",
        "only readings of earlier batches make a duplicate",
        "a record that a bridge sends twice in a second counts twice",
        "P1",
        "tests/unit/test_duplicates.py::test_the_first_reading_of_each_key_is_found_and_forgotten_below_the_floor",
        Edit(
            "state/duplicates.py",
            "    is_duplicate: Bools = heads[group] != np.arange(len(order))\n",
            "    is_duplicate: Bools = np.zeros(len(order), np.bool_)\n",
        ),
    ),
    Mutation(
        "day-of-24-hours",
        "a local day begins as the clock was set when the zone's records begin",
        "on the days on which clocks change, and all summer, readings of the last hour are in the wrong day",
        "P1",
        "tests/unit/test_partial_aggregation.py::test_a_local_day_holds_exactly_the_readings_of_that_local_day",
        Edit("state/calendar.py", "starts = clock_ms - offsets_ms\n", "starts = clock_ms - offsets_ms[0]\n"),
    ),
    Mutation(
        "days-of-one-zone",
        "a day in the zone of each key is a day of UTC",
        "readings of the evening or the morning are in the wrong day wherever clocks differ from UTC",
        "P1",
        "tests/unit/test_partial_aggregation.py::test_a_day_in_the_zone_of_each_device_holds_exactly_the_readings_of_that_day_there",
        Edit("state/keyed_calendar.py", "found[own] = of_zone(name, ", "found[own] = of_zone(UTC, "),
    ),
    Mutation(
        "silence-despite-lag",
        "values are closed up to a time from which records are left to read",
        "values are closed that readings on their way belong to",
        "P1",
        "tests/unit/test_idle_detection.py::test_nothing_is_closed_while_something_is_left_to_read",
        Edit(
            "service/daemon/idle_detection.py",
            "            if all(done >= end for *_, done, end in ranges(reached, unread[1])):\n",
            "            if unread[1]:\n",
        ),
    ),
    Mutation(
        "name-moves-early",
        "a new version of a view serves its name before its past is computed",
        "readers find windows that lack readings, or none",
        "P1",
        "tests/unit/test_view_versions.py::test_a_name_moves_when_the_next_version_is_complete_and_in_one_step",
        Edit("service/checkpoint/view_versions.py", "if view.is_next and not view.incomplete}", "if view.is_next}"),
    ),
    Mutation(
        "hdfs-as-a-folder",
        "files on HDFS and S3 are committed as on a local folder",
        "a file that is written again silently keeps its former content",
        "P1",
        "tests/unit/test_checkpoint_stores.py::test_files_are_committed_as_their_file_system_can",
        Edit(
            "service/spark/files.py",
            """    if scheme in {"", "file"}:\n        return ""\n""",
            """    if scheme:\n        return ""\n""",
        ),
    ),
    Mutation(
        "damage-unseen",
        "the checkpoint's logs are not looked at before the query starts",
        "Spark begins again at batch 0 beside the state of the old batches",
        "P1 P7",
        "tests/stream/test_checkpoint.py::test_a_checkpoint_without_its_logs_is_refused_and_not_begun_again",
        Edit("service/checkpoint/logs.py", "    if broken:\n", "    if False:\n"),
    ),
)
