"""Answer a question in SQL: parse it, check its names, read the rows that it may need, and let DuckDB compute the answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from service.errors import QuestionError, SettingsError, SinkError, SinkRefusedError
from service.redis import client as redis_client
from service.redis.link import ANSWERS_S
from service.settings import Redis, Settings
from service.settings.section import read_secret
from tidemark_client import Client, RefusedError, TidemarkClientError, UnavailableError
from tidemark_sql import columns, history, statement, stored
from tidemark_sql.live import Live, Watch
from tidemark_sql.statement import TEXTS, Statement

LIVE = ("windows", "sessions", "devices")
MEMORY, SPILLED = "1GiB", "8GiB"
"""What DuckDB may have of memory and of the temporary folder. By default it takes 80 % of the machine, and the current folder."""
_PART = 100_000
"""Rows of the answer that are taken at a time."""
CONTENTS: Mapping[str, str] = {
    "windows": "open and closed windows in Redis",
    "sessions": "open and closed sessions in Redis",
    "devices": "status, newest reading and reference columns of each device in Redis",
    "history": "final windows, from the files of a Parquet outlet",
    "state": "open windows, sessions and devices in the checkpoint",
}
"""What SHOW TABLES lists."""
_TYPES = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp[ms, tz=UTC]": "TIMESTAMP WITH TIME ZONE",
}
_SAMPLE = 100
"""Devices whose hashes are looked at for the columns of the reference, if the settings do not list these."""


def answer(settings: Settings, text: str, watch: Watch = lambda _read, _all: None) -> pa.Table:
    """Return the rows of the answer. Raises QuestionError for a question that cannot be answered, SinkError, CheckpointError."""
    with TemporaryDirectory(prefix="tidemark-sql-") as folder, connect(folder) as connection:
        parsed = statement.parse(connection, text)
        schemas = {"history": history.SCHEMA, "state": columns.STATE}
        tables: dict[str, Callable[[], pa.Table]] = {
            "history": partial(history.table, settings, parsed),
            "state": partial(stored.table, settings),
        }
        if parsed.listing == "tables":
            return pa.table({"table": list(CONTENTS), "content": list(CONTENTS.values())})
        if not parsed.listing and not any(name in parsed.uses for name in LIVE):
            return _run(connection, parsed, schemas, tables)
        try:
            # A Redis that is silent is named soon. One that answers may take longer for a page of keys.
            with _client(settings.redis, ANSWERS_S) as client:
                meta = client.meta()
            with _client(settings.redis, max(10.0, settings.redis.timeout_ms / 1000)) as client:
                live = Live(client, meta, parsed, _attributes(settings, client, parsed), watch)
                schemas |= {name: live.schema(name) for name in LIVE}
                tables |= {name: partial(live.table, name) for name in LIVE}
                if parsed.listing:
                    return _columns({name: schemas[name] for name in TEXTS})
                return _run(connection, parsed, schemas, tables)
        except TidemarkClientError as error:
            raise _of_client(settings.redis, error) from error


def _columns(schemas: Mapping[str, pa.Schema]) -> pa.Table:
    """Return the columns of all tables, with DuckDB's names of types."""
    rows = [
        (name, field.name, _TYPES.get(str(field.type), str(field.type))) for name in schemas for field in schemas[name]
    ]
    return pa.table(dict(zip(("table", "column", "type"), map(list, zip(*rows, strict=True)), strict=True)))


@contextmanager
def connect(folder: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in memory that reads no file, loads no extension and keeps times in UTC.

    What is more than MEMORY goes into `folder`, at most SPILLED.
    """
    spill = {"temp_directory": folder, "memory_limit": MEMORY, "max_temp_directory_size": SPILLED}
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False, **spill})
    for setting in ("TimeZone = 'UTC'", "enable_external_access = false", "lock_configuration = true"):
        connection.execute(f"SET {setting}")
    try:
        yield connection
    finally:
        connection.interrupt()  # else `close` goes on with what Ctrl-C has left, to its end (DuckDB 1.5)
        connection.close()


def _run(
    connection: duckdb.DuckDBPyConnection,
    parsed: Statement,
    schemas: Mapping[str, pa.Schema],
    tables: Mapping[str, Callable[[], pa.Table]],
) -> pa.Table:
    """Check the names of a statement against empty tables, before anything is read; then answer it."""
    for name, schema in schemas.items():
        _fill(connection, name, schema.empty_table())
    try:
        connection.execute(f"EXPLAIN {parsed.text}")
        for name in () if parsed.is_described else parsed.uses:
            _fill(connection, name, tables[name]())
        return _answer(connection, parsed.text)
    except duckdb.Error as error:
        raise _named(error, {name: schemas[name] for name in parsed.uses}) from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":  # what DuckDB 1.5 makes of Ctrl-C
            raise KeyboardInterrupt from error
        raise


def _answer(connection: duckdb.DuckDBPyConnection, text: str) -> pa.Table:
    """Return the answer in parts: the limit of DuckDB does not count it, and that of a join without a condition has no end."""
    answer = connection.execute(text).to_arrow_reader(_PART)
    try:
        return columns.bounded(answer, "The answer has", "Add a condition or a LIMIT, or ask for sums and counts")
    except OSError as error:  # what Arrow makes of an error of DuckDB in a later part
        raise duckdb.Error(str(error)) from error


def _fill(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Replace a table. A copy in DuckDB: it would give Arrow filters that compare NaN as Arrow does, and times only with pytz."""
    connection.register("_rows", rows)
    connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM _rows")  # noqa: S608 - one of our names
    connection.unregister("_rows")


def _named(error: duckdb.Error, schemas: Mapping[str, pa.Schema]) -> QuestionError:
    """Return the error of a statement with the names of its tables."""
    what = str(error).split("\n")[0]
    if isinstance(error, duckdb.CatalogException) and "Table" in what:
        return QuestionError(what, remedy=f"The tables are {', '.join(TEXTS)}")
    if isinstance(error, duckdb.BinderException) and "column" in what:
        lists = "; ".join(f"{name} has {', '.join(_quoted(schema.names))}" for name, schema in schemas.items())
        return QuestionError(what.split("Candidate")[0].strip(), remedy=f"The columns: {lists}")
    if isinstance(error, duckdb.OutOfMemoryException):
        return QuestionError(what, remedy="Add a condition, or sort, join and group fewer rows and columns")
    return QuestionError(what, remedy="See `tidemark sql --help` for examples")


def _quoted(names: Sequence[str]) -> list[str]:
    return [f'"{name}"' if "." in name or name == "end" else name for name in names]


def _attributes(settings: Settings, client: Client, parsed: Statement) -> Sequence[str]:
    """Return the reference's columns: those of the settings, or where they list none those of some devices."""
    if settings.reference is None or not ("devices" in parsed.uses or parsed.listing):
        return ()
    if settings.reference.columns:
        return settings.reference.columns
    page = next(client.device_pages(_SAMPLE), [])
    return sorted({name for device in page for name in device.attributes})


def _client(settings: Redis, timeout_s: float) -> Client:
    options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": ANSWERS_S}
    url = settings.url.get_secret_value()
    if settings.ca_file is not None and url.startswith("rediss"):
        options["ssl_ca_certs"] = str(settings.ca_file)
    if settings.password_file is not None:
        options["password"] = _password(settings.password_file, "password_file")
    if settings.sentinel_password_file is not None:
        options["sentinel_kwargs"] = {"password": _password(settings.sentinel_password_file, "sentinel_password_file")}
    return Client.from_url(url, settings.prefix, cluster=settings.cluster, **options)


def _password(file: Path, setting: str) -> str:
    try:
        return read_secret(file)
    except OSError as error:
        what = f"redis.{setting} cannot be read: {error}"
        raise SettingsError(what, remedy="Name the file with the password, and let this user read it") from error


def _of_client(settings: Redis, error: TidemarkClientError) -> SinkError:
    place = redis_client.address(settings)
    if isinstance(error, UnavailableError):
        what = f"Redis at {place} does not answer: {error.__cause__ or error}"
        return SinkError(what, remedy="Check that it runs and can be reached from here")
    if isinstance(error, RefusedError):
        return SinkRefusedError(f"Redis at {place} refuses: {error}", remedy="Check redis.url and redis.password_file")
    return SinkError(
        f"Redis at {place}: {error}", remedy="Check redis.prefix, and that the service has published a batch"
    )
