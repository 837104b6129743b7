"""Mutations of outlets: what is stored, compared and fenced."""

from load.mutations.mutation import Edit, Mutation

_UNIT = "tests/unit/test_outlets.py::"
_STREAM = "tests/integration/test_outlets.py::"
_BACKFILL = "tests/integration/test_backfill.py::test_a_backfill_equals_the_stream_in_redis_and_outlets_and_leaves_richer_values"
_ARCHIVE = (
    "tests/integration/test_backfill.py"
    "::test_a_backfill_from_an_archive_equals_the_stream_and_leaves_out_what_the_archive_lacks"
)
_REJECTS = "tests/integration/test_backfill.py::test_a_backfill_of_a_view_counts_rejects_and_writes_nothing_when_dry"

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
        "outlet-position-of-another",
        "outlets of two pipelines that have the same name share a position in the database, or in the topic of positions",
        "the one with the smaller epoch is refused, or its finals are left out as if they were there",
        ("P1",),
        (Edit("service/outlets/outlet.py", '    return f"{settings.redis.prefix}.{name}"\n', "    return name\n"),),
        (_STREAM + "test_a_writer_of_an_older_epoch_cannot_write_to_a_table_or_a_topic",),
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
                "service/pipeline/builder.py",
                "        if term.outlets is not None:\n"
                "            term.outlets.publish(micro_batch, outcome.finals)\n"
                "        final_ms = sink.progress(servers)\n",
                "        final_ms = sink.progress(servers)\n"
                "        if term.outlets is not None:\n"
                "            term.outlets.publish(micro_batch, outcome.finals)\n",
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
        "outlet-file-by-epoch",
        "the name of an entry has the epoch that wrote it",
        "files that a crash left without a position stay beside those of the replay",
        ("P1",),
        (
            Edit(
                "service/outlets/outlet.py",
                'return f"{self.batch:012d}-{self.part:06d}-{self.digest}"',
                'return f"{self.batch:012d}-{self.part:06d}-{self.digest}-{self.writer}"',
            ),
        ),
        (_UNIT + "test_an_entry_that_is_written_again_replaces_its_files",),
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
        "outlet-uncommitted-kept",
        "the entry of a batch that is not committed stays in the outbox at a restart",
        "a batch that was narrowed meanwhile leaves values of records that were skipped",
        ("P1",),
        (
            Edit(
                "service/outlets/outbox.py",
                "            if int(name[:12]) > newest:\n",
                "            if int(name[:12]) > newest + 1_000_000:\n",
            ),
        ),
        (_UNIT + "test_the_outbox_keeps_entries_in_order_and_removes_those_of_uncommitted_batches",),
    ),
    Mutation(
        "outlet-silence-again",
        "what silence has closed leaves again when the watermark closes it, changed or not",
        "a topic has a value twice after each silence",
        ("P1",),
        (
            Edit(
                "service/outlets/silence.py",
                "                keep[row] = bool(is_merged[row]) or content != known.content\n",
                "                keep[row] = True\n",
            ),
        ),
        (_UNIT + "test_what_silence_has_closed_leaves_again_only_changed_and_with_a_larger_revision",),
    ),
    Mutation(
        "outlet-silence-lost",
        "the entry of a silence that a crash left in its file is not stored at the next start",
        "what silence has closed is remembered as delivered, and is in no outlet",
        ("P1",),
        (
            Edit(
                "service/outlets/silence.py",
                "entry.batch > committed or outbox.has(entry)",
                "entry.batch >= 0 or outbox.has(entry)",
            ),
        ),
        (_UNIT + "test_a_process_that_dies_before_the_entry_of_a_silence_is_stored_stores_it_at_its_next_start",),
    ),
    Mutation(
        "outlet-silence-not-again",
        "the entry of a silence that could not be stored is not stored before the next batch",
        "what silence has closed on a full disk is in no outlet",
        ("P1",),
        (
            Edit(
                "service/outlets/publication.py",
                "        self._store_beside()\n        if self._committed is not None",
                "        if self._committed is not None",
            ),
        ),
        (
            _UNIT
            + "test_what_silence_has_closed_leaves_before_all_that_follows_if_its_entry_could_not_be_stored_at_once",
        ),
    ),
    Mutation(
        "outlet-correction-twice",
        "the entry of a silence forgets which corrected values were taken",
        "outlets have corrected values twice after a crash and a silence",
        ("P1",),
        (Edit("service/outlets/silence.py", '"idle", self.taken, scope)', '"idle", "", scope)'),),
        (_UNIT + "test_corrected_values_leave_once_if_a_silence_follows_a_crash_that_left_their_file",),
    ),
    Mutation(
        "outlet-correction-other-views",
        "corrected values leave with the views that the service has when it takes them",
        "outlets lack corrected values of views that have changed since",
        ("P1",),
        (
            Edit(
                "service/outlets/publication.py",
                "scope = replace(self._scope, views=views or self._scope.views)",
                "scope = replace(self._scope, views=self._scope.views or views)",
            ),
        ),
        (_UNIT + "test_corrected_values_leave_with_the_views_that_they_were_computed_with",),
    ),
    Mutation(
        "outlet-measure-removed",
        "windows that were open when their measure was removed leave",
        "outlets have final values with a part of their readings",
        ("P1",),
        (
            Edit(
                "service/outlets/publication.py",
                "begins_ms.get(pair, ENDLESS_MS)",
                "begins_ms.get(pair, 0)",
            ),
        ),
        (_UNIT + "test_a_window_whose_measure_left_its_view_while_it_was_open_does_not_leave",),
    ),
    Mutation(
        "outlet-added-gets-waiting",
        "an outlet that is added gets the entries that wait for another one",
        "an outlet that is renamed has rows twice",
        ("P1",),
        (
            Edit(
                "service/outlets/publication.py",
                "if outlets is None or each.options.name in outlets]",
                "if True]",
            ),
        ),
        (_UNIT + "test_an_outlet_that_is_added_or_renamed_begins_with_what_becomes_final_after_that",),
    ),
    Mutation(
        "outlet-correction-lost",
        "a correction does not leave its values for the outlets",
        "outlets keep values that lack the late readings, and Redis has them",
        ("P1",),
        (
            Edit(
                "service/recompute/correct.py",
                "            recomputed.leave(Outbox(files), self._sink.number, self._rounds, views_of(settings), *rows)\n",
                "",
            ),
        ),
        (_STREAM + "test_corrected_values_are_in_the_outlets_as_the_oracle_says",),
    ),
    Mutation(
        "outlet-epoch-behind",
        "a term does not compare its epoch with that of the outlets",
        "a Redis that was emptied while no service ran has the outlets refuse every term",
        ("P7",),
        (Edit("service/outlets/outbox.py", "        if noted > epoch:\n", "        if noted > epoch + 1_000_000:\n"),),
        (_UNIT + "test_a_term_whose_epoch_is_behind_the_outlets_is_refused_with_theirs",),
    ),
    Mutation(
        "backfill-from-the-top",
        "a backfill that was cut off begins again with its oldest part",
        "outlets have the values of the parts that were done twice",
        ("P1",),
        (Edit("service/recompute/job_log.py", 'found["reached_ms"]', "new.reached_ms"),),
        (_BACKFILL,),
    ),
    Mutation(
        "backfill-sessions-cut-before",
        "a backfill does not read what is before a part",
        "sessions of the past are lacking at the edges of parts",
        ("P1",),
        (Edit("service/recompute/job.py", "before_ms + longest_ms, longest_ms", "before_ms, longest_ms"),),
        (_BACKFILL,),
    ),
    Mutation(
        "backfill-sessions-cut-behind",
        "a backfill does not read on to the end of sessions that begin in a part",
        "sessions of the past end with the part that was read",
        ("P1",),
        (
            Edit(
                "service/recompute/job.py",
                "before_ms + longest_ms, longest_ms + settings",
                "before_ms + longest_ms, settings",
            ),
        ),
        (_BACKFILL,),
    ),
    Mutation(
        "backfill-sessions-not-carried",
        "a backfill does not use where the sessions of the part before begin",
        "sessions of a device that is never silent are left out",
        ("P1",),
        (Edit("service/recompute/job.py", "Chosen({}, begin, known=known)", "Chosen({}, begin)"),),
        (_BACKFILL,),
    ),
    Mutation(
        "backfill-admits-behind",
        "a backfill admits readings that the stream has rejected for being behind the watermark",
        "windows of the past have readings that the stream's did not have",
        ("P1",),
        (Edit("service/recompute/job.py", "late.read(self._settings, 0, 0)", "late.in_values(self._settings)"),),
        (_REJECTS,),
    ),
    Mutation(
        "backfill-rejects-forgotten",
        "a backfill forgets the rejects that a run has counted that was cut off",
        "rejects of the span are not reported",
        ("P4",),
        (Edit("service/recompute/job_log.py", 'Counter[str](found["rejected"])', "Counter[str]()"),),
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
        "archive-end-ignored",
        "a backfill does not compare the end of an archive with what the service has read",
        "values at the end of an archive lack readings",
        ("P1",),
        (
            Edit(
                "service/recompute/archive.py",
                "        return None if self.covers[1] is None else self.covers[1] - self.after_ms\n",
                "        return None\n",
            ),
        ),
        (_ARCHIVE,),
    ),
    Mutation(
        "archive-begin-ignored",
        "a backfill does not compare the beginning of an archive with what the service has read",
        "values at the beginning of an archive lack readings",
        ("P1",),
        (
            Edit(
                "service/recompute/archive.py",
                '                begins.append(int(row["from"]))\n',
                "                pass\n",
            ),
        ),
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
        "outlet-correction-waits",
        "corrected values wait for the next batch",
        "outlets lack them for as long as all input is silent",
        ("P1",),
        (Edit("service/outlets/publication.py", "        self._take_corrected(Position.of(committed))\n", ""),),
        (_UNIT + "test_corrected_values_leave_while_all_input_is_silent",),
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
    Mutation(
        "outlet-added-gets-past",
        "an outlet that is added gets the last entry of a correction, a backfill or a silence",
        "an outlet has rows twice after a backfill",
        ("P1",),
        (Edit("service/outlets/publication.py", "        if is_delivered:\n", "        if False:\n"),),
        (_BACKFILL,),
    ),
)
