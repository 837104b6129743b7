"""What silence has closed, so that outlets get each of these values once.

A value that silence closes leaves the service at once, with revision 0 and `closed_by` "idle". When the watermark closes it
later, it leaves again only if it has changed, with a larger revision. `Silence` remembers what silence has closed until then. A
window that leaves before it is final (state/settled.py) has its revision from the state, and silence leaves it alone.

    outlets/silence      the values that silence has closed, the statuses of service/outlets/transitions.py, and the last entry
                         that was made beside a batch

An entry is stored first, and then named in the file. An entry beside a batch that the file does not name is of a process that has
died in between: the next start removes it, and its values leave again. No outlet has had it, because delivery comes last.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service import clock
from service.checkpoint.document import Document
from service.checkpoint.manifest import too_old
from service.errors import TidemarkError
from service.outlets.outbox import FOLDER, Outbox, Scope, Stored
from service.outlets.outlet import Position
from service.outlets.tables import SESSION_KEY, WINDOW_KEY
from service.outlets.transitions import Memory, Transitions
from state import codec
from state.columns import Ints, ints
from state.layout import MERGED, Changes, session_schema
from state.list_columns import TRAIL
from state.rules import ENDLESS_MS
from state.settled import REVISION, with_revision
from state.trails import is_carrying

NAME = f"{FOLDER}/silence"
Key = tuple[str | int, ...]
_END_BITS = 44
_CONTENT = {WINDOW_KEY: ("end", "count"), SESSION_KEY: ("last", "count")}
_BEFORE_ALL = Position(0, -1)


@dataclass(frozen=True, slots=True)
class Known:
    """A value that silence has closed: what identifies its content, and its revision."""

    content: tuple[int, int]
    revision: int


@dataclass(frozen=True, slots=True)
class _File:
    """The content of the file. `payload` is an entry that 0.3.0 may not have stored in the outbox; later versions write none."""

    known: tuple[tuple[Key, tuple[int, int], int], ...]
    entry: Position
    taken: str
    transitions: Memory = field(default_factory=Memory)
    payload: str = ""


DOCUMENT = Document[_File](NAME, _File, is_synced=False)


@dataclass(slots=True)
class Silence:
    """The values that silence has closed, by their keys, for the one writer of a checkpoint.

    `entry` is the last one that was made beside a batch. `taken` names the newest corrected values that an entry has had. No
    session is open for longer than `session_ms` after its start.
    """

    outbox: Outbox
    known: dict[Key, Known] = field(default_factory=dict)
    entry: Position = _BEFORE_ALL
    taken: str = ""
    transitions: Transitions = field(default_factory=Transitions)
    session_ms: int = ENDLESS_MS
    _passed: tuple[int, set[Key]] = (-1, set())
    _watermark_ms: int = 0

    @classmethod
    def load(cls, outbox: Outbox, committed: int, outlets: tuple[str, ...], session_ms: int) -> "Silence":
        """Read the file of a checkpoint, whose last committed batch is given, for these outlets of states. Raises
        CheckpointError, or SetupError for a full disk."""
        stored = DOCUMENT.read(outbox.files)
        if stored is None:
            return cls(outbox, transitions=Transitions(outlets=outlets), session_ms=session_ms)
        if stored.payload:
            raise too_old(f"{outbox.files}/{NAME} has an entry that 0.3.0 or older may not have stored in the outbox")
        known = {key: Known(content, revision) for key, content, revision in stored.known}
        transitions = Transitions.of(stored.transitions, committed, outlets)
        silence = cls(outbox, known, stored.entry, stored.taken, transitions, session_ms)
        if stored.transitions.outlets and not transitions.known:  # they may be of outlets that are gone
            silence._write()
        return silence

    def keep(self, measures: Collection[tuple[str, str]]) -> None:
        """Forget the windows of others than these views and measures, which never leave again. Nothing is written."""
        self.known = {
            key: each for key, each in self.known.items() if len(key) == len(SESSION_KEY) or key[:2] in measures
        }

    def close(self, committed: Position, changes: Changes, scope: Scope) -> Stored | None:
        """Store the entry for values that silence has closed after a committed batch; None if all of them have left before.
        The devices of `changes` are transitions.

        `scope` is that of the values. Raises as Outbox.
        """
        known = {key: each for key, each in self.known.items() if not self._has_ended(key, each)}
        tables = []
        for table, key in ((changes.sessions, SESSION_KEY), (changes.windows, WINDOW_KEY)):
            keys = _keys(table, key)
            contents = _contents(table, key) if keys else []
            is_new = [k not in known or known[k].content != c for k, c in zip(keys, contents, strict=True)]
            revisions = [known[k].revision + 1 if k in known else 0 for k in keys]
            for k, content, revision, new in zip(keys, contents, revisions, is_new, strict=True):
                if new:
                    known[k] = Known(content, revision)
            tables.append(with_revision(table, np.array(revisions, np.int64)).filter(pa.array(is_new, pa.bool_())))
        self.transitions.settle(committed.batch)
        told, transitions = self.transitions.of_silence(changes.devices)
        leaving = Changes(tables[0], told, tables[1])
        if not leaving:
            return None
        return self._store(committed, known, [codec.pack_changes(leaving)], "idle", self.taken, scope, transitions)

    def tell(
        self, committed: Position, devices: Collection[str], skewed: tuple[Mapping[str, int], int] | None, scope: Scope
    ) -> Stored | None:
        """Store the entry for lists of devices, after a committed batch; None if all has left.

        A repeat of a batch may find other lists. `devices` have never sent. `skewed` has the skewed ones and the watermark, None
        where they are not known.
        """
        self.transitions.settle(committed.batch)
        told, transitions = self.transitions.of_expected(devices, clock.now_ms())
        if skewed is not None:
            clocks, transitions = transitions.of_clocks(*skewed)
            told = pa.concat_tables([told, clocks])
        if not told.num_rows:
            return None
        payload = codec.pack_changes(Changes(session_schema(()).empty_table(), told))
        return self._store(committed, self.known, [payload], "watermark", self.taken, scope, transitions)

    def take(self, committed: Position, name: str, payloads: Sequence[bytes], scope: Scope) -> Stored | None:
        """Store the entry for corrected values, which have a name, after a committed batch; None if they are taken already."""
        if name == self.taken:  # a crash has left the file
            return None
        self.transitions.settle(committed.batch)
        return self._store(committed, self.known, payloads, "watermark", name, scope, self.transitions)

    def _store(
        self,
        committed: Position,
        known: dict[Key, Known],
        payloads: Sequence[bytes],
        closed_by: str,
        taken: str,
        scope: Scope,
        transitions: Transitions,
    ) -> Stored:
        number = 1 + (self.entry.part if self.entry.batch == committed.batch else 0)
        entry = Position(committed.epoch, committed.batch, number, committed.digest, committed.watermark_ms)
        stored = self.outbox.store(entry, payloads, closed_by, scope)
        try:
            Silence(self.outbox, known, entry, taken, transitions)._write()
        except TidemarkError:
            self.outbox.remove(stored.name)  # the next start would take it for one that the file names
            raise
        self.known, self.entry, self.taken, self.transitions = known, entry, taken, transitions
        return stored

    def final(self, batch: int, changes: Changes, watermark_ms: int) -> Changes:
        """Return what leaves with a batch, after which the watermark is there: without values that left before as they are, and
        with revisions. A window may leave more than once until the watermark has passed it.

        A merged session leaves only if silence had closed it.
        """
        if self._passed[0] < batch:  # the batch before is committed
            for key in self._passed[1]:
                self.known.pop(key, None)
            self._passed = batch, set()
        self._watermark_ms = watermark_ms
        tables = []
        for whole, key in ((changes.sessions, SESSION_KEY), (changes.windows, WINDOW_KEY)):
            table, revisions = _without_revision(whole)
            keys = _keys(table, key) if self.known else []
            keep = np.ones(table.num_rows, np.bool_)
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
                revisions[row] += known.revision + 1
                if key is SESSION_KEY or self._has_ended(k, known):
                    self._passed[1].add(k)
            tables.append(with_revision(table, revisions).filter(pa.array(keep)))
        return Changes(tables[0], self.transitions.of_batch(changes.devices), tables[1])

    def note(self) -> None:
        """Write what the batch changes of the statuses that have left, before it is committed."""
        if self.transitions.changes:
            self._write()

    def _has_ended(self, key: Key, known: Known) -> bool:
        """Whether the watermark has passed a value, so that it does not leave again.

        A session is forgotten when it leaves, too; after a restart the file may still have it.
        """
        if len(key) == len(SESSION_KEY):
            return int(key[1]) + self.session_ms < self._watermark_ms
        return known.content[0] % (1 << _END_BITS) <= self._watermark_ms

    def _write(self) -> None:
        known = tuple((key, each.content, each.revision) for key, each in self.known.items())
        DOCUMENT.write(self.outbox.files, _File(known, self.entry, self.taken, self.transitions.stored()))


def _keys(table: pa.Table, names: tuple[str, ...]) -> list[Key]:
    if not table.num_rows:
        return []
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def _contents(table: pa.Table, key: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return what identifies the content of each row. What is carried into a window changes without its count."""
    contents = list(zip(*(table[name].to_pylist() for name in _CONTENT[key]), strict=True))
    if TRAIL not in table.column_names:
        return contents
    carried = [zlib.crc32(trail) if is_carrying(trail) else 0 for trail in table[TRAIL].fill_null(b"").to_pylist()]
    return [(end + (crc << _END_BITS), count) for (end, count), crc in zip(contents, carried, strict=True)]


def _without_revision(table: pa.Table) -> tuple[pa.Table, Ints]:
    """Return a table without the revisions that the state has given, and these."""
    if REVISION not in table.column_names:
        return table, np.zeros(table.num_rows, np.int64)
    return table.drop_columns([REVISION]), np.array(ints(table, REVISION))
