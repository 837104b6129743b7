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
        "commands-from-everybody",
        "every user of the host may stop a pipeline",
        "a stranger stops the service",
        ("P9",),
        (Edit("service/daemon/control.py", "            path.chmod(0o600)\n", "            path.chmod(0o666)\n"),),
        (_CONTROL + "test_only_the_user_of_the_process_can_open_the_socket",),
    ),
)
