"""Names a failure of the query: from what was raised in Python, or from the classes in the JVM's chain of causes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from service import checkpoint
from service.errors import CheckpointError, FencedError, QueryError, SetupError, SourceError, TidemarkError

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
        re.compile(r"No space left on device|Disk quota exceeded|OutOfMemoryError|Too many open files"),
        "Give the machine what it lacks; the batch is replayed from the checkpoint",
    ),
    _Rule(
        FencedError,
        re.compile(r"ConcurrentModificationException|CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are"),
        "Another writer uses this checkpoint: this one must end",
    ),
    _Rule(
        SourceError,
        re.compile(r"OffsetOutOfRange|KAFKA_DATA_LOSS|failOnDataLoss|Some data may have been lost|Cannot fetch offset"),
        "Records were deleted before they were read: see docs/operator.md before going on without them",
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


def named(failure: BaseException | None, query: StreamingQuery | None) -> TidemarkError:
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
        folder = checkpoint.local(root)
        files = checkpoint.damaged(folder) if folder is not None else []
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
