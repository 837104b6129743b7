"""How far the job of a command is, in the checkpoint, so that the same command goes on where it was cut off.

    backfill/<key>.json     what is done: values of each pass that begin before `reached_ms`; the rejects; the entries that are
                            ready; the sessions with which later ones may be joined
    backfill/<key>-<n>      entry n for the outlets, until it is ready

An entry is stored first, then the log names it, then it is moved to where the service looks (service/outlets/recomputed.py). So
each entry gets there once, whatever dies in between.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from service import failpoint
from service.checkpoint.document import Document
from service.errors import CheckpointError
from service.outlets import recomputed
from service.outlets.outbox import Outbox, Views
from service.rejects.fence import RANDOM_BITS
from service.spark.files import Folder

FOLDER = "backfill"
WINDOWS, SESSIONS = "windows", "sessions"
KEPT_MS = 30 * 86_400_000
"""How long a backfill that was cut off can go on where it was."""
Sessions = Mapping[str, tuple[int, int]]
"""A session by its device: start and last reading, in ms."""


@dataclass(slots=True)
class Place:
    """The content of the file: how far a job is. `run` is part of the names of its entries."""

    run: int
    reached_ms: dict[str, int]
    entries: int = 0
    ready: tuple[int, ...] = ()
    rejected: Counter[str] = field(default_factory=Counter)
    sessions: Sessions = field(default_factory=dict)


_AGAIN = "Remove it: the backfill then begins again, and outlets get its values again"
DOCUMENT = Document[Place](FOLDER, Place, remedy=_AGAIN, is_synced=False)


@dataclass(slots=True)
class Log:
    """The log of one span, source and views. Methods raise CheckpointError, or SetupError for a full disk."""

    files: Folder
    key: str
    place: Place

    @classmethod
    def load(cls, files: Folder, span: tuple[int, int], of: Sequence[str], run: int) -> "Log":
        """Return the log of an earlier run, with its entries where the service finds them; or a new one, of this run.

        Run 0 writes nothing, and begins at the beginning.
        """
        key = hashlib.sha256(json.dumps([*span, *of]).encode()).hexdigest()[:16]
        log = cls(files, key, Place(run, dict.fromkeys((WINDOWS, SESSIONS), span[0])))
        found = DOCUMENT.read(files, log._name) if run else None
        if found is not None:
            log.place = found
            log._move()
            found.run = run  # behind entries of runs that came between
        return log

    def store(self, views: Views, windows: pa.Table, sessions: pa.Table) -> None:
        """Store an entry for the outlets, as `recomputed.store`. The service does not find it before `save`."""
        number = self.place.entries + len(self.place.ready)
        recomputed.store(Outbox(self.files), self._entry(number), views, windows, sessions)
        self.place.ready = (*self.place.ready, number)

    def begin(self) -> None:
        """Forget entries that were stored since the last `save`."""
        self.place.ready = ()

    def reach(self, kind: str, end_ms: int, rejected: Mapping[str, int], sessions: Sessions) -> None:
        """Take the values of a pass that begin before a time as done, and add rejects. Nothing is written before `save`."""
        place = self.place
        place.reached_ms[kind] = end_ms
        place.entries, place.sessions = place.entries + len(place.ready), sessions
        place.rejected.update(rejected)

    def save(self) -> None:
        """Write the log, and have the service take the stored entries."""
        DOCUMENT.write(self.files, self.place, self._name)
        failpoint.hit("backfill_noted")
        self._move()

    def end(self) -> None:
        """Remove the log, and entries of a run that was cut off: everything is done."""
        for name in self.files.names(FOLDER):
            if name.startswith(f"{self.key}-"):
                self.files.remove(f"{FOLDER}/{name}")
        self.files.remove(self._name)

    @property
    def _name(self) -> str:
        return f"{FOLDER}/{self.key}.json"

    def _entry(self, number: int) -> str:
        return f"{FOLDER}/{self.key}-{number:06d}"

    def _move(self) -> None:
        for number in self.place.ready:
            with suppress(FileNotFoundError):  # the earlier run has moved it
                self.files.move(self._entry(number), recomputed.name(self.place.run, number))
        self.place.ready = ()


def prune(files: Folder, now_ms: int, own: str = "") -> None:
    """Remove what backfills have left that were cut off more than KEPT_MS ago, except that with the key `own`.

    The outlets get the entries that are ready.

    Raises CheckpointError, or SetupError for a full disk.
    """
    for name in files.names(FOLDER):
        if not name.endswith(".json") or name == f"{own}.json":
            continue
        try:
            found = DOCUMENT.required(files, f"{FOLDER}/{name}")
        except CheckpointError:
            continue  # its own command names it
        if found.run >> RANDOM_BITS < now_ms - KEPT_MS:
            log = Log(files, name.removesuffix(".json"), found)
            log._move()
            log.end()
