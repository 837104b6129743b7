"""Mutations of the removal of duplicates: which reading is the first one, and how long it is remembered."""

from load.mutations.mutation import Edit, Mutation

_KEYS = "tests/unit/test_duplicates.py::"
_SEEN = "tests/unit/test_seen_keys.py::"
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
        "copies-republished",
        "a republication counts duplicates",
        "a closed value is another one after a loss of Redis",
        ("P1",),
        (
            Edit(
                "service/recompute/late.py",
                '{"ahead", "too_many_devices", "duplicate", "replayed", "behind"}',
                '{"ahead", "too_many_devices", "replayed", "behind"}',
            ),
        ),
        (_DISTINCT + "test_a_batch_that_is_repeated_and_values_that_are_written_or_read_again_have_it_once",),
    ),
    Mutation(
        "behind-republished",
        "a republication or a backfill counts readings that were behind the watermark",
        "a closed value is another one after a loss of Redis",
        ("P1",),
        (
            Edit(
                "service/recompute/late.py",
                '{"ahead", "too_many_devices", "duplicate", "replayed", "behind"}',
                '{"ahead", "too_many_devices", "duplicate", "replayed"}',
            ),
        ),
        (
            "tests/integration/test_behind.py::test_a_reading_behind_the_watermark_is_in_no_value_that_comes_back[*]",
            "tests/integration/test_backfill.py::test_a_backfill_of_a_view_counts_rejects_and_writes_nothing_when_dry",
        ),
    ),
    Mutation(
        "rejects-of-another-checkpoint",
        "what an earlier checkpoint has rejected counts nowhere, although this one has admitted it",
        "a value loses readings when it is computed again",
        ("P1",),
        (
            Edit(
                "service/rejects/former.py",
                "        return is_earlier and place.offset >=",
                "        return False and place.offset >=",
            ),
        ),
        (
            "tests/integration/test_behind.py::"
            "test_a_reading_that_a_new_checkpoint_admits_is_in_all_that_is_computed_again",
        ),
    ),
)
