"""The term: what the parts of one writer share that publish under one epoch."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from service.admission.catalogs import Catalogs
from service.admission.schema_sources import SchemaSets
from service.kafka.topics import IdCheck
from service.outlets.publication import Outlets
from service.pipeline.back_pressure import BatchLimit
from service.pipeline.outcome import Outcome
from service.publication.covered import Covered
from service.reference.current_snapshot import CurrentSnapshot
from service.reference.snapshots import Snapshot
from service.settings import Settings


class TermMetrics:
    """Counts the events of a term that are not batches. This class counts nothing; service/monitoring/metrics.py does."""

    def redis_loses_data(self) -> None:
        """Redis lacks values that it had acknowledged."""

    def republishes(self, outcome: Outcome, unrecoverable: tuple[int, int]) -> None:
        """Values were republished. So many windows and sessions were not, because Kafka lacks a part of them."""

    def fills(self, outcome: Outcome) -> None:
        """Windows of the past of new views were published."""

    def idle(self, outcome: Outcome) -> None:
        """Input is silent. The sessions of the outcome were closed by the clock."""

    def closes_idle(self, until_ms: int) -> None:
        """Silence has closed the windows that end by this event time."""

    def never_sent(self, devices: int) -> None:
        """So many devices of the reference have never sent a reading."""

    def outlet_writes(self, outlet: str, rows: int, size: int) -> None:
        """An outlet has so many more rows, of so many bytes."""

    def outlet_fails(self, outlet: str) -> None:
        """An attempt to write to an outlet failed."""

    def fails(self, part: str) -> None:
        """A part of the service failed and tries again."""


@dataclass(slots=True)
class Term:
    """What the query, the republisher and the idle closer of one writer share.

    The daemon makes a new one for each start of its query: a batch that hangs in a former query may hold that query's
    `write_lock` for ever. `catalog` is open; without one the query uses the checkpoint's own.
    """

    spark: SparkSession
    settings: Settings
    epoch: int
    catalog: Catalogs | None = None
    current_snapshot: CurrentSnapshot | None = None
    """The snapshot that the query works with, which may change between two batches; None without a reference."""
    fixed_snapshot: Snapshot | None = None
    """The snapshot of a command, which runs no query."""
    published: tuple[int, int] | None = None
    """(epoch, batch) of the last batch whose progress is in Redis; None when that is not known."""
    covered: Mapping[int, Covered] = field(default_factory=dict)
    """By shard, values of another checkpoint that the query must not write again."""
    settled_ms: int | None = None
    """From this watermark on, every window that was in Redis when the term began is closed. Then rows are compared with closed
    values only (docs/decisions/0021). None where lost or former values are written again."""
    written: tuple[int, int] | None = None
    """The (epoch, batch) after which all open values that waited (state/waiting.py) were written beside the batches."""
    idle_ms: int = -1
    """The event time up to which silence has closed values in Redis; -1 for never."""
    limit: BatchLimit | None = None
    """The limit of the query's batches, which outlives the query; without one the query begins with a new one."""
    broker_times: frozenset[str] = frozenset()
    """Topics whose brokers set the times of records. In the others a producer's time may be ahead of the service's clock."""
    id_check: IdCheck = field(default_factory=IdCheck)
    """Finds that a topic was created again; by default it asks nothing."""
    outlets: Outlets | None = None
    """None without an outlet."""
    metrics: TermMetrics = field(default_factory=TermMetrics)
    write_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the values of a batch, or of the idle closer, are written."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The reference snapshot in use, None without a reference."""
        return self.current_snapshot.snapshot if self.current_snapshot is not None else self.fixed_snapshot

    @property
    def schemas(self) -> SchemaSets | None:
        """The schemas that the query decodes; None for all that their source has."""
        return self.catalog.plan if self.catalog is not None else None
