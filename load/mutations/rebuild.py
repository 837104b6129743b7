"""Mutations of a rebuild beside the service: how far it reads, what it publishes, what is compared, and the exchange."""

from load.mutations.mutation import Edit, Mutation

_PARTS = "tests/integration/test_rebuilder.py::"
_COMPARISON = "tests/integration/test_comparison.py::"

MUTATIONS = (
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
        "rebuild-uncompared",
        "the comparison takes every value that both have for equal",
        "a switch to other values is not refused",
        ("P7",),
        (Edit("service/recompute/comparison.py", "    elif is_alike(mine, other):", "    elif True:"),),
        (_COMPARISON + "test_every_kind_of_difference_is_counted_and_named",),
    ),
)
