"""Make the outlets of a term from their sections, each by the class that its section names."""

import importlib

from pyspark.sql import SparkSession

from service.outlets.outbox import Outbox
from service.outlets.outlet import Outlet
from service.outlets.publication import Outlets, Watcher
from service.settings import Settings
from service.settings.outlets import OutletSection
from service.spark.files import opened


def outlet(options: OutletSection, settings: Settings, spark: SparkSession) -> Outlet:
    """Return the outlet of a section of the settings; it is not connected."""
    module, _, name = options.made_by.partition(":")
    made: Outlet = getattr(importlib.import_module(module), name)(options, settings, spark)
    return made


def outlets(spark: SparkSession, settings: Settings, epoch: int, committed: int, watcher: Watcher) -> Outlets | None:
    """Return the outlets of a term, None without one. `committed` is the last committed batch of the checkpoint, -1 for none.

    Raises as Outbox, and EpochBehindError.
    """
    if not settings.outlets:
        return None
    outbox = Outbox(opened(spark, settings.service.checkpoint))
    outbox.begin(epoch)
    return Outlets(settings, outbox, epoch, lambda each: outlet(each, settings, spark), watcher, committed=committed)
