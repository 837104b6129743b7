"""`tidemark republish`: publish all values again, by the running service, or by this process if none runs."""

import threading
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from service.admission.catalogs import open_catalog
from service.checkpoint import view_versions
from service.commands import offline
from service.daemon import owner
from service.daemon.lease import Lease, Waiting
from service.errors import CheckpointError
from service.micro_batch import MicroBatch
from service.pipeline import batch_report
from service.pipeline.command_session import started
from service.pipeline.outcome import Outcome
from service.pipeline.term import Term
from service.recompute import sources
from service.recompute.republish import ASKED, LOOK_S, Republisher, mark, summary
from service.redis.keys import shards
from service.redis.link import reader
from service.reference import snapshots
from service.reference.folder import snapshot_folder
from service.settings import Settings
from service.spark.files import Files
from service.units import format_time

_REQUEST = "the request to republish"


def by_hand(settings: Settings, say: Callable[[str], object], *, dry: bool = False) -> None:
    """Publish all values again, by the running service or by this process, and return when all are published.

    `say` gets a line for each step. With `dry`, the lease is not taken, and nothing is marked or written. Raises
    TidemarkError. The request of an interrupted command stays in Redis, and the service carries it out.
    """
    if dry:
        _preview(settings, say)
        return
    taken = threading.Event()
    holders: list[str] = []

    def waiting(other: Waiting) -> None:
        holders.append(other.holder)
        taken.set()

    lease = Lease(settings, owner.here())
    try:
        epoch = lease.acquire(waiting, taken)
        if epoch is not None:
            say(f"no service runs: republishing under epoch {epoch}")
            with offline.outliving_hang_ups():
                _alone(settings, epoch, say)
            return
    finally:
        lease.release()
    say(f"{holders[0]} holds the lease: asking it")
    _ask(settings)
    say("done: its log says what was republished")


def _ask(settings: Settings) -> None:
    """Set the mark in every shard, and wait until the service has removed it."""
    text = mark(ASKED)
    for keys in shards(settings.redis):
        with reader(settings.redis, keys, _REQUEST) as (client, budget):
            budget.attempt(partial(client.set, keys.republish, text, nx=True))
    for keys in shards(settings.redis):
        with reader(settings.redis, keys, _REQUEST) as (client, budget):
            while budget.attempt(partial(client.get, keys.republish)) is not None:
                time.sleep(LOOK_S)


def _committed(spark: SparkSession, settings: Settings) -> MicroBatch:
    """Return the last committed batch. Raises CheckpointError without one."""
    committed = batch_report.committed(spark, settings.service.checkpoint)
    if committed is None:
        what = f"{settings.service.checkpoint} has no committed batch: there is nothing to publish values from"
        raise CheckpointError(what, remedy="Run this where the service's checkpoint is")
    return committed


def _preview(settings: Settings, say: Callable[[str], object]) -> None:
    """Print what `by_hand` would do."""
    keys = shards(settings.redis)[0]
    with reader(settings.redis, keys, _REQUEST) as (client, budget):
        holder = budget.attempt(lambda: client.get(keys.lease))
    if holder is not None:
        say(f"{holder.decode()} holds the lease: it would republish, from its own checkpoint")
        return
    with started(settings) as spark:
        committed = _committed(spark, settings)
        source = sources.readable(spark, settings, committed, sources.needed_from_ms(settings, committed.watermark_ms))
    watermark = format_time(committed.watermark_ms)
    say(f"no service runs: all values would be published as of batch {committed.batch}, watermark {watermark}")
    for topic, ends in sorted(source.end.items()):
        for partition, end in sorted(ends.items()):
            say(f"{topic}[{partition}] would be read from {source.begin[topic][partition]} to {end}")
    if source.lacking:
        begin = format_time(source.whole_from_ms)
        say(f"Not to be read again: {', '.join(source.lacking)}. What begins before {begin} cannot be republished")


def _alone(settings: Settings, epoch: int, say: Callable[[str], object]) -> None:
    def done(outcome: Outcome, unrecoverable: tuple[int, int]) -> None:
        say(summary(outcome, unrecoverable))

    with started(settings) as spark:
        _committed(spark, settings)
        settings = view_versions.stored(settings, Files(spark, settings.service.checkpoint))
        snapshot = None
        if settings.reference is not None:
            folder = snapshot_folder(spark, settings.service.checkpoint)
            snapshot, _ = snapshots.load_or_keep(spark, settings.reference, folder)
        catalog = open_catalog(spark, settings)
        republisher = Republisher(Term(spark, settings, epoch, catalog, fixed_snapshot=snapshot), done)
        republisher.begin()
        republisher.everything(republisher.asked(mark(ASKED)))
