"""Classify failures of the query, as a TidemarkError that is transient or permanent.

The class comes from the Python exception, or from the JVM's chain of causes. A transient failure restarts the query from its
checkpoint inside the running driver, under the same epoch. A permanent one ends the process with the status of its family.

    transient  SourceError         Kafka is away or slow, or did not acknowledge rejects
               SinkError           Redis is away, slow, loading, read-only or out of memory; or it has lost data: a new epoch
               UnreadableError     the reference database is away, and there is no stored copy
               RegistryError       the schema registry is away, and a schema that is needed at the start is not stored
               WorkerLostError     an executor or a Python worker is gone
               OutletError         an outlet is away, and the batch has to wait for it
               InjectedError       a test's failpoint
    permanent  SettingsError, SchemaError, ReferenceDataError, ReferenceTooOldError, FencedError, CheckpointError, SetupError
               UnreadableRecordError                                   an operator has to decide
               SourceRefusedError, DataLossError, SinkRefusedError, OutletRefusedError
                                                                       waiting does not bring rights, topics or records
               SparkLostError, ExhaustedError   only a new process has a new Spark, and fewer open files
               QueryError          the cause is unknown: a new process is safer

tests/unit/test_failure.py compares this table with the tree in service/errors.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from service.checkpoint import logs
from service.errors import (
    CheckpointError,
    DataLossError,
    FencedError,
    OutletError,
    OutletRefusedError,
    QueryError,
    RegistryError,
    SetupError,
    SinkError,
    SinkRefusedError,
    SourceError,
    SourceRefusedError,
    TidemarkError,
    WorkerLostError,
)
from service.failpoint import InjectedError
from service.reference.database import UnreadableError
from service.spark.files import FULL, MAKE_ROOM, local

_TRANSIENT = (SourceError, SinkError, UnreadableError, RegistryError, WorkerLostError, OutletError, InjectedError)
_PERMANENT = (SourceRefusedError, DataLossError, SinkRefusedError, OutletRefusedError)

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 10.0
CALM_S = 300.0
GIVE_UP_S = 600.0

_DEBUG = "Start with --debug to see the stack trace"
_FRAMES = 40
_WRAPPERS = ("StreamingQueryException", "ForeachBatchUserFuncException", "ForeachUserFuncException")


@dataclass(frozen=True, slots=True)
class _Cause:
    """One exception of a chain; of the innermost one, `places` are the classes on its stack."""

    name: str
    message: str
    places: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name}: {self.message}"

    def short(self) -> str:
        """One line: the class without its package, and the last line of a Python traceback or the first of another message."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()] or [""]
        line = lines[-1] if "Traceback (most recent call last)" in self.message else lines[0]
        return f"{self.name.rpartition('.')[2]}: {line[:500]}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """`pattern` is searched in "class: message" of each cause, then in the classes on the innermost cause's stack."""

    family: type[TidemarkError]
    pattern: re.Pattern[str]
    remedy: str


_RULES = (
    _Rule(SetupError, FULL, MAKE_ROOM),
    _Rule(
        SetupError,
        re.compile(r"OutOfMemoryError|Too many open files"),
        "Give the machine more memory, or more open files; the batch is replayed from the checkpoint",
    ),
    _Rule(
        FencedError,
        re.compile(r"ConcurrentModificationException|CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are"),
        "Another writer uses this checkpoint: this process must end",
    ),
    _Rule(
        WorkerLostError,
        re.compile(
            r"Python worker (exited|failed)|Python worker process terminated|ExecutorLostFailure|ExecutorDeadException|"
            r"[Ss]lave lost|Executor heartbeat timed out|FetchFailed(Exception)?|Could not find CoarseGrainedScheduler"
        ),
        "The batch is replayed from the checkpoint; if workers die again, check memory and the machine's log",
    ),
    _Rule(
        DataLossError,
        re.compile(r"OffsetOutOfRange|KAFKA_DATA_LOSS|failOnDataLoss|Some data may have been lost|Cannot fetch offset"),
        "Records were deleted before they were read. Before going on without them: "
        "docs/operator/procedures.md#records-were-deleted-before-they-were-read",
    ),
    _Rule(
        SourceRefusedError,
        re.compile(
            r"SaslAuthenticationException|SslAuthenticationException|(Topic|Group|Cluster)AuthorizationException"
        ),
        "Check the user's rights and kafka.options",
    ),
    _Rule(
        SourceError,
        re.compile(r"org\.apache\.kafka\.|org\.apache\.spark\.sql\.kafka010\.|\[KAFKA_"),
        "Check the brokers and kafka.options; the batch is replayed from the checkpoint",
    ),
    _Rule(
        CheckpointError,
        re.compile(
            r"StateStore|STATE_STORE|STDS_|STATEFUL_|StateSchema|STREAMING_STATE|RocksDB|CodecError|"
            r"streaming\.checkpointing\.|OffsetSeq|HDFSMetadataLog|offsets? log|Incomplete log file|log version|"
            r"ChecksumException|Log file was malformed|[Cc]heckpoint|MISSING_METADATA|StreamMetadata|batch \d+ doesn't exist"
        ),
        "Restore the complete checkpoint, undo the change of settings, or rebuild with an empty one: "
        "docs/operator/procedures.md#a-damaged-checkpoint",
    ),
)


@dataclass(slots=True)
class Patience:
    """How long to wait before each restart of the query in a series of failures, and when to give up.

    The first wait is 1 s; each next one is twice as long, at most 10 s. A series ends with a committed batch, or after 5 minutes
    without a failure. After 10 minutes of failures the process ends: a new process may help where a new query does not.
    """

    _since_s: float | None = None
    _last_s: float = 0.0
    _wait_s: float = FIRST_WAIT_S

    def failed(self, now_s: float) -> float | None:
        """Return the seconds to wait before the next attempt, None when there is to be none."""
        if self._since_s is None or now_s - self._last_s > CALM_S:
            self._since_s, self._wait_s = now_s, FIRST_WAIT_S
        self._last_s = now_s
        if now_s - self._since_s > GIVE_UP_S:
            return None
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s

    def progressed(self) -> None:
        """End the series: a batch is committed."""
        self._since_s = None


def transient(error: TidemarkError) -> bool:
    """Whether the query may be started again in this process, by the table of this module."""
    return isinstance(error, _TRANSIENT) and not isinstance(error, _PERMANENT)


CODES = tuple(dict.fromkeys(family.code for family in _TRANSIENT))
"""The codes under which restarts of the query are counted; subclasses of these families may have other codes."""


def classify(failure: BaseException | None, query: StreamingQuery | None = None) -> TidemarkError:
    """Return the TidemarkError for `failure`, the exception of foreachBatch, or, if it is None, for the query's own exception.

    A TidemarkError is returned as it is. The chain of causes decides about others; without a match it is a QueryError.
    """
    if isinstance(failure, TidemarkError):
        return failure
    # The query's exception has only the text of an exception in foreachBatch: the original has more.
    causes = [*_python(failure)] or [*_jvm(query)]
    for cause in causes:
        error = _raised_in_worker(cause.text)
        if error is not None:
            return error
    for rule in _RULES:  # the order of the rules decides, not that of the chain: a full disk also breaks checkpoints
        for cause in causes:
            if rule.pattern.search(cause.text):
                return _error(rule, cause, query)
    if not causes:
        return QueryError("The query ended and gave no reason", remedy=_DEBUG)
    innermost = causes[-1]
    for rule in _RULES:  # the stack shows what a parser was reading
        if any(rule.pattern.search(place) for place in innermost.places):
            return _error(rule, innermost, query)
    return QueryError(innermost.short(), remedy=_DEBUG)


def _error(rule: _Rule, cause: _Cause, query: StreamingQuery | None) -> TidemarkError:
    where = ""
    if rule.family is CheckpointError and query is not None:
        handle: Any = query
        root = str(handle._jsq.streamingQuery().resolvedCheckpointRoot())
        folder = local(root)
        files = logs.damaged(folder) if folder is not None else []
        where = f"{', '.join(map(str, files))} is damaged: " if files else f"{root}: "
    return rule.family(where + cause.short(), remedy=rule.remedy)


def _python(failure: BaseException | None) -> Iterator[_Cause]:
    seen: set[int] = set()
    while failure is not None and id(failure) not in seen:
        seen.add(id(failure))
        yield _Cause(type(failure).__name__, str(failure))
        yield from _chain(getattr(failure, "java_exception", None) or getattr(failure, "_origin", None))
        failure = failure.__cause__ or failure.__context__


def _jvm(query: StreamingQuery | None) -> Iterator[_Cause]:
    if query is None:
        return
    handle: Any = query
    exception = handle._jsq.exception()
    if exception.isDefined():
        yield from _chain(exception.get())


def _chain(java: Any) -> Iterator[_Cause]:
    """A Throwable and its causes, without the wrappers, whose messages repeat plan and settings."""
    while java is not None:
        cause, name = java.getCause(), java.getClass().getName()
        if cause is None or not name.endswith(_WRAPPERS):
            places = [frame.getClassName() for frame in java.getStackTrace()[:_FRAMES]] if cause is None else []
            yield _Cause(name, _without_stack(java.getMessage() or ""), tuple(places))
        java = cause


def _without_stack(message: str) -> str:
    """The message without its stack traces: their lines name classes that have nothing to do with the cause."""
    return "\n".join(line for line in message.splitlines() if not line.lstrip().startswith(("at ", "...")))


def _raised_in_worker(text: str) -> TidemarkError | None:
    """The TidemarkError that was raised in a Python worker: the JVM has it as the last lines of a traceback's text."""
    families = {family.__name__: family for family in _families(TidemarkError)}
    ends = r"(?=\n\s*\n|\n\s*at |\nDriver stacktrace|\Z)"
    matches = re.findall(rf"^(?:[\w.]+\.)?({'|'.join(families)}): (.+?){ends}", text, re.MULTILINE | re.DOTALL)
    return families[matches[-1][0]](" ".join(matches[-1][1].split())) if matches else None


def _families(root: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    yield root
    for family in root.__subclasses__():
        yield from _families(family)
