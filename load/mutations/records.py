"""Mutations of what becomes of a record: it counts or has a reason (P4), and no record stops the service (P6)."""

from load.mutations.mutation import Edit, Mutation

_SCRIPTS = "tests/stream/test_pass.py::"
_SKIPS = "tests/unit/test_skips.py::"

MUTATIONS = (
    Mutation(
        "rejects-not-flushed",
        "values and progress are written before the broker has acknowledged the rejects",
        "a crash loses rejects that progress says were consumed",
        "P4",
        "tests/integration/test_publish.py::test_nothing_is_written_to_redis_before_every_reject_is_delivered",
        Edit(
            "service/pipeline/batch_publisher.py",
            "            delivery.flush(self.settings.kafka, self.micro_batch)\n",
            "            pass\n",
        ),
    ),
    Mutation(
        "new-topic-without-its-first-records",
        "a topic that a pattern finds later begins at its end where kafka.starting is latest",
        "the records before it was found are in no value",
        "P1",
        "tests/integration/test_topics_pattern.py::test_a_topic_that_a_pattern_finds_later_begins_at_its_first_record",
        Edit("service/kafka/starting.py", 'starting = "earliest"  # the', "pass  # the"),
    ),
    Mutation(
        "filtered-not-counted",
        "records that the input's filter does not let in are dropped without being counted",
        "nobody can tell a filtered record from a lost one",
        "P4",
        "tests/stream/test_filters.py::test_a_record_that_does_not_meet_the_filter_is_counted_and_leaves_nothing",
        Edit(
            "service/aggregation/screen.py",
            "                yield counts([task_counters.of_counts(task_counters.FILTERED, {0: filtered})])\n",
            "",
        ),
    ),
    Mutation(
        "a-text-is-no-value",
        "a text that is no number is taken for no value",
        "the reading is admitted without the measure, and nobody sees it",
        "P4",
        "tests/stream/test_text_numbers.py::test_a_text_is_a_number_or_no_value_or_rejects_the_record_by_its_measure",
        Edit("service/admission/numbers.py", "<> '' THEN double('NaN') END", "<> '' THEN NULL END"),
    ),
    Mutation(
        "skip-swallows-a-neighbour",
        "a batch begins one offset behind the end of a skip",
        "a reading beside a record that nobody can read is lost, and no reject says so",
        "P4 P6",
        _SKIPS
        + "test_stretches_and_skips_are_the_whole_without_overlap"
        + " "
        + _SKIPS
        + "test_batches_as_they_are_planned_read_around_the_skips",
        Edit(
            "service/checkpoint/skips.py",
            "offsets.setdefault(span.topic, {})[span.partition] = span.end",
            "offsets.setdefault(span.topic, {})[span.partition] = span.end + 1",
        ),
    ),
    Mutation(
        "replay-learns",
        "a batch that was published with ids refused is replayed with whatever is known by then",
        "a record is rejected and admitted: the reject stays, and the replay counts the reading",
        "P1 P4",
        "tests/unit/test_schema_catalog.py::test_a_batch_that_was_published_is_replayed_with_the_same_schemas",
        Edit("service/admission/schema_catalog.py", "not index.refuses(schema_id, position.batch)", "True"),
    ),
    Mutation(
        "admission-by-now",
        "admission compares event times with this machine's clock, not the broker's time",
        "a replay decides otherwise than the first run",
        "P1",
        _SCRIPTS + "test_a_batch_that_fails_is_replayed_with_the_same_result",
        Edit(
            "service/admission/inputs.py",
            'F.unix_millis("timestamp").alias("broker_ms")',
            'F.unix_millis(F.current_timestamp()).alias("broker_ms")',
        ),
    ),
    Mutation(
        "early-filter-off",
        "readings from the future are admitted",
        "one device in 2099 moves the watermark and everybody's readings are late",
        "P6",
        _SCRIPTS + "test_a_poisoned_batch_changes_nothing_but_the_rejects",
        Edit(
            "service/admission/readings.py",
            '.when((event > broker + admission.max_ahead_ms) | (event >= EVENT_MS_LIMIT), "early")',
            '.when(F.lit(False), "early")',
        ),
    ),
    Mutation(
        "bomb-unpacked",
        "gzip is decompressed to its end",
        "a record of a few KB takes all memory of a worker, at each start",
        "P6",
        "tests/unit/test_arrays.py::test_a_bomb_is_refused_before_it_is_unpacked",
        Edit("service/admission/arrays.py", "member.decompress(rest, limit + 1 - size)", "member.decompress(rest)"),
    ),
    Mutation(
        "values-without-limit",
        "a task takes a value of a column that nobody has decided",
        "a sender makes as many keys as it likes",
        "P6",
        "tests/stream/test_columns.py::test_a_value_above_the_limit_is_other_for_good_and_also_after_a_restart",
        Edit(
            "service/admission/column_values.py", "                elif self.asks:\n", "                elif False:\n"
        ),
    ),
    Mutation(
        "hold-for-ever",
        "a partition with unread records holds the watermark although none of them is read",
        "one partition that cannot be read keeps every window open",
        "P6",
        "tests/unit/test_event_time.py::test_the_watermark_does_not_wait_for_a_partition_that_is_not_read_for_max_hold",
        Edit("service/checkpoint/event_time.py", "if now_s - read_s <= max_hold_ms / 1000]", "if now_s >= read_s]"),
    ),
    Mutation(
        "copies-unbounded",
        "the producer of rejects holds whatever it is given",
        "large rejects, and many of them, take all memory",
        "P6",
        "tests/integration/test_reject_copies.py::test_what_waits_for_the_broker_is_bounded_in_bytes",
        Edit(
            "service/rejects/delivery.py",
            '"queue.buffering.max.kbytes": _QUEUE_KIB',
            '"queue.buffering.max.kbytes": 2_000_000',
        ),
    ),
)
