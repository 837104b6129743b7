"""The table `state`: open windows, open sessions and remembered devices of the checkpoint, as of its newest batch."""

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from service.errors import CheckpointError
from service.settings import Settings
from service.spark import session
from state import codec, reader
from tidemark_sql.columns import STATE


def table(settings: Settings) -> pa.Table:
    """Return the table, read by a Spark session of its own. A running service is not disturbed. Raises CheckpointError."""
    root = settings.service.checkpoint
    spark = session.build(settings, master="local[*]")
    try:
        runs, devices, windows = reader.read(spark, root)
    except (PySparkException, Py4JJavaError, codec.CodecError) as error:
        what = f"{root}: the state cannot be read: {str(error).splitlines()[0][:300]}"
        raise CheckpointError(
            what, remedy="See `tidemark checkpoint verify`; a running service may have moved on"
        ) from error
    finally:
        spark.stop()
    sessions = runs.group_by(["bucket", "device", "session"]).aggregate([("last", "max"), ("count", "sum")])
    return pa.concat_tables(
        [
            _rows("window", windows, {}),
            _rows("session", sessions, {"key": "device", "start": "session", "last": "last_max", "count": "count_sum"}),
            _rows("device", devices, {"key": "device", "last": "last_seen"}),
        ]
    )


def _rows(kind: str, rows: pa.Table, names: dict[str, str]) -> pa.Table:
    """Return rows of the table from columns of the state; `names` are those that have another name there."""
    found = []
    for field in STATE:
        name = names.get(field.name, field.name)
        if field.name == "kind":
            found.append(pa.repeat(pa.scalar(kind), rows.num_rows))
        elif name in rows.schema.names and (name == field.name or field.name in names):
            found.append(rows[name].cast(field.type))
        else:
            found.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(found, schema=STATE)
