"""The kinds of outlets: which class writes which section. A new kind is a class, its section, and a line here."""

from pyspark.sql import SparkSession

from service.outlets.jdbc import Jdbc
from service.outlets.kafka import Kafka
from service.outlets.outbox import Outbox
from service.outlets.outlet import Outlet
from service.outlets.parquet import Parquet
from service.outlets.publication import Outlets, Watcher
from service.settings import JdbcOutlet, ParquetOutlet, Settings
from service.settings import Outlet as OutletSettings
from service.spark.files import opened


def outlet(options: OutletSettings, settings: Settings, spark: SparkSession) -> Outlet:
    """Return the outlet of a section of the settings; it is not connected."""
    if isinstance(options, ParquetOutlet):
        return Parquet(options)
    if isinstance(options, JdbcOutlet):
        return Jdbc(options, settings, spark)
    return Kafka(options, settings)


def outlets(spark: SparkSession, settings: Settings, epoch: int, committed: int, watcher: Watcher) -> Outlets | None:
    """Return the outlets of a term, None without one. `committed` is the last committed batch of the checkpoint, -1 for none.

    Raises as Outbox, and EpochBehindError.
    """
    if not settings.outlets:
        return None
    outbox = Outbox(opened(spark, settings.service.checkpoint))
    outbox.begin(epoch)
    return Outlets(settings, outbox, epoch, lambda each: outlet(each, settings, spark), watcher, committed=committed)
