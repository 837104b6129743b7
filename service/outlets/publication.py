"""The step `deliver` of a batch: store its final and settled values, then write them to every outlet that is not behind.

    1  store      the finals are in the outbox, in the checkpoint
    2  deliver    every outlet writes them with its own position, in a thread of its own
    3  wait       until all have them, at most `retry_for` for each; then `when_away` decides

The entry stays in the outbox until the last outlet has it. An outlet that is behind reads its entries there, in order, so it
lacks nothing when it has caught up. docs/decisions/0032-outlets.md has the reasons.
"""

import importlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from service import clock, failpoint, tracing
from service.aggregation.sessions import finals, longest_gap_ms
from service.errors import TidemarkError
from service.micro_batch import MicroBatch
from service.outlets import recomputed
from service.outlets.delivery import ENDING_S, Delivery, Progress, Watcher
from service.outlets.outbox import FOLDER, Outbox, Scope, Stored
from service.outlets.outlet import Outlet, Position
from service.outlets.silence import Silence
from service.settings import Outlet as OutletSettings
from service.settings import Settings
from service.settings.outlets import OutletSection
from service.spark.files import opened
from state import codec
from state.columns import array, codes_of, ints
from state.layout import TRANSITIONS, Changes, session_schema
from state.rules import ENDLESS_MS
from state.windows import compact, concat

WATERMARK = "watermark"
LOOK_S = 5.0
"""How often the service looks for corrected values, at most."""
_log = logging.getLogger(__name__)


class Outlets:
    """The outlets of a term. `make` connects none of them: see `outlet`."""

    def __init__(
        self,
        settings: Settings,
        outbox: Outbox,
        epoch: int,
        make: Callable[[OutletSettings], Outlet],
        watcher: Watcher,
        *,
        committed: int,
    ) -> None:
        """Begin with the entries of batches up to the last committed one."""
        self._outbox, self._settings = outbox, settings
        self._scope = Scope.of(settings)
        self._lacking: dict[str, int] = {}
        self._committed: Position | None = None
        self._looked_s = clock.monotonic_s() - LOOK_S
        self._lock = threading.Lock()
        self.deliveries = [
            Delivery(make(each), each, settings, outbox, epoch, self._done, watcher) for each in settings.outlets
        ]
        states = tuple(each.name for each in settings.outlets if each.content == "states")
        session_ms = settings.sessions.max_duration_ms + 2 * longest_gap_ms(settings)
        self._silence = Silence.load(outbox, committed, states, session_ms)
        self._expected: frozenset[str] = frozenset()
        self._came: set[str] | None = None
        self._silence.keep(_begins_ms(settings))
        for stored in outbox.entries(committed, self._silence.entry):
            self._add(stored)
        for delivery in self.deliveries:
            # After a restart nobody waits for the backlog of an outlet that was behind.
            delivery.is_behind = delivery.progress().pending > 0 and delivery.options.when_away == "fall_behind"

    def start(self) -> None:
        """Try the outlets and start their threads. Raises OutletRefusedError, or OutletError if batches have to wait for one."""
        for delivery in self.deliveries:
            delivery.start()

    def close(self) -> None:
        """End the threads, and wait for all of them for ENDING_S. Entries that an outlet lacks are written in the next term."""
        for delivery in self.deliveries:
            delivery.end()
        until_s = clock.monotonic_s() + ENDING_S
        for delivery in self.deliveries:
            delivery.join(until_s)

    def publish(
        self, micro_batch: MicroBatch, packed: Sequence[bytes], skewed: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Store and deliver the finals of a batch. Raises OutletError, FencedError, and the errors of Outbox.

        `skewed` are the devices that Redis lists as skewed, by the time of their last early reading.
        """
        if self._committed is not None and self._committed.batch < micro_batch.batch:
            self._take_beside(self._committed, (skewed, micro_batch.watermark_ms))
        self._committed = Position.of(micro_batch)
        self._silence.transitions.begin(micro_batch.batch)
        payloads = []
        for changes in map(codec.unpack_changes, packed):
            # No window that lacks readings because its view has changed, and what silence had closed only if it has changed.
            complete = replace(changes, windows=whole(changes.windows, self._settings))
            self._note_devices(changes.devices)
            if leaving := self._silence.final(micro_batch.batch, complete, micro_batch.watermark_ms):
                payloads.append(codec.pack_changes(leaving))
        self._silence.note()
        if payloads:
            self._add(self._outbox.store(Position.of(micro_batch), payloads, WATERMARK, self._scope))
            failpoint.hit("finals_stored")
        for delivery in self.deliveries:
            with tracing.span("outlet", outlet=delivery.options.name):
                self._wait(delivery)
        if payloads:
            failpoint.hit("outlets_written")

    def close_idle(self, committed: MicroBatch, changes: Sequence[Changes], windows: Sequence[pa.Table]) -> None:
        """Write between two batches what silence has closed and what has not left unchanged. Then take corrected values.

        `committed` is the last committed batch under the term's epoch, `changes` are those of sessions and devices, `windows`
        are those that end by the silence's time.
        """
        asked = finals(self._settings)
        if asked is None:
            return
        nothing = session_schema(()).empty_table()
        sessions = pa.concat_tables([nothing, *(each.sessions for each in changes)], promote_options="default")
        told = [each.transitions for each in changes if each.transitions is not None]
        chosen = asked.of(sessions, concat(windows), pa.concat_tables([TRANSITIONS.empty_table(), *told]))
        chosen = replace(chosen, windows=whole(chosen.windows, self._settings))
        self._add(self._silence.close(Position.of(committed), chosen, self._scope))
        self._take_beside(Position.of(committed))

    def look(self) -> None:
        """Begin a look for devices that have never sent: those that come meanwhile are noted. Any thread may call."""
        self._came = set()

    def expect(self, devices: Collection[str]) -> None:
        """End a look, while no batch is written: these devices have never sent. It leaves of them beside the next batch."""
        self._expected = frozenset(devices) - (self._came or set())
        self._came = None

    def progress(self) -> dict[str, Progress]:
        """Return how far each outlet is, by its name."""
        return {delivery.options.name: delivery.progress() for delivery in self.deliveries}

    def _note_devices(self, transitions: pa.Table) -> None:
        if self._came is not None or self._expected:
            came = transitions["device"].to_pylist()
            self._expected -= frozenset(came)
            if self._came is not None:
                self._came.update(came)

    def _take_beside(self, committed: Position, skewed: tuple[Mapping[str, int], int] | None = None) -> None:
        """Have entries written beside a batch that is committed: devices that have never sent, skewed ones, corrected values."""
        self._add(self._silence.tell(committed, self._expected, skewed, self._scope))
        self._expected = frozenset()
        self._take_corrected(committed)

    def _take_corrected(self, committed: Position) -> None:
        """Have an entry written that a correction or backfill has left in the checkpoint, as a part of a batch that is committed.

        One a batch, so that a large backfill delays no batch for long, and none while it could fill an outlet that is behind.
        """
        is_early = clock.monotonic_s() - self._looked_s < LOOK_S
        if is_early or any(each.progress().pending_bytes > each.options.max_pending // 2 for each in self.deliveries):
            return
        names = recomputed.names(self._outbox)
        if len(names) < 2:
            self._looked_s = clock.monotonic_s()
        for name in names[:1]:
            payloads, views = self._outbox.read(f"{FOLDER}/{name}")
            self._add(self._silence.take(committed, name, payloads, replace(self._scope, views=views)))
            self._outbox.remove(f"{FOLDER}/{name}")

    def _add(self, stored: Stored | None) -> None:
        """Have an entry, if there is one, delivered to the outlets that it is for: others were added or renamed later."""
        if stored is None:
            return
        outlets = stored.outlets
        chosen = [each for each in self.deliveries if outlets is None or each.options.name in outlets]
        with self._lock:
            self._lacking[stored.name] = len(chosen)
        for delivery in chosen:
            delivery.add(stored)
        if not chosen:
            text = "The finals of %s are removed: the settings no longer have their outlets: %s"
            _log.warning(text, stored.position, ", ".join(outlets or ()))
            self._remove(stored)

    def _done(self, stored: Stored) -> None:
        with self._lock:
            self._lacking[stored.name] -= 1
            is_last = not self._lacking[stored.name]
        if is_last:
            self._remove(stored)

    def _remove(self, stored: Stored) -> None:
        """Remove an entry that no outlet lacks."""
        with self._lock:
            del self._lacking[stored.name]
        try:
            self._outbox.remove(stored.name)
        except TidemarkError as error:  # it is found at the next start, and every outlet has it
            _log.warning("An entry that every outlet has cannot be removed: %s", error)

    def _wait(self, delivery: Delivery) -> None:
        """Return when the outlet has everything, or may lack something."""
        options = delivery.options
        limit = int(options.max_pending) if delivery.is_behind else 0
        begun = clock.monotonic_s()
        if delivery.lacks_at_most(limit, options.retry_for_ms / 1000):
            return
        if options.when_away == "wait" or delivery.progress().pending_bytes > options.max_pending:
            raise delivery.failure()
        delivery.is_behind = True
        text = "The outlet %s falls behind after %.1f s: batches go on, and it gets its finals later: %s"
        _log.warning(text, options.name, clock.monotonic_s() - begun, delivery.progress().error or "it is slow")


def outlet(options: OutletSection, settings: Settings, spark: SparkSession) -> Outlet:
    """Return the outlet of a section of the settings, by the class that the section names; it is not connected."""
    module, _, name = options.made_by.partition(":")
    made: Outlet = getattr(importlib.import_module(module), name)(options, settings, spark)
    return made


def of_term(spark: SparkSession, settings: Settings, epoch: int, committed: int, watcher: Watcher) -> Outlets | None:
    """Return the outlets of a term, None without one. `committed` is the last committed batch of the checkpoint, -1 for none.

    Raises as Outbox, and EpochBehindError.
    """
    if not settings.outlets:
        return None
    outbox = Outbox(opened(spark, settings.service.checkpoint))
    outbox.begin(epoch)
    return Outlets(settings, outbox, epoch, lambda each: outlet(each, settings, spark), watcher, committed=committed)


def whole(windows: pa.Table, settings: Settings) -> pa.Table:
    """Return the windows of the settings' views and measures that begin when these had begun, or later: others lack readings."""
    begins_ms = _begins_ms(settings)
    views, measures = (array(windows.column(name)) for name in ("view", "measure"))
    texts = views.dictionary.to_pylist(), measures.dictionary.to_pylist()
    each_ms = [begins_ms.get(pair, ENDLESS_MS) for pair in product(*texts)]
    begins = np.array(each_ms, np.int64).reshape(len(texts[0]), len(texts[1]))
    keep = ints(windows, "start") >= begins[codes_of(views), codes_of(measures)]
    return windows if keep.all() else compact(windows.filter(pa.array(keep)))


def _begins_ms(settings: Settings) -> dict[tuple[str, str], int]:
    """Return the event time (ms) from which windows have all readings, by view and measure."""
    return {
        (view.name, measure): view.complete_from(measure) or 0
        for view in settings.closing_views
        for measure in settings.view_measures(view)
    }
