"""What a failure is called, whether it may pass, and how long is waited after it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.admission.questions import UndecidedError
from service.daemon import starts
from service.errors import SetupError, TidemarkError
from service.pipeline.failure import CALM_S, GIVE_UP_S, Patience, classify, transient
from service.redis.link import EpochLostError
from service.settings import Settings

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
    "SecretFileError",
    "SourceRefusedError",
    "SourceLoginError",
    "SourceTrustError",
    "DataLossError",
    "SinkRefusedError",
    "SinkLoginError",
    "OutletRefusedError",
    "OutletLoginError",
    "FencedError",
    "CheckpointError",
    "QueryError",
    "QuestionError",
    "SparkLostError",
    "ExhaustedError",
    "SetupError",
    "UnreadableRecordError",
}


UNDECIDED = {UndecidedError.__name__}
"""The error of tasks that the driver answers by a decision, after which the batch runs again."""


def families(root: type[TidemarkError]) -> list[type[TidemarkError]]:
    """The service's errors: programs of load, which another test may have imported, have some of their own."""
    children = [each for each in root.__subclasses__() if each.__module__.startswith("service.")]
    return [root, *(family for child in children for family in families(child))]


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


def throwable(causes: Sequence[Mapping[str, str]]) -> Any:
    """What py4j gives of a Throwable: its class, its message, its cause. None without causes."""
    if not causes:
        return None
    first, *others = causes
    kind = SimpleNamespace(getName=lambda: first["class"])
    return SimpleNamespace(
        getClass=lambda: kind, getMessage=lambda: first["message"], getCause=lambda: throwable(others)
    )


class JavaError(Exception):
    """A Py4JJavaError: its text has the stack traces of all causes."""

    def __init__(self, *causes: Mapping[str, str], text: str = "") -> None:
        super().__init__(text or STACK)
        self.java_exception = throwable(causes)


STACK = """An error occurred while calling o3501.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult
\tat org.apache.spark.rdd.RDD.computeOrReadCheckpoint(RDD.scala:374)
\tat org.apache.spark.sql.execution.streaming.state.StateStoreRDD.compute(StateStoreRDD.scala:128)
\tat org.apache.kafka.clients.consumer.KafkaConsumer.poll(KafkaConsumer.java:700)
"""
"""Of any failure of a task (Spark 4.1.4)."""
FRAMES = "\n\tat org.apache.spark.rdd.RDD.computeOrReadCheckpoint(RDD.scala:374)\n"


TRACEBACK = "Traceback (most recent call last):"
SPARK = "org.apache.spark.SparkException"


def cause(name: str, message: str = "") -> dict[str, str]:
    return {"class": name, "message": message}


def lost(text: str) -> dict[str, str]:
    """The failure of a job, by that of its task."""
    where = "Task 0 in stage 5.0 failed 4 times, most recent failure: Lost task 0.3 in stage 5.0 (TID 3) (10.0.0.5 executor 1): "
    return cause(
        "org.apache.spark.SparkException", f"Job aborted due to stage failure: {where}{text}\nDriver stacktrace:"
    )


RECORDED = json.loads((Path(__file__).parent / "failures.json").read_text())
"""Failures of real runs of `make faults ID=causes` and tests/stream/test_failure.py: what they consist of, and their names."""
SETTINGS = cast(
    Settings,
    SimpleNamespace(
        service=SimpleNamespace(checkpoint="/var/lib/checkpoint"), kafka=SimpleNamespace(bootstrap="127.0.0.1:9092")
    ),
)
"""Those of the runs, as far as a message has them."""


@pytest.mark.parametrize("failure", RECORDED, ids=lambda failure: str(failure["name"]))
def test_a_real_failure_is_named_by_its_cause(failure: Mapping[str, Any]) -> None:
    error = classify(JavaError(*failure["causes"], text=failure["text"]), settings=SETTINGS)
    assert error.code == failure["code"], error
    assert error.what.startswith(failure["begins"]), error
    assert error.remedy


@pytest.mark.parametrize(
    "innermost",
    [
        cause("java.io.IOException", "No space left on device"),
        cause("java.lang.IllegalStateException", "unforeseen"),
        cause("javax.net.ssl.SSLHandshakeException", "PKIX path building failed"),
        cause("java.lang.OutOfMemoryError", "Java heap space"),
    ],
)
def test_what_is_on_a_stack_accuses_nothing(innermost: Mapping[str, str]) -> None:
    text = "{class}: {message}".format(**innermost)
    with_cause, alone = JavaError(lost(text + FRAMES), innermost), JavaError(lost(text + FRAMES))
    assert classify(with_cause).code == classify(alone).code != "CHECKPOINT"
    assert str(classify(with_cause)) == str(classify(alone))
    assert classify(alone).what.startswith(text.rpartition(".")[2])


@pytest.mark.parametrize(
    ("causes", "code", "what"),
    [
        (
            [lost("ExecutorLostFailure (executor 1 exited) Reason: Remote RPC client disassociated.")],
            "QUERY_WORKER_LOST",
            "ExecutorLostFailure: (executor 1 exited) Reason: Remote RPC client disassociated",
        ),
        (
            [cause(SPARK, "Python worker exited unexpectedly (crashed)"), cause("java.io.EOFException")],
            "QUERY_WORKER_LOST",
            "SparkException: Python worker exited unexpectedly (crashed) (EOFException)",
        ),
        (
            [
                cause(SPARK, "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred"),
                cause("java.io.FileNotFoundException", "File /c/state/0/0/7.changelog does not exist"),
            ],
            "CHECKPOINT",
            "FileNotFoundException: File /c/state/0/0/7.changelog does not exist "
            "(SparkException: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred)",
        ),
        (
            [
                cause(SPARK, "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred"),
                cause("java.net.ConnectException", "Call From a to name-node:8020 failed on connection exception"),
            ],
            "QUERY",
            "ConnectException: Call From a to name-node:8020 failed on connection exception",
        ),
        (
            [cause(SPARK, "Job aborted"), cause("org.rocksdb.RocksDBException", "No space left on device")],
            "SETUP",
            "RocksDBException: No space left on device; ",
        ),
        (
            [cause("java.lang.NoClassDefFoundError", "Could not initialize class org.rocksdb.RocksDB")],
            "SETUP",
            "NoClassDefFoundError: Could not initialize class org.rocksdb.RocksDB",
        ),
        (
            [
                cause("org.apache.kafka.common.errors.SslAuthenticationException", "SSL handshake failed"),
                cause("sun.security.validator.ValidatorException", "PKIX path building failed"),
            ],
            "SOURCE_REFUSED",
            "ValidatorException: PKIX path building failed (SslAuthenticationException: SSL handshake failed)",
        ),
        (
            [cause("java.util.ConcurrentModificationException", "KafkaConsumer is not safe for multi-threaded access")],
            "QUERY",
            "ConcurrentModificationException: KafkaConsumer is not safe",
        ),
        (
            [
                cause(
                    "java.util.ConcurrentModificationException", "Multiple streaming queries are concurrently using it"
                )
            ],
            "FENCED",
            "ConcurrentModificationException: Multiple streaming queries",
        ),
        (
            [cause("org.apache.kafka.common.errors.TimeoutException", "Timed out waiting for a node assignment")],
            "SOURCE",
            "TimeoutException: Timed out waiting for a node assignment",
        ),
        ([cause("scala.MatchError", "something else")], "QUERY", "MatchError: something else"),
    ],
)
def test_a_failure_of_the_engine_gets_a_family(causes: list[Mapping[str, str]], code: str, what: str) -> None:
    error = classify(JavaError(*causes))
    assert error.code == code, error
    assert error.what.startswith(what), error
    assert error.remedy


@pytest.mark.parametrize(("file", "code"), [("s3a://bucket/offsets/7", "CHECKPOINT"), ("/srv/driver.jar", "QUERY")])
def test_a_checkpoint_that_is_a_whole_bucket_is_accused_by_its_own_files_only(file: str, code: str) -> None:
    settings = cast(Settings, SimpleNamespace(service=SimpleNamespace(checkpoint="s3a://bucket")))
    assert classify(JavaError(cause("java.io.FileNotFoundException", file)), settings=settings).code == code


def test_the_cause_of_a_python_worker_is_the_first_exception_and_ours_stays_ours() -> None:
    full = "OSError: [Errno 28] No space left on device: '/d/x'"
    first = f'{TRACEBACK}\n  File "s.py", line 7, in write\n{full}\n'
    again = "\nDuring handling of the above exception, another exception occurred:\n\n"
    second = f'{TRACEBACK}\n  File "s.py", line 9, in write\n    raise KeyError\nKeyError: "checkpoint"\n'
    worker = "org.apache.spark.api.python.PythonException"
    error = classify(JavaError(lost(f"{worker}: {first}{again}{second}")))
    assert error.code == "SETUP"
    assert error.what.startswith(full)
    ours = f"{second.partition('KeyError:')[0]}service.redis.link.EpochLostError: Redis at h:1/0: refused. Acquire it\n"
    assert str(classify(JavaError(cause(worker, f"{first}{again}{ours}")))) == "Redis at h:1/0: refused. Acquire it"


def test_an_unforeseen_failure_of_a_task_counts_towards_the_search_for_unreadable_records() -> None:
    assert starts.counts(JavaError(lost(f"java.lang.IllegalStateException: unforeseen{FRAMES}")))
    assert starts.counts(JavaError(lost(f"java.lang.OutOfMemoryError: Java heap space{FRAMES}")))
    assert not starts.counts(JavaError(lost(f"java.io.IOException: No space left on device{FRAMES}")))


def test_a_machine_without_a_folder_for_temporary_files_is_told_of_tmpdir() -> None:
    error = classify(FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']"))
    assert isinstance(error, SetupError)
    assert "Set TMPDIR" in error.remedy
