"""Run the reference's query over JDBC, with a time limit, and classify its failures.

Spark's JDBC reader runs the query, so any database with a JDBC driver can be a reference. The driver's settings limit connecting
and each answer, if the driver has settings for that. PATIENCE limits the complete query, also of a database that hangs. A thread
that hangs in a driver occupies a Spark core, so there is at most one per database.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from service import clock
from service.errors import ReferenceDataError, SetupError
from service.redaction import MASK, redacted
from service.reference.attributes import DEVICE
from service.reference.expectations import check_columns
from service.spark import session
from service.spark.files import MAKE_LOADABLE, NOT_LOADED
from service.spark.internals import jvm
from service.threads import Thread

if TYPE_CHECKING:
    from service.settings import Reference

READ_MS = b"tidemark.read_ms"
"""Metadata of the table that `fetch` returns: the time of the query."""
PATIENCE = 3
"""The limit of `fetch`, as a multiple of `reference.timeout`."""

UNREACHABLE, TIMEOUT, REFUSED, INVALID, OTHER = REASONS = "unreachable", "timeout", "refused", "invalid", "other"
"""Why a refresh failed: the database does not answer, or too slowly; it refuses (a password, a right, the query); the data do not
meet the expectations; anything else, such as a full disk."""

_GROUP = "tidemark-reference"
_DRIVERS = {"postgresql": "org.postgresql.Driver", "sqlite": "org.sqlite.JDBC"}
_TOO_SLOW = re.compile(r"tim(ed|e)[ -]?out|canceling statement|cancell?ed on user", re.IGNORECASE)
_AWAY = re.compile(
    r"connect|unreachable|unknown ?host|i/o error|end of (file|stream)|terminat|shutting down|starting up|recovery mode|"
    r"unable to open|locked|too many clients",
    re.IGNORECASE,
)
_asking: dict[tuple[str, str], Future[pa.Table]] = {}
"""The last query of each session to each database."""


class UnreadableError(ReferenceDataError):
    """The database did not answer the query; `reason` is one of REASONS."""

    def __init__(self, what: str, *, remedy: str = "", reason: str = UNREACHABLE) -> None:
        super().__init__(what, remedy=remedy)
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """Return the reason of a failed refresh, one of REASONS."""
    if isinstance(error, UnreadableError):
        return error.reason
    return INVALID if isinstance(error, ReferenceDataError) else OTHER


def fetch(spark: SparkSession, reference: "Reference") -> pa.Table:
    """Run the query once; return `device` and the query's other columns, all strings, in no particular order.

    Raises UnreadableError with the database's message, ReferenceDataError when the query's columns do not fit the settings, and
    SetupError when Java cannot load the library of the database's driver.
    Neither shows credentials. Returns or raises within PATIENCE x timeout.
    """
    return _within_limit(spark, reference, lambda: _read(spark, reference))


def fetch_any(spark: SparkSession, reference: "Reference") -> pa.Table:
    """Like `fetch`, with all columns under the query's names, whatever the settings say of them."""
    return _within_limit(spark, reference, lambda: _query(spark, reference, check=False))


def _within_limit(spark: SparkSession, reference: "Reference", query: Callable[[], pa.Table]) -> pa.Table:
    limit_s = PATIENCE * reference.timeout_ms / 1000
    place = address(reference.url)
    remedy = "Find what blocks the database, or raise reference.timeout"
    key = jvm.session(spark).sessionUUID(), reference.url
    group = f"{_GROUP}-{key[0]}"
    former = _asking.get(key)
    if former is not None and not former.done():
        what = f"reference data cannot be read from {place}: it has not answered the last time either"
        raise UnreadableError(what, remedy=remedy, reason=TIMEOUT)
    answer = _asking[key] = Future()

    def ask() -> None:
        try:
            session.join_pool(spark)
            spark.sparkContext.setJobGroup(group, "reference data", interruptOnCancel=True)
            answer.set_result(query())
        except BaseException as error:  # the caller raises it
            answer.set_exception(error)

    Thread(target=ask, name="tidemark-database", daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError as error:
        spark.sparkContext.cancelJobGroup(group)
        what = f"reference data cannot be read from {place}: no complete answer within {limit_s:.0f} s"
        raise UnreadableError(what, remedy=remedy, reason=TIMEOUT) from error


def address(url: str) -> str:
    """Return the URL without what may be a credential: its parameters, and anything before an @."""
    return re.sub(r"//[^/@]*@", "//", redacted(re.split(r"[?;]", url)[0], ()).replace(MASK, ""))


def _read(spark: SparkSession, reference: "Reference") -> pa.Table:
    read_ms = clock.now_ms()
    rows = _query(spark, reference, check=True)
    names = [reference.key, *(name for name in rows.column_names if name != reference.key)]
    schema = pa.schema([(DEVICE, pa.string()), *((name, pa.string()) for name in names[1:])])
    table = rows.select(names).rename_columns(schema.names).cast(schema)
    return table.replace_schema_metadata({READ_MS: str(read_ms).encode()})


def _query(spark: SparkSession, reference: "Reference", *, check: bool) -> pa.Table:
    """Return the query's rows as text. With `check`, raise ReferenceDataError before if its columns do not fit the settings."""
    source = spark.read.format("jdbc").options(**_options(reference))
    try:
        columns = source.load().columns  # reads no row
        if check:
            check_columns(columns, reference, address(reference.url))
        if _kind(reference.url) == "sqlite":
            # SQLite's columns have no types, and its driver fails on a date stored as text.
            source = source.option("customSchema", ", ".join(f"`{name}` STRING" for name in columns))
        return source.load().select(*(col(f"`{name}`").cast("string") for name in columns)).toArrow()
    except (PySparkException, Py4JJavaError) as error:
        message = reference.masked(_innermost(error))
        if NOT_LOADED.search(message):
            what = f"the driver of {address(reference.url)} cannot load its library: {message}"
            raise SetupError(what, remedy=MAKE_LOADABLE) from None
        remedy = "Check [reference] url, user, password and query, and that the database can be reached"
        reason = REFUSED
        if "No suitable driver" in message or "ClassNotFoundException" in message:
            remedy = "Put the JDBC driver's jar on the class path of the driver and the executors"
        elif _TOO_SLOW.search(message):
            reason = TIMEOUT
        elif _AWAY.search(message):
            reason = UNREACHABLE
        msg = f"reference data cannot be read from {address(reference.url)}: {message}"
        raise UnreadableError(msg, remedy=remedy, reason=reason) from None  # the cause would show the JDBC options


def _options(reference: "Reference") -> dict[str, str]:
    """Return the JDBC options. Spark hands those that are not its own to the database's driver."""
    limits = connection_limits(reference.timeout_ms)
    kind = _kind(reference.url)
    query = reference.query.strip().rstrip(";")
    options = {"url": reference.url, "query": query, "queryTimeout": limits["loginTimeout"], "fetchsize": "10000"}
    if kind in _DRIVERS:
        options["driver"] = _DRIVERS[kind]
    if kind == "postgresql":
        options |= limits  # the server enforces the query's timeout; these hold when it does not answer at all
    if kind == "sqlite":
        # Mode 1 is read only: otherwise a wrong path would create an empty file.
        options |= {"open_mode": "1", "busy_timeout": str(reference.timeout_ms)}
    try:
        return options | reference.properties()
    except OSError as error:
        msg = f"{reference.password_file}: the reference's password cannot be read ({error.strerror})"
        raise ReferenceDataError(msg, remedy="Name the file in [reference] password_file") from error


def connection_limits(timeout_ms: int) -> dict[str, str]:
    """Return the properties of PostgreSQL's driver that limit connecting and each answer, and its name for the server."""
    seconds = max(1, -(-timeout_ms // 1000))
    limits = {"connectTimeout": seconds, "loginTimeout": seconds, "socketTimeout": seconds + 5}
    return {**{name: str(limit) for name, limit in limits.items()}, "ApplicationName": "tidemark"}


def _kind(url: str) -> str:
    return url.split(":", 2)[1] if url.startswith("jdbc:") else ""


def _innermost(error: Exception) -> str:
    """Return the first line of the innermost cause, which is the message of the database or of the task that failed."""
    java: Any = jvm.throwable(error)
    if java is None:
        return str(error).strip().splitlines()[0]
    while java.getCause() is not None:
        java = java.getCause()
    text = str(java.getMessage() or java.toString())
    if "UnknownHostException" in str(java.toString()):  # its message is the host alone
        return f"unknown host {text}"
    if unknown := re.search(r"UnknownHostException: (\S+)", text):
        return f"unknown host {unknown[1]}"
    # A failed task's cause is only text: `...: Lost task 0.0 in stage 1.0 (...): org.postgresql.util.PSQLException:
    # ERROR: ...`
    messages = re.findall(r"\w(?:Exception|Error): (.+)", text)
    return str(messages[0] if messages else text.strip().splitlines()[0])
