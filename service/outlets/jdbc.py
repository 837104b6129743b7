"""The outlet of kind `jdbc`: a table in PostgreSQL, written by upsert.

One transaction has the rows of an entry and the position, so that readers see an entry in full or not at all, and no entry is
written twice. The row of the position is locked first: a writer of an older epoch finds a newer one there and is refused.

    tidemark_outlets    outlet, position      beside the table; one row for each outlet, <redis.prefix>.<name>

The rows go to a temporary table by COPY, and from there into the table. The JDBC driver of the reference is used, in Spark's JVM,
so no other client is needed.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from service.errors import OutletError, OutletLoginError, OutletRefusedError, TidemarkError
from service.outlets import outlet, tables
from service.outlets.outlet import MOST_REFUSED, Entry, Position, RefusedRowsError
from service.reference.database import connection_limits
from service.settings import JdbcOutlet, Settings
from service.spark.internals import jvm
from state.columns import TIME

POSITIONS = "tidemark_outlets"
_TYPES = {pa.string(): "text", pa.int64(): "bigint", pa.float64(): "double precision", TIME: "timestamptz"}
_REFUSALS = re.compile(r"28|3D|3F|42|0A|22|23|25006")
"""Classes of SQLSTATE for which waiting does not help: a login, a database, a right, a table, a type, a read-only server."""
_OF_LOGIN = re.compile(r"28")
_OF_A_ROW = re.compile(r"22|23|54|P0001")
"""Classes of SQLSTATE of rows: a value that does not fit, a constraint, a key longer than an index entry, a trigger's error."""
_STAGING = "tidemark_staging"
_MOST_COLUMNS = 1_600
"""Columns of a table of PostgreSQL, also those that were dropped (16.2)."""
_LONGEST_NAME = 63
"""PostgreSQL cuts longer names of columns."""
_USED = "select coalesce(max(attnum), 0)::text from pg_attribute where attrelid = to_regclass(?)"
_LACKING = (
    "select string_agg(name, ',') from unnest(string_to_array(?, ',')) as name where not exists (select from pg_attribute "
    "where attrelid = to_regclass(?) and attname = name::name and not attisdropped)"
)
"""Which of the columns with these names, with commas between, a table lacks."""
_MAY_CREATE = "select has_schema_privilege(coalesce(nullif(?::text, ''), current_schema()::text), 'CREATE')::text"
_MAY_WRITE = "select bool_and(has_table_privilege(?, each))::text from unnest('{SELECT,INSERT,UPDATE}'::text[]) as each"
_AT_ONCE = 20_000
"""Rows of one statement, which has to end within `timeout`. All statements of an entry are one transaction."""


class Jdbc:
    """A table of PostgreSQL."""

    def __init__(self, options: JdbcOutlet, settings: Settings, spark: SparkSession) -> None:
        self._options, self._jvm = options, jvm.of(spark)
        self._content = tables.CONTENTS[options.content]
        self._key = self._content.key
        self._schema = self._content.schema(settings.session_statistics)
        self._id = outlet.identity(options.name, settings)
        self._place = f"The outlet {options.name} at {options.url.partition('?')[0]}"
        self._epoch = 0
        self._connection: Any = None
        schema, dot, table = options.table.rpartition(".")
        self._table = f'"{schema}"."{table}"' if dot else f'"{table}"'
        self._positions = f'"{schema}"."{POSITIONS}"' if dot else f'"{POSITIONS}"'

    def check(self) -> str:
        with self._named():
            try:
                self._connect()
                server = self._one("select version()")
                exists = self._may_be_written(self._table)
                self._may_be_written(self._positions)
                self._lacking()
                state = "exists" if exists else "is to be created"
                return f"{str(server).partition(' on ')[0]}, the table {self._options.table} {state}"
            finally:
                self.close()

    def _may_be_written(self, table: str) -> bool:
        """Return whether a table exists. Raise OutletRefusedError if this user can neither write to it nor create it."""
        name = table.replace('"', "")
        if self._exists(table):
            if self._one(_MAY_WRITE, table) != "true":
                what = f"{self._place}: this user may not write to the table {name}"
                raise OutletRefusedError(what, remedy="Grant SELECT, INSERT and UPDATE")
            return True
        if self._one(_MAY_CREATE, name.rpartition(".")[0]) != "true":
            what = f"{self._place}: the table {name} does not exist, and this user may not create it"
            raise OutletRefusedError(what, remedy="Create it, or let this user create it: docs/outlets.md#postgresql")
        return False

    def open(self, epoch: int) -> Position | None:
        with self._named():
            self._connect()
            self._create()
            self._run(
                f"insert into {self._positions} (outlet, position) values (?, ?) on conflict do nothing", self._id, ""
            )
            reached = self._locked_position()
            outlet.require_newest(reached, epoch, self._place)
            self._epoch = epoch
            self._note((reached or Position(0, -1)).by(epoch))
            self._connection.commit()
            return outlet.written(reached)

    def write(self, entry: Entry) -> int:
        with self._named():
            if self._connection is None:
                raise OutletError(f"{self._place}: is not open")
            reached = self._locked_position()
            outlet.require_newest(reached, self._epoch, self._place)
            if entry.position.is_in(reached):
                self._connection.rollback()
                return 0
            try:
                written = self._put(entry.rows)
                self._note(entry.position)
                self._connection.commit()
            except Py4JJavaError as error:
                if not _OF_A_ROW.match(_state(error)):
                    raise
                self._connection.rollback()
                raise RefusedRowsError(self._refused(entry.rows)) from None
            return written

    def _put(self, rows: pa.Table) -> int:
        """Write rows, and return their bytes."""
        names, written = rows.column_names, 0
        nothing = f"select {_names(names)} from {self._table} with no data"
        self._run(f"create temporary table if not exists {_STAGING} on commit drop as {nothing}")
        for start in range(0, rows.num_rows, _AT_ONCE):
            content = _csv(rows.slice(start, _AT_ONCE))
            self._copy(content, names)
            self._merge(names)
            written += len(content)
        return written

    def _refused(self, rows: pa.Table) -> dict[int, str]:
        """Return the rows that the server refuses, by number, found by halves, with its messages; changes nothing.

        Raises OutletError where it refuses more than MOST_REFUSED.
        """
        refused: dict[int, str] = {}
        parts = [(0, rows.num_rows)]
        while parts:
            start, end = parts.pop()
            self._run("savepoint part")
            try:
                self._put(rows.slice(start, end - start))
                self._run("set constraints all immediate")
                self._run("release savepoint part")
            except Py4JJavaError as error:
                if not _OF_A_ROW.match(_state(error)):
                    raise
                self._run("rollback to savepoint part")
                if end - start > 1:
                    middle = (start + end) // 2
                    parts += [(middle, end), (start, middle)]
                    continue
                refused[start] = str(self._problem(error))
            if len(refused) > MOST_REFUSED:
                what = f"{self._place}: more than {MOST_REFUSED} rows of a batch are refused: {next(iter(refused.values()))}"
                remedy = f"Mend the table {self._options.table}: its constraints, triggers and types"
                raise OutletError(what, remedy=remedy)
        self._connection.rollback()
        if not refused:
            raise OutletError(f"{self._place}: rows were refused, and are not any more")
        return refused

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Py4JError, OSError):
                connection.close()

    def _connect(self) -> None:
        self.close()
        options = self._options
        properties = self._jvm.java.util.Properties()
        try:
            values = connection_limits(options.timeout_ms) | options.properties()
        except OSError as error:
            what = f"{options.password_file}: the outlet's password cannot be read ({error.strerror})"
            raise OutletLoginError(what, remedy=f"Name the file in the outlet {options.name}") from error
        for name, value in values.items():
            properties.setProperty(name, value)
        # The driver itself: DriverManager looks only at the drivers that its caller's class loader sees.
        self._connection = self._jvm.org.postgresql.Driver().connect(options.url, properties)
        self._connection.setAutoCommit(False)
        self._run(f"set statement_timeout = {options.timeout_ms}")
        self._connection.commit()

    def _create(self) -> None:
        """Create the tables, and columns that the table lacks.

        Two outlets of one database do so one after the other: "if not exists" fails where both create, and where this user may
        create no table (PostgreSQL 16).
        """
        self._one("select pg_advisory_xact_lock(hashtext(?))::text", POSITIONS)
        if not self._exists(self._positions):
            self._run(f"create table {self._positions} (outlet text primary key, position text not null)")
        lacking = self._lacking()
        definitions = {field.name: f'"{field.name}" {_TYPES[field.type]}' for field in self._schema}
        if not self._exists(self._table):
            null = ["" if field.nullable else " not null" for field in self._schema]
            columns = [column + suffix for column, suffix in zip(definitions.values(), null, strict=True)]
            key = f"primary key ({_names(self._key)})"
            self._run(f"create table {self._table} ({', '.join([*columns, key])})")
            if self._one("select count(*)::text from pg_extension where extname = 'timescaledb'") == "1":
                self._one("select create_hypertable(?, ?)::text", self._table, self._content.time)
        elif lacking:  # the owner alone may add columns
            self._run(f"alter table {self._table} {', '.join(f'add column {definitions[name]}' for name in lacking)}")
        self._connection.commit()

    def _exists(self, table: str) -> bool:
        return self._one("select to_regclass(?)::text", table) is not None

    def _lacking(self) -> list[str]:
        """Return the columns that the table lacks. Raise OutletRefusedError if it cannot have all columns."""
        names, table = self._schema.names, self._options.table
        found = self._one(_LACKING, ",".join(names), self._table)
        lacking = found.split(",") if found else []
        count = int(self._one(_USED, self._table) or 0) + len(lacking)
        if count > _MOST_COLUMNS:
            would = f"would have {count:,} columns, and PostgreSQL's limit is {_MOST_COLUMNS:,}"
            what = f"{self._place}: the table {table} {would}"
            remedy = "Sessions have four for each measure, and dropped ones count: use a new table, or Kafka or Parquet"
            raise OutletRefusedError(what, remedy=remedy)
        cut = Counter(name[:_LONGEST_NAME] for name in names)
        if equal := [name for name in names if cut[name[:_LONGEST_NAME]] > 1]:
            begin = f"the columns {equal[0]} and {equal[1]} begin with the same {_LONGEST_NAME} letters"
            what = f"{self._place}: {begin}, and PostgreSQL reads no more of a name"
            raise OutletRefusedError(what, remedy="Give the measure a shorter name, or use Kafka or Parquet")
        return lacking

    def _locked_position(self) -> Position | None:
        text = self._one(f"select position from {self._positions} where outlet = ? for update", self._id)
        return outlet.parse(text, self._place) if text else None

    def _note(self, position: Position) -> None:
        self._run(f"update {self._positions} set position = ? where outlet = ?", position.to_json(), self._id)

    def _copy(self, content: bytes, names: Sequence[str]) -> None:
        self._run(f"truncate {_STAGING}")
        kind = self._jvm.java.lang.Class.forName("org.postgresql.PGConnection")
        stream = self._jvm.java.io.ByteArrayInputStream(content)
        copy = f"copy {_STAGING} ({_names(names)}) from stdin (format csv)"
        self._connection.unwrap(kind).getCopyAPI().copyIn(copy, stream)

    def _merge(self, names: Sequence[str]) -> None:
        """Replace rows that are not newer: of windows, with fewer readings, or as many and no larger revision."""
        first, second = self._content.newest[:2]
        values = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name not in self._key)
        self._run(
            f"insert into {self._table} as present ({_names(names)}) "
            f"select distinct on ({_names(self._key)}) {_names(names)} from {_STAGING} "
            f"on conflict ({_names(self._key)}) do update set {values} "
            f"where (excluded.{first}, excluded.{second}) >= (present.{first}, present.{second})"
        )

    def _run(self, sql: str, *arguments: str) -> None:
        statement = self._prepared(sql, arguments)
        try:
            statement.execute()
        finally:
            statement.close()

    def _one(self, sql: str, *arguments: str) -> str | None:
        """The first column of the first row as text, None without a row."""
        statement = self._prepared(sql, arguments)
        try:
            rows = statement.executeQuery()
            value = rows.getString(1) if rows.next() else None
            return None if value is None else str(value)
        finally:
            statement.close()

    def _prepared(self, sql: str, arguments: Sequence[str]) -> Any:
        statement = self._connection.prepareStatement(sql)
        for number, argument in enumerate(arguments, 1):
            statement.setString(number, argument)
        return statement

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name errors, and end the transaction: another writer would wait for the position's row."""
        try:
            yield
        except Py4JJavaError as error:
            problem = self._problem(error)
            self.close()
            raise problem from None  # the cause would show the JDBC properties
        except TidemarkError:
            self.close()
            raise
        except Py4JError as error:
            raise OutletError(f"{self._place}: the JVM does not answer: {error}") from error

    def _problem(self, error: Py4JJavaError) -> OutletError:
        cause: Any = error.java_exception
        state = _state(error)
        message = " ".join(str(cause.getMessage() or cause.toString()).split())
        what = f"{self._place}: {self._options.masked(message)}"
        remedy = f"Check url, user, password and table of the outlet {self._options.name}, and that the server can be reached"
        if _OF_LOGIN.match(state):
            return OutletLoginError(what, remedy=remedy)
        return (OutletRefusedError if _REFUSALS.match(state) else OutletError)(what, remedy=remedy)


def _state(error: Py4JJavaError) -> str:
    """Return the SQLSTATE of an error, "" for one that has none."""
    try:
        return str(error.java_exception.getSQLState() or "")
    except Py4JError:
        return ""  # no SQLException


def _names(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _csv(rows: pa.Table) -> bytes:
    """Rows as CSV: a text is in quotes, so that an empty one is not null."""
    for number, field in enumerate(rows.schema):
        if field.type == pa.string():
            # PostgreSQL has no zero byte.
            rows = rows.set_column(number, field, pc.replace_substring(rows.column(number), "\0", "\ufffd"))
    sink = io.BytesIO()
    pa.csv.write_csv(rows, sink, pa.csv.WriteOptions(include_header=False))
    return sink.getvalue()
