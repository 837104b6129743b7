"""Mutations of the removal of duplicates: which reading is the first one, and how long it is remembered."""

from load.mutations.mutation import Edit, Mutation

_KEYS = "tests/unit/test_duplicates.py::"
_SEEN = "tests/unit/test_seen_keys.py::"
_FOLD = "tests/unit/test_partial_aggregation.py::"
_DISTINCT = "tests/integration/test_distinct.py::"
_WALKS = "tests/integration/test_walks.py::"

MUTATIONS = (
    Mutation(
        "copies-in-one-batch",
        "only readings of earlier batches make a duplicate",
        "a record that a bridge sends twice in a second counts twice",
        ("P1",),
        (
            Edit(
                "state/duplicates.py",
                "    is_duplicate: Bools = heads[group] != np.arange(len(order))\n",
                "    is_duplicate: Bools = np.zeros(len(order), np.bool_)\n",
            ),
        ),
        (
            _KEYS + "test_the_first_reading_of_each_key_is_found_and_forgotten_below_the_floor",
            _WALKS + "test_a_random_walk_ends_as_plain_lists_say",
        ),
    ),
    Mutation(
        "first-by-arrival",
        "of several copies in a batch the first one is the one that reaches the task first",
        "a batch that is repeated admits another one, with another value",
        ("P1",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "has_key[np.lexsort(by)]",
                "has_key",
            ),
        ),
        (_FOLD + "test_of_copies_the_first_by_partition_and_offset_counts_and_the_others_name_it",),
    ),
    Mutation(
        "keys-of-a-backlog-forgotten",
        "keys are forgotten behind the newest time while the watermark is held back",
        "a copy of a reading of a backlog counts twice, without a word",
        ("P1",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "min(before.newest_ms, before.watermark_ms + self.delay_ms)",
                "before.newest_ms",
            ),
        ),
        (_FOLD + "test_keys_are_remembered_behind_the_newest_time_and_behind_a_held_watermark",),
    ),
    Mutation(
        "key-of-any-device",
        "two devices with one event time have the same key",
        "a device makes another's readings duplicates",
        ("P6",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "duplicates.hashes(devices)[codes][rows]",
                "duplicates.hashes(devices)[codes][rows] * 0",
            ),
        ),
        (_FOLD + "test_of_copies_the_first_by_partition_and_offset_counts_and_the_others_name_it",),
    ),
    Mutation(
        "keys-that-meet",
        "keys that share a number in the index count as the same key",
        "a reading is rejected as a copy of one that it has nothing to do with",
        ("P1", "P6"),
        (
            Edit(
                "state/duplicates.py",
                "(known.device[at] == device[key]) & (known.second[at] == second[key])",
                "(known.device[at] >= 0)",
            ),
        ),
        (_KEYS + "test_keys_that_meet_in_the_index_are_told_apart",),
    ),
    Mutation(
        "remembered-for-ever",
        "keys below the floor are still known",
        "memory grows without limit, and a rebuild decides otherwise",
        ("P1",),
        (Edit("state/duplicates.py", " & (known.event_ms[at] >= floor_ms)", ""),),
        (_KEYS + "test_the_first_reading_of_each_key_is_found_and_forgotten_below_the_floor",),
    ),
    Mutation(
        "kept-keys-trusted",
        "a worker uses the keys that it keeps without comparing the token",
        "an attempt that was given up decides about later batches",
        ("P1",),
        (
            Edit(
                "service/aggregation/seen_keys.py",
                " and kept.token == _token(_read(files, bucket, last_name))",
                "",
            ),
        ),
        (_SEEN + "test_a_worker_that_kept_another_attempt_reads_again",),
    ),
    Mutation(
        "keys-of-an-attempt",
        "what an attempt of a batch has written is there when the batch is repeated",
        "a reading that is rejected with the new settings makes a later one a duplicate",
        ("P1",),
        (
            Edit(
                "service/aggregation/seen_keys.py",
                "                if each.batch >= batch:\n",
                "                if each.batch > batch:\n",
            ),
        ),
        (_SEEN + "test_what_an_attempt_wrote_goes_although_its_bucket_has_no_reading_any_more",),
    ),
    Mutation(
        "copy-corrected",
        "a correction adds late copies",
        "the value has one reading twice",
        ("P1",),
        (
            Edit(
                "service/recompute/correct.py",
                "        if self._settings.admission.distinct and readings.num_rows:\n",
                "        if not self._settings.admission.distinct and readings.num_rows:\n",
            ),
        ),
        (_DISTINCT + "test_a_late_copy_is_late_and_a_correction_does_not_count_it",),
    ),
    Mutation(
        "copies-republished",
        "a republication counts duplicates",
        "a closed value is another one after a loss of Redis",
        ("P1",),
        (
            Edit(
                "service/recompute/late.py",
                '{"ahead", "too_many_devices", "duplicate", "replayed"}',
                '{"ahead", "too_many_devices", "replayed"}',
            ),
        ),
        (_DISTINCT + "test_a_batch_that_is_repeated_and_values_that_are_written_or_read_again_have_it_once",),
    ),
)
