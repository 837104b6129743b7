"""The table `history`: the final windows that an outlet of kind `parquet` has written, of each the newest row."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from service.errors import OutletError, SettingsError
from service.outlets.parquet import folder_of, newest
from service.outlets.tables import NEWEST, WINDOW_KEY, windows_schema
from service.settings import ParquetOutlet, Settings
from tidemark_sql import columns
from tidemark_sql.statement import Bounds, Statement

SCHEMA = windows_schema()
_PARTITIONS = ds.partitioning(pa.schema({"view": pa.string(), "day": pa.string()}), flavor="hive")


def table(settings: Settings, statement: Statement) -> pa.Table:
    """Return the rows that the uses of `history` may need. Raises OutletError, and SettingsError without such an outlet."""
    outlet = _outlet(settings)
    needed = [name for name in SCHEMA.names if name in (*WINDOW_KEY, *NEWEST) or statement.needs(name)]
    try:
        system, root = folder_of(outlet.path)
        if system.get_file_info(root).type == pafs.FileType.NotFound:
            return SCHEMA.empty_table()
        schema = pa.unify_schemas([SCHEMA, _PARTITIONS.schema])
        files = ds.dataset(root, schema, format="parquet", filesystem=system, partitioning=_PARTITIONS)
        found = files.scanner(needed, filter=_filter(statement.uses["history"])).to_reader()
        rows = columns.bounded(
            found, "The question reads", "Name a view, keys or a time, such as start >= '2026-11-20'"
        )
    except (OSError, pa.ArrowException) as error:
        what = f"The outlet {outlet.name} at {outlet.path} cannot be read: {error}"
        raise OutletError(
            what, remedy="Check [[outlets]] path and your rights there; ask again after a compaction"
        ) from error
    rows = newest(rows, WINDOW_KEY)
    arrays = [rows[each.name] if each.name in needed else pa.nulls(rows.num_rows, each.type) for each in SCHEMA]
    return pa.table(arrays, names=SCHEMA.names)  # null where a column was not read


def _outlet(settings: Settings) -> ParquetOutlet:
    for each in settings.outlets:
        if isinstance(each, ParquetOutlet) and each.content == "windows":
            return each
    what = "There is no history: [[outlets]] has none of kind parquet with windows"
    raise SettingsError(what, remedy="Add one (docs/outlets.md), or ask PostgreSQL or Kafka themselves")


def _filter(uses: Sequence[Bounds]) -> ds.Expression | None:
    """Return the condition of rows that any use may need, None for all rows."""
    parts = [list(_conditions(bounds)) for bounds in uses]
    return reduce(or_, (reduce(and_, each) for each in parts)) if all(parts) else None


def _conditions(bounds: Bounds) -> Iterable[ds.Expression]:
    for name, values in bounds.texts.items():
        yield ds.field(name).isin(pa.array(sorted(values), pa.string()))
    for name, time in bounds.since.items():
        yield ds.field(name) >= pa.scalar(time, SCHEMA.field(name).type)
        if name == "start":  # the day is that of the start, and folders of other days are not opened
            yield ds.field("day") >= _day(time)
    for name, time in bounds.until.items():
        yield ds.field(name) <= pa.scalar(time, SCHEMA.field(name).type)
        if name == "start":
            yield ds.field("day") <= _day(time)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()  # strftime does not pad the year 900
