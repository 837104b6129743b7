"""Mutations of what several pipelines of a process share, and of how one ends, stops and starts."""

from load.mutations.mutation import Edit, Mutation

_UNIT = "tests/unit/test_pipelines.py::"
_CONTROL = "tests/unit/test_control.py::"

MUTATIONS = (
    Mutation(
        "pipelines-share-a-prefix",
        "two pipelines may have the same prefix or checkpoint",
        "each fences the other, and one overwrites the checkpoint of the other",
        ("P5",),
        (Edit("service/settings/place.py", "    if first == second:\n", "    if not first:\n"),),
        (_UNIT + "test_two_pipelines_that_share_what_only_one_may_have_are_refused",),
    ),
    Mutation(
        "states-by-bucket-alone",
        "a worker keeps one state for a bucket, of whichever pipeline",
        "each batch of each pipeline reads its complete state again",
        ("P8",),
        (Edit("state/store.py", "        self._query = query\n", '        self._query = ""\n'),),
        ("tests/unit/test_state_store.py::test_a_worker_keeps_the_states_of_two_queries_that_have_the_same_buckets",),
    ),
    Mutation(
        "failed-pipeline-stays-down",
        "a pipeline that ended by an error does not begin again",
        "what an outage has ended stays away until somebody restarts the process",
        ("P8",),
        (
            Edit(
                "service/daemon/pipeline.py",
                "                self._pause(error, clock.monotonic_s() - began_s)\n",
                "                return\n",
            ),
        ),
        (_UNIT + "test_a_pipeline_that_fails_begins_again_after_a_pause_that_grows",),
    ),
    Mutation(
        "failed-pipeline-not-stopped",
        "a pipeline that is stopped while it pauses after a failure stays failed",
        "`tidemark query stop` waits in vain, its alert fires, and the process ends when the others fail",
        ("P8",),
        (
            Edit(
                "service/daemon/pipeline.py",
                "                    self._show(None)\n            elif",
                "                    pass\n            elif",
            ),
        ),
        (_UNIT + "test_an_operator_stops_a_pipeline_starts_it_and_ends_its_pause",),
    ),
    Mutation(
        "stopped-in-between",
        "a pipeline that is started while it stops is shown as stopped first",
        "`tidemark query start` ends with an error, though the pipeline runs",
        ("P8",),
        (
            Edit(
                "service/daemon/pipeline.py",
                "error is None:\n            self.monitor.begins()\n",
                "error is None:\n            self.monitor.ended(None)\n            self.monitor.begins()\n",
            ),
        ),
        (_UNIT + "test_who_asks_right_after_a_command_sees_no_former_state",),
    ),
    Mutation(
        "one-failed-pipeline-ends-all",
        "the process ends when one pipeline has failed",
        "a topic that is missing stops the pipelines that have theirs",
        ("P8",),
        (Edit("service/daemon/process.py", "        has_all = all(", "        has_all = any("),),
        (
            "tests/integration/test_pipelines.py::"
            "test_a_pipeline_that_fails_begins_again_and_the_process_ends_when_all_have_failed",
        ),
    ),
    Mutation(
        "stuck-pipeline-restarts-all",
        "/healthz fails when one of several pipelines is stuck",
        "a supervisor restarts pipelines that go on",
        ("P8",),
        (Edit("service/monitoring/board.py", "if reasons and all(reasons.values())", "if any(reasons.values())"),),
        (_UNIT + "test_ready_are_all_that_nobody_has_stopped_and_healthy_is_the_process_while_one_is",),
    ),
    Mutation(
        "commands-from-everybody",
        "every user of the host may stop a pipeline",
        "a stranger stops the service",
        ("P9",),
        (Edit("service/daemon/control.py", "            path.chmod(0o600)\n", "            path.chmod(0o666)\n"),),
        (_CONTROL + "test_only_the_user_of_the_process_can_open_the_socket",),
    ),
)
