"""Mutations of outlets: what is stored, compared and fenced."""

from load.mutations.mutation import Edit, Mutation

_UNIT = "tests/unit/test_outlets.py::"
_STREAM = "tests/integration/test_outlets.py::"
_BACKFILL = "tests/integration/test_backfill.py::test_a_backfill_equals_the_stream_in_redis_and_outlets_and_leaves_richer_values"
_ARCHIVE = (
    "tests/integration/test_backfill.py"
    "::test_a_backfill_from_an_archive_equals_the_stream_and_leaves_out_what_the_archive_lacks"
)

MUTATIONS = (
    Mutation(
        "columns-of-the-first-file",
        "the first file has the columns of its time only",
        "readers show no measure that was added later, without an error",
        ("P1",),
        (
            Edit(
                "service/outlets/parquet.py",
                "                self._keep_columns(system, _above(path), rows.schema)\n",
                "",
            ),
        ),
        (
            "tests/stream/test_parquet_columns.py::test_every_reader_sees_a_measure_that_was_added_later_and_one_that_is_gone",
        ),
    ),
    Mutation(
        "outlet-replay-twice",
        "a batch that is replayed under a larger epoch is taken for another one",
        "a topic has each final value of the batch twice",
        ("P1",),
        (
            Edit(
                "service/outlets/outlet.py",
                "            return (self.batch, self.part, self.digest) == (reached.batch, reached.part, reached.digest)\n",
                "            return False\n",
            ),
        ),
        (
            _UNIT + "test_a_replayed_batch_is_the_same_and_one_of_a_checkpoint_that_begins_again_is_not",
            _STREAM + "test_a_topic_has_every_closed_window_once_in_json",
        ),
    ),
    Mutation(
        "outlet-after-progress",
        "finals go to the outlets after progress is written",
        "progress calls windows final that no outlet has, and a crash in between loses them",
        ("P1",),
        (
            Edit(
                "service/pipeline/batch.py",
                '    (Publication.deliver, "finish"),\n    (Publication.progress, "finish"),\n',
                '    (Publication.progress, "finish"),\n    (Publication.deliver, "finish"),\n',
            ),
        ),
        (_STREAM + "test_progress_is_written_after_the_outlets_have_the_batch",),
    ),
    Mutation(
        "outlet-entry-dropped",
        "an entry leaves the outbox when the first outlet has it",
        "an outlet that is behind never gets it",
        ("P1",),
        (
            Edit(
                "service/outlets/publication.py",
                "            is_last = not self._lacking[stored.name]\n",
                "            is_last = True\n",
            ),
        ),
        (_STREAM + "test_a_database_that_is_away_gets_everything_when_it_is_back[fall_behind]",),
    ),
    Mutation(
        "outlet-not-fenced",
        "an outlet does not compare the epoch of its writer",
        "a writer that was frozen writes beside its successor",
        ("P5",),
        (
            Edit(
                "service/outlets/outlet.py",
                "    if reached is not None and reached.writer > epoch:\n",
                "    if reached is not None and reached.writer > epoch + 1_000_000:\n",
            ),
        ),
        (
            _UNIT + "test_no_writer_of_an_older_epoch_is_let_in",
            _UNIT + "test_an_entry_that_is_written_again_replaces_its_files",
        ),
    ),
    Mutation(
        "outlet-backlog-unbounded",
        "the backlog of an outlet has no limit",
        "an outlet that is away for days fills the checkpoint's disk",
        ("P7",),
        (
            Edit(
                "service/outlets/publication.py",
                'options.when_away == "wait" or delivery.progress().pending_bytes > options.max_pending',
                'options.when_away == "wait"',
            ),
        ),
        (_UNIT + "test_a_backlog_above_max_pending_makes_batches_wait_and_fail",),
    ),
    Mutation(
        "outlet-silence-again",
        "what silence has closed leaves again when the watermark closes it, changed or not",
        "a topic has a value twice after each silence",
        ("P1",),
        (
            Edit(
                "service/outlets/silence.py",
                "                keep[row] = bool(is_merged[row]) or contents[row] != known.content\n",
                "                keep[row] = True\n",
            ),
        ),
        (_UNIT + "test_what_silence_has_closed_leaves_again_only_changed_and_with_a_larger_revision",),
    ),
    Mutation(
        "outlet-correction-lost",
        "a correction does not leave its values for the outlets",
        "outlets keep values that lack the late readings, and Redis has them",
        ("P1",),
        (
            Edit(
                "service/recompute/correct.py",
                "recomputed.leave(self._job.outbox, self._job.number, self._rounds, views_of(self._settings), *rows)",
                "pass",
            ),
        ),
        (_STREAM + "test_corrected_values_are_in_the_outlets_as_the_oracle_says",),
    ),
    Mutation(
        "backfill-from-the-top",
        "a backfill that was cut off begins again with its oldest part",
        "outlets have the values of the parts that were done twice",
        ("P1",),
        (Edit("service/recompute/job_log.py", "found.reached_ms", "new.reached_ms"),),
        (_BACKFILL,),
    ),
    Mutation(
        "backfill-sessions-cut-before",
        "a backfill does not read what is before a part",
        "sessions of the past are lacking at the edges of parts",
        ("P1",),
        (Edit("service/recompute/sources.py", "cls(before_ms + longest_ms", "cls(before_ms"),),
        (_BACKFILL,),
    ),
    Mutation(
        "archive-twice",
        "a record that an archive has twice counts twice",
        "a backfill from overlapping archives gives larger values than the stream",
        ("P1",),
        (Edit("service/recompute/archive.py", ".dropDuplicates(_PLACE)", ""),),
        (_ARCHIVE,),
    ),
    Mutation(
        "archive-holes-silent",
        "a backfill does not report offsets that an archive lacks",
        "values lack readings, and nobody is told",
        ("P7",),
        (Edit("service/recompute/archive.py", "Part(*admitted, records, lacking)", "Part(*admitted, records)"),),
        (_ARCHIVE,),
    ),
    Mutation(
        "outlet-row-refused-stops",
        "an outlet that refuses a row takes the row again and again",
        "later finals of all views wait behind one row for ever",
        ("P1", "P6"),
        (
            Edit(
                "service/outlets/delivery.py",
                "            except RefusedRowsError as error:\n",
                "            except ZeroDivisionError as error:\n",
            ),
        ),
        (_UNIT + "test_a_row_that_an_outlet_refuses_is_set_aside_and_the_others_go_on",),
    ),
    Mutation(
        "outlet-newest-by-revision",
        "a row with a larger revision and fewer readings is the newest",
        "a backfill with more readings does not replace a corrected row that has expired in Redis",
        ("P1",),
        (
            Edit(
                "service/outlets/jdbc.py",
                "(excluded.count, excluded.revision) >= (present.count, present.revision)",
                "(excluded.revision, excluded.count) >= (present.revision, present.count)",
            ),
        ),
        (_STREAM + "test_a_row_of_a_table_is_replaced_by_one_with_more_readings_and_never_by_one_with_fewer",),
    ),
    Mutation(
        "key-without-bound",
        "a key may have any length",
        "rows of a table of PostgreSQL are refused",
        ("P6",),
        (Edit("service/aggregation/windows.py", "    if pc.any(is_long).as_py():\n", "    if False:\n"),),
        ("tests/unit/test_partial_aggregation.py::test_a_key_that_is_too_long_for_a_database_counts_as_other",),
    ),
)
