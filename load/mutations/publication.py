"""Mutations of how a batch is published: its order, its rows, the shards, the connection."""

from load.mutations.mutation import Edit, Mutation

_PUBLISH = "tests/integration/test_publish.py::"
_PUBLICATION = "tests/integration/test_publication.py::"
_ORDER = _PUBLICATION + "test_a_step_that_fails_leaves_those_before_it_done_and_those_after_it_and_the_commit_undone"
_REPORTED = _PUBLICATION + "test_a_batch_is_reported_when_all_is_published_and_committed_only_then"
_SHARDS = "tests/integration/test_shards.py::"
_COVERED = "tests/integration/test_covered.py::"
_REPUBLISH = "tests/integration/test_republish.py::"
_TRANSACTIONS = "tests/integration/test_transactions.py::"

MUTATIONS = (
    Mutation(
        "restart-unseen",
        "the progress key is written to a Redis that was restarted in the middle of the batch",
        "values that were acknowledged and lost with it are never written again",
        ("P1",),
        (
            Edit(
                "service/publication/store.py",
                "self.link(shard).run([call], budget, server)[0]",
                "self.link(shard).run([call], budget)[0]",
            ),
        ),
        (_PUBLISH + "test_a_batch_is_not_finished_on_a_redis_that_was_restarted_during_it",),
    ),
    Mutation(
        "torn-value",
        "a hash is written in two commands, one field after the others",
        "a reader between them sees a sum that is not its count's",
        ("P3",),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "yield from part.calls(stamp, chunk)",
                "for names in ({*part.fields} - {'sum'}, {'sum', 'count', 'end'}):\n"
                "                    some = {name: column for name, column in part.fields.items() if name in names}\n"
                "                    yield from Rows(part.kind, part.keys, part.ttl, some).calls(stamp, 1)",
            ),
            Edit(
                "service/publication/publish.lua",
                "if not is_part and (phase ~= 'open' or is_repeat) and",
                "if false and",
            ),
        ),
        (_PUBLISH + "test_no_reader_sees_a_torn_value",),
    ),
    Mutation(
        "marker-is-loss",
        "every offset of a batch without a record is taken for lost",
        "a producer with transactions raises the alarm for lost records",
        ("P7",),
        (
            Edit(
                "service/pipeline/batch.py",
                "min(without, unavailable(kafka, micro_batch))",
                "without",
            ),
        ),
        (_TRANSACTIONS + "test_aborted_records_count_nowhere_and_are_not_lost",),
    ),
    Mutation(
        "writing-unmarked",
        "progress does not say that a batch is being written",
        "a reader takes the keys of two batches for one state",
        ("P3",),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "begun = [] if self.policy.is_complete else",
                "begun = [] if self else",
            ),
        ),
        ("tests/integration/test_application_developer.py::test_several_keys_are_read_as_of_one_batch[InPython]",),
    ),
    Mutation(
        "commit-before-publish",
        "Spark commits a batch before it is published",
        "a crash between the two loses the batch",
        ("P1",),
        (
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
        (_ORDER + "[publish_values]", _REPORTED),
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
        (_PUBLISH + "test_nothing_is_written_to_redis_before_every_reject_is_delivered", _ORDER + "[publish_rejects]"),
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
        "failure-by-stack",
        "a failure is named by what is on its stack traces",
        "any failure of a task is a damaged checkpoint, and no cause is looked for",
        ("P8",),
        (
            Edit(
                "service/pipeline/failure.py",
                'if not line.lstrip().startswith(("at ", "... "))]',
                "]",
            ),
            Edit("service/pipeline/failure.py", 'r"offset ?log"', 'r"offset ?log|[Cc]heckpoint"'),
        ),
        (
            "tests/unit/test_failure.py::test_what_is_on_a_stack_accuses_nothing",
            "tests/unit/test_failure.py::test_an_unforeseen_failure_of_a_task_counts_towards_the_search_for_unreadable_records",
        ),
    ),
    Mutation(
        "nothing-covered",
        "values of the past are written beside closed ones of the same time",
        "sessions and windows that never existed count readings a second time, after a change of a gap, a view or a site",
        ("P1", "P2"),
        (Edit("service/pipeline/batch_publisher.py", "if self.policy.covered:", "if False:"),),
        (
            _COVERED + "test_no_session_is_made_over_a_closed_one_of_its_device",
            _COVERED + "test_a_final_window_covers_its_start_where_the_reference_makes_the_keys",
            _REPUBLISH + "test_a_gap_that_has_changed_makes_no_session_beside_those_that_are_there",
        ),
    ),
    Mutation(
        "shard-same-run",
        "a primary that was failed over and back counts as the same one",
        "progress says that values are there which it has dropped meanwhile",
        ("P1",),
        (Edit("service/redis/link.py", " {information.get('master_replid')}", ""),),
        (_SHARDS + "test_a_primary_that_was_failed_over_and_back_is_another_one",),
    ),
)
