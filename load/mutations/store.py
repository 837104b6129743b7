"""Mutations of service/publication/publish.lua, which writes and fences all values."""

from load.mutations.mutation import Edit, Mutation

_PUBLISH = "tests/integration/test_publish.py::"
_LEASE = "tests/integration/test_lease.py::"
_FENCE = """  if not current then
    return redis.error_reply('EPOCHLOST there is no epoch')
  elseif current > epoch then
    return redis.error_reply('FENCED the epoch is ' .. current)
  elseif current < epoch then
    return redis.error_reply('EPOCHLOST the epoch is ' .. current)
  end
"""
_FINAL = "if its_end <= clock.final then"
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
                "  if current and current > epoch then\n"
                "    return redis.error_reply('FENCED the epoch is ' .. current)\n  end\n",
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
        (Edit("service/publication/publish.lua", "if devices and stored and", "if false and"),),
        (_PUBLISH + "test_a_session_that_a_writer_who_reads_the_topic_again_never_had_is_gone",),
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
        (Edit("service/publication/publish.lua", "stored.ends == row.ends_text and (", "false and ("),),
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
                "return (phase == 'idle' or is_part) and 'revise' or 'closed'",
                "return 'write'",
            ),
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
        (Edit("service/publication/publish.lua", _FINAL, "if its_end <= closed_until then"),),
        (_PUBLISH + "test_a_reading_after_a_silence_corrects_the_window_and_its_revision_grows",),
    ),
    Mutation(
        "part-of-final-shown",
        "a writer that reads the topic again writes windows that were final and that Redis does not have",
        "readers take a part of a window for final",
        ("P1",),
        (
            Edit(
                "service/publication/publish.lua",
                "row.ends and row.ends <= clock.final and not clock.complete",
                "false",
            ),
        ),
        (_PUBLISH + "test_a_part_of_a_window_that_was_final_is_not_shown",),
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
        "settled-closed",
        "in a settled term rows are not compared with closed values either, nor with devices of earlier terms",
        "a value that silence has closed changes without a revision, a final one changes, a session stays open for ever",
        ("P2",),
        (
            Edit(
                "service/publication/publish.lua",
                "must_compare = is_there and is_there ~= plain_mark",
                "must_compare = false",
            ),
            Edit(
                "service/publication/publish.lua",
                "must_compare = endless or ends_at <= closed_until",
                "must_compare = false",
            ),
        ),
        (_PUBLISH + "test_a_closed_value_and_a_device_of_an_earlier_term_are_looked_at",),
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
        "sent-forgotten",
        "a device that has sent is listed as `never` when its hash has expired before the next look",
        "a meter that was installed and died is looked for among those that were not installed",
        ("P2",),
        (Edit("service/publication/publish.lua", "if since == '0' or (status", "if (status"),),
        ("tests/integration/test_never_sent.py::test_a_device_that_has_sent_is_not_listed_when_its_hash_has_expired",),
    ),
)
