"""The parts of a pipeline that serve each of its queries, as long as they read the same topics."""

import logging
import threading
from collections.abc import Callable, Iterable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.admission.catalogs import Catalogs, new_catalog
from service.daemon.refresher import Refresher
from service.daemon.view_changes import ViewChanges
from service.kafka import matching, source
from service.kafka.matching import TopicsChangedError
from service.monitoring.activity_log import ActivityLog
from service.monitoring.monitor import Monitor
from service.monitoring.resources import StoreResources
from service.pipeline import builder, failure
from service.pipeline.back_pressure import BatchLimit
from service.pipeline.term import Term
from service.quality.checker import Checker
from service.reference.current_snapshot import CurrentSnapshot
from service.settings import Settings
from service.settings.kafka import MOST_TOPICS
from service.spark.internals.offset_log import Position
from service.spark.warm_up import WarmUp

_NO_ROOM = (
    "%d new topics match topics_pattern and are not read: %s. With the %d that are read there are more than %d. The query goes "
    "on without them. A start of the process is refused. Narrow the pattern, and read the other topics by another service"
)
_NAMED = 5
"""New topics that the log names."""
_log = logging.getLogger(__name__)


class SessionParts:
    """The limit of batches, the measured resources, the changes of views, the schema catalog, the reference
    refresher and the quality checker of a session.

    The last three are created for the first query, and stay when it ends.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        monitor: Monitor,
        warm_up: WarmUp,
        require_room: Callable[[], None],
        load: Callable[[], Settings] | None = None,
    ) -> None:
        """`require_room` raises ExhaustedError when the process is near a limit of the system."""
        self.require_room = require_room
        self.spark, self.settings = spark, settings
        self.metrics, self.status = monitor.metrics, monitor.status
        self.activity_log = ActivityLog(settings)
        self.warm_up = warm_up
        self.limit = BatchLimit.of(settings)
        self.resources = StoreResources(spark, settings, self.metrics.stores, self.metrics.redis_loses_data)
        self.resources.start()
        self.refresher: Refresher | None = None
        self.checker: Checker | None = None
        self._page = monitor.page
        self._catalog: Catalogs | None = None
        again = None if load is None else lambda: matching.matched(load(), settings.kafka.topics)
        self.views = ViewChanges(spark, settings, self.metrics, self.check_views, again)
        self.status.views = self.views.document
        self.has_new_topics = threading.Event()
        self._unread = 0
        """The topics for which there was no room at the last look."""

    def listed(self, topics: Iterable[str]) -> None:
        """Look for new topics that match the settings among all of the brokers."""
        read = self.settings.kafka.topics
        found = matching.matched(self.settings, topics).kafka.topics
        new = [topic for topic in found if topic not in read]
        unread = new if len(found) > MOST_TOPICS else []
        self.metrics.topics_unread.set(len(unread))
        if len(unread) > self._unread:
            _log.warning(_NO_ROOM, len(unread), ", ".join(unread[:_NAMED]), len(read), MOST_TOPICS)
        self._unread = len(unread)
        if new and not unread:
            if not self.has_new_topics.is_set():
                _log.info("New topics match topics_pattern: %s. The query starts again with them", ", ".join(new))
            self.has_new_topics.set()

    def require_topics(self) -> None:
        """Raise TopicsChangedError if new topics match the settings."""
        if self.has_new_topics.is_set():
            raise TopicsChangedError

    def check_views(self, settings: Settings) -> None:
        """Raise SettingsError for views that no query can have: Spark analyses the plan of one, and runs nothing."""
        attributes = None
        if self.refresher is not None:
            attributes = self.refresher.current_snapshot.attributes
            own = {"device", *settings.columns}
            self.refresher.require(column for view in settings.views for column in view.by if column not in own)
        records = source.stream(self.spark, settings.kafka, headers=settings.needs_headers)
        schemas = self._catalog.plan if self._catalog is not None else None
        try:
            builder.build(records, settings, attributes, 1, schemas=schemas)
        except PySparkException as error:
            raise failure.classify(error) from error

    def open_catalog(self, position: Position | None) -> Catalogs:
        """Return the schema catalog, opened at the position at which the checkpoint continues. Raises as SchemaCatalog.open."""
        if self._catalog is None:
            count = self.metrics.lookups
            self._catalog = new_catalog(self.spark, self.settings, lambda result: count.labels(result).inc())
        self._catalog.open(position)
        self.metrics.schemas.set(sum(len(each.schemas) for each in self._catalog.plan.values()))
        return self._catalog

    def open_reference(self, *, is_repeated: bool) -> CurrentSnapshot | None:
        """Return the snapshot that the next query begins with: that of the last batch if it is repeated, else the newest.

        None without a reference. Raises as Refresher.
        """
        if self.settings.reference is None:
            return None
        if self.refresher is None:
            self.refresher = Refresher(self.spark, self.settings, self.settings.reference, self.metrics)
            self.status.reference = self.refresher.document
        self.refresher.rewind(is_repeated=is_repeated)
        return self.refresher.current_snapshot

    def start_checker(self, term: Term) -> None:
        """Create the quality checker if [quality] names expectations."""
        expectations = self.settings.quality.expectations
        if expectations is None or self.checker is not None:
            return
        self.checker = Checker(term, expectations, self.metrics, self._page)

    def close(self) -> None:
        """End the threads of the checker, the refresher and the resources."""
        for part in (self.checker, self.refresher, self.resources):
            if part is not None:
                part.close()
