"""Classify failures of the query, as a TidemarkError that is transient or permanent.

The class comes from the classes and messages in the chain of causes, of Python and of the JVM, and never from stack traces. A
transient failure restarts the query from its checkpoint inside the running driver, under the same epoch. A permanent one ends the
process with the status of its family.

    transient  SourceError         Kafka is away or slow, or did not acknowledge rejects
               SinkError           Redis is away, slow, loading, read-only or out of memory; or it has lost data: a new epoch
               UnreadableError     the reference database is away, and there is no stored copy
               RegistryError       the schema registry is away, and a schema that is needed at the start is not stored
               WorkerLostError     an executor or a Python worker is gone
               OutletError         an outlet is away, and the batch has to wait for it
               InjectedError       a test's failpoint
    renewable  SecretFileError, SourceLoginError, SourceTrustError, SinkLoginError, OutletLoginError
                                   permanent, unless the secret is in a file and an earlier login was accepted:
                                   the next attempt reads the file again
    permanent  SettingsError, SchemaError, ReferenceDataError, ReferenceTooOldError, FencedError, CheckpointError, SetupError
               UnreadableRecordError                                   an operator has to decide
               SourceRefusedError, DataLossError, SinkRefusedError, OutletRefusedError
                                                                       waiting does not bring rights, topics or records
               SparkLostError, ExhaustedError   only a new process has a new Spark, and fewer open files
               QueryError          the cause is unknown: a new process is safer

tests/unit/test_failure.py compares this table with the tree in service/errors.py.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from service.admission.schema_catalog import NewSchemaError
from service.checkpoint import logs
from service.checkpoint.skips import ReadAnewError
from service.checkpoint.view_versions import ViewsChangedError
from service.errors import (
    CheckpointError,
    DataLossError,
    FencedError,
    OutletError,
    OutletLoginError,
    OutletRefusedError,
    QueryError,
    RegistryError,
    SecretFileError,
    SetupError,
    SinkError,
    SinkLoginError,
    SinkRefusedError,
    SourceError,
    SourceLoginError,
    SourceRefusedError,
    SourceTrustError,
    TidemarkError,
    WorkerLostError,
)
from service.failpoint import InjectedError
from service.kafka.clients import TOKENS, without_token
from service.kafka.matching import TopicsChangedError
from service.kafka.options import files
from service.reference.database import UnreadableError
from service.settings import Settings
from service.spark.files import FULL, MAKE_LOADABLE, MAKE_ROOM, NOT_LOADED, local
from service.spark.internals import jvm

_TRANSIENT = (SourceError, SinkError, UnreadableError, RegistryError, WorkerLostError, OutletError, InjectedError)
_PERMANENT = (SourceRefusedError, DataLossError, SinkRefusedError, OutletRefusedError)

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 10.0
CALM_S = 300.0
GIVE_UP_S = 600.0

_UNNAMED = (
    "The next start reads the batch again. After three ends at one batch the service looks for records that nobody can read; "
    "--debug shows the stack trace"
)
_NO_ANSWER = "The next start continues from the checkpoint, when the file system answers again"
_SAME_PACKAGES = "Every host needs the same Python and the same packages"
_LOST = "Job aborted due to stage failure"
"""Spark's message for a failed task. Its cause is the task's exception, unless the executor took that with it (Spark 4.1.4)."""
_WRAPPERS = ("StreamingQueryException", "ForeachBatchUserFuncException", "ForeachUserFuncException", "PythonException")
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class _Cause:
    """One exception of a chain: its class, with the package where there is one, and its message without stack traces."""

    name: str
    message: str

    def short(self) -> str:
        """One line: the class without its package, and the first line of the message, of Spark's own messages all lines."""
        name = re.split(r"[.$]", self.name)[-1]
        lines = [line.strip() for line in self.message.splitlines() if line.strip()] or [""]
        line = (" ".join(lines) if lines[0].startswith("[") else lines[0])[:500].rstrip(".")
        return f"{name}: {line}" if line else name


@dataclass(frozen=True, slots=True)
class _Rule:
    """`signs` is searched in the class of a cause and in its message: a wrapper's message has the class of what it wraps."""

    family: type[TidemarkError]
    remedy: str
    signs: re.Pattern[str]

    def fits(self, cause: _Cause) -> bool:
        return bool(self.signs.search(cause.name) or self.signs.search(cause.message))


_DIRECT = (
    _Rule(SetupError, MAKE_ROOM, FULL),
    _Rule(
        SetupError,
        "Set TMPDIR to a folder that the user may write, with room",
        re.compile(r"No usable temporary directory"),
    ),
    _Rule(
        SetupError,
        "Give the machine more memory, or more open files; the batch is replayed from the checkpoint",
        re.compile(
            r"OutOfMemoryError|^MemoryError|ArrowMemoryError|_OUT_OF_MEMORY\]|Too many open files|Cannot allocate memory|"
            r"unable to create native thread"
        ),
    ),
    _Rule(SetupError, MAKE_LOADABLE, NOT_LOADED),
    _Rule(
        SetupError,
        "Give the service's user the right to it, and look into the machine's log for errors of the disk",
        re.compile(
            r"AccessDeniedException|AccessControlException|^PermissionError|Permission denied|Read-only file system|"
            r"Input/output error|Stale (NFS )?file handle"
        ),
    ),
    _Rule(SetupError, _SAME_PACKAGES, re.compile(r"ModuleNotFoundError|Cannot run program|VERSION_MISMATCH")),
    _Rule(
        SetupError,
        "Exclude Spark's temporary folder from the clean-up of the machine's temporary files",
        re.compile(r"workingDir-\S+.*No such file|/(blockmgr|spark)-[0-9a-f-]{36}/\S*.*No such file"),
    ),
    _Rule(
        FencedError,
        "Another writer uses this checkpoint: this process must end",
        re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are"),
    ),
    _Rule(
        WorkerLostError,
        "The batch is replayed from the checkpoint; if workers die again, check memory and the machine's log",
        re.compile(
            r"^Stream closed|Python worker (exited|failed|process terminated)|ExecutorLostFailure|ExecutorDeadException|"
            r"[Ss]lave lost|Executor heartbeat timed out|FetchFailed|Could not find CoarseGrainedScheduler"
        ),
    ),
    _Rule(
        DataLossError,
        "Records were deleted before they were read. Before going on without them: "
        "docs/operator/procedures.md#records-were-deleted-before-they-were-read",
        re.compile(r"OffsetOutOfRange|^\[KAFKA_DATA_LOSS|Some data may have been lost"),
    ),
    _Rule(
        SourceLoginError,
        "Check [kafka] user and password_file",
        re.compile(r"SaslAuthenticationException|UnsupportedSaslMechanismException"),
    ),
    _Rule(
        SourceTrustError,
        "Check [kafka] ca_file, certificate and key, and this machine's clock",
        re.compile(r"SslAuthenticationException"),
    ),
    _Rule(
        SourceRefusedError,
        "Give [kafka] user this right: docs/operator/kafka.md",
        re.compile(r"(Topic|Group|Cluster|TransactionalId)AuthorizationException"),
    ),
    _Rule(
        SourceError,
        "Check the brokers and kafka.options; the batch is replayed from the checkpoint",
        re.compile(
            r"^org\.apache\.kafka\.|^org\.apache\.spark\.sql\.kafka010\.|^\[KAFKA_|Cannot fetch record for offset"
        ),
    ),
)
_NETWORK = (
    _Rule(
        QueryError,
        "A task of an earlier query still has the state; a new process begins without it",
        re.compile(r"UNRELEASED_THREAD_ERROR"),
    ),
    _Rule(
        QueryError,
        _NO_ANSWER,
        re.compile(
            r"ConnectException|NoRouteToHostException|UnknownHostException|SocketTimeoutException|ConnectTimeoutException|"
            r"SafeModeException|StandbyException|RetriableException|AWSClientIOException|SdkClientException"
        ),
    ),
)
"""What keeps a state from being loaded that is not damaged: its file system on other machines, and another task."""
_CHECKPOINT = (
    _Rule(
        CheckpointError,
        "Restore the complete checkpoint, undo the change of settings, or rebuild with an empty one: "
        "docs/operator/procedures.md#a-damaged-checkpoint",
        re.compile(
            r"RocksDBException|StateSchema|ChecksumException|CodecError|"
            r"^\[(CANNOT_LOAD_STATE_STORE|CHECKPOINT_|STATE_STORE_(?!INVALID_ST|OPERATION|COMMIT|HANDLE|UNSUPPORTED)|STDS_|STATEFUL_|STREAMING_STATE|"
            r"BATCH_METADATA_NOT_FOUND|MALFORMED_LOG_FILE|INVALID_LOG_VERSION|INCOMPATIBLE_STATE|UNABLE_TO_FETCH_STATE|MISSING_METADATA)|"
            r"^batch \d+ doesn't exist|Log file was malformed|Incomplete log file|Unsupported log version|"
            r"offset ?log"
        ),
    ),
)
"""The last suspects: what breaks a checkpoint's use is mostly something else, which the other rules name."""
_ORDER = (_DIRECT, _NETWORK, _CHECKPOINT)


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


LOGINS = (SecretFileError, SourceLoginError, SourceTrustError, SinkLoginError, OutletLoginError)


def renewable(error: TidemarkError, settings: Settings) -> bool:
    """Whether another secret in a file can end the failure: the next attempt reads the file again.

    A secret of the environment or of the settings file needs a new process.
    """
    match error:
        case SecretFileError():
            return True
        case SourceLoginError():
            return settings.kafka.password_file is not None
        case SourceTrustError():
            return bool(set(files(settings.kafka)) - {settings.kafka.password_file})
        case SinkLoginError():
            return settings.redis.password_file is not None
        case OutletLoginError():
            return any(each.password_file is not None for each in settings.outlets)
    return False


PLANNED = (NewSchemaError, ReadAnewError, TopicsChangedError, ViewsChangedError)
"""What ends a query because it has to begin again with something else: a schema, skips, topics, views. It is no failure."""
CODES = tuple(dict.fromkeys(family.code for family in (*_TRANSIENT, *LOGINS)))
"""The codes under which restarts of the query are counted; subclasses of these families may have other codes."""


def classify(
    failure: BaseException | None, query: StreamingQuery | None = None, settings: Settings | None = None
) -> TidemarkError:
    """Return the TidemarkError for `failure`, the exception of foreachBatch, or, if it is None, for the query's own exception.

    A TidemarkError is returned as it is. The chain of causes decides about others: each group of rules is compared with every
    cause, the innermost first. Without a match it is a QueryError. The text begins with the innermost cause. The settings give
    the address and the checkpoint where no cause names one. Stack traces decide nothing: any failure of a task has Spark's
    classes for checkpoints on its stack.
    """
    if isinstance(failure, TidemarkError):
        return failure
    # The query's exception has only the text of an exception in foreachBatch: the original has more.
    causes = [*_python(failure)] or [*_jvm(query)]
    if not causes:
        return QueryError("The query ended and gave no reason", remedy=_UNNAMED)
    if (ours := _ours(causes, settings)) is not None:
        return ours
    root = _root(query, settings)
    for rules in _ORDER:
        for cause in reversed(causes):
            for rule in rules:
                if rule.fits(cause):
                    return rule.family(_what(rule.family, cause, causes, root, settings), remedy=rule.remedy)
    (rule,) = _CHECKPOINT
    files = (cause for cause in reversed(causes) if root and _path(root) in cause.message)
    # A parser's error names neither the file nor the checkpoint.
    suspect = next(
        (cause for cause in files if _IS_OF_FILES.search(cause.name)), causes[-1] if _damaged(root) else None
    )
    if suspect is not None:
        return rule.family(_what(rule.family, suspect, causes, root, settings), remedy=rule.remedy)
    return QueryError(_what(QueryError, causes[-1], causes, root, settings), remedy=_UNNAMED)


def _ours(causes: Sequence[_Cause], settings: Settings | None) -> TidemarkError | None:
    """Return the error that one of the causes is, or that another module has for it."""
    for cause in causes:  # ours may have been raised from another one
        family = _named(TidemarkError).get(cause.name.rpartition(".")[2])
        if family is not None:
            return family(" ".join(cause.message.split()))
    if settings is not None and any(TOKENS.search(cause.message) for cause in causes):
        return without_token(settings.kafka, causes[-1].short())
    return None


_IS_OF_FILES = re.compile(r"FileNotFound|NoSuchFile|EOFException|IOException|OSError|FileSystemException")


def _what(
    family: type[TidemarkError], decisive: _Cause, causes: Sequence[_Cause], root: str, settings: Settings | None
) -> str:
    """Return the innermost cause with its place, and then the one that decided, if that is another one."""
    shown = list(dict.fromkeys(cause.short() for cause in (causes[-1], decisive)))
    if ":" not in shown[0]:  # a class without a message, such as EOFException
        shown.reverse()
    text = shown[0] + "".join(f" ({more})" for more in shown[1:])
    if family is CheckpointError and root:
        files = _damaged(root)
        if files:
            return f"{', '.join(map(str, files))} is damaged: {text}"
        return text if _path(root) in text else f"{root}: {text}"
    if issubclass(family, SourceError) and settings is not None:
        return f"Kafka at {settings.kafka.bootstrap}: {_placed(text)}"
    if family is SetupError and FULL.search(text):
        return f"{text}{_room(root)}"
    return text


def _placed(text: str) -> str:
    """Return a message of Kafka's Java client with its places as all other messages have them: topic[partition]@offset."""
    text = re.sub(r"([\w.-]+)-(\d+)=(?:FetchPosition\{offset=)?(\d+)", r"\1[\2]@\3", text)
    return re.sub(r"(partitions? )([\w.-]+)-(\d+)\b", r"\1\2[\3]", text)


def _damaged(root: str) -> Sequence[object]:
    """Return the damaged log files of a checkpoint on this machine."""
    folder = local(root) if root else None
    return logs.damaged_files(folder) if folder is not None else []


def _room(root: str) -> str:
    """Return the free space of the folders of this machine that a query writes to: Java's message has no path."""
    folders = {"checkpoint": local(root) if root else None, "temporary files": Path(tempfile.gettempdir())}
    free = {}
    for name, folder in folders.items():
        with suppress(OSError):
            if folder is not None:
                free[name] = f"{shutil.disk_usage(folder).free >> 20} MiB are free in {folder} ({name})"
    return f"; {', '.join(free.values())}" if free else ""


def _root(query: StreamingQuery | None, settings: Settings | None) -> str:
    if settings is not None:
        return settings.service.checkpoint
    if query is None:
        return ""
    return jvm.checkpoint(jvm.query(query))


def _path(root: str) -> str:
    """Return the part of a checkpoint's name that every message about a file in it has."""
    return urlsplit(root).path.rstrip("/") or root  # a bucket has no path


def _python(failure: BaseException | None) -> Iterator[_Cause]:
    seen: set[int] = set()
    while failure is not None and id(failure) not in seen:
        seen.add(id(failure))
        java = jvm.throwable(failure)
        causes = [*_chain(java)] if java is not None else []
        yield from causes or _expanded(type(failure).__name__, _text(failure))
        failure = failure.__cause__ or failure.__context__


def _text(failure: BaseException) -> str:
    try:
        return str(failure)
    except Exception:  # py4j asks the JVM for the text, which may be gone
        return ""


def _jvm(query: StreamingQuery | None) -> Iterator[_Cause]:
    if query is None:
        return
    exception = jvm.query(query).exception()
    if exception.isDefined():
        yield from _chain(exception.get())


def _chain(java: Any) -> Iterator[_Cause]:
    """A Throwable and its causes, without the wrappers, whose messages repeat plan and settings."""
    with suppress(Py4JError, OSError):  # the JVM may be gone
        while java is not None:
            cause, name, message = java.getCause(), str(java.getClass().getName()), str(java.getMessage() or "")
            is_wrapper = name.endswith(_WRAPPERS) or _LOST in message
            if cause is None or not is_wrapper or _TRACEBACK in message:
                yield from _expanded(name, message)
            java = cause


def _expanded(name: str, message: str) -> Iterator[_Cause]:
    """The exceptions that a message consists of, the outermost first: those of a task, of a Python worker, or one."""
    if _TRACEBACK in message:
        yield from reversed([*_tracebacks(message)])
        return
    lost = re.search(r"Lost task [^\n]*?\): (.+)", message, re.DOTALL) if _LOST in message else None
    blocks = re.split(r"^Caused by: |\nDriver stacktrace:", lost[1] if lost else message, flags=re.MULTILINE)
    for number, block in enumerate(blocks):
        lines = [line for line in block.splitlines() if not line.lstrip().startswith(("at ", "... "))]
        text = "\n".join(lines).strip()
        inner = re.match(r"([\w.$]+)(?:: |(?= \())(.*)", text, re.DOTALL) if number or lost else None
        if inner is not None:
            yield _Cause(inner[1], inner[2])
        elif text or not number:
            yield _Cause(name, text)


def _tracebacks(message: str) -> Iterator[_Cause]:
    """The exceptions of Python's tracebacks in a text, in the order in which they were raised."""
    for block in message.split(_TRACEBACK)[1:]:
        said = re.search(r"^([A-Za-z_][\w.]*)(?:: (.*?))?(?=\n\s*\n|\n\s*at |\nDriver stacktrace|\s*\Z)", block, _LINES)
        if said is not None:
            yield _Cause(said[1], said[2] or "")


_LINES = re.MULTILINE | re.DOTALL


def _named(root: type[TidemarkError]) -> dict[str, type[TidemarkError]]:
    """Return the families by the names of their classes."""
    families = {root.__name__: root}
    for family in root.__subclasses__():
        families |= _named(family)
    return families
