"""Mutations of the daemon's term: the lease, the refresher, how it resumes from its checkpoint."""

from load.mutations.mutation import Edit, Mutation

_LEASE = "tests/integration/test_lease.py::"
_RESUME = "tests/integration/test_resume.py::"
_CHECKPOINT = "tests/stream/test_checkpoint.py::"
_REFRESHER = "tests/integration/test_refresher.py::"
_SKIPS = "tests/unit/test_skips.py::"
_PACE = "tests/integration/test_back_pressure.py::"

MUTATIONS = (
    Mutation(
        "batches-kept-by-python",
        "Python's collector counts the objects of imports among the old ones",
        "the JVM keeps plans and shuffle files of two batches a minute, until memory or disk are full",
        ("P8",),
        (Edit("service/spark/memory.py", "        gc.freeze()\n", ""),),
        (
            "tests/unit/test_memory.py::"
            "test_what_a_batch_has_left_is_collected_soon_although_the_process_has_many_objects[soon-True]",
        ),
    ),
    Mutation(
        "replaced-secret-not-awaited",
        "a refused login ends the process, also while its secret is replaced",
        "an operator who revokes the old password first takes the service down",
        ("P8",),
        (
            Edit(
                "service/daemon/backoff.py",
                "isinstance(error, self._accepted) and failure.renewable(error, self._settings)",
                "False",
            ),
        ),
        (
            "tests/unit/test_rotated_secrets.py::"
            "test_a_login_that_was_accepted_once_is_waited_for_if_its_secret_is_in_a_file[SinkLoginError]",
        ),
    ),
    Mutation(
        "limit-of-the-plan-forgotten",
        "a batch that is repeated is judged by the limit of the new process",
        "unread records of a partition are late after a crash",
        ("P1", "P8"),
        (
            Edit(
                "service/checkpoint/event_time.py",
                "return min(limit, noted) if self._is_first and noted is not None else limit",
                "return limit",
            ),
        ),
        (
            _PACE + "test_a_replay_under_a_larger_limit_holds_the_watermark_for_what_its_batch_left_unread",
            "tests/unit/test_event_time.py::"
            "test_the_first_batch_of_a_query_has_the_limit_that_it_may_have_been_planned_with",
        ),
    ),
    Mutation(
        "batches-shrink-for-nothing",
        "the limit of a batch ignores what a batch costs without records",
        "where each batch has a large fixed cost, the service reads less than arrives, for ever",
        ("P8",),
        (
            Edit(
                "service/pipeline/back_pressure.py",
                "wanted = max(target_s - fixed_s, fixed_s) / slope_s",
                "wanted = max(target_s - fixed_s, 0.0) / slope_s",
            ),
        ),
        (
            "tests/unit/test_back_pressure.py::"
            "test_where_every_batch_has_a_large_fixed_cost_the_throughput_does_not_collapse[6.0-0.0]",
        ),
    ),
    Mutation(
        "silence-despite-lag",
        "values are closed up to a time from which records are left to read",
        "values are closed that readings on their way belong to",
        ("P1",),
        (
            Edit(
                "service/daemon/idle_detection.py",
                "            if _are_reached(unread[1], reached):\n",
                "            if unread[1]:\n",
            ),
        ),
        (
            "tests/unit/test_idle_detection.py::test_nothing_is_closed_while_something_is_left_to_read",
            "tests/unit/test_transcripts.py::test_all_transcripts_hold_for_the_pure_executor_and_the_wrong_ones_do_not",
        ),
    ),
    Mutation(
        "clock-goes-back",
        "silence follows a clock that is set back",
        "nothing is closed by silence until the clock has caught up",
        ("P1",),
        (
            Edit(
                "service/clock.py", "max(self._apart_ms, self._wall_ms() - elapsed_ms)", "self._wall_ms() - elapsed_ms"
            ),
        ),
        ("tests/unit/test_clock.py::test_a_clock_that_is_set_back_goes_on_and_one_that_is_set_forward_is_followed",),
    ),
    Mutation(
        "producers-time-trusted",
        "a broker's time that is ahead of the service's clock is not noticed",
        "one record of the future makes every later reading late",
        ("P6",),
        (
            Edit(
                "service/aggregation/screen.py",
                "any(each.broker_ms > latest_ms",
                "any(False",
            ),
        ),
        (
            "tests/unit/test_partial_aggregation.py::"
            "test_a_reading_whose_broker_time_is_ahead_moves_no_watermark_and_names_its_device",
        ),
    ),
    Mutation(
        "topic-id-not-compared",
        "a topic that was created again is read on",
        "the first records of the new topic are in no value",
        ("P7",),
        (Edit("service/kafka/topics.py", "if topic_id not in {_NO_ID, self._known[topic]}:", "if False:"),),
        (
            "tests/integration/test_ahead.py::"
            "test_a_topic_that_was_created_again_and_filled_is_noticed_before_its_batch_commits",
        ),
    ),
    Mutation(
        "epoch-not-grown",
        "a new term takes the epoch of the one before",
        "the fence cannot tell the two writers apart",
        ("P5",),
        (Edit("service/daemon/lease.py", "tonumber(ARGV[3])) + 1\n", "tonumber(ARGV[3]), 1)\n"),),
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
        "damage-unseen",
        "the checkpoint's logs are not looked at before the query starts",
        "Spark begins again at batch 0 beside the state of the old batches",
        ("P1", "P7"),
        (Edit("service/checkpoint/logs.py", "    if broken:\n", "    if False:\n"),),
        (_CHECKPOINT + "test_a_checkpoint_without_its_logs_is_refused_and_not_begun_again",),
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
        "unread-asked-again",
        "a replay asks anew which partitions have unread records",
        "the replay closes what the first attempt has left open, or the other way round",
        ("P1",),
        (
            Edit(
                "service/checkpoint/event_time.py",
                "        noted = UNREAD.read(self.files, _unread_name(micro_batch.batch))",
                "        noted = None",
            ),
        ),
        ("tests/unit/test_event_time.py::test_a_replay_is_told_the_same_unread_partitions",),
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
        (Edit("service/daemon/refresher.py", "        if not self._is_repeated:", "        if True:"),),
        (_REFRESHER + "test_after_a_silence_the_first_batch_sees_the_newest_and_a_batch_that_is_replayed_what_it_saw",),
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
)
