"""Names a failure of the query: from what was raised in Python, or from the classes in the JVM's chain of causes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from service.errors import CheckpointError, FencedError, QueryError, SetupError, SourceError, TidemarkError

_WRAPPERS = ("StreamingQueryException", "ForeachBatchUserFuncException", "ForeachUserFuncException")


@dataclass(frozen=True, slots=True)
class _Rule:
    """`pattern` is looked for in "class: message" of each cause."""

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
        "Records were deleted before they were read: see the runbook before going on without them",
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
            r"Log file was malformed|[Cc]heckpoint|MISSING_METADATA|StreamMetadata|batch \d+ doesn't exist"
        ),
        "Restore the checkpoint whole, undo the change of settings, or rebuild with an empty one: see the runbook",
    ),
)


def named(failure: BaseException | None, query: StreamingQuery | None) -> TidemarkError:
    """The error to end with: `failure` is what foreachBatch raised, if it did; else the query's own exception is read.

    An exception of ours is returned as it is. Others are named by their chain of causes; QueryError is the last resort.
    """
    if isinstance(failure, TidemarkError):
        return failure
    causes = [*_python(failure), *_jvm(query)]
    for cause in causes:
        ours = _ours(cause)
        if ours is not None:
            return ours
    for rule in _RULES:  # the rules' order decides, not the chain's: a full disk breaks checkpoints, too
        for cause in causes:
            if rule.pattern.search(cause):
                return rule.family(_short(cause), remedy=rule.remedy)
    innermost = causes[-1] if causes else "it ended and gave no reason"
    return QueryError(_short(innermost), remedy="Start with --debug to see where it comes from")


def _python(failure: BaseException | None) -> Iterator[str]:
    seen: set[int] = set()
    while failure is not None and id(failure) not in seen:
        seen.add(id(failure))
        yield f"{type(failure).__name__}: {failure}"
        yield from _chain(getattr(failure, "java_exception", None) or getattr(failure, "_origin", None))
        failure = failure.__cause__ or failure.__context__


def _jvm(query: StreamingQuery | None) -> Iterator[str]:
    if query is None:
        return
    handle: Any = query
    exception = handle._jsq.exception()
    if exception.isDefined():
        yield from _chain(exception.get())


def _chain(java: Any) -> Iterator[str]:
    """`class: message` of a Throwable and its causes, but for the wrappers, whose messages repeat plan and settings."""
    while java is not None:
        cause, name = java.getCause(), java.getClass().getName()
        if cause is None or not name.endswith(_WRAPPERS):
            yield f"{name}: {_said(java.getMessage() or '')}"
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


def _short(cause: str) -> str:
    """One line of it: the class without its package, and what comes before the first line that is a stack trace's."""
    name, _, message = cause.partition(": ")
    lines = [line.strip() for line in message.splitlines()]
    said = next((line for line in lines if line and not line.startswith(("at ", "Traceback", "Parsed Logical"))), "")
    return f"{name.rpartition('.')[2]}: {said[:500]}"
