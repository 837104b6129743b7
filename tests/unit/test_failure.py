"""What a failure is called, whether it may pass, and how long is waited after it."""

import pytest

from service.admission import column_values, unknown_schemas
from service.errors import TidemarkError
from service.pipeline.failure import CALM_S, GIVE_UP_S, Patience, classify, transient
from service.redis.link import EpochLostError

PASSES = {
    "SourceError",
    "SinkError",
    "WritesLostError",
    "EpochLostError",
    "UnreadableError",
    "RegistryError",
    "WorkerLostError",
    "OutletError",
    "InjectedError",
}
STAYS = {
    "TidemarkError",
    "SettingsError",
    "SchemaError",
    "ReferenceDataError",
    "ReferenceTooOldError",
    "SourceRefusedError",
    "DataLossError",
    "SinkRefusedError",
    "OutletRefusedError",
    "FencedError",
    "CheckpointError",
    "QueryError",
    "SparkLostError",
    "ExhaustedError",
    "SetupError",
    "UnreadableRecordError",
}


UNDECIDED = {unknown_schemas.UndecidedError.__name__, column_values.UndecidedValuesError.__name__}
"""Errors of tasks that the driver answers by a decision, after which the batch runs again."""


def families(root: type[TidemarkError]) -> list[type[TidemarkError]]:
    return [root, *(family for child in root.__subclasses__() for family in families(child))]


def test_every_family_of_errors_either_may_pass_or_does_not() -> None:
    by_name = {family.__name__: transient(family("what")) for family in families(TidemarkError)}
    assert {name for name, passes in by_name.items() if passes} == PASSES
    assert {name for name, passes in by_name.items() if not passes} == STAYS | UNDECIDED


def test_waits_grow_to_a_limit_and_begin_anew_after_a_committed_batch() -> None:
    patience = Patience()
    assert [patience.failed(float(second)) for second in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    patience.progressed()
    assert patience.failed(7.0) == 1.0


def test_a_series_of_failures_that_lasts_too_long_is_given_up() -> None:
    patience = Patience()
    now_s = 0.0
    for _ in range(100):
        wait_s = patience.failed(now_s)
        if wait_s is None:
            break
        now_s += wait_s + 20.0
    assert GIVE_UP_S < now_s < GIVE_UP_S + 60


def test_failures_far_apart_are_no_series() -> None:
    patience = Patience()
    assert {patience.failed(number * (CALM_S + 1)) for number in range(10)} == {1.0}


def test_an_error_of_ours_keeps_its_name_whatever_it_was_wrapped_in() -> None:
    ours = EpochLostError("Redis at h:1/0: refused", remedy="Acquire the lease again")
    assert classify(ours) is ours
    wrapped = RuntimeError(
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n"
        '  File "service/pipeline/batch_publisher.py", line 7, in write\n'
        f"service.redis.link.EpochLostError: {ours}\n"
    )
    error = classify(wrapped)
    assert type(error) is EpochLostError
    assert str(error) == str(ours)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Offsets out of range: readings-0",
            "SOURCE_DATA_LOSS",
        ),
        (
            "[KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO] Some data may have been lost",
            "SOURCE_DATA_LOSS",
        ),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", "SOURCE"),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized: [readings]", "SOURCE_REFUSED"),
        (
            "Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times: ExecutorLostFailure (executor 1 exited)",
            "QUERY_WORKER_LOST",
        ),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state", "CHECKPOINT"),
        ("java.io.IOException: No space left on device: /c/offsets/1", "SETUP"),
        ("java.util.ConcurrentModificationException: Multiple streaming queries are concurrently using it", "FENCED"),
        ("scala.MatchError: something else", "QUERY"),
    ],
)
def test_a_failure_of_the_engine_gets_a_family(text: str, code: str) -> None:
    error = classify(RuntimeError(text), None)
    assert isinstance(error, TidemarkError)
    assert error.code == code
    assert error.remedy
