"""Mutations of what operators see and run: metrics, quality, printing, deployment, and of the oracle itself."""

from load.mutations.mutation import Edit, Mutation

_MANIFESTS = "tests/unit/test_manifests.py::"
_TRANSACTIONS = "tests/integration/test_transactions.py::"
_OURS_ALONE = (
    "tests/integration/test_end_to_end.py::"
    "test_it_listens_on_loopback_keeps_its_files_to_itself_and_adds_an_operators_java_options_to_ours"
)
_SILENT = (
    "tests/unit/test_server.py::test_a_silent_connection_gives_way_to_one_more_and_connections_with_a_request_do_not"
)

MUTATIONS = (
    Mutation(
        "limit-not-watched",
        "the service goes on although a process has nearly all open files that it may have",
        "it fails in the middle of a batch, by whatever call needs a file, and the error blames something else",
        ("P7",),
        (Edit("service/daemon/query_run.py", "            self._parts.require_room()\n", ""),),
        (
            "tests/integration/test_driver.py::"
            "test_drivers_of_one_checkpoint_that_freeze_hang_lose_redis_or_spark_or_reach_a_limit",
        ),
    ),
    Mutation(
        "alerts-differ",
        "deploy/alerts.yml has another limit than the table",
        "Prometheus and the pages of the service show different conditions",
        ("P7",),
        (Edit("deploy/alerts.yml", "tidemark_batch_running_seconds > 120", "tidemark_batch_running_seconds > 240"),),
        (f"{_MANIFESTS}test_both_files_of_rules_are_generated_from_the_table",),
    ),
    Mutation(
        "codes-appear-late",
        "two codes of restarts have no series before their first event",
        "Prometheus sees no increase in the first restart after a loss in Redis",
        ("P7",),
        (
            Edit(
                "service/monitoring/metrics.py",
                "_CODES = (*failure.CODES, EpochLostError.code, WritesLostError.code)",
                "_CODES = failure.CODES",
            ),
        ),
        (
            "tests/unit/test_metrics.py::"
            "test_every_series_of_a_counter_and_of_a_histogram_exists_before_its_first_event",
        ),
    ),
    Mutation(
        "hdfs-as-a-folder",
        "files on HDFS and S3 are committed as on a local folder",
        "a file that is written again silently keeps its former content",
        ("P1",),
        (
            Edit(
                "service/spark/files.py",
                """    if scheme in {"", "file"}:\n        return ""\n""",
                """    if scheme:\n        return ""\n""",
            ),
        ),
        ("tests/unit/test_checkpoint_stores.py::test_files_are_committed_as_their_file_system_can",),
    ),
    Mutation(
        "snapshot-of-the-newest",
        "tasks of a remote checkpoint look up the snapshot of another batch",
        "a task that runs again reads other attributes than the first one",
        ("P1",),
        (
            Edit(
                "service/reference/attributes.py",
                "        name = batch_context.of_task().reference\n",
                "        name = max(Path(SparkFiles.getRootDirectory()).glob('*.arrow'), key=lambda p: p.stat().st_mtime).name\n",
            ),
        ),
        (
            "tests/stream/test_remote_reference.py::test_tasks_look_up_the_snapshot_of_their_batch_and_see_the_next_one_after_a_swap",
        ),
    ),
    Mutation(
        "aborted-counted",
        "readers of the topics do not ask for committed records only",
        "readings of an aborted transaction are in the results",
        ("P1", "P4"),
        (
            Edit(
                "service/kafka/clients.py",
                '"isolation.level": "read_committed"',
                '"isolation.level": "read_uncommitted"',
            ),
        ),
        (
            _TRANSACTIONS + "test_aborted_records_count_nowhere_and_are_not_lost",
            _TRANSACTIONS + "test_a_transaction_that_never_ends_is_lag_and_its_records_are_not_read",
        ),
    ),
    Mutation(
        "state-of-two-attempts",
        "state files are named by their batch alone",
        "after a kill, a batch goes on from a snapshot of one attempt and the changes of another",
        ("P1",),
        (Edit("deploy/spark-defaults.conf", "checkpointFormatVersion 2", "checkpointFormatVersion 1"),),
        ("tests/stream/test_state_by_change.py::test_a_repeated_batch_goes_on_from_its_own_state_alone",),
    ),
    Mutation(
        "printed-raw",
        "commands print what a device wrote as it is",
        "a device id clears the terminal, or writes lines that look like Tidemark's",
        ("P6",),
        (Edit("service/printing.py", "if each.isprintable() else", "if True else"),),
        ("tests/unit/test_printing.py::test_a_line_stays_one_line_of_plain_text",),
    ),
    Mutation(
        "support-with-secrets",
        "the support archive keeps what logs and pages say of secrets",
        "a bug report publishes passwords",
        ("P9",),
        (Edit("service/commands/support.py", "else stripped(part(), secrets)", "else part()"),),
        ("tests/unit/test_support.py::test_no_canary_is_in_the_archive_or_on_the_screen",),
    ),
    Mutation(
        "all-interfaces",
        "deploy/run leaves it to Spark where the driver listens",
        "another host reaches its ports",
        ("P9",),
        (Edit("deploy/run", 'export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"\n', ""),),
        (_OURS_ALONE,),
    ),
    Mutation(
        "checkpoint-for-all",
        "Hadoop gives the files of the checkpoint the modes that it gives all files",
        "another user of the host reads what devices have sent",
        ("P9",),
        (Edit("deploy/spark-defaults.conf", "spark.hadoop.fs.permissions.umask-mode 077\n", ""),),
        (_OURS_ALONE,),
    ),
    Mutation(
        "files-for-all",
        "a command leaves the modes of its files to the shell's umask",
        "another user of the host reads the passwords of the settings, and what devices have sent",
        ("P9",),
        (Edit("service/cli/entry.py", "    os.umask(0o077)\n", ""),),
        ("tests/unit/test_private_processes.py::test_the_settings_are_private_from_their_first_byte",),
    ),
    Mutation(
        "current-folder-imported",
        "the dashboard's command for rejects imports from the current folder",
        "whoever can write there runs code as the user of the dashboard",
        ("P9",),
        (Edit("service/commands/dashboard.py", '"-P", "-m", "service.cli"', '"-m", "service.cli"'),),
        ("tests/unit/test_private_processes.py::test_the_dashboard_runs_nothing_of_the_folder_where_it_is_started",),
    ),
    Mutation(
        "secret-submitted",
        "deploy/submit sends passwords with the rest of its environment",
        "the master keeps them in its recovery directory",
        ("P9",),
        (Edit("deploy/submit", "if value and found:", "if False:"),),
        ("tests/unit/test_deploy_scripts.py::test_a_submission_with_a_secret_in_a_variable_is_refused",),
    ),
    Mutation(
        "connections-unbounded",
        "the metrics port takes as many connections as come",
        "whoever reaches it takes a thread with each",
        ("P9",),
        (Edit("service/monitoring/server.py", "len(self._answering) >= CONNECTIONS", "len(self._answering) < 0"),),
        (_SILENT,),
    ),
    Mutation(
        "open-headline",
        "the dashboard takes an open window for a complete one",
        "every value jumps when a window begins, and looks like the value",
        ("P7",),
        (
            Edit(
                "clients/dashboard/src/tidemark_dashboard/pages/series.py",
                "return window.final and window.complete_from is None",
                "return window.complete_from is None",
            ),
        ),
        (
            "clients/dashboard/tests/test_dashboard_pages.py::"
            "test_the_headline_and_the_sparkline_do_not_move_when_a_window_begins",
        ),
    ),
    Mutation(
        "open-window-over-http",
        "the HTTP API answers with the newest window of each key where the newest final one was asked for",
        "an application takes a value that still changes for one that does not",
        ("P7",),
        (
            Edit(
                "clients/dashboard/src/tidemark_dashboard/api/resources.py",
                """page, measure, final=given["final"], back""",
                """page, measure, final=False, back""",
            ),
        ),
        ("clients/dashboard/tests/test_dashboard_api.py::test_every_answer_is_the_clients",),
    ),
    Mutation(
        "dashboard-holds-silence",
        "the dashboard refuses the newest connection, not one that is silent",
        "whoever opens as many connections as it takes shuts the page",
        ("P9",),
        (
            Edit(
                "clients/dashboard/src/tidemark_dashboard/connections.py",
                "oldest = next(iter(self.waiting.values()))",
                "oldest = line",
            ),
        ),
        (
            "clients/dashboard/tests/test_dashboard_connections.py::"
            "test_the_connection_that_has_waited_longest_gives_way_and_one_with_a_request_does_not",
        ),
    ),
    Mutation(
        "cookie-outlives-logout",
        "the dashboard's logout removes the cookie from the browser alone",
        "whoever has copied the cookie sees the pages",
        ("P9",),
        (
            Edit(
                "clients/dashboard/src/tidemark_dashboard/security.py",
                "sessions.end(cookie_of(request.headers))",
                "pass",
            ),
        ),
        ("clients/dashboard/tests/test_dashboard_security.py::test_a_token_is_asked_for_and_kept_by_the_browser",),
    ),
    Mutation(
        "wrong-tokens-by-connection",
        "the dashboard looks at as many tokens as a client sends",
        "a token that people can remember is found",
        ("P9",),
        (
            Edit(
                "clients/dashboard/src/tidemark_dashboard/security.py",
                "        if self.wait_s(client):\n",
                "        if False:\n",
            ),
        ),
        (
            "clients/dashboard/tests/test_dashboard_security.py::"
            "test_a_client_with_many_wrong_tokens_waits_whatever_its_connections",
        ),
    ),
    Mutation(
        "silent-connections-stay",
        "the metrics port refuses the newest connection, not one that is silent",
        "32 silent connections of one client hold the port, and a pod's liveness probe fails",
        ("P9",),
        (Edit("service/monitoring/server.py", "next(iter(self._waiting), None) if is_full else None", "None"),),
        (_SILENT,),
    ),
    Mutation(
        "any-host-answered",
        "the metrics port answers under every name",
        "a page of another site whose name leads to this address reads what the service shows",
        ("P9",),
        (
            Edit("service/monitoring/server.py", "        return not foreign\n", "        return True\n"),
            Edit("service/monitoring/server.py", "        if foreign:\n", "        if False:\n"),
        ),
        ("tests/unit/test_server.py::test_a_page_of_another_site_that_calls_this_address_its_own_reads_nothing",),
    ),
    Mutation(
        "signatures-shown",
        "the log and the archive have the parameters of URLs as they are",
        "whoever reads them has the right that ?sig= gives",
        ("P9",),
        (
            Edit(
                "service/redaction.py",
                "    text = _PARAMETER.sub(lambda found: found[0].removesuffix(found[1]) + MASK, text)\n",
                "",
            ),
        ),
        (
            "tests/unit/test_redaction.py::test_what_is_a_secret_by_its_form_is_in_no_log",
            "tests/unit/test_support.py::test_no_canary_is_in_the_archive_or_on_the_screen",
        ),
    ),
    Mutation(
        "option-of-one-client",
        "an option of Kafka goes to librdkafka although Spark's client cannot follow it",
        "check passes and the query fails, or one client verifies less than the settings ask for",
        ("P9",),
        (Edit("service/kafka/options.py", "            if name.startswith(beginning):", "            if False:"),),
        ("tests/unit/test_kafka_options.py::test_what_only_one_client_can_do_is_refused_by_its_name[crl]",),
    ),
    Mutation(
        "trace-with-error-text",
        "a span has the exception that ended it",
        "the collector gets keys of Redis, and so devices",
        ("P9",),
        (Edit("service/tracing.py", "record_exception=False", "record_exception=True"),),
        ("tests/unit/test_tracing.py::test_an_error_gives_its_code_and_not_its_text",),
    ),
    Mutation(
        "secret-as-variable",
        "a pod of the Deployment has a password as a variable of its environment",
        "whoever may read the pod's description or its /proc has the password",
        ("P9",),
        (
            Edit(
                "deploy/kubernetes/base/deployment.yaml",
                "            - {name: TIDEMARK_LOG, value: json}\n",
                "            - {name: TIDEMARK_LOG, value: json}\n"
                "            - name: TIDEMARK_REDIS__PASSWORD\n"
                "              valueFrom: {secretKeyRef: {name: tidemark, key: redis.password}}\n",
            ),
        ),
        (
            _MANIFESTS + "test_secrets_are_files_and_none_is_in_a_manifest[single]",
            _MANIFESTS + "test_secrets_are_files_and_none_is_in_a_manifest[standby]",
        ),
    ),
    Mutation(
        "oracle-off-by-one",
        "the oracle leaves out the last record of each partition",
        "it is the proof's own error: what compares with it must notice",
        ("P1", "P4"),
        (Edit("load/judge/oracle.py", "if error is None and offset < end:", "if error is None and offset < end - 1:"),),
        ("tests/integration/test_end_to_end.py::test_every_value_is_that_of_the_oracle_after_a_kill_under_load",),
    ),
)
