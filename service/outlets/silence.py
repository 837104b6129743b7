"""Finals that silence has closed, and their revisions.

A window or session that the idle closer closes leaves at once, with `closed_by` "idle". When the watermark closes it later, it
leaves again only if it has changed, with a larger revision. `Silence` remembers what silence has closed until then.

    outlets/silence      the values that silence has closed, the number of the last entry for the batch, and that entry

The file is written before the entry, and in one piece. If the entry cannot be stored, or the process dies in between, the next
call or the next start stores it before anything else. A delivery leaves out what its outlet has.
"""

import base64
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.checkpoint.document import damaged, store
from service.outlets.outbox import FOLDER, Outbox, Scope, Stored
from service.outlets.outlet import Position
from service.outlets.tables import REVISION, SESSION_KEY, WINDOW_KEY
from state import codec
from state.layout import MERGED, Changes
from state.statistics import TRAIL
from state.trails import is_carrying

NAME = f"{FOLDER}/silence"
Key = tuple[Any, ...]
_END_BITS = 44
_CONTENT = {WINDOW_KEY: ("end", "count"), SESSION_KEY: ("last", "count")}


@dataclass(frozen=True, slots=True)
class Known:
    """A value that silence has closed: what identifies its content, and its revision."""

    content: tuple[int, int]
    revision: int


@dataclass(slots=True)
class Silence:
    """The values that silence has closed, by their keys, for the one writer of a checkpoint.

    `entry` is the last one that was made beside a batch, `payload`, `closed_by` and `scope` are its content. The payload is
    forgotten when all outlets have it. `taken` names the newest corrected values that an entry has had. `is_stored` says whether
    the outbox has had the last entry.
    """

    outbox: Outbox
    known: dict[Key, Known] = field(default_factory=dict)
    entry: Position | None = None
    payload: bytes = b""
    closed_by: str = "idle"
    taken: str = ""
    scope: Scope = field(default_factory=lambda: Scope({}))
    is_stored: bool = True
    _passed: tuple[int, set[Key]] = (-1, set())

    @classmethod
    def load(cls, outbox: Outbox, committed: int, scope: Scope) -> "Silence":
        """Read the file of a checkpoint whose last batch is `committed`. Raises CheckpointError.

        `scope` is that of an entry of an older version, which has none.
        """
        try:
            document: Any = json.loads(outbox.files.read(NAME))
            known = {
                tuple(key): Known((content[0], content[1]), revision) for key, content, revision in document["known"]
            }
            entry = Position.parse(json.dumps(document["entry"]))
            payload = base64.b64decode(document["payload"])
            found = Scope.parse(document) if "views" in document else scope
            is_stored = not payload or entry.batch > committed or outbox.has(entry)
            return cls(outbox, known, entry, payload, document["closed_by"], document["taken"], found, is_stored)
        except FileNotFoundError:
            return cls(outbox)
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise damaged(outbox.files, NAME, error) from error

    def keep(self, measures: Collection[tuple[str, str]]) -> None:
        """Forget the windows of others than these views and measures, which never leave again. Nothing is written."""
        self.known = {
            key: each for key, each in self.known.items() if len(key) == len(SESSION_KEY) or key[:2] in measures
        }

    def close(self, committed: Position, changes: Changes, scope: Scope) -> tuple[Position, bytes] | None:
        """Return the entry for values that silence has closed after a committed batch; None if all of them have left before.

        `scope` is that of the values.
        """
        known = dict(self.known)
        tables = []
        for table, key in ((changes.sessions, SESSION_KEY), (changes.windows, WINDOW_KEY)):
            keys = _keys(table, key)
            contents = _contents(table, key) if keys else []
            is_new = [k not in known or known[k].content != c for k, c in zip(keys, contents, strict=True)]
            revisions = [known[k].revision + 1 if k in known else 0 for k in keys]
            for k, content, revision, new in zip(keys, contents, revisions, is_new, strict=True):
                if new:
                    known[k] = Known(content, revision)
            tables.append(_with_revision(table, np.array(revisions, np.int64)).filter(pa.array(is_new, pa.bool_())))
        if not any(table.num_rows for table in tables):
            return None
        payload = codec.pack_changes(Changes(tables[0], changes.devices, tables[1]))
        # A file of corrected values that a crash has left comes again after the silence, too.
        return self._make(committed, known, payload, "idle", self.taken, scope)

    def take(self, committed: Position, name: str, payload: bytes, scope: Scope) -> None:
        """Make the entry for corrected values, which are stored under a name, after a committed batch, unless they are taken."""
        if name != self.taken:
            self._make(committed, self.known, payload, "watermark", name, scope)

    def _make(
        self, committed: Position, known: dict[Key, Known], payload: bytes, closed_by: str, taken: str, scope: Scope
    ) -> tuple[Position, bytes]:
        number = 1 + (self.entry.part if self.entry is not None and self.entry.batch == committed.batch else 0)
        entry = Position(committed.epoch, committed.batch, number, committed.digest, committed.watermark_ms)
        made = Silence(self.outbox, known, entry, payload, closed_by, taken, scope)
        made.write()
        self.known, self.entry, self.payload = known, entry, payload
        self.closed_by, self.taken, self.scope = closed_by, taken, scope
        self.is_stored = False
        return entry, payload

    def store(self) -> Stored | None:
        """Put the last entry into the outbox and return it; None if the outbox has had it. Raises as Outbox."""
        if self.is_stored or self.entry is None:
            return None
        stored = self.outbox.store(self.entry, [self.payload], self.closed_by, self.scope)
        self.is_stored = True
        return stored

    def final(self, batch: int, changes: Changes) -> Changes:
        """Return what the watermark closes in a batch: without values that left before as they are, and with revisions.

        A merged session leaves only if silence had closed it.
        """
        if self._passed[0] < batch:  # the batch before is committed
            for key in self._passed[1]:
                self.known.pop(key, None)
            self._passed = batch, set()
        tables = []
        for table, key in ((changes.sessions, SESSION_KEY), (changes.windows, WINDOW_KEY)):
            keys = _keys(table, key) if self.known else []
            revisions, keep = np.zeros(table.num_rows, np.int64), np.ones(table.num_rows, np.bool_)
            is_merged = np.zeros(table.num_rows, np.bool_)
            if "state" in table.column_names and table.num_rows:
                is_merged = np.asarray(pc.equal(table["state"], MERGED).to_numpy(zero_copy_only=False), np.bool_)
                keep &= ~is_merged
            contents = _contents(table, key) if self.known.keys() & set(keys) else []
            for row, k in enumerate(keys):
                known = self.known.get(k)
                if known is None:
                    continue
                keep[row] = bool(is_merged[row]) or contents[row] != known.content
                revisions[row] = known.revision + 1
                self._passed[1].add(k)
            tables.append(_with_revision(table, revisions).filter(pa.array(keep)))
        return Changes(tables[0], changes.devices, tables[1])

    def settle(self) -> None:
        """Forget the content of the last entry. Raises CheckpointError, or SetupError for a full disk."""
        self.payload = b""
        self.write()

    def write(self) -> None:
        """Write the file, which has an entry."""
        document = {
            "known": [[key, each.content, each.revision] for key, each in self.known.items()],
            "entry": json.loads(self.entry.to_json()) if self.entry is not None else {},
            "payload": base64.b64encode(self.payload).decode(),
            "closed_by": self.closed_by,
            "taken": self.taken,
            **self.scope.to_document(),
        }
        store(self.outbox.files, NAME, json.dumps(document).encode())


def _keys(table: pa.Table, names: tuple[str, ...]) -> list[Key]:
    if not table.num_rows:
        return []
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def _contents(table: pa.Table, key: Key) -> list[tuple[int, int]]:
    """Return what identifies the content of each row. What is carried into a window changes without its count."""
    contents = list(zip(*(table[name].to_pylist() for name in _CONTENT[key]), strict=True))
    if TRAIL not in table.column_names:
        return contents
    carried = [zlib.crc32(trail) if is_carrying(trail) else 0 for trail in table[TRAIL].fill_null(b"").to_pylist()]
    return [(end + (crc << _END_BITS), count) for (end, count), crc in zip(contents, carried, strict=True)]


def _with_revision(table: pa.Table, revisions: Any) -> pa.Table:
    return table.append_column(pa.field(REVISION, pa.int64(), nullable=False), pa.array(revisions))
