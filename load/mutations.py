"""The mutations of `make teeth`, as data: what is broken, how, and which tests must go red for it.

Each takes away one thing that a guarantee of docs/guarantees.md rests on. `old` must occur exactly once in its file; a
mutation whose text is no longer there fails by name (load/teeth.py, tests/unit/test_guarantees.py). Every test that is
named must fail by itself, not by an error in its set-up, and no test is named that would not be missed.
"""

from dataclasses import dataclass

__all__ = ["MUTATIONS", "Edit", "Mutation", "table"]


@dataclass(frozen=True, slots=True)
class Edit:
    """`old`, which occurs once in `file` (relative to the tree), becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way of being wrong, for which all of `tests` must go red: pytest node ids, with or without parameters.

    `promises` are those that it breaks, by the names of docs/guarantees.md.
    """

    id: str
    what: str
    why: str
    promises: tuple[str, ...]
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


_PUBLISH = "tests/integration/test_publish.py::"
_LEASE = "tests/integration/test_lease.py::"
_PUBLICATION = "tests/integration/test_publication.py::"
_ORDER = _PUBLICATION + "test_a_step_that_fails_leaves_those_before_it_done_and_those_after_it_and_the_commit_undone"
_REPORTED = _PUBLICATION + "test_a_batch_is_reported_when_all_is_published_and_committed_only_then"
_RESUME = "tests/integration/test_resume.py::"
_CHECKPOINT = "tests/stream/test_checkpoint.py::"
_REFRESHER = "tests/integration/test_refresher.py::"
_CHANGING = "tests/stream/test_reference.py::"
_ADMISSION = "tests/stream/test_admission.py::"
_BOOK = "tests/unit/test_schema_catalog.py::"
_SCRIPTS = "tests/stream/test_pass.py::"
_REJECTS = "tests/integration/test_rejects.py::"
_COPIES = "tests/integration/test_reject_copies.py::"
_SETTLED = "tests/integration/test_settled.py::"
_CORRECT = "tests/integration/test_correct.py::"
_AS_IF_IN_TIME = _CORRECT + "test_late_readings_are_corrected_as_if_they_had_come_in_time"
_FINISHED = _CORRECT + "test_a_run_that_is_killed_is_finished_by_the_next_whatever_that_is_asked_for"
_QUALITY = "tests/unit/test_quality.py::"
_TIME = "tests/unit/test_watermark.py::"
_WINDOWS = "tests/unit/test_state_windows.py::"
_STORE = "tests/unit/test_state_store.py::"
_SHARDS = "tests/integration/test_shards.py::"
_CLOSED = "tests/integration/test_closed_sink.py::"
_COVERED = "tests/integration/test_covered.py::"
_WALKS = "tests/integration/test_walks.py::test_a_random_walk_ends_as_plain_lists_say"
_REPUBLISH = "tests/integration/test_republish.py::"
_SKIPS = "tests/unit/test_skips.py::"
_TRANSACTIONS = "tests/integration/test_transactions.py::"
_OURS_ALONE = (
    "tests/integration/test_end_to_end.py::"
    "test_it_listens_on_loopback_keeps_its_files_to_itself_and_adds_an_operators_java_options_to_ours"
)
_FENCE = """if not current then
  return redis.error_reply('EPOCHLOST there is no epoch')
elseif current > epoch then
  return redis.error_reply('FENCED the epoch is ' .. current)
elseif current < epoch then
  return redis.error_reply('EPOCHLOST the epoch is ' .. current)
end
"""
_FINAL = "local is_final, is_idle = its_end <= final, false"
_OLDER = "return stored_epoch > epoch or (stored_epoch == epoch and stored_batch > batch)"

MUTATIONS = (
    Mutation(
        "fence-off",
        "publish.lua compares no epoch at all",
        "two writers overwrite each other",
        ("P2", "P5"),
        (
            Edit("service/publication/publish.lua", _FENCE, ""),
            Edit("service/publication/publish.lua", _OLDER, "return false"),
        ),
        (
            _PUBLISH + "test_a_stale_epoch_is_refused_even_for_keys_that_nobody_has_written",
            _PUBLISH + "test_an_older_batch_is_refused",
        ),
    ),
    Mutation(
        "fence-per-key",
        "publish.lua compares the epoch stored in each key, not the current one",
        "a stale writer wins every key that the new one has not touched",
        ("P5",),
        (Edit("service/publication/publish.lua", _FENCE, ""),),
        (
            _PUBLISH + "test_a_stale_epoch_is_refused_even_for_keys_that_nobody_has_written",
            _LEASE + "test_a_frozen_writer_is_followed_and_refused_when_it_wakes",
        ),
    ),
    Mutation(
        "epoch-lost-unseen",
        "a Redis without an epoch, or with an older one, is written to",
        "lost data goes unnoticed, and the next term may reuse the epoch",
        ("P5", "P7"),
        (
            Edit(
                "service/publication/publish.lua",
                _FENCE,
                "if current and current > epoch then\n"
                "  return redis.error_reply('FENCED the epoch is ' .. current)\nend\n",
            ),
        ),
        (_PUBLISH + "test_a_redis_that_lost_its_epoch_refuses_with_an_error_of_its_own",),
    ),
    Mutation(
        "writes-lost-unseen",
        "a Redis that has the epoch, and progress from before the last batch, is written to",
        "values that were lost stay old, and become final like that",
        ("P1", "P7"),
        (Edit("service/publication/publish.lua", "if a.after then", "if false then"),),
        (_PUBLISH + "test_a_redis_that_has_the_epoch_and_not_the_last_writes_refuses_every_step",),
    ),
    Mutation(
        "reached-not-kept",
        "a query remembers what progress held when it began, not what its last batch wrote",
        "an older copy of the data is taken for the present, and its values become final",
        ("P1", "P7"),
        (Edit("service/pipeline/builder.py", "        term.published = term.epoch, batch\n", ""),),
        (
            _PUBLICATION
            + "test_writes_that_redis_lost_between_two_batches_are_noticed_by_the_next_and_nothing_is_written",
        ),
    ),
    Mutation(
        "restart-unseen",
        "the progress key is written to a Redis that was restarted in the middle of the batch",
        "values that were acknowledged and lost with it are never written again",
        ("P1",),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "self._link(shard).run([call], budget, server)[0]",
                "self._link(shard).run([call], budget)[0]",
            ),
        ),
        (_PUBLISH + "test_a_batch_is_not_finished_on_a_redis_that_was_restarted_during_it",),
    ),
    Mutation(
        "plain-hset",
        "values are written with HSET from Python, without the script",
        "nothing compares epoch, batch, seal or count",
        ("P2", "P5"),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "replies = self._link(shard).run(chain(begun, [first], calls), budget)",
                "import redis\n"
                "        with redis.Redis.from_url(self.settings.redis.url.get_secret_value()) as plain:\n"
                "            who = {'epoch': self.micro_batch.epoch, 'batch': self.micro_batch.batch}\n"
                "            for each in rows:\n"
                "                for number, key in enumerate(each.keys):\n"
                "                    values = {name: column[number] for name, column in each.fields.items()}\n"
                "                    plain.hset(key, mapping={**who, **{k: v for k, v in values.items() if v is not None}})\n"
                "        replies: list[list[int]] = []",
            ),
        ),
        (
            _PUBLISH + "test_a_stale_epoch_is_refused_even_for_keys_that_nobody_has_written",
            _PUBLISH + "test_a_final_window_does_not_change",
            _PUBLISH + "test_a_writer_that_reads_the_topic_from_its_beginning_takes_no_value_back",
        ),
    ),
    Mutation(
        "torn-value",
        "a hash is written in two commands, one field after the others",
        "a reader between them sees a sum that is not its count's",
        ("P3",),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "yield from each.calls(stamp, self.settings.redis.chunk)",
                "for names in ({*each.fields} - {'sum'}, {'sum', 'count', 'end'}):\n"
                "                some = {name: column for name, column in each.fields.items() if name in names}\n"
                "                yield from Rows(each.kind, each.keys, each.ttl, some).calls(stamp, 1)",
            ),
            Edit("service/publication/publish.lua", "elseif is_same and (is_final", "elseif false and (is_final"),
        ),
        (_PUBLISH + "test_no_reader_sees_a_torn_value",),
    ),
    Mutation(
        "orphaned_session",
        "publish.lua leaves open what an earlier writer had open of a device's other session",
        "after a rebuild, which cuts other batches, sessions stay open that no reading gives",
        ("P1",),
        (Edit("service/publication/publish.lua", "if a.clock and stored_epoch and", "if false and"),),
        (_PUBLISH + "test_a_session_that_a_writer_who_reads_the_topic_again_never_had_is_gone",),
    ),
    Mutation(
        "session-unlisted",
        "a new session does not enter the list of its device",
        "readers who ask for a device's sessions do not get it, and corrections take it for none",
        ("P1",),
        (Edit("service/publication/publish.lua", "call('ZADD', list, unpack(pairs_of))", "local unlisted"),),
        (_PUBLISH + "test_a_devices_sessions_are_listed_until_they_expire",),
    ),
    Mutation(
        "session-misfiled",
        "a session enters the list of another device, whose id begins as its own does",
        "readers who ask for the sessions of one device get a start that it never had, and not their own",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "following:match('^%-?%d+$', #stem + 1)",
                "following:match('^%-?%d+', #stem + 1)",
            ),
        ),
        (_PUBLISH + "test_sessions_that_come_together_are_listed_by_device",),
    ),
    Mutation(
        "window-unlisted",
        "the windows of a call that fails halfway do not enter the sets of their views",
        "the repeat finds them written: readers who ask for the keys of a view do not get theirs",
        ("P1",),
        (Edit("service/publication/publish.lua", "for view in pairs(entered) do enter_all(view) end", ""),),
        (_PUBLISH + "test_a_call_that_fails_halfway_has_announced_and_listed_what_it_wrote",),
    ),
    Mutation(
        "feed-without-age",
        "entries of the change feed are removed by their number only",
        "a quiet service keeps entries for years, whose keys have long expired",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "call('XTRIM', KEYS[2], 'MINID'",
                "call('XTRIM', KEYS[2], 'MAXLEN', '~', a.feed) --",
            ),
        ),
        (_PUBLISH + "test_the_feed_loses_entries_that_are_too_old",),
    ),
    Mutation(
        "older-batch-wins",
        "publish.lua accepts an older batch of the same epoch",
        "a value goes back when a late answer is repeated",
        ("P2",),
        (Edit("service/publication/publish.lua", _OLDER, "return stored_epoch > epoch"),),
        (
            _PUBLISH + "test_an_older_batch_is_refused",
            _PUBLISH + "test_progress_never_goes_back",
        ),
    ),
    Mutation(
        "count-may-fall",
        "publish.lua lets a newer epoch replace a richer window by a poorer one",
        "a rebuild from Kafka takes every value back before it catches up",
        ("P2",),
        (Edit("service/publication/publish.lua", "local is_poorer = is_alike and", "local is_poorer = false and"),),
        (_PUBLISH + "test_a_writer_that_reads_the_topic_from_its_beginning_takes_no_value_back",),
    ),
    Mutation(
        "final-not-guarded",
        "publish.lua writes final windows and closed sessions again",
        "a value that readers were told is final changes",
        ("P1", "P2"),
        (
            Edit(
                "service/publication/publish.lua",
                "local is_closed, verdict = content and stored[3] == 'closed', nil",
                "local is_closed",
            ),
            Edit("service/publication/publish.lua", _FINAL, "local is_final, is_idle = false, false"),
        ),
        (
            _PUBLISH + "test_a_final_window_does_not_change",
            _PUBLISH + "test_a_closed_session_does_not_change_and_an_open_one_may_shed_fields",
        ),
    ),
    Mutation(
        "silence-seals",
        "publish.lua takes a window that silence has closed for one that the watermark has passed",
        "a reading that comes after a silence, and was admitted, is not counted",
        ("P1",),
        (Edit("service/publication/publish.lua", _FINAL, "local is_final, is_idle = its_end <= closed_until, false"),),
        (_PUBLISH + "test_a_reading_after_a_silence_corrects_the_window_and_its_revision_grows",),
    ),
    Mutation(
        "revision-stands",
        "a value that was closed changes and keeps its revision",
        "a reader that has passed it on does not learn that it was corrected",
        ("P2",),
        (
            Edit("service/publication/publish.lua", "true, revision + 1", "true, revision"),
            Edit(
                "service/publication/publish.lua",
                "(tonumber(values[5] or nil) or 0) + 1)",
                "tonumber(values[5] or nil) or 0)",
            ),
        ),
        (
            _PUBLISH + "test_a_reading_after_a_silence_corrects_the_window_and_its_revision_grows",
            _PUBLISH + "test_a_session_that_silence_has_closed_goes_on_when_its_device_speaks",
        ),
    ),
    Mutation(
        "aborted-counted",
        "readers of the topics do not ask for committed records only",
        "readings of an aborted transaction are in the results",
        ("P1", "P4"),
        (
            Edit(
                "service/kafka/clients.py",
                '"isolation.level": "read_committed"',
                '"isolation.level": "read_uncommitted"',
            ),
        ),
        (
            _TRANSACTIONS + "test_aborted_records_count_nowhere_and_are_not_lost",
            _TRANSACTIONS + "test_a_transaction_that_never_ends_is_lag_and_its_records_are_not_read",
        ),
    ),
    Mutation(
        "open-transaction-unseen",
        "the lag ends where the oldest open transaction begins",
        "a transaction that never ends holds back its partition, and the lag is 0",
        ("P7",),
        (
            Edit(
                "service/monitoring/lag.py",
                "clients.consumer(self._kafka, small=True, uncommitted=True)",
                "clients.consumer(self._kafka, small=True)",
            ),
        ),
        (_TRANSACTIONS + "test_a_transaction_that_never_ends_is_lag_and_its_records_are_not_read",),
    ),
    Mutation(
        "marker-is-loss",
        "every offset of a batch without a record is taken for lost",
        "a producer with transactions raises the alarm for lost records",
        ("P7",),
        (
            Edit(
                "service/pipeline/builder.py",
                "min(without, unavailable(kafka, micro_batch))",
                "without",
            ),
        ),
        (_TRANSACTIONS + "test_aborted_records_count_nowhere_and_are_not_lost",),
    ),
    Mutation(
        "silence-despite-lag",
        "records that are left to read do not end a silence",
        "values are closed that readings on their way belong to",
        ("P1",),
        (
            Edit(
                "service/daemon/idle_detection.py",
                "if reached is None or reached != self.reached or was_away:",
                "if reached and not self.since_ms:",
            ),
        ),
        (
            "tests/unit/test_idle_detection.py::test_nothing_is_closed_while_something_is_left_to_read_and_silence_begins_anew_after_it",
            "tests/unit/test_transcripts.py::test_all_transcripts_hold_for_the_pure_executor_and_the_wrong_ones_do_not",
        ),
    ),
    Mutation(
        "repeat-is-news",
        "a value that is there already is written and announced again",
        "every replay of a batch floods the feed",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "stored_epoch == epoch and stored_batch == batch and is_same(key, i)",
                "false",
            ),
        ),
        (_PUBLISH + "test_the_same_batch_again_changes_nothing_and_is_not_announced",),
    ),
    Mutation(
        "contract-unasked",
        "a service goes on with the values of an earlier contract",
        "readers of either contract meet values of the other",
        ("P2",),
        (Edit("service/publication/meta.py", "if version != CONTRACT:", "if version > CONTRACT:"),),
        (
            "tests/integration/test_republish.py::"
            "test_a_prefix_of_another_contract_is_refused_by_name_and_used_once_its_keys_are_gone",
        ),
    ),
    Mutation(
        "writing-unmarked",
        "progress does not say that a batch is being written",
        "a reader takes the keys of two batches for one state",
        ("P3",),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "begun = [] if self.republishing else",
                "begun = [] if self else",
            ),
        ),
        ("tests/integration/test_application_developer.py::test_several_keys_are_read_as_of_one_batch[InPython]",),
    ),
    Mutation(
        "failed-call-unannounced",
        "a call of which one command fails announces nothing",
        "the repeat finds the values unchanged, and a reader of the feed never learns of them",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "for kind in pairs(changed) do announce_all(kind) end",
                "for kind in pairs(is_done and changed or {}) do announce_all(kind) end",
            ),
        ),
        (_PUBLISH + "test_a_call_that_fails_halfway_has_announced_and_listed_what_it_wrote",),
    ),
    Mutation(
        "commit-before-publish",
        "Spark commits a batch before it is published",
        "a crash between the two loses the batch",
        ("P1",),
        (
            Edit(
                "service/pipeline/builder.py",
                "            self._publish(frame, batch)\n",
                "            ready = frame.localCheckpoint()\n"
                "            late, self.late = self.late, (lambda: self._publish(ready, batch))\n"
                "            late()\n",
            ),
            Edit(
                "service/pipeline/builder.py",
                "    failure: BaseException | None = None\n",
                "    failure: BaseException | None = None\n    late: Callable[[], None] = lambda: None\n",
            ),
        ),
        (_ORDER + "[2_values]", _REPORTED),
    ),
    Mutation(
        "failure-committed",
        "a batch whose publishing failed is committed all the same",
        "what Redis refused is never written",
        ("P1",),
        (
            Edit(
                "service/pipeline/builder.py",
                "            self.failure = error\n            raise\n",
                "            self.failure = error\n",
            ),
        ),
        (_ORDER + "[2_values]",),
    ),
    Mutation(
        "progress-first",
        "the progress key is written before the values",
        "it claims readings that no value includes",
        ("P1",),
        (
            Edit(
                "service/pipeline/builder.py",
                "        planned = clock.monotonic_s()\n",
                "        sink.progress()\n        planned = clock.monotonic_s()\n",
            ),
        ),
        (_ORDER + "[2_values]",),
    ),
    Mutation(
        "part-of-final-shown",
        "a writer that reads the topic again writes windows that were final and that Redis does not have",
        "readers take a part of a window for final",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "elseif ends_at <= final and not a.complete then",
                "elseif false then",
            ),
        ),
        (_PUBLISH + "test_a_part_of_a_window_that_was_final_is_not_shown",),
    ),
    Mutation(
        "rebuild-leaves-holes",
        "nobody asks for the final windows that a rebuild did not write",
        "windows that Redis had lost before the rebuild never come back",
        ("P1",),
        (Edit("service/recompute/republish.py", '            sink.run("mark", servers, mark=mark(ASKED))\n', ""),),
        (_REPUBLISH + "test_a_rebuild_ends_with_the_final_windows_that_redis_did_not_have",),
    ),
    Mutation(
        "open-again-is-complete",
        "a republish writes windows that are open in the state as if they were complete",
        "during a rebuild they are parts of windows that progress calls final, and stay so for ever",
        ("P1",),
        (Edit("service/publication/rows.py", '"again": True}', '"again": True, "complete": True}'),),
        (_PUBLISH + "test_a_part_of_a_window_that_was_final_is_not_shown",),
    ),
    Mutation(
        "lacking-unasked",
        "nobody asks for a final window that Redis lacks and a batch may not write",
        "readings that were admitted are in no window",
        ("P1",),
        (Edit("service/publication/publish.lua", "if is_lacking and call", "if false and call"),),
        (_PUBLISH + "test_a_part_of_a_window_that_was_final_is_not_shown",),
    ),
    Mutation(
        "rebuild-of-before",
        "a second rebuild keeps the mark of the first, which ends earlier",
        "it asks for a republish too early, and windows that Redis lacks never come back",
        ("P1",),
        (Edit("service/publication/publish.lua", "stored == a.former", "false"),),
        (_REPUBLISH + "test_a_second_rebuild_does_not_end_with_the_first",),
    ),
    Mutation(
        "final-falls",
        "a writer that reads the topic again takes back up to which event time windows are final",
        "windows that readers were told are final are open again",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "  local final = tonumber(stored[3] or nil) or -1\n  if tonumber(a.watermark)",
                "  local final = -1\n  if tonumber(a.watermark)",
            ),
        ),
        (_PUBLISH + "test_what_is_final_stays_so_while_a_writer_reads_the_topic_again",),
    ),
    Mutation(
        "silence-goes-back",
        "a clock that is set back opens what silence has closed",
        "a value changes its state without a reading",
        ("P2",),
        (Edit("service/publication/publish.lua", "math.max(line, former)", "line"),),
        (_PUBLISH + "test_what_a_silence_has_closed_up_to_does_not_go_back",),
    ),
    Mutation(
        "rejects-not-flushed",
        "values and progress are written before the broker has acknowledged the rejects",
        "a crash loses rejects that progress says were consumed",
        ("P4",),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "            delivery.flush(self.settings.kafka, self.micro_batch)\n",
                "            pass\n",
            ),
        ),
        (_PUBLISH + "test_nothing_is_written_to_redis_before_every_reject_is_delivered", _ORDER + "[1_rejects]"),
    ),
    Mutation(
        "copy-of-another",
        "where a rejected record is gone, the bytes of the next one are taken for it",
        "a reject shows, and a replay sends, what another device wrote",
        ("P4",),
        (
            Edit(
                "service/rejects/fetch.py",
                'None if ended or row["offset"] != offset else Record.of(message)',
                "None if ended else Record.of(message)",
            ),
        ),
        (_COPIES + "test_records_that_kafka_no_longer_has_are_sent_as_coordinates",),
    ),
    Mutation(
        "too-large-replayed",
        "a reject that its topic refuses as too large fails the batch",
        "one device's large header stops the service for ever",
        ("P6",),
        (Edit("service/rejects/delivery.py", "if error.code() in _TOO_LARGE:", "if False:"),),
        (_COPIES + "test_what_is_too_large_for_the_rejects_topic_is_cut_down_and_never_sent_for_ever",),
    ),
    Mutation(
        "settled-at-once",
        "a term does not wait until the windows of before it are closed: its rows are not compared with open values",
        "a value that a term before had made richer is replaced by a poorer one",
        ("P2",),
        (Edit("service/publication/publish.lua", " and watermark >= a.settled", ""),),
        (_SETTLED + "test_rows_are_read_until_every_window_of_the_terms_before_is_closed",),
    ),
    Mutation(
        "settled-closed",
        "in a settled term rows are not compared with closed values either, nor with devices of earlier terms",
        "a value that silence has closed changes without a revision, a final one changes, a session stays open for ever",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "if is_settled and (not mark or mark == plain_mark) then",
                "if is_settled then",
            ),
            Edit(
                "service/publication/publish.lua",
                "if not is_settled or ends_at <= closed_until then",
                "if not is_settled then",
            ),
        ),
        (_PUBLISH + "test_a_closed_value_and_a_device_of_an_earlier_term_are_looked_at",),
    ),
    Mutation(
        "settled-for-older",
        "rows of a batch that progress has passed are not compared",
        "a task that was thought dead takes values back",
        ("P2",),
        (Edit("service/publication/publish.lua", "a.settled and is_next and", "a.settled and"),),
        (_PUBLISH + "test_a_task_of_an_older_batch_is_looked_at_and_refused",),
    ),
    Mutation(
        "settled-untidy",
        "fields of an older row stay in a hash that is written without a look",
        "a session has `merged_into` of before, a device an attribute that it has no more",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "if stored_epoch then tidy(",
                "if stored then tidy(",
            ),
        ),
        (_PUBLISH + "test_a_row_that_is_not_looked_at_leaves_what_one_that_is_leaves",),
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
        "failed-copy-unseen",
        "what the broker refuses counts as delivered",
        "a reject is in no topic, and its record counts as processed",
        ("P4",),
        (
            Edit(
                "service/rejects/delivery.py",
                "        if error is not None or missing:\n",
                "        if False:\n",
            ),
        ),
        (_PUBLISH + "test_nothing_is_written_to_redis_before_every_reject_is_delivered",),
    ),
    Mutation(
        "copies-unbounded",
        "the producer of rejects holds whatever it is given",
        "large rejects, and many of them, take all memory",
        ("P6",),
        (
            Edit(
                "service/rejects/delivery.py",
                '"queue.buffering.max.kbytes": _QUEUE_KIB',
                '"queue.buffering.max.kbytes": 2_000_000',
            ),
        ),
        (_COPIES + "test_what_waits_for_the_broker_is_bounded_in_bytes",),
    ),
    Mutation(
        "calls-not-repeated",
        "calls whose answer was lost with the connection are not made again",
        "a restart of Redis loses the rows in flight",
        ("P1",),
        (
            Edit(
                "service/redis/link.py",
                "connection = self._connected()\n                sent = 0\n",
                "connection = self._connected()\n                waiting.clear()\n                sent = 0\n",
            ),
        ),
        (_PUBLISH + "test_a_redis_killed_and_restarted_during_a_publish_loses_and_repeats_nothing",),
    ),
    Mutation(
        "epoch-not-grown",
        "a new term takes the epoch of the one before",
        "the fence cannot tell the two writers apart",
        ("P5",),
        (Edit("service/daemon/lease.py", "tonumber(ARGV[3])) + 1\n", "tonumber(ARGV[3]))\n"),),
        (_LEASE + "test_every_term_has_a_larger_epoch",),
    ),
    Mutation(
        "lease-for-all",
        "the lease is given to whoever asks",
        "two writers duel, each fencing the other",
        ("P5",),
        (Edit("service/daemon/lease.py", "if holder and holder ~= ARGV[1] and holder", "if false and holder"),),
        (_LEASE + "test_a_second_writer_waits_and_is_told_for_whom",),
    ),
    Mutation(
        "early-filter-off",
        "readings from the future are admitted",
        "one device in 2099 moves the watermark and everybody's readings are late",
        ("P6",),
        (
            Edit(
                "service/admission/readings.py",
                '.when((event > broker + admission.max_ahead_ms) | (event >= EVENT_MS_LIMIT), "early")',
                '.when(F.lit(False), "early")',
            ),
        ),
        (_SCRIPTS + "test_a_poisoned_batch_changes_nothing_but_the_rejects",),
    ),
    Mutation(
        "any-id",
        "a device may be called anything",
        "an id commands terminals, breaks lines and fills Redis with keys of 64 KiB",
        ("P6",),
        (Edit("service/admission/readings.py", 'device_ids.is_bad(F.col("device"))', "F.lit(False)"),),
        (_ADMISSION + "test_service_and_oracle_allow_the_same_characters_and_lengths_of_a_device_id",),
    ),
    Mutation(
        "early-of-anybody",
        "a device's clock is judged before whether it is known",
        "early readings of invented devices leave a key each, where unknown devices are to be rejected",
        ("P6",),
        (
            Edit("service/admission/readings.py", '        .when(is_unknown, "unknown_device")\n', ""),
            Edit(
                "service/admission/readings.py",
                '(event < 0), "late")',
                '(event < 0), "late").when(is_unknown, "unknown_device")',
            ),
        ),
        (_ADMISSION + "test_of_several_reasons_the_first_in_the_list_is_given",),
    ),
    Mutation(
        "early-for-good",
        "what early readings alone have made stays as long as a device",
        "invented ids fill Redis for a week",
        ("P6",),
        (Edit("service/publication/publish.lua", "is_invented and math.min(a.within, a.ttl) or a.ttl", "a.ttl"),),
        (_PUBLISH + "test_a_device_that_only_early_readings_name_is_forgotten_soon_unless_it_is_skewed",),
    ),
    Mutation(
        "early-untrimmed",
        "early readings are announced and the feed is not trimmed",
        "the feed grows without end while nothing is admitted",
        ("P6",),
        (
            Edit(
                "service/publication/publish.lua",
                "if newest_entry then\n",
                "if newest_entry and ARGV[1] ~= 'early' then\n",
            ),
        ),
        (_PUBLISH + "test_early_readings_trim_the_feed",),
    ),
    Mutation(
        "schemas-of-all",
        "any id of the registry is decoded, whatever its subject",
        "a device that names foreign ids restarts the query for each, and the plan grows",
        ("P6",),
        (
            Edit(
                "service/admission/schema_sources.py",
                "        return self.all().get(schema_id)\n",
                "        return self._client.schema(schema_id)\n",
            ),
        ),
        (_BOOK + "test_ids_of_other_subjects_are_refused_however_many_there_are",),
    ),
    Mutation(
        "schemas-without-end",
        "a plan takes whatever schema it finds",
        "a folder or subject with thousands of versions makes a plan that no batch ends with",
        ("P6",),
        (
            Edit("service/admission/schema_catalog.py", "len(self._schemas) >= MAX_SCHEMAS", "False"),
            Edit("service/admission/schema_catalog.py", "if len(schemas) <= MAX_SCHEMAS:", "if True:"),
        ),
        (_BOOK + "test_a_plan_has_so_many_schemas_those_in_use_first_then_the_newest",),
    ),
    Mutation(
        "counters-begin-late",
        "a counter's series begins with its first event",
        "to Prometheus the first loss is no increase, and no alert fires",
        ("P7",),
        (Edit("service/monitoring/series.py", "            counter.labels(value)\n", "            pass\n"),),
        ("tests/unit/test_alerts.py::test_without_promtool_a_rule_that_selects_nothing_is_still_found",),
    ),
    Mutation(
        "lag-stands",
        "the last lags are shown while Kafka does not answer",
        "an outage looks like a service that keeps up",
        ("P7",),
        (
            Edit(
                "service/monitoring/metrics.py",
                '        self.failures.labels("lag").inc()\n        self.lag.clear()\n',
                '        self.failures.labels("lag").inc()\n',
            ),
        ),
        ("tests/unit/test_alerts.py::test_lags_are_not_shown_while_kafka_does_not_answer",),
    ),
    Mutation(
        "admission-by-now",
        "admission compares event times with this machine's clock, not the broker's time",
        "a replay decides otherwise than the first run",
        ("P1",),
        (
            Edit(
                "service/admission/readings.py",
                'F.unix_millis("timestamp").alias("broker_ms")',
                'F.unix_millis(F.current_timestamp()).alias("broker_ms")',
            ),
        ),
        (_SCRIPTS + "test_a_batch_that_fails_is_replayed_with_the_same_result",),
    ),
    Mutation(
        "watermark-by-now",
        "windows are final by this machine's clock, not by the event time of the readings",
        "windows are sealed while their readings are still on the way, and a replay seals others",
        ("P1",),
        (
            Edit(
                "state/watermark.py",
                "held_ms = min([line_ms, *bounds])",
                "held_ms = __import__('time').time_ns() // 1_000_000",
            ),
        ),
        (_TIME + "test_it_follows_the_newest_event_time_and_never_goes_back", _REPORTED),
    ),
    Mutation(
        "trailing-unseen",
        "nobody looks for the mark of a record's end",
        "a record with bytes after it is admitted: its writer and its reader do not agree about the schema",
        ("P6",),
        (
            Edit(
                "service/admission/decode.py",
                'F.col(f"record.{_END}") == _mark()',
                'F.col(f"record.{_END}").isNotNull()',
            ),
        ),
        (
            "tests/stream/test_admission.py::test_a_record_is_decided_by_the_limits_to_the_last_step[a byte after the end]",
        ),
    ),
    Mutation(
        "replay-learns",
        "a batch that was published with ids refused is replayed with whatever is known by then",
        "a record is rejected and admitted: the reject stays, and the replay counts the reading",
        ("P1", "P4"),
        (Edit("service/admission/schema_catalog.py", "not index.refuses(schema_id, position.batch)", "True"),),
        ("tests/unit/test_schema_catalog.py::test_a_batch_that_was_published_is_replayed_with_the_same_schemas",),
    ),
    Mutation(
        "new-schema-unasked",
        "nobody is asked about a schema id that is not known",
        "the first records of a new schema are rejected, though it can be read",
        ("P4",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py", "if ids and self.check_schemas is not None:", "if False:"
            ),
        ),
        (
            "tests/integration/test_schemas.py::"
            "test_a_schema_first_seen_while_running_is_used_without_a_restart_or_a_lost_record",
        ),
    ),
    Mutation(
        "rejects-dropped",
        "records that are not admitted go nowhere",
        "offsets consumed are no longer admitted + rejected",
        ("P4",),
        (
            Edit(
                "state/processor.py",
                "if row[0] not in {PARTS, RUNS, TIMES}]",
                "if row[0] not in {PARTS, RUNS, TIMES, REJECTS}]",
            ),
        ),
        (
            "tests/unit/test_state_processor.py::test_rejects_and_counts_pass_through_and_leave_no_state",
            "tests/integration/test_publication.py::test_a_batch_is_reported_when_all_is_published_and_committed_only_then",
        ),
    ),
    Mutation(
        "damage-unseen",
        "the checkpoint's logs are not looked at before the query starts",
        "Spark begins again at batch 0 beside the state of the old batches",
        ("P1", "P7"),
        (Edit("service/checkpoint/logs.py", "    if broken:\n", "    if False:\n"),),
        (_CHECKPOINT + "test_a_checkpoint_without_its_logs_is_refused_and_not_begun_again",),
    ),
    Mutation(
        "misfit-unseen",
        "a start is not compared with the checkpoint's manifest",
        "state of other settings, or of another topic, is gone on with",
        ("P1", "P7"),
        (Edit("service/checkpoint/resume.py", "            manifest.require(str(files), current, wanted)\n", ""),),
        (
            _RESUME + "test_a_new_checkpoint_gets_a_manifest_and_keeps_what_it_says",
            _RESUME + "test_a_topic_that_was_made_again_is_noticed",
        ),
    ),
    Mutation(
        "half-begun-again",
        "a new checkpoint takes the place of one whose records cannot all be read again",
        "windows and sessions lack what came before, and no error says so",
        ("P1", "P7"),
        (Edit("service/checkpoint/resume.py", "            _require_all_of_it(settings)\n", "            pass\n"),),
        (_RESUME + "test_a_lost_checkpoint_is_begun_again_only_where_that_gives_the_same",),
    ),
    Mutation(
        "gap-unseen",
        "records that Kafka has deleted before they were read are gone on without",
        "the loss is silent",
        ("P7",),
        (Edit("service/checkpoint/resume.py", "if gaps and kafka.on_data_loss != CONTINUE:", "if False:"),),
        (_RESUME + "test_records_deleted_before_they_were_read_are_named_and_counted",),
    ),
    Mutation(
        "fenced-tries-again",
        "a writer that was fenced takes it for a failure that may pass",
        "it comes back under the same epoch, again and again",
        ("P5",),
        (Edit("service/pipeline/failure.py", "_TRANSIENT = (SourceError,", "_TRANSIENT = (FencedError, SourceError,"),),
        ("tests/unit/test_failure.py::test_every_family_of_errors_either_may_pass_or_does_not",),
    ),
    Mutation(
        "nothing-passes",
        "no failure of the query is taken for one that may pass",
        "each time the broker or Redis is away costs a new process",
        ("P8",),
        (Edit("service/pipeline/failure.py", "_TRANSIENT = (SourceError, SinkError,", "_TRANSIENT = ("),),
        ("tests/unit/test_failure.py::test_every_family_of_errors_either_may_pass_or_does_not",),
    ),
    Mutation(
        "final-window-reopened",
        "a reading below the watermark is admitted",
        "a window that was published as final begins again with a part of its readings",
        ("P1", "P2"),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                'late = pc.less(readings["event_ms"], watermark_ms)',
                'late = pc.less(readings["event_ms"], -1)',
            ),
        ),
        (
            "tests/unit/test_partial_aggregation.py::test_readings_below_the_watermark_are_late_and_can_be_found",
            "tests/integration/test_behind.py::test_what_comes_behind_the_watermark_is_rejected_as_late",
        ),
    ),
    Mutation(
        "no-text-asked",
        "the reference is asked for device ids that are no UTF-8",
        "one record ends the query, and again at each start",
        ("P6",),
        (Edit("service/reference/lookup.py", "_readable(encoded.dictionary)", "encoded.dictionary"),),
        ("tests/stream/test_reference.py::test_an_id_that_is_no_utf8_is_rejected_and_disturbs_no_look_up",),
    ),
    Mutation(
        "room-forgotten",
        "after a restart the state is taken for empty until its buckets have changed",
        "a replay admits devices that the attempt before it has rejected",
        ("P1", "P6"),
        (Edit("service/admission/device_limit.py", "has_room = len(self._sizes) == self.buckets and", "has_room ="),),
        (
            "tests/unit/test_device_limit.py::test_after_a_restart_a_full_state_stays_full_until_all_buckets_have_told_their_devices",
        ),
    ),
    Mutation(
        "kept-state-trusted",
        "a worker uses the state that it keeps of a bucket whatever is stored",
        "a replay counts readings of the attempt that failed, and another worker's batches are lost",
        ("P1",),
        (
            Edit("state/store.py", "if kept is None or kept.head.token == head.token:", "if True:"),
            Edit("state/store.py", "        if token != head.token:\n            return None\n", ""),
        ),
        (
            _STORE + "test_a_replay_does_not_use_the_state_of_the_attempt_that_failed",
            _STORE + "test_another_worker_reads_everything_and_after_that_only_the_deltas_that_it_has_not_seen",
        ),
    ),
    Mutation(
        "kept-state-caught-up",
        "a worker brings the state that it keeps up to date without a look at where it came from",
        "the deltas of the batches that count are added to the state of an attempt that failed",
        ("P1",),
        (Edit("state/store.py", "        if token != head.token:\n            return None\n", ""),),
        (_STORE + "test_a_state_that_went_another_way_after_the_same_base_is_not_caught_up_with",),
    ),
    Mutation(
        "token-of-bytes-alone",
        "a delta's token does not depend on the one before it",
        "states that differ in their base are taken for each other",
        ("P1",),
        (Edit("state/store.py", "blake2b(before + data,", "blake2b(data,"),),
        (
            _STORE + "test_a_state_that_went_another_way_after_the_same_base_is_not_caught_up_with",
            _STORE + "test_entries_that_do_not_belong_together_are_refused[a base of another state]",
        ),
    ),
    Mutation(
        "state-of-two-attempts",
        "state files are named by their batch alone",
        "after a kill, a batch goes on from a snapshot of one attempt and the changes of another",
        ("P1",),
        (Edit("deploy/spark-defaults.conf", "checkpointFormatVersion 2", "checkpointFormatVersion 1"),),
        ("tests/stream/test_state_by_change.py::test_a_repeated_batch_goes_on_from_its_own_state_alone",),
    ),
    Mutation(
        "deltas-pile-up",
        "no base takes the place of the deltas",
        "the state grows with each batch, and so does the time of a restart",
        ("P6",),
        (Edit("state/store.py", "if not (stored and delta) or _is_due(head, bucket):", "if not (stored and delta):"),),
        (_STORE + "test_a_base_takes_the_place_of_deltas_that_are_as_many_bytes_or_too_many",),
    ),
    Mutation(
        "window-forgets",
        "a part replaces what a window has instead of being merged into it",
        "windows have the readings of their last batch only",
        ("P1",),
        (
            Edit(
                "state/windows.py",
                "column[place[known]] = merge(column[place[known]], parts_of[known])",
                "column[place[known]] = parts_of[known]",
            ),
        ),
        (_WINDOWS + "test_windows_batch_by_batch_are_those_of_a_plain_recomputation",),
    ),
    Mutation(
        "window-in-two-buckets",
        "the bucket of a window depends on what else its task has read",
        "parts of one window do not meet, and each of them is published as the whole",
        ("P1",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "self._buckets(view.name, groups.keys)",
                "np.arange(len(groups.keys), dtype=np.int32) % self.buckets",
            ),
        ),
        (
            "tests/unit/test_partial_aggregation.py::test_all_parts_of_a_window_have_one_bucket_whatever_else_their_tasks_have_read",
        ),
    ),
    Mutation(
        "unread-waits-for-nothing",
        "a partition with unread records does not hold the watermark",
        "readings that were there in time are late, because their partition is read more slowly than the others",
        ("P1", "P7"),
        (Edit("state/watermark.py", "        if each.is_unread\n", "        if False\n"),),
        (
            _TIME + "test_a_partition_with_unread_records_holds_it_at_what_it_may_still_give",
            _TIME + "test_nothing_that_is_admitted_is_late_however_far_partitions_are_apart",
            "tests/integration/test_behind.py::test_a_partition_with_unread_records_holds_the_watermark",
        ),
    ),
    Mutation(
        "hold-unbounded",
        "a partition with unread records holds the watermark for ever",
        "one partition that is flooded keeps every window open, and the state grows without bound",
        ("P6",),
        (Edit("state/watermark.py", "line_ms - delays.max_hold_ms)", "before.watermark_ms)"),),
        (_TIME + "test_the_wait_is_bounded_and_over_when_the_partition_is_read",),
    ),
    Mutation(
        "unread-asked-again",
        "a replay asks anew which partitions have unread records",
        "the replay closes what the first attempt has left open, or the other way round",
        ("P1",),
        (
            Edit(
                "service/checkpoint/event_time.py",
                "            noted: list",
                "            raise FileNotFoundError\n            noted: list",
            ),
        ),
        ("tests/unit/test_event_time.py::test_a_replay_is_told_the_same_unread_partitions",),
    ),
    Mutation(
        "skew-counted-again",
        "a batch that is repeated counts its early readings once more",
        "a device is marked for a crash of ours",
        ("P6",),
        (Edit("service/publication/publish.lua", "if at < last and (", "if true and ("),),
        (_PUBLISH + "test_a_device_with_repeated_early_readings_is_marked_and_listed",),
    ),
    Mutation(
        "silent-bucket-unrecoverable",
        "a batch tells event time only to some of the buckets",
        "the session of a device that falls silent never closes",
        ("P1",),
        (Edit("service/aggregation/partial_aggregation.py", "np.arange(self.buckets, dtype", "np.arange(1, dtype"),),
        (
            "tests/unit/test_partial_aggregation.py::test_every_bucket_is_told_what_was_read_of_each_partition",
            _SCRIPTS + "test_silent_buckets_are_closed_and_closed_windows_leave_the_state",
        ),
    ),
    Mutation(
        "marks-unread",
        "a replay of rejects does not ask which of them were sent before",
        "each run sends all of them again, and they count twice",
        ("P4",),
        (
            Edit(
                "service/commands/replay.py",
                "known = _finish(settings.kafka, known, say)",
                "known = {}",
            ),
        ),
        (_REJECTS + "test_what_is_sent_again_is_sent_once_whoever_asks_how_often",),
    ),
    Mutation(
        "taken-not-looked-for",
        "what a killed replay has begun is open again without a look into the topic",
        "the next run sends again what the killed one had sent",
        ("P4",),
        (
            Edit(
                "service/commands/replay.py", "if name == ORIGIN and text is not None and text in places:", "if False:"
            ),
        ),
        (_REJECTS + "test_a_replay_that_is_killed_is_finished_by_the_next_and_sends_nothing_twice",),
    ),
    Mutation(
        "replay-not-fenced",
        "a replay goes on when another has begun",
        "both send the same rejects",
        ("P4",),
        (Edit("service/commands/replay.py", "    fence.check()\n", ""),),
        (_REJECTS + "test_a_run_that_another_has_overtaken_sends_nothing",),
    ),
    Mutation(
        "fence-begins-again",
        "runs that apply rejects count themselves, and begin again in a Redis that lost its data",
        "two runs with the same number both send the same rejects",
        ("P4",),
        (Edit("service/rejects/fence.py", "self.number = secrets.randbits(62)", "self.number = 1"),),
        (_REJECTS + "test_a_run_from_before_redis_lost_its_data_sends_nothing",),
    ),
    Mutation(
        "republished-from-nothing",
        "a host without a committed batch takes the request to republish for done",
        "what Redis lost stays lost, and nothing says so any more",
        ("P7",),
        (
            Edit(
                "service/commands/republish.py",
                "        _committed(spark, settings)\n        snapshot",
                "        snapshot",
            ),
        ),
        (_REPUBLISH + "test_where_no_batch_was_committed_nothing_is_republished_and_the_mark_stays",),
    ),
    Mutation(
        "own-headers-trusted",
        "the first headers with Tidemark's names count, not the last ones",
        "a device hides its reject, or says another reason, place and size of it",
        ("P4", "P6"),
        (
            Edit(
                "service/rejects/delivery.py",
                "    own, added = everything[:-count], everything[-count:]\n",
                "    own, added = [], [each for each in everything if each[0].startswith(HEADER)][:count]\n",
            ),
        ),
        (_REJECTS + "test_no_header_of_a_records_own_hides_or_changes_its_reject",),
    ),
    Mutation(
        "origin-without-token",
        "a record that says it was sent for a reject is believed",
        "a device marks others' rejects as replayed, and they are never sent",
        ("P4", "P6"),
        (
            Edit(
                "service/commands/replay.py",
                "places = {_origin(mark): place for place, mark in taken.items()}",
                'places = {_origin(Mark(place, "open", {})): place for place in taken}',
            ),
        ),
        (_REJECTS + "test_who_forges_an_origin_marks_nobodys_reject_as_replayed",),
    ),
    Mutation(
        "late-mark-wins",
        "of two marks of a reject the newer one counts, whatever it says",
        "a run that comes too late makes a reject open again that is done",
        ("P4",),
        (
            Edit(
                "service/rejects/marks.py",
                " and (mark.place not in newest or newest[mark.place].state not in ENDS)",
                "",
            ),
        ),
        (_REJECTS + "test_a_mark_that_comes_too_late_does_not_hide_the_end",),
    ),
    Mutation(
        "reference-not-kept",
        "a start without a newer reference does not go on with the one that is kept",
        "a database that is away, or bad data in it, keeps the service down",
        ("P8",),
        (Edit("service/reference/snapshots.py", "        kept = _last_good(folder)\n", "        kept = None\n"),),
        (_REFRESHER + "test_after_a_restart_the_kept_snapshot_serves_and_says_so",),
    ),
    Mutation(
        "shrink-unseen",
        "a new reference is not compared with the size of the last one",
        "half of the devices lose their attributes, and no error says so",
        ("P7",),
        (Edit("service/reference/expectations.py", "    if rows >= least:\n", "    if True:\n"),),
        (
            _REFRESHER
            + "test_the_last_good_snapshot_serves_on_and_a_mended_database_is_believed_again[half the rows gone]",
            "tests/integration/test_reference.py::test_a_table_that_has_lost_more_rows_than_it_may_is_refused",
        ),
    ),
    Mutation(
        "age-without-limit",
        "a reference of any age serves",
        "attributes of long ago pass for those of now",
        ("P7",),
        (
            Edit(
                "service/daemon/refresher.py",
                "        if age_ms <= self._reference.max_age_ms:\n",
                "        if True:\n",
            ),
        ),
        (_REFRESHER + "test_what_is_older_than_max_age_does_not_serve",),
    ),
    Mutation(
        "replay-sees-newer",
        "a batch that is repeated sees the newest reference, not the one that it saw the first time",
        "a window counts readings at two sites",
        ("P1",),
        (Edit("service/daemon/refresher.py", "        if not self._may_be_replayed:", "        if True:"),),
        (_REFRESHER + "test_after_a_silence_the_first_batch_sees_the_newest_and_a_batch_that_is_replayed_what_it_saw",),
    ),
    Mutation(
        "hash-is-the-device",
        "a device is taken for another one whose hash it shares",
        "its readings count at the other one's site",
        ("P6",),
        (
            Edit(
                "service/reference/attributes.py",
                "            row[left[is_same]] = candidates[is_same]\n",
                "            row[left] = candidates\n",
            ),
        ),
        ("tests/unit/test_attributes.py::test_two_devices_of_one_hash_are_two_devices",),
    ),
    Mutation(
        "gap-of-all",
        "sessions close by the gap of the settings, whatever the device's own is",
        "a slow device's session is micro_batch, a fast one's joins what is two",
        ("P1",),
        (
            Edit(
                "state/table.py",
                "    return np.where(own < 0, rules.gap_ms, own)\n",
                "    return np.where(own < 0, own, rules.gap_ms)\n",
            ),
        ),
        (
            "tests/unit/test_state_table.py::test_devices_with_gaps_and_intervals_of_their_own_are_as_if_each_had_rules_of_its_own",
            _CHANGING + "test_a_device_has_the_session_gap_and_the_interval_that_the_reference_says",
        ),
    ),
    Mutation(
        "quiet-unseen",
        "nothing is due at the time of a device's next expected reading",
        "a device that misses it is online until it is offline",
        ("P1",),
        (Edit("state/table.py", "    if expected.any():\n", "    if False:\n"),),
        (
            "tests/unit/test_state_table.py::test_a_device_is_quiet_between_its_expected_reading_and_the_end_of_its_session",
        ),
    ),
    Mutation(
        "own-range-unasked",
        "admission goes by the ranges of the settings alone",
        "values that are impossible for the device are in its results",
        ("P1",),
        (
            Edit(
                "service/admission/readings.py",
                "    own = lookup.bounds(settings) if has_own else {}\n",
                "    own: dict[str, str] = {}\n",
            ),
        ),
        ("tests/stream/test_admission.py::test_a_device_s_own_range_goes_before_that_of_all",),
    ),
    Mutation(
        "correction-of-open",
        "correct.lua writes values that are open in Redis",
        "the daemon and a correction write the same key, and one of them is wrong",
        ("P1", "P5"),
        (
            Edit(
                "service/recompute/correct.lua",
                "elseif is_there and not is_closed and stored[1] ~= 'merged' then",
                "elseif false then",
            ),
        ),
        (_CLOSED + "test_what_is_open_or_closed_by_silence_is_left_to_the_service",),
    ),
    Mutation(
        "correction-not-fenced",
        "correct.lua does not ask whether another correction has begun",
        "a run that was overtaken takes back what the newer one wrote",
        ("P5",),
        (Edit("service/recompute/correct.lua", "if newest ~= a.number then", "if false then"),),
        (_CLOSED + "test_only_the_newest_run_writes_and_only_to_a_redis_that_is_whole",),
    ),
    Mutation(
        "correction-may-shrink",
        "correct.lua replaces a value by one of fewer readings",
        "a repeat, or a topic that lacks some by now, takes readings back",
        ("P2",),
        (
            Edit(
                "service/recompute/correct.lua",
                "elseif is_closed and not merges and tonumber",
                "elseif false and tonumber",
            ),
        ),
        (_CLOSED + "test_a_final_window_gets_more_readings_and_says_so",),
    ),
    Mutation(
        "correction-beside-republish",
        "correct.lua writes while Redis is being republished to",
        "a value is a correction of what Redis had lost",
        ("P1",),
        (Edit("service/recompute/correct.lua", "if (call('GET', KEYS[4]) or '') ~= a.mark then", "if false then"),),
        (_CLOSED + "test_only_the_newest_run_writes_and_only_to_a_redis_that_is_whole",),
    ),
    Mutation(
        "correction-forgets",
        "a correction computes values without what earlier ones have put into them",
        "each takes back the one before, or is refused",
        ("P1",),
        (Edit("service/recompute/correct.py", "run.admit(records, corrected_before)", "run.admit(records)"),),
        (_AS_IF_IN_TIME,),
    ),
    Mutation(
        "correction-waits-for-nothing",
        "late readings of sessions that are open are corrected like all others",
        "they are marked as corrected, and no session ever has them",
        ("P1",),
        (Edit("state/corrected.py", "        if not drop.any():\n", "        if True:\n"),),
        (
            "tests/unit/test_corrected.py::test_what_would_change_an_open_session_waits_and_what_would_not_does_not",
            "tests/unit/test_corrected.py::test_it_is_as_if_the_late_readings_had_come_in_time[2]",
        ),
    ),
    Mutation(
        "taken-not-corrected",
        "what a killed correction has begun is no concern of the next one's",
        "some values have a late reading and others do not, for ever",
        ("P1",),
        (Edit("service/recompute/late.py", 'if self.state(place) == "correcting" or (', "if ("),),
        ("tests/unit/test_late.py::test_what_is_to_be_corrected",),
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
        "republished-uncorrected",
        "what Redis has lost is published again without the corrections",
        "final values come back poorer than readers saw them, and nobody corrects them again",
        ("P1",),
        (
            Edit(
                "service/recompute/republish.py",
                "        if log is not None:\n            rows",
                "        if False:\n            rows",
            ),
        ),
        (_AS_IF_IN_TIME,),
    ),
    Mutation(
        "nothing-covered",
        "values of the past are written beside closed ones of the same time",
        "sessions and windows that never existed count readings a second time, after a change of a gap, a view or a site",
        ("P1", "P2"),
        (Edit("service/pipeline/batch_publisher.py", "if self.covered:", "if False:"),),
        (
            _COVERED + "test_no_session_is_made_over_a_closed_one_of_its_device",
            _COVERED + "test_a_final_window_covers_its_start_where_the_reference_makes_the_keys",
            _REPUBLISH + "test_a_gap_that_has_changed_makes_no_session_beside_those_that_are_there",
        ),
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
        "correction-not-restored",
        "a republish leaves closed values as they are where a correction is lost",
        "late readings that are marked as corrected are in no value, for ever",
        ("P1",),
        (Edit("service/recompute/republish.py", "            self._corrected(marks)\n", ""),),
        (_CORRECT + "test_what_redis_loses_of_a_correction_comes_back_when_it_is_asked_to",),
    ),
    Mutation(
        "shards-one-epoch",
        "a term takes an epoch that another shard has already",
        "two writers have one epoch when the first shard has lost its newest writes: neither is refused",
        ("P5",),
        (Edit("service/daemon/lease.py", "if at_least >= self.epoch:", "if at_least > self.epoch:"),),
        (_SHARDS + "test_a_lease_fences_every_shard_before_its_term_begins[one Redis]",),
    ),
    Mutation(
        "shards-unfenced",
        "a term puts its epoch into the first shard only",
        "a former writer goes on in the other shards",
        ("P5",),
        (
            Edit(
                "service/daemon/lease.py",
                "at_least = max((self._follow(keys) for keys in others), default=0)",
                "at_least = 0",
            ),
        ),
        (_SHARDS + "test_a_lease_fences_every_shard_before_its_term_begins[one Redis]",),
    ),
    Mutation(
        "shard-same-run",
        "a primary that was failed over and back counts as the same one",
        "progress says that values are there which it has dropped meanwhile",
        ("P1",),
        (Edit("service/redis/link.py", " {information.get('master_replid')}", ""),),
        (_SHARDS + "test_a_primary_that_was_failed_over_and_back_is_another_one",),
    ),
    Mutation(
        "half-moved-call",
        "a call does not name a key that never exists",
        "while its slot moves, a call runs until it comes to a key that has moved, or to a new one",
        ("P3",),
        (Edit("service/publication/rows.py", "return *known, keys.absent", "return known"),),
        (_SHARDS + "test_a_call_waits_while_its_slot_moves[marks1]",),
    ),
    Mutation(
        "shards-changed",
        "a service starts on a prefix with another number of shards",
        "readers and writer look for a key in different shards",
        ("P2",),
        (Edit("service/publication/meta.py", "if shards_there != options.shards:", "if False:"),),
        (_SHARDS + "test_a_prefix_keeps_its_number_of_shards[3-4]",),
    ),
    Mutation(
        "loss-in-all-shards",
        "a loss in one shard is repaired in all of them",
        "shards that have lost nothing go back to the last committed batch",
        ("P2",),
        (Edit("service/recompute/republish.py", ", only=frozenset(losses))", ")"),),
        (_REPUBLISH + "test_what_one_shard_has_lost_is_there_again_and_the_others_keep_theirs",),
    ),
    Mutation(
        "correction-to-any-redis",
        "a correction goes on after a restart of Redis, which may have lost what it wrote",
        "late readings are marked as corrected, and their values are gone",
        ("P1",),
        (
            Edit(
                "service/recompute/closed_sink.py",
                "calls, Budget(options.retry_for_ms, place), self.servers[shard]",
                "calls, Budget(options.retry_for_ms, place)",
            ),
        ),
        (_CLOSED + "test_a_correction_writes_to_no_other_run_of_redis_than_the_one_it_began_with",),
    ),
    Mutation(
        "merge-unseen",
        "a session that silence has closed stays closed when an earlier reading makes it part of another",
        "its readings are in two closed sessions, and no correction of its device ever ends",
        ("P1",),
        (
            Edit(
                "service/publication/rows.py",
                '"content": ("count", "last", "merged_into")',
                '"content": ("count", "last")',
            ),
        ),
        (
            _PUBLISH + "test_a_session_that_silence_has_closed_goes_on_when_its_device_speaks[merged]",
            "tests/integration/test_silence.py::test_an_earlier_reading_joins_sessions_that_silence_has_closed",
            _WALKS,
        ),
    ),
    Mutation(
        "late-by-gap",
        "a reading within the session gap of its device's last closed session counts as late for it",
        "when a gap has grown, readings that came in time are in no session",
        ("P1", "P4"),
        (
            Edit(
                "state/table.py",
                "    codes, names = _common_codes(before.devices, runs)\n    devices = Devices(",
                "    offline = before.devices.filter(before.devices['session'].is_null()).to_pylist()\n"
                "    closed = {row['device']: row['last_seen'] + rules.gap_ms for row in offline}\n"
                "    starts = zip(runs['device'].to_pylist(), runs['start'].to_pylist(), strict=True)\n"
                "    runs = runs.filter(pa.array([start > closed.get(name, -1) for name, start in starts], pa.bool_()))\n"
                "    codes, names = _common_codes(before.devices, runs)\n    devices = Devices(",
            ),
        ),
        (_WALKS,),
    ),
    Mutation(
        "parted-waits",
        "an open session with fewer readings than silence has closed is refused, whoever writes it",
        "a session that a smaller gap has parted keeps the readings of its other part: they count twice",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "judge(key, i, stored_epoch < epoch)",
                "judge(key, i, true)",
            ),
        ),
        (_PUBLISH + "test_a_session_that_silence_has_closed_is_parted_when_the_gap_of_its_device_becomes_smaller",),
    ),
    Mutation(
        "silence-taken-back",
        "an open session with fewer readings replaces one that silence has closed",
        "a rebuild takes back what readers have seen",
        ("P2",),
        (Edit("service/publication/publish.lua", "return is_behind and 'behind' or 'write'", "return 'write'"),),
        (_PUBLISH + "test_a_session_that_silence_has_closed_waits_for_a_writer_that_reads_the_topic_again",),
    ),
    Mutation(
        "silence-left-behind",
        "what silence has closed in an older state of Redis, or before a rebuild, stays though the state lacks it",
        "sessions stand beside those that have their readings, closed by nobody",
        ("P1",),
        (Edit("service/publication/publish.lua", "stored[1] == 'open' or stored[3] == 'idle'", "stored[1] == 'open'"),),
        (
            "tests/integration/test_writes_lost.py::"
            "test_sessions_of_an_older_epoch_that_no_watermark_has_closed_are_removed_and_nothing_else",
        ),
    ),
    Mutation(
        "rebuild-without-lag",
        "what no batch of the checkpoint has read counts as read",
        "silence closes open sessions and windows while a rebuild reads the topic",
        ("P1", "P2"),
        (Edit("service/monitoring/lag.py", "end if from_end else begin", "end"),),
        ("tests/integration/test_lag.py::test_what_an_older_checkpoint_has_read_is_to_be_read_again",),
    ),
    Mutation(
        "drawn-from-the-whole",
        "expectations are drawn from the whole sample alone, not from pieces of the size that is checked",
        "good samples do not meet them: in a smaller one a device is there less often, and means differ more",
        (),
        (
            Edit(
                "service/quality/profile.py",
                "[table, *(table.slice(n * piece, piece) for n in range(table.num_rows // piece))]",
                "[table]",
            ),
        ),
        (_QUALITY + "test_what_is_drawn_is_what_the_sample_has",),
    ),
    Mutation(
        "rejected-lacks-measures",
        "what is missing of a measure is asked of records that were not admitted, too",
        "one cause makes many expectations fail, and the one that names it is among them",
        (),
        (Edit("service/quality/profile.py", ", row_condition=IS_ADMITTED)", ")"),),
        (_QUALITY + "test_a_fault_of_each_kind_is_named",),
    ),
    Mutation(
        "printed-raw",
        "commands print what a device wrote as it is",
        "a device id clears the terminal, or writes lines that look like Tidemark's",
        ("P6",),
        (Edit("service/printing.py", "if each.isprintable() else", "if True else"),),
        ("tests/unit/test_printing.py::test_a_line_stays_one_line_of_plain_text",),
    ),
    Mutation(
        "report-unescaped",
        "the report on a sample shows what a device wrote as it is",
        "a device id runs a script in the browser of who looks at /quality",
        ("P6",),
        (Edit("service/quality/validation.py", "return html.escape(value)", "return value"),),
        ("tests/unit/test_quality.py::test_no_text_of_a_device_is_active_in_the_report",),
    ),
    Mutation(
        "check-fails-in-silence",
        "a sample that cannot be checked is not counted",
        "nobody knows that nothing is checked any more",
        ("P7",),
        (
            Edit(
                "service/quality/checker.py",
                "        self._metrics.quality.failures.inc()\n",
                "",
            ),
        ),
        ("tests/integration/test_quality.py::test_a_drifted_measure_is_named_while_the_stream_goes_on",),
    ),
    Mutation(
        "skip-swallows-a-neighbour",
        "a batch begins one offset behind the end of a skip",
        "a reading beside a record that nobody can read is lost, and no reject says so",
        ("P4", "P6"),
        (
            Edit(
                "service/checkpoint/skips.py",
                "offsets.setdefault(span.topic, {})[span.partition] = span.end",
                "offsets.setdefault(span.topic, {})[span.partition] = span.end + 1",
            ),
        ),
        (
            _SKIPS + "test_stretches_and_skips_are_the_whole_without_overlap",
            _SKIPS + "test_batches_as_they_are_planned_read_around_the_skips",
        ),
    ),
    Mutation(
        "all-interfaces",
        "deploy/run leaves it to Spark where the driver listens",
        "another host reaches its ports",
        ("P9",),
        (Edit("deploy/run", 'export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"\n', ""),),
        (_OURS_ALONE,),
    ),
    Mutation(
        "checkpoint-for-all",
        "Hadoop gives the files of the checkpoint the modes that it gives all files",
        "another user of the host reads what devices have sent",
        ("P9",),
        (Edit("deploy/spark-defaults.conf", "spark.hadoop.fs.permissions.umask-mode 077\n", ""),),
        (_OURS_ALONE,),
    ),
    Mutation(
        "java-options-replaced",
        "our Java options are in the setting that an operator's replace",
        "with any option of an operator's the limits of Avro are gone, and a poisoned record ends the JVM",
        ("P6",),
        (Edit("deploy/spark-defaults.conf", "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"),),
        (_OURS_ALONE,),
    ),
    Mutation(
        "secret-submitted",
        "deploy/submit sends passwords with the rest of its environment",
        "the master keeps them in its recovery directory",
        ("P9",),
        (Edit("deploy/submit", "TIDEMARK_*PASSWORD=?* | TIDEMARK_*URL=*://*:*@*)", "no)"),),
        ("tests/integration/test_supervise.py::test_a_submission_with_a_secret_in_its_environment_is_refused",),
    ),
    Mutation(
        "connections-unbounded",
        "the metrics port takes as many connections as come",
        "whoever reaches it takes a thread with each",
        ("P9",),
        (Edit("service/monitoring/server.py", "if self._free.acquire(blocking=False):", "if True:"),),
        (
            "tests/unit/test_server.py::"
            "test_one_connection_more_than_there_may_be_is_closed_and_the_others_are_answered",
        ),
    ),
    Mutation(
        "oracle-off-by-one",
        "the oracle leaves out the last record of each partition",
        "it is the proof's own error: what compares with it must notice",
        ("P1", "P4"),
        (Edit("load/oracle.py", "if error is None and offset < end:", "if error is None and offset < end - 1:"),),
        ("tests/integration/test_end_to_end.py::test_every_value_is_that_of_the_oracle_after_a_kill_under_load",),
    ),
)


def table() -> str:
    """The mutations as a Markdown table."""
    rows = []
    for each in MUTATIONS:
        tests = ", ".join(f"`{test.rpartition('::')[2].partition('[')[0]}`" for test in each.tests)
        rows.append(f"| `{each.id}` | {each.what} | {each.why} | {', '.join(each.promises)} | {tests} |")
    head = "| mutation | what is broken | so that | promise | tests that go red |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows, ""])
