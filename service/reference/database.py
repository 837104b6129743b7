"""The reference's database, over JDBC: its one question, in bounded time, and what is wrong when there is no answer.

Spark's own reader asks, so that whatever has a JDBC driver can be a reference. Every step has a limit: connecting and each
answer by the driver's own settings where it has them, and the whole by a clock of ours, for drivers that have none and for
databases that hang. A thread that hangs in a driver keeps a core of Spark's busy: no second one is started beside it.
"""

import re
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from service import clock
from service.errors import ReferenceDataError
from service.reference.attributes import DEVICE
from service.reference.expectations import check_columns

if TYPE_CHECKING:
    from service.settings import Reference

READ_MS = b"tidemark.read_ms"
"""When the database was asked: in the metadata of the table that `fetch` returns."""
PATIENCE = 3
"""The whole may take so many times `reference.timeout`."""

UNREACHABLE, TIMEOUT, REFUSED, INVALID, OTHER = REASONS = "unreachable", "timeout", "refused", "invalid", "other"
"""Why there is no newer snapshot: no database answers, or too slowly; it answers, and will not (a password, a right, the
query); what it says is refused by its expectations; anything else, such as a full disk."""

_GROUP = "tidemark-reference"
_DRIVERS = {"postgresql": "org.postgresql.Driver", "sqlite": "org.sqlite.JDBC"}
_TOO_SLOW = re.compile(r"tim(ed|e)[ -]?out|canceling statement|cancell?ed on user", re.IGNORECASE)
_AWAY = re.compile(
    r"connect|unreachable|unknown ?host|i/o error|end of (file|stream)|terminat|shutting down|starting up|recovery mode|"
    r"unable to open|locked|too many clients",
    re.IGNORECASE,
)
_asking: dict[str, Future[pa.Table]] = {}


class UnreadableError(ReferenceDataError):
    """The database did not answer the query; `reason` is one of REASONS."""

    def __init__(self, what: str, *, remedy: str = "", reason: str = UNREACHABLE) -> None:
        super().__init__(what, remedy=remedy)
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """Why a refresh failed, as one of REASONS."""
    if isinstance(error, UnreadableError):
        return error.reason
    return INVALID if isinstance(error, ReferenceDataError) else OTHER


def fetch(spark: SparkSession, reference: "Reference") -> pa.Table:
    """Run the query once; returns `device` and the query's other columns, all strings, in no particular order.

    Raises UnreadableError with the database's own words, and ReferenceDataError when the query's columns
    are not what the settings say. Neither shows credentials. Returns or raises within PATIENCE x timeout.
    """
    limit_s = PATIENCE * reference.timeout_ms / 1000
    place = address(reference.url)
    remedy = "See what keeps the database, or raise reference.timeout"
    former = _asking.get(reference.url)
    if former is not None and not former.done():
        what = f"reference data cannot be read from {place}: it has not answered the last time either"
        raise UnreadableError(what, remedy=remedy, reason=TIMEOUT)
    answer = _asking[reference.url] = Future()

    def ask() -> None:
        try:
            spark.sparkContext.setJobGroup(_GROUP, "reference data", interruptOnCancel=True)
            answer.set_result(_read(spark, reference))
        except BaseException as error:  # it is the caller's to raise
            answer.set_exception(error)

    threading.Thread(target=ask, name="tidemark-database", daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError as error:
        spark.sparkContext.cancelJobGroup(_GROUP)
        what = f"reference data cannot be read from {place}: no whole answer within {limit_s:.0f} s"
        raise UnreadableError(what, remedy=remedy, reason=TIMEOUT) from error


def address(url: str) -> str:
    """The URL without what may be a credential: its parameters, and anything before an @."""
    return re.sub(r"//[^/@]*@", "//", re.split(r"[?;]", url)[0])


def _read(spark: SparkSession, reference: "Reference") -> pa.Table:
    source = spark.read.format("jdbc").options(**_options(reference))
    read_ms = clock.now_ms()
    try:
        found = source.load().columns  # asks for the columns only, no row is read
        check_columns(found, reference, address(reference.url))
        if _kind(reference.url) == "sqlite":
            # SQLite's columns have no types, and its driver fails on a date stored as text: take everything as text.
            source = source.option("customSchema", ", ".join(f"`{name}` STRING" for name in found))
        names = [reference.key, *(name for name in found if name != reference.key)]
        rows = source.load().select(*(col(f"`{name}`").cast("string") for name in names)).toArrow()
    except (PySparkException, Py4JJavaError) as error:
        said = _database_says(error, reference)
        remedy, reason = (
            "Check [reference] url, user, password and query, and that the database can be reached",
            REFUSED,
        )
        if "No suitable driver" in said or "ClassNotFoundException" in said:
            remedy = "Put the JDBC driver's jar on the class path of the driver and the executors"
        elif _TOO_SLOW.search(said):
            reason = TIMEOUT
        elif _AWAY.search(said):
            reason = UNREACHABLE
        msg = f"reference data cannot be read from {address(reference.url)}: {said}"
        raise UnreadableError(msg, remedy=remedy, reason=reason) from None  # the chain would show the JDBC options
    wanted = pa.schema([(DEVICE, pa.string()), *((name, pa.string()) for name in names[1:])])
    return rows.rename_columns(wanted.names).cast(wanted).replace_schema_metadata({READ_MS: str(read_ms).encode()})


def _options(reference: "Reference") -> dict[str, str]:
    """JDBC options. What is not Spark's own is handed to the database's driver."""
    seconds = str(max(1, -(-reference.timeout_ms // 1000)))
    kind = _kind(reference.url)
    options = {
        "url": reference.url,
        "query": reference.query.strip().rstrip(";"),
        "queryTimeout": seconds,
        "fetchsize": "10000",
    }
    if kind in _DRIVERS:
        options["driver"] = _DRIVERS[kind]
    if kind == "postgresql":
        # The query's timeout is the server's to keep; the others hold when the server says nothing at all.
        options |= {"connectTimeout": seconds, "loginTimeout": seconds, "socketTimeout": str(int(seconds) + 5)}
        options["ApplicationName"] = "tidemark"
    if kind == "sqlite":
        # Mode 1 is read only: a wrong path would make a new, empty file otherwise.
        options |= {"open_mode": "1", "busy_timeout": str(reference.timeout_ms)}
    if reference.user is not None:
        options["user"] = reference.user
    try:
        secret = reference.secret()
    except OSError as error:
        msg = f"{reference.password_file}: the reference's password cannot be read ({error.strerror})"
        raise ReferenceDataError(msg, remedy="Name the file in [reference] password_file") from error
    if secret is not None:
        options["password"] = secret
    return options


def _kind(url: str) -> str:
    return url.split(":", 2)[1] if url.startswith("jdbc:") else ""


def _database_says(error: Exception, reference: "Reference") -> str:
    said = innermost(error)
    secret = reference.secret()
    return said.replace(secret, "***") if secret else said


def innermost(error: Exception) -> str:
    """The first line of the innermost cause, which is the database's or the reading task's own."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error).strip().splitlines()[0]
    while java.getCause() is not None:
        java = java.getCause()
    text = str(java.getMessage() or java.toString())
    # A failed task's cause is but text: `...: Lost task 0.0 in stage 1.0 (...): org.postgresql.util.PSQLException:
    # ERROR: ...`
    found = re.findall(r"\w(?:Exception|Error): (.+)", text)
    return str(found[0] if found else text.strip().splitlines()[0])
