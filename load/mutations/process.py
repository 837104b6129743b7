"""Mutations of the process: one writer (P5), visible losses (P7), quick recovery (P8), secrets and strangers (P9)."""

from load.mutations.mutation import Edit, Mutation

_FENCE = """  if not current then
    return redis.error_reply('EPOCHLOST there is no epoch')
  elseif current > epoch then
    return redis.error_reply('FENCED the epoch is ' .. current)
  elseif current < epoch then
    return redis.error_reply('EPOCHLOST the epoch is ' .. current)
  end
"""
_PUBLISH = "tests/integration/test_publish.py::"
_RELEASES = "tests/unit/test_releases.py::"
_UNIT = "tests/unit/test_outlets.py::"
_UNIT_PIPELINES = "tests/unit/test_pipelines.py::"

MUTATIONS = (
    Mutation(
        "fence-per-key",
        "publish.lua compares the epoch stored in each key, not the current one",
        "a stale writer wins every key that the new one has not touched",
        "P5",
        _PUBLISH + "test_a_stale_epoch_is_refused_even_for_keys_that_nobody_has_written",
        Edit("service/publication/publish.lua", _FENCE, ""),
    ),
    Mutation(
        "epoch-not-grown",
        "a new term takes the epoch of the one before",
        "the fence cannot tell the two writers apart",
        "P5",
        "tests/integration/test_lease.py::test_every_term_has_a_larger_epoch",
        Edit("service/daemon/lease.py", "tonumber(ARGV[3])) + 1\n", "tonumber(ARGV[3]), 1)\n"),
    ),
    Mutation(
        "outlet-not-fenced",
        "an outlet does not compare the epoch of its writer",
        "a writer that was frozen writes beside its successor",
        "P5",
        _UNIT + "test_no_writer_of_an_older_epoch_is_let_in",
        Edit(
            "service/outlets/outlet.py",
            "    if reached is not None and reached.writer > epoch:\n",
            "    if reached is not None and reached.writer > epoch + 1_000_000:\n",
        ),
    ),
    Mutation(
        "pipelines-share-a-prefix",
        "two pipelines may have the same prefix or checkpoint",
        "each fences the other, and one overwrites the checkpoint of the other",
        "P5",
        _UNIT_PIPELINES + "test_two_pipelines_that_share_what_only_one_may_have_are_refused",
        Edit("service/settings/place.py", "    if first == second:\n", "    if not first:\n"),
    ),
    Mutation(
        "epoch-lost-unseen",
        "a Redis without an epoch, or with an older one, is written to",
        "lost data goes unnoticed, and the next term may reuse the epoch",
        "P5 P7",
        _PUBLISH + "test_a_redis_that_lost_its_epoch_refuses_with_an_error_of_its_own",
        Edit(
            "service/publication/publish.lua",
            _FENCE,
            "  if current and current > epoch then\n"
            "    return redis.error_reply('FENCED the epoch is ' .. current)\n  end\n",
        ),
    ),
    Mutation(
        "gap-unseen",
        "records that Kafka has deleted before they were read are gone on without",
        "the loss is silent",
        "P7",
        "tests/integration/test_resume.py::test_records_deleted_before_they_were_read_are_named_and_counted",
        Edit("service/checkpoint/resume.py", "if gaps and kafka.on_data_loss != CONTINUE:", "if False:"),
    ),
    Mutation(
        "layout-unnamed",
        "bytes of another layout are read as if they were of this one",
        "a state of another release is guessed at",
        "P7",
        _RELEASES + "test_every_layout_has_magic_and_version_where_every_version_looks_for_them",
        Edit("state/codec.py", "    if data[4] not in VERSIONS:", "    if False:"),
    ),
    Mutation(
        "codes-appear-late",
        "two codes of restarts have no series before their first event",
        "Prometheus sees no increase in the first restart after a loss in Redis",
        "P7",
        "tests/unit/test_metrics.py::test_every_series_of_a_counter_and_of_a_histogram_exists_before_its_first_event",
        Edit(
            "service/monitoring/metrics.py",
            "_CODES = (*failure.CODES, EpochLostError.code, WritesLostError.code)",
            "_CODES = failure.CODES",
        ),
    ),
    Mutation(
        "outlet-backlog-unbounded",
        "the backlog of an outlet has no limit",
        "an outlet that is away for days fills the checkpoint's disk",
        "P7",
        _UNIT + "test_a_backlog_above_max_pending_makes_batches_wait_and_fail",
        Edit(
            "service/outlets/publication.py",
            'options.when_away == "wait" or delivery.progress().pending_bytes > options.max_pending',
            'options.when_away == "wait"',
        ),
    ),
    Mutation(
        "alerts-differ",
        "deploy/alerts.yml has another limit than the table",
        "Prometheus and the pages of the service show different conditions",
        "P7",
        "tests/unit/test_manifests.py::test_both_files_of_rules_are_generated_from_the_table",
        Edit("deploy/alerts.yml", "tidemark_batch_running_seconds > 120", "tidemark_batch_running_seconds > 240"),
    ),
    Mutation(
        "open-headline",
        "the dashboard takes an open window for a complete one",
        "every value jumps when a window begins, and looks like the value",
        "P7",
        "clients/dashboard/tests/test_dashboard_pages.py::test_the_headline_and_the_sparkline_do_not_move_when_a_window_begins",
        Edit(
            "clients/dashboard/src/tidemark_dashboard/pages/series.py",
            "return window.final and window.complete_from is None",
            "return window.complete_from is None",
        ),
    ),
    Mutation(
        "nothing-passes",
        "no failure of the query is taken for one that may pass",
        "each time the broker or Redis is away costs a new process",
        "P8",
        "tests/unit/test_failure.py::test_every_family_of_errors_either_may_pass_or_does_not",
        Edit("service/pipeline/failure.py", "_TRANSIENT = (SourceError, SinkError,", "_TRANSIENT = ("),
    ),
    Mutation(
        "batches-shrink-for-nothing",
        "the limit of a batch ignores what a batch costs without records",
        "where each batch has a large fixed cost, the service reads less than arrives, for ever",
        "P8",
        "tests/unit/test_back_pressure.py::test_where_every_batch_has_a_large_fixed_cost_the_throughput_does_not_collapse[6.0-0.0]",
        Edit(
            "service/pipeline/back_pressure.py",
            "wanted = max(target_s - fixed_s, fixed_s) / slope_s",
            "wanted = max(target_s - fixed_s, 0.0) / slope_s",
        ),
    ),
    Mutation(
        "replaced-secret-not-awaited",
        "a refused login ends the process, also while its secret is replaced",
        "an operator who revokes the old password first takes the service down",
        "P8",
        "tests/unit/test_rotated_secrets.py::test_a_login_that_was_accepted_once_is_waited_for_if_its_secret_is_in_a_file[SinkLoginError]",
        Edit(
            "service/daemon/backoff.py",
            "isinstance(error, self._accepted) and failure.renewable(error, self._settings)",
            "False",
        ),
    ),
    Mutation(
        "failed-pipeline-stays-down",
        "a pipeline that ended by an error does not begin again",
        "what an outage has ended stays away until somebody restarts the process",
        "P8",
        _UNIT_PIPELINES + "test_a_pipeline_that_fails_begins_again_after_a_pause_that_grows",
        Edit(
            "service/daemon/pipeline.py",
            "                self._pause(error, clock.monotonic_s() - began_s)\n",
            "                return\n",
        ),
    ),
    Mutation(
        "support-with-secrets",
        "the support archive keeps what logs and pages say of secrets",
        "a bug report publishes passwords",
        "P9",
        "tests/unit/test_support.py::test_no_canary_is_in_the_archive_or_on_the_screen",
        Edit("service/commands/support.py", "else stripped(part(), secrets)", "else part()"),
    ),
    Mutation(
        "secret-submitted",
        "deploy/submit sends passwords with the rest of its environment",
        "the master keeps them in its recovery directory",
        "P9",
        "tests/unit/test_deploy_scripts.py::test_a_submission_with_a_secret_in_a_variable_is_refused",
        Edit("deploy/submit", "if value and found:", "if False:"),
    ),
    Mutation(
        "any-host-answered",
        "the metrics port answers under every name",
        "a page of another site whose name leads to this address reads what the service shows",
        "P9",
        "tests/unit/test_server.py::test_a_page_of_another_site_that_calls_this_address_its_own_reads_nothing",
        Edit("service/monitoring/server.py", "        return not foreign\n", "        return True\n"),
        Edit("service/monitoring/server.py", "        if foreign:\n", "        if False:\n"),
    ),
    Mutation(
        "commands-from-everybody",
        "every user of the host may stop a pipeline",
        "a stranger stops the service",
        "P9",
        "tests/unit/test_control.py::test_only_the_user_of_the_process_can_open_the_socket",
        Edit("service/daemon/control.py", "            path.chmod(0o600)\n", "            path.chmod(0o666)\n"),
    ),
)
