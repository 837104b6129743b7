"""Delivery: writes the entries of the outbox to one outlet, in order, in a thread of its own."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from service import clock, failpoint
from service.errors import FencedError, OutletError, OutletLoginError, OutletRefusedError, TidemarkError
from service.outlets import tables
from service.outlets.outbox import Finals, Outbox, Stored
from service.outlets.outlet import MOST_REFUSED, Entry, Outlet, Position, RefusedRowsError, identity
from service.settings import Outlet as OutletSettings
from service.settings import Settings
from service.threads import Thread
from state.finals import of_views
from state.rules import ENDLESS_MS

FIRST_AGAIN_S, LONGEST_AGAIN_S = 0.5, 10.0
ENDING_S = 5.0
"""How long a stop waits for the entries that outlets write."""
_log = logging.getLogger(__name__)
_logged_in: set[str] = set()
"""Outlets that have accepted a login of this process, by identity."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an outlet is. `pending` entries of `pending_bytes` are not in it, the oldest since `oldest_ms` (the clock's time,
    None for none). `error` is why it is away, "" when it is not, and `failed_ms` since when. `refused` rows are set aside in the
    outbox. `reached` is the newest entry that it has, None until the service has asked it.
    """

    pending: int
    pending_bytes: int
    oldest_ms: int | None
    error: str
    is_behind: bool
    refused: int = 0
    kind: str = ""
    reached: Position | None = None
    failed_ms: int | None = None


class Watcher(Protocol):
    """Gets what happens to the outlets, by their names; any thread may call."""

    def outlet_writes(self, outlet: str, rows: int, size: int) -> None:
        """An entry is in the outlet."""

    def outlet_fails(self, outlet: str) -> None:
        """An attempt failed."""


class Delivery:
    """One outlet. Entries are added in the thread of the query, and written in the delivery's own.

    `done` is called after each entry that the outlet has.
    """

    def __init__(
        self,
        outlet: Outlet,
        options: OutletSettings,
        settings: Settings,
        outbox: Outbox,
        epoch: int,
        done: Callable[[Stored], None],
        watcher: Watcher,
    ) -> None:
        self.options = options
        self.is_behind = False
        """Whether batches no longer wait for the outlet, until it has all entries."""
        self._outlet, self._outbox, self._epoch = outlet, outbox, epoch
        self._done, self._watcher = done, watcher
        self._id = identity(options.name, settings)
        self._session_statistics, self._shown = settings.session_statistics, settings.sessions.shown
        self._pending: deque[Stored] = deque()  # an outlet that is away for a day lacks 100,000 entries
        self._pending_bytes = 0
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._reached: Position | None = None
        self._is_open = False
        self._error: TidemarkError | None = None
        self._failed_ms: int | None = None
        self._refused = outbox.refused(options.name)
        self._thread = Thread(target=self._serve, name=f"tidemark-outlet-{options.name}", daemon=True)

    def start(self) -> None:
        """Try the outlet, and start the thread. Raises OutletRefusedError; OutletError if batches have to wait for the outlet.

        An outlet that has accepted a login of this process, and refuses this one, is away: its password is being replaced.
        """
        try:
            self._outlet.check()
            _logged_in.add(self._id)
        except OutletError as error:
            is_refused = isinstance(error, OutletRefusedError)
            if isinstance(error, OutletLoginError) and self._id in _logged_in:
                is_refused = False
            if is_refused or self.options.when_away == "wait":
                raise
            _log.warning("The outlet %s is away, and its finals are kept: %s", self.options.name, error)
        self._thread.start()

    def end(self) -> None:
        """Let the thread end when it has written its entry; returns at once."""
        self._ending.set()
        with self._changed:
            self._changed.notify_all()

    def join(self, until_s: float) -> None:
        """Wait for the thread's end, at most until a time of `clock.monotonic_s`. After `end`."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, until_s - clock.monotonic_s()))

    def add(self, stored: Stored) -> None:
        """Have an entry written; returns at once."""
        with self._changed:
            self._pending.append(stored)
            self._pending_bytes += stored.bytes
            self._changed.notify_all()

    def lacks_at_most(self, limit: int, within_s: float) -> bool:
        """Wait until the outlet lacks at most so many bytes; whether that was so within the time. Raises FencedError."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending_bytes <= limit or isinstance(self._error, FencedError), within_s
            )
            if isinstance(self._error, FencedError):
                raise self._error
            return self._pending_bytes <= limit

    def progress(self) -> Progress:
        """Return how far the outlet is; any thread may ask."""
        with self._changed:
            size = self._pending_bytes
            oldest_ms = self._pending[0].at_ms if self._pending else None
            error = str(self._error) if self._error is not None else ""
            pending, kind = len(self._pending), self.options.kind
            return Progress(
                pending, size, oldest_ms, error, self.is_behind, self._refused, kind, self._reached, self._failed_ms
            )

    def failure(self) -> OutletError:
        """Return the error for a batch that has waited in vain."""
        progress = self.progress()
        name = self.options.name
        what = f"The outlet {name} lacks {progress.pending} batches: {progress.error or 'it does not answer in time'}"
        return OutletError(what, remedy="The batch is tried again: docs/outlets.md#an-outlet-is-away")

    def _serve(self) -> None:
        again_s = FIRST_AGAIN_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._ending.is_set())
                if self._ending.is_set():
                    break
                stored = self._pending[0]
            try:
                self._deliver(stored)
            except FencedError as error:
                self._fail(error)
                break
            except Exception as error:  # a driver's own: the entry stays, and the next attempt comes
                text = " ".join(str(error).split()) or type(error).__name__
                self._fail(error if isinstance(error, TidemarkError) else OutletError(text))
                self._ending.wait(again_s)
                again_s = min(2 * again_s, LONGEST_AGAIN_S)
            else:
                again_s = FIRST_AGAIN_S
                self._succeed(stored)
        self._outlet.close()

    def _deliver(self, stored: Stored) -> None:
        if not self._is_open:
            self._reached = self._outlet.open(self._epoch)
            self._is_open = True
        if stored.position.is_in(self._reached):
            return
        entry = self._entry(self._outbox.load(stored))
        if entry.rows.num_rows:
            try:
                written = self._outlet.write(entry)
            except RefusedRowsError as error:
                entry = self._set_aside(entry, error.messages)
                written = self._outlet.write(entry)
            failpoint.hit("half_delivered")
            self._watcher.outlet_writes(self.options.name, entry.rows.num_rows, written)
            if self._refused:  # an operator may have written the rows, and removed the files
                self._count_refused()
        self._reached = entry.position

    def _set_aside(self, entry: Entry, messages: Mapping[int, str]) -> Entry:
        """Store the rows that the outlet refuses, and return the entry without them. Raises OutletError for too many."""
        name, reasons = self.options.name, [messages[row] for row in sorted(messages)]
        if len(messages) > MOST_REFUSED:
            what = f"The outlet {name} refuses {len(messages)} of {entry.rows.num_rows} rows: {reasons[0]}"
            raise OutletError(what, remedy="Mend it: docs/outlets.md#rows-that-an-outlet-refuses")
        is_refused = pa.array([row in messages for row in range(entry.rows.num_rows)])
        file = self._outbox.set_aside(name, entry.position, entry.rows.filter(is_refused), reasons)
        self._count_refused()
        text = "The outlet %s refuses %d rows of %s, which are set aside in %s: %s"
        _log.warning(text, name, len(messages), entry.position, file, reasons[0])
        return replace(entry, rows=entry.rows.filter(pc.invert(is_refused)))

    def _count_refused(self) -> None:
        refused = self._outbox.refused(self.options.name)
        with self._changed:
            self._refused = refused

    def _entry(self, finals: Finals) -> Entry:
        position = finals.position
        stamp = position.epoch, position.batch, finals.closed_by
        rows = tables.windows_schema().empty_table()
        if self.options.content == "sessions":
            if finals.sessions.num_rows:
                rows = tables.sessions(finals.sessions, self._session_statistics, self._shown, *stamp)
        elif self.options.content == "states":
            rows = tables.states(finals.states, position.epoch, position.batch)
        else:
            views = self.options.views
            chosen = {name: each.shown for name, each in finals.views.items() if views is None or each.of in views}
            windows = of_views(finals.windows, chosen.keys())
            if windows.num_rows:
                zones = {name: finals.views[name].zone for name in chosen if finals.views[name].zone != ""}
                # Beside a batch leave only closed windows.
                watermark_ms = ENDLESS_MS if position.part else position.watermark_ms
                rows = tables.windows(windows, chosen, *stamp, zones, watermark_ms)
        return Entry(position.by(self._epoch), rows)

    def _fail(self, error: TidemarkError) -> None:
        with suppress(Exception):
            self._outlet.close()
        self._is_open = False
        with self._changed:
            is_new = self._error is None
            self._error = error
            if is_new:
                self._failed_ms = clock.now_ms()
            self._changed.notify_all()
        self._watcher.outlet_fails(self.options.name)
        if is_new:
            _log.warning("The outlet %s is away, and its finals are kept: %s", self.options.name, error)

    def _succeed(self, stored: Stored) -> None:
        with self._changed:
            self._pending.popleft()
            self._pending_bytes -= stored.bytes
            was_away, self._error, self._failed_ms = self._error is not None, None, None
            if not self._pending:
                self.is_behind = False
            self._changed.notify_all()
        if was_away:
            _log.info("The outlet %s is back and has %s", self.options.name, stored.position)
        self._done(stored)
