"""Failures of the query: what they are called, and whether they may pass.

A failure is named from what was raised in Python, or from the classes in the JVM's chain of causes. What may pass restarts
the query from its checkpoint inside the running driver, under the same epoch; what cannot ends the process with its status:

    may pass   SourceError         Kafka is away or slow, rejects were not acknowledged
               SinkError           Redis is away, slow, loading, read-only or out of memory; or it has lost data: a new epoch
               UnreadableError     the reference database is away, and there is no stored copy
               RegistryError       the schema registry is away, and a schema that is needed at the start is not stored
               WorkerLostError     an executor or a Python worker is gone
               InjectedError       a test asked for it
    stays      SettingsError, SchemaError, ReferenceDataError, ReferenceTooOldError, FencedError, CheckpointError, SetupError
               UnreadableRecordError                                   an operator has to decide
               SourceRefusedError, DataLossError, SinkRefusedError     waiting does not bring rights, topics or records
               SparkLostError      there is nothing left to restart in: the process must be a new one
               QueryError          nobody knows what it is, and a new process is the better cure

tests/unit/test_failure.py holds this table against the tree in service/errors.py.
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
from service.reference.snapshots import UnreadableError
from service.spark.files import FULL, MAKE_ROOM

_PASSES = (SourceError, SinkError, UnreadableError, RegistryError, WorkerLostError, InjectedError)
_STAYS = (SourceRefusedError, DataLossError, SinkRefusedError)

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 10.0
CALM_S = 300.0
GIVE_UP_S = 600.0

_DEBUG = "Start with --debug to see where it comes from"
_FRAMES = 40
_WRAPPERS = ("StreamingQueryException", "ForeachBatchUserFuncException", "ForeachUserFuncException")


@dataclass(frozen=True, slots=True)
class _Cause:
    """One exception of a chain; `places` are the classes on its stack, for the innermost one."""

    name: str
    message: str
    places: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name}: {self.message}"

    def short(self) -> str:
        """One line: the class without its package, and what a Python traceback ends with, or the first line there is."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()] or [""]
        said = lines[-1] if "Traceback (most recent call last)" in self.message else lines[0]
        return f"{self.name.rpartition('.')[2]}: {said[:500]}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """`pattern` is looked for in "class: message" of each cause, then in the classes on the innermost one's stack."""

    family: type[TidemarkError]
    pattern: re.Pattern[str]
    remedy: str


_RULES = (
    _Rule(
        SetupError,
        FULL,
        MAKE_ROOM,
    ),
    _Rule(
        SetupError,
        re.compile(r"OutOfMemoryError|Too many open files"),
        "Give the machine what it lacks; the batch is replayed from the checkpoint",
    ),
    _Rule(
        FencedError,
        re.compile(r"ConcurrentModificationException|CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are"),
        "Another writer uses this checkpoint: this one must end",
    ),
    _Rule(
        WorkerLostError,
        re.compile(
            r"Python worker (exited|failed)|Python worker process terminated|ExecutorLostFailure|ExecutorDeadException|"
            r"[Ss]lave lost|Executor heartbeat timed out|FetchFailed(Exception)?|Could not find CoarseGrainedScheduler"
        ),
        "The batch is replayed from the checkpoint; if it returns, look for what kills it: memory, or the machine's log",
    ),
    _Rule(
        DataLossError,
        re.compile(r"OffsetOutOfRange|KAFKA_DATA_LOSS|failOnDataLoss|Some data may have been lost|Cannot fetch offset"),
        "Records were deleted before they were read: see docs/operator.md before going on without them",
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
        "Restore the checkpoint whole, undo the change of settings, or rebuild with an empty one: see docs/operator.md",
    ),
)


@dataclass(slots=True)
class Patience:
    """How long to wait after each failure of a series, and when the series has lasted too long.

    1 s at first, twice as long each time, at most 10 s. A series ends with a committed batch, or with 5 minutes without a
    failure. One of more than 10 minutes is too long: a new process may cure what a new query cannot.
    """

    _since_s: float | None = None
    _last_s: float = 0.0
    _wait_s: float = FIRST_WAIT_S

    def failed(self, now_s: float) -> float | None:
        """Seconds to wait before the next attempt, None for no attempt any more."""
        if self._since_s is None or now_s - self._last_s > CALM_S:
            self._since_s, self._wait_s = now_s, FIRST_WAIT_S
        self._last_s = now_s
        if now_s - self._since_s > GIVE_UP_S:
            return None
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s

    def progressed(self) -> None:
        """A batch is committed."""
        self._since_s = None


def transient(error: TidemarkError) -> bool:
    """Whether the query may be started again in this process: the module's table."""
    return isinstance(error, _PASSES) and not isinstance(error, _STAYS)


CODES = tuple(dict.fromkeys(family.code for family in _PASSES if not issubclass(family, _STAYS)))
"""What a restart of the query may be counted under, but for rare kinds of these families."""


def classify(failure: BaseException | None, query: StreamingQuery | None = None) -> TidemarkError:
    """The error to end with: `failure` is what foreachBatch raised, if it did; else the query's own exception is read.

    An exception of ours is returned as it is. Others are named by their chain of causes; QueryError is the last resort.
    """
    if isinstance(failure, TidemarkError):
        return failure
    # What was raised in foreachBatch comes back in the query's exception, as text: the original says more.
    causes = [*_python(failure)] or [*_jvm(query)]
    for cause in causes:
        ours = _ours(cause.text)
        if ours is not None:
            return ours
    for rule in _RULES:  # the rules' order decides, not the chain's: a full disk breaks checkpoints, too
        for cause in causes:
            if rule.pattern.search(cause.text):
                return _error(rule, cause, query)
    if not causes:
        return QueryError("The query ended and gave no reason", remedy=_DEBUG)
    innermost = causes[-1]
    for rule in _RULES:  # a parser's error is about what was being read
        if any(rule.pattern.search(place) for place in innermost.places):
            return _error(rule, innermost, query)
    return QueryError(innermost.short(), remedy=_DEBUG)


def _error(rule: _Rule, cause: _Cause, query: StreamingQuery | None) -> TidemarkError:
    where = ""
    if rule.family is CheckpointError and query is not None:
        handle: Any = query
        root = str(handle._jsq.streamingQuery().resolvedCheckpointRoot())
        folder = logs.local(root)
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
    """A Throwable and its causes, but for the wrappers, whose messages repeat plan and settings."""
    while java is not None:
        cause, name = java.getCause(), java.getClass().getName()
        if cause is None or not name.endswith(_WRAPPERS):
            places = [frame.getClassName() for frame in java.getStackTrace()[:_FRAMES]] if cause is None else []
            yield _Cause(name, _said(java.getMessage() or ""), tuple(places))
        java = cause


def _said(message: str) -> str:
    """The message without the stack traces in it: their lines name classes that have nothing to do with the cause."""
    return "\n".join(line for line in message.splitlines() if not line.lstrip().startswith(("at ", "...")))


def _ours(text: str) -> TidemarkError | None:
    """An error of ours that was raised in a Python worker: it comes back as the last lines of a traceback's text."""
    families = {family.__name__: family for family in _families(TidemarkError)}
    ends = r"(?=\n\s*\n|\n\s*at |\nDriver stacktrace|\Z)"
    found = re.findall(rf"^(?:[\w.]+\.)?({'|'.join(families)}): (.+?){ends}", text, re.MULTILINE | re.DOTALL)
    return families[found[-1][0]](" ".join(found[-1][1].split())) if found else None


def _families(root: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    yield root
    for family in root.__subclasses__():
        yield from _families(family)
