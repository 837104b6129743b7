"""Mutations of service/publication/publish.lua, which writes and fences all values."""

from load.mutations.mutation import Edit, Mutation

_PUBLISH = "tests/integration/test_publish.py::"
_LEASE = "tests/integration/test_lease.py::"
_SETTLED = "tests/integration/test_settled.py::"
_REPUBLISH = "tests/integration/test_republish.py::"
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
        "expires-after-last-reading",
        "a window expires `retain` after its last reading",
        "a device that sends once at the start of a window loses the window before it is final",
        ("P1",),
        (Edit("service/publication/rows.py", "[ms and ms + to_end for", "[ms for"),),
        (
            "tests/integration/test_expiry.py::test_a_window_of_one_reading_at_its_start_lives_for_retain_after_its_end",
            "tests/unit/test_publish_rows.py::test_a_window_has_the_fields_of_the_contract_and_its_views_expiry",
        ),
    ),
    Mutation(
        "evictions-unseen",
        "keys that Redis evicts are not looked for",
        "most values may be gone, and the service runs without a word",
        ("P1", "P7"),
        (Edit("service/monitoring/resources.py", "                evictions.look(information)\n", ""),),
        ("tests/integration/test_evictions.py::test_evicted_values_are_lost_data_and_are_published_again",),
    ),
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
                "if not is_settled or ends_at <= closed_until or a.endless then",
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
        "skew-counted-again",
        "a batch that is repeated counts its early readings once more",
        "a device is marked for a crash of ours",
        ("P6",),
        (Edit("service/publication/publish.lua", "if at < last and (", "if true and ("),),
        (_PUBLISH + "test_a_device_with_repeated_early_readings_is_marked_and_listed",),
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
)
