"""Mutations of a rebuild beside the service: how far it reads, what it publishes, what is compared, and the exchange."""

from load.mutations.mutation import Edit, Mutation

_PARTS = "tests/integration/test_rebuilder.py::"
_COMPARISON = "tests/integration/test_comparison.py::"
_FOLDERS = "tests/unit/test_rebuilt.py::"

MUTATIONS = (
    Mutation(
        "rebuild-after-a-cut",
        "a switch is made although the service was cut off while it wrote a batch",
        "outlets get the finals of that batch twice",
        ("P1",),
        (
            Edit(
                "service/commands/rebuild.py",
                'if any(link.progress(self.settings.redis, "writing")):',
                "if False:",
            ),
        ),
        (_PARTS + "test_what_an_outlet_lacks_or_would_get_twice_refuses_the_switch",),
    ),
    Mutation(
        "rebuild-without-lease",
        "a rebuild follows the service before it has its own lease",
        "a second command takes the lease of the service, the first one never reaches the end, and the service cannot start",
        ("P5", "P8"),
        (
            Edit(
                "service/commands/rebuild.py",
                "            is_whole = self.runner.serve()",
                "            self._begin()\n            is_whole = self.runner.serve()",
            ),
        ),
        (_PARTS + "test_a_second_command_does_nothing_while_the_first_has_the_lease_of_the_rebuild",),
    ),
    Mutation(
        "rebuild-over-keys",
        "a rebuild begins although its prefix has keys",
        "it overwrites what another service or program has there, and --forget deletes it",
        ("P5", "P7"),
        (
            Edit(
                "service/commands/rebuild.py",
                "        if not self.folders.is_begun and not self.folders.is_switched:\n",
                "        if False:\n",
            ),
        ),
        (_PARTS + "test_the_command_refuses_by_name_what_it_cannot_rebuild",),
    ),
    Mutation(
        "rebuild-counts-less",
        "a switch is not refused if views without windows lose readings",
        "readers see their counts fall",
        ("P2",),
        (
            Edit(
                "service/commands/rebuild.py",
                "        if any(begin_ms < from_ms for begin_ms in self._endless().values()):\n            what",
                "        if False:\n            what",
            ),
        ),
        (_PARTS + "test_counts_of_views_without_windows_become_smaller_only_if_that_is_accepted",),
    ),
    Mutation(
        "undo-without-records",
        "an undo does not ask whether Kafka has the records since the switch",
        "the service is left with a checkpoint that it cannot start from",
        ("P7",),
        (Edit("service/commands/rebuild.py", "        if former is not None:\n", "        if False:\n"),),
        (_PARTS + "test_an_undo_is_refused_if_it_would_lose_records_or_corrected_values",),
    ),
    Mutation(
        "rebuild-ahead",
        "a rebuild reads records that the service has not published",
        "their rejects are copied by nobody, and their finals are in no outlet",
        ("P4",),
        (
            Edit(
                "service/daemon/rebuilder.py",
                "            if reaches(published(self._service) if last is None else last, end):",
                "            if last is None or reaches(last, end):",
            ),
        ),
        (_PARTS + "test_a_batch_waits_until_the_service_has_published_all_of_its_records",),
    ),
    Mutation(
        "rebuild-beyond-the-end",
        "the last batch of a rebuild is not made shorter",
        "the rebuild never ends at the offsets of the service, and the switch never comes",
        ("P8",),
        (Edit("service/daemon/rebuilder.py", "        shorter = least(end, last)", "        shorter = end"),),
        (_PARTS + "test_the_last_batch_ends_where_the_service_has_ended",),
    ),
    Mutation(
        "rebuild-behind-the-watermark",
        "a new checkpoint goes on at its own watermark",
        "readings count that are late for windows that readers have as final",
        ("P1", "P2"),
        (
            Edit(
                "service/commands/rebuild.py",
                "        whole = EventTime(watermark_ms, after.newest_ms)",
                "        whole = EventTime(after.watermark_ms, after.newest_ms)",
            ),
        ),
        (_PARTS + "test_the_new_checkpoint_begins_with_the_services_views_skips_and_watermark",),
    ),
    Mutation(
        "rebuild-ahead-of-the-outlets",
        "a switch does not ask whether the service has published what the new checkpoint has",
        "after an undo, windows that readers have are removed as lost",
        ("P2",),
        (
            Edit(
                "service/commands/rebuild.py",
                "        if not rebuilder.reaches(rebuilder.published(self.settings), self._reached()):",
                "        if False:",
            ),
        ),
        (_PARTS + "test_what_only_the_service_can_finish_refuses_the_switch",),
    ),
    Mutation(
        "rebuild-uncompared",
        "the comparison takes every value that both have for equal",
        "a switch to other values is not refused",
        ("P7",),
        (Edit("service/recompute/comparison.py", "    elif is_alike(mine, other):", "    elif True:"),),
        (_COMPARISON + "test_every_kind_of_difference_is_counted_and_named",),
    ),
    Mutation(
        "rebuild-rejects-twice",
        "a rebuild copies rejects",
        "each reject of the topic's past is in the rejects topic twice, under the epoch of another prefix",
        ("P4",),
        (
            Edit(
                "service/pipeline/batch_publisher.py",
                "        if self.shadow is None:  # else the service has copied them",
                "        if True:",
            ),
        ),
        (_COMPARISON + "test_expired_values_are_not_written_and_no_reject_is_copied",),
    ),
    Mutation(
        "rebuild-schemas-elsewhere",
        "the state of a new checkpoint names its schemas beside the service's checkpoint",
        "the service does not start from it",
        ("P8",),
        (
            Edit(
                "service/checkpoint/rebuilt.py",
                """                        store["stateSchemaFilePaths"] = [_below(place, path) for path in paths]""",
                """                        store["stateSchemaFilePaths"] = [*paths]""",
            ),
        ),
        (_FOLDERS + "test_the_state_names_its_schemas_where_the_checkpoint_is",),
    ),
)
