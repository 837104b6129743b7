"""Mutations of what becomes of a record: decoding, admission, the reference, the fold."""

from load.mutations.mutation import Edit, Mutation

_REFRESHER = "tests/integration/test_refresher.py::"
_ADMISSION = "tests/stream/test_admission.py::"
_PROTOBUF = "tests/stream/test_protobuf.py::test_a_message_is_decoded_by_its_schema_or_rejected_alone"
_DECODERS = "tests/stream/test_decoders.py::"
_EXPRESSIONS = "tests/stream/test_expressions.py::"
_BOOK = "tests/unit/test_schema_catalog.py::"
_SCRIPTS = "tests/stream/test_pass.py::"

MUTATIONS = (
    Mutation(
        "answer-read-whole",
        "an answer of the registry has no limit",
        "whoever may register a schema takes the memory of the driver",
        ("P6",),
        (
            Edit(
                "service/admission/registry.py",
                "                if size > MAX_BYTES:\n",
                "                if size < 0:\n",
            ),
        ),
        ("tests/unit/test_hostile_schemas.py::test_an_answer_of_300_megabytes_is_not_read",),
    ),
    Mutation(
        "bad-schema-ends-the-service",
        "a version of a subject that cannot be read fails the subject",
        "whoever may register a schema stops the service, or all of its new schemas",
        ("P6",),
        (Edit("service/admission/registry.py", "                if refuse is None:\n", "                if True:\n"),),
        (
            "tests/unit/test_hostile_schemas.py::test_a_start_goes_on_without_a_schema_that_is_unusable[nested]",
            "tests/unit/test_hostile_schemas.py::"
            "test_a_schema_that_is_registered_while_the_service_runs_is_unusable_and_the_next_is_decoded[nested]",
        ),
    ),
    Mutation(
        "references-by-every-way",
        "a schema is put in again by every way that leads to it",
        "a few schemas that refer to one another twice take exponential time",
        ("P6",),
        (Edit("service/admission/avro_types.py", "        self._left -= 1\n", ""),),
        (
            "tests/unit/test_hostile_schemas.py::"
            "test_types_that_contain_themselves_are_found_in_time_that_grows_with_the_types",
        ),
    ),
    Mutation(
        "filtered-not-counted",
        "records that the input's filter does not let in are dropped without being counted",
        "nobody can tell a filtered record from a lost one",
        ("P4",),
        (
            Edit(
                "service/aggregation/screen.py",
                "                yield counts([task_counters.of_counts(task_counters.FILTERED, {0: filtered})])\n",
                "",
            ),
        ),
        ("tests/stream/test_filters.py::test_a_record_that_does_not_meet_the_filter_is_counted_and_leaves_nothing",),
    ),
    Mutation(
        "any-function-in-a-filter",
        "a filter may call any function of the engine",
        "a replay filters other records than the first run",
        ("P1",),
        (
            Edit(
                "service/admission/filters.py",
                "name not in FUNCTIONS or node.isDistinct()",
                "node.isDistinct()",
            ),
        ),
        ("tests/stream/test_filters.py::test_a_filter_that_could_decide_twice_or_throw_is_refused_by_name",),
    ),
    Mutation(
        "a-text-is-no-value",
        "a text that is no number is taken for no value",
        "the reading is admitted without the measure, and nobody sees it",
        ("P4",),
        (
            Edit(
                "service/admission/numbers.py",
                "<> '' THEN double('NaN') END",
                "<> '' THEN NULL END",
            ),
        ),
        (
            "tests/stream/test_text_numbers.py::test_a_text_is_a_number_or_no_value_or_rejects_the_record_by_its_measure",
        ),
    ),
    Mutation(
        "parts-are-not-escaped",
        "parts of a device id are joined as they are",
        "two devices become one: a/b and c, a and b/c",
        ("P4",),
        (
            Edit(
                "service/admission/decode.py",
                "map(_escaped, parts))",
                "parts)",
            ),
        ),
        ("tests/stream/test_sources.py::test_both_decoders_give_the_answer_that_was_computed_by_hand",),
    ),
    Mutation(
        "any-text-is-a-path",
        "a text with an operator is the path of a field that no record has",
        "all readings are admitted without the measure, and nobody sees it",
        ("P4",),
        (
            Edit(
                "service/settings/input.py",
                'value = {"path": value} if is_path else {"expression": value}',
                'value = {"path": f"`{value}`"}',
            ),
        ),
        ("tests/unit/test_settings.py::test_a_text_that_is_neither_a_path_nor_an_expression_is_refused",),
    ),
    Mutation(
        "division-by-zero-is-missing",
        "an expression that divides by 0 leaves its measure out",
        "a reading loses a measure and nobody sees it",
        ("P4",),
        (
            Edit(
                "service/admission/expressions.py",
                "    if parsed.may_leave_out:\n",
                "    if parsed:\n",
            ),
        ),
        (_EXPRESSIONS + "test_a_division_by_zero_is_rejected_unless_the_expression_may_be_null",),
    ),
    Mutation(
        "damage-is-not-caught",
        "damaged Protobuf throws in the task",
        "one record stops the service",
        ("P6",),
        (
            Edit(
                "service/admission/protobuf.py",
                "    except DecodeError as error:\n",
                "    except ZeroDivisionError as error:\n",
            ),
        ),
        (_PROTOBUF,),
    ),
    Mutation(
        "unmapped-field-decides",
        "the reader's schema of Avro has all fields of the records around the mapped ones",
        "a new symbol or type in a field that nobody maps rejects the record",
        ("P4",),
        (
            Edit(
                "service/admission/formats/avro.py",
                "avro_types.projection(schema, map(field_path.parts, paths))",
                "avro_types.projection(schema, [field_path.parts(path)[:1] for path in paths])",
            ),
        ),
        (_DECODERS + "test_a_field_that_is_not_mapped_does_not_decide_about_a_record",),
    ),
    Mutation(
        "decoders-differ",
        "the decoder of the commands takes a negative index of a union from the end, as fastavro does",
        "a reject is explained by its size, and `try` shows values that the service does not have",
        ("P4",),
        (
            Edit(
                "service/admission/avro_record.py",
                "if not 0 <= number < len(writer):",
                "if not -len(writer) <= number < len(writer):",
            ),
        ),
        (_DECODERS + "test_both_decoders_give_the_same_answer_to_avro",),
    ),
    Mutation(
        "values-without-limit",
        "a task takes a value of a column that nobody has decided",
        "a sender makes as many keys as it likes",
        ("P6",),
        (
            Edit(
                "service/admission/column_values.py",
                "                elif self.asks:\n",
                "                elif False:\n",
            ),
        ),
        (
            "tests/stream/test_columns.py::test_a_million_different_values_leave_as_many_windows_as_the_limit_allows",
            "tests/stream/test_columns.py::test_a_value_above_the_limit_is_other_for_good_and_also_after_a_restart",
        ),
    ),
    Mutation(
        "values-not-stored",
        "the values of a column that have been decided are not written to the checkpoint",
        "after a restart a value that was a key is another one's (other)",
        ("P1",),
        (Edit("service/admission/column_values.py", "        DOCUMENT.write(self.files, lists)\n", ""),),
        (
            "tests/stream/test_columns.py::test_a_value_above_the_limit_is_other_for_good_and_also_after_a_restart",
            "tests/stream/test_columns.py::test_a_recomputation_decides_as_the_stream_did",
        ),
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
        "schemas-of-all",
        "any id of the registry is decoded, whatever its subject",
        "a device that names foreign ids restarts the query for each, and the plan grows",
        ("P6",),
        (
            Edit(
                "service/admission/schema_sources.py",
                "        schema = self.all().get(schema_id)\n",
                "        schema = self._client.schema(schema_id)\n",
            ),
        ),
        (_BOOK + "test_ids_of_other_subjects_are_refused_however_many_there_are",),
    ),
    Mutation(
        "admission-by-now",
        "admission compares event times with this machine's clock, not the broker's time",
        "a replay decides otherwise than the first run",
        ("P1",),
        (
            Edit(
                "service/admission/inputs.py",
                'F.unix_millis("timestamp").alias("broker_ms")',
                'F.unix_millis(F.current_timestamp()).alias("broker_ms")',
            ),
        ),
        (_SCRIPTS + "test_a_batch_that_fails_is_replayed_with_the_same_result",),
    ),
    Mutation(
        "trailing-unseen",
        "nobody looks for the mark of a record's end",
        "a record with bytes after it is admitted: its writer and its reader do not agree about the schema",
        ("P6",),
        (
            Edit(
                "service/admission/decode.py",
                'F.col(f"{self._name}.{END}") == mark',
                'F.col(f"{self._name}.{END}").isNotNull()',
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
                "service/aggregation/screen.py",
                "        if ids:\n            unknown_schemas.check",
                "        if False:\n            unknown_schemas.check",
            ),
        ),
        (
            "tests/integration/test_schemas.py::"
            "test_a_schema_first_seen_while_running_is_used_without_a_restart_or_a_lost_record",
        ),
    ),
    Mutation(
        "final-window-reopened",
        "a reading below the watermark is admitted",
        "a window that was published as final begins again with a part of its readings",
        ("P1", "P2"),
        (
            Edit(
                "service/aggregation/screen.py",
                'is_behind = pc.less(readings["event_ms"], watermark_ms)',
                'is_behind = pc.less(readings["event_ms"], -1)',
            ),
        ),
        (
            "tests/unit/test_partial_aggregation.py::test_readings_below_the_watermark_are_late_and_can_be_found",
            "tests/integration/test_behind.py::test_what_comes_behind_the_watermark_is_rejected_as_late",
        ),
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
        "window-in-two-buckets",
        "the bucket of a window depends on what else its task has read",
        "parts of one window do not meet, and each of them is published as the whole",
        ("P1",),
        (
            Edit(
                "service/aggregation/partial_aggregation.py",
                "windows.buckets_of(view.name, groups.keys, self.screen.buckets)",
                "np.arange(len(groups.keys), dtype=np.int32) % self.buckets",
            ),
        ),
        (
            "tests/unit/test_partial_aggregation.py::test_all_parts_of_a_window_have_one_bucket_whatever_else_their_tasks_have_read",
        ),
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
)
