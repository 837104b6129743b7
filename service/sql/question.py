"""Answer a question in SQL: parse it, check its names, read the rows that it may need, and let DuckDB compute the answer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from service.errors import SettingsError, SinkError, SinkRefusedError
from service.redis import client as redis_client
from service.settings import Redis, Settings
from service.settings.section import read_secret
from service.sql import columns, history, statement, stored
from service.sql.live import Live, Watch
from service.sql.statement import TEXTS, Statement
from tidemark_client import Client, RefusedError, TidemarkClientError, UnavailableError

LIVE = ("windows", "sessions", "devices")
MEMORY, SPILLED = "1GiB", "8GiB"
"""What DuckDB may have of memory and of the temporary folder. By default it takes 80 % of the machine, and the current folder."""
_SAMPLE = 100
"""Devices whose hashes are looked at for the columns of the reference, if the settings do not list these."""


def answer(settings: Settings, text: str, watch: Watch = lambda _read, _all: None) -> pa.Table:
    """Return the rows of the answer. Raises SettingsError for a question that cannot be answered, SinkError, CheckpointError."""
    with TemporaryDirectory(prefix="tidemark-sql-") as folder, closing(connect(folder)) as connection:
        parsed = statement.parse(connection, text)
        schemas = {"history": history.SCHEMA, "state": columns.STATE}
        tables: dict[str, Callable[[], pa.Table]] = {
            "history": partial(history.table, settings, parsed),
            "state": partial(stored.table, settings),
        }
        if not any(name in parsed.uses for name in LIVE):
            return _run(connection, parsed, schemas, tables)
        try:
            with _client(settings.redis) as client:
                live = Live(client, client.meta(), parsed, _attributes(settings, client, parsed), watch)
                schemas |= {name: live.schema(name) for name in LIVE}
                tables |= {name: partial(live.table, name) for name in LIVE}
                return _run(connection, parsed, schemas, tables)
        except TidemarkClientError as error:
            raise _of_client(settings.redis, error) from error


def connect(folder: str) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that reads no file, loads no extension and keeps times in UTC.

    What is more than MEMORY goes into `folder`, at most SPILLED.
    """
    spill = {"temp_directory": folder, "memory_limit": MEMORY, "max_temp_directory_size": SPILLED}
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False, **spill})
    for setting in ("TimeZone = 'UTC'", "enable_external_access = false", "lock_configuration = true"):
        connection.execute(f"SET {setting}")
    return connection


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
        for name in parsed.uses:
            _fill(connection, name, tables[name]())
        return connection.execute(parsed.text).to_arrow_table()
    except duckdb.Error as error:
        raise _named(error, schemas) from error


def _fill(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Replace a table. A copy in DuckDB: it would give Arrow filters that compare NaN as Arrow does, and times only with pytz."""
    connection.register("_rows", rows)
    connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM _rows")  # noqa: S608 - one of our names
    connection.unregister("_rows")


def _named(error: duckdb.Error, schemas: Mapping[str, pa.Schema]) -> SettingsError:
    """Return the error of a statement with the names that there are."""
    what = str(error).split("\n")[0]
    if isinstance(error, duckdb.CatalogException) and "Table" in what:
        return SettingsError(what, remedy=f"The tables are {', '.join(TEXTS)}")
    if isinstance(error, duckdb.BinderException) and "column" in what:
        lists = "; ".join(f"{name} has {', '.join(_quoted(schema.names))}" for name, schema in schemas.items())
        return SettingsError(what.split("Candidate")[0].strip(), remedy=f"The columns: {lists}")
    return SettingsError(what, remedy="See `tidemark sql --help` for examples")


def _quoted(names: Sequence[str]) -> list[str]:
    return [f'"{name}"' if "." in name or name == "end" else name for name in names]


def _attributes(settings: Settings, client: Client, parsed: Statement) -> Sequence[str]:
    """Return the reference's columns: those of the settings, or where they list none those of some devices."""
    if settings.reference is None or "devices" not in parsed.uses:
        return ()
    if settings.reference.columns:
        return settings.reference.columns
    page = next(client.device_pages(_SAMPLE), [])
    return sorted({name for device in page for name in device.attributes})


def _client(settings: Redis) -> Client:
    options: dict[str, Any] = {"socket_timeout": max(10.0, settings.timeout_ms / 1000)}
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
        return SinkError(
            f"Redis at {place} does not answer: {error}", remedy="Check that it runs and can be reached from here"
        )
    if isinstance(error, RefusedError):
        return SinkRefusedError(f"Redis at {place} refuses: {error}", remedy="Check redis.url and redis.password_file")
    return SinkError(
        f"Redis at {place}: {error}", remedy="Check redis.prefix, and that the service has published a batch"
    )
