"""The outbox: the finals of batches, in the checkpoint, until every outlet has them.

    outlets/<batch>-<part>-<digest>     an entry: a header of JSON, and packed changes (state/codec.py)
    outlets/term                        the largest epoch that has written to the outlets
    outlets/refused-<outlet>-<entry>    rows that an outlet refuses for what they hold, as lines of JSON, each with the reason

An entry is written in full or not at all, before progress is written, so every entry that an outlet may need is there. A replay
of the batch makes the same entry under the same name.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from service import clock
from service.checkpoint import document
from service.checkpoint.document import Document
from service.errors import CheckpointError
from service.outlets import transitions
from service.outlets.outlet import Position
from service.settings import Settings
from service.spark.files import Folder
from state import codec
from state.layout import Changes, session_schema
from state.settled import REVISION
from state.statistics import Shown
from state.windows import concat

FOLDER = "outlets"
TERM = Document[int](f"{FOLDER}/term", int)
_LENGTH = struct.Struct("<I")
_DEFAULTS: tuple[Any, ...] = ("", 1_000, None)
"""Of a view's time zone and of what it shows besides its statistics."""


class EpochBehindError(Exception):
    """The epoch is smaller than one that has written to outlets: Redis has lost its own. The next term needs a larger one."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        super().__init__(f"the outlets have entries of epoch {newest}")


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry in the outbox: its size in bytes, when it was stored (the clock's ms), and the outlets of its `Scope`."""

    position: Position
    bytes: int
    at_ms: int
    outlets: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return f"{FOLDER}/{self.position.name}"


@dataclass(frozen=True, slots=True)
class EntryView:
    """A view of an entry: its name in the settings, and what it shows. The settings may have changed since."""

    of: str
    shown: Shown
    zone: str | int = ""
    """Whose days or months its windows are: a time zone, or the zone's place in the columns of keys; "" for no calendar."""

    def to_list(self) -> list[Any]:
        """Return the view as JSON has it, without what is as by default: earlier versions read that."""
        more = [self.zone, self.shown.per_ms, self.shown.wraps_at]
        while more and more[-1] == _DEFAULTS[len(more) - 1]:
            more.pop()
        return [self.of, list(self.shown.names), *more]

    @classmethod
    def parse(cls, each: Any) -> "EntryView":
        """Return the view, or that of a list, which an older version wrote with less. Raises ValueError for another value."""
        if isinstance(each, EntryView):
            return each
        try:
            of, names, *more = each
            rest: list[Any] = [*more, *_DEFAULTS[len(more) :]]
            zone, per_ms, wraps_at = rest
            return cls(of, Shown(tuple(names), per_ms, wraps_at), zone)
        except TypeError as error:  # which pydantic does not take for a refusal
            raise ValueError(str(error)) from error


Views = Mapping[str, Annotated[EntryView, PlainValidator(EntryView.parse), PlainSerializer(EntryView.to_list)]]
"""By the name in keys."""


def views_of(settings: Settings) -> Views:
    """Return the views of entries that are made with these settings."""
    return {
        view.name: EntryView(view.of, view.shown, "" if view.zone is None else view.zone)
        for view in settings.closing_views
    }


@dataclass(frozen=True, slots=True)
class Scope:
    """The views of an entry's windows, and the names of the outlets that it is for; None for all outlets of the settings."""

    views: Views
    outlets: tuple[str, ...] | None = None

    @classmethod
    def of(cls, settings: Settings) -> "Scope":
        """Return the scope of entries that a service with these settings makes."""
        return cls(views_of(settings), tuple(outlet.name for outlet in settings.outlets))


@dataclass(frozen=True, slots=True)
class _Header:
    """The begin of an entry: what it is, and the sizes of its payloads."""

    position: Position
    closed_by: str
    stored_ms: int
    views: Views
    outlets: tuple[str, ...] | None
    sizes: tuple[int, ...]


_HEADER = TypeAdapter(_Header)


@dataclass(frozen=True, slots=True)
class Finals:
    """The content of an entry: closed windows and sessions, the reason why they are closed, the views that they are of, and
    changes of statuses (service/outlets/transitions.py)."""

    position: Position
    windows: pa.Table
    sessions: pa.Table
    closed_by: str
    views: Views
    states: pa.Table


class Outbox:
    """The entries of a checkpoint, for its one writer. Methods raise CheckpointError, or SetupError for a full disk."""

    def __init__(self, files: Folder) -> None:
        self.files = files
        self._refused: dict[str, dict[str, int]] = {}  # rows that are set aside, by outlet and file, which is read once
        self._first_ms: dict[tuple[int, int], int] = {}  # by (batch, part), of entries that come again

    def store(self, position: Position, payloads: Sequence[bytes], closed_by: str, scope: Scope) -> Stored:
        """Write an entry; `payloads` are those of `codec.pack_changes`, `scope` is that of the batch."""
        return self.write(f"{FOLDER}/{position.name}", position, payloads, closed_by, scope)

    def write(self, name: str, position: Position, payloads: Sequence[bytes], closed_by: str, scope: Scope) -> Stored:
        """Write an entry under a name."""
        stored_ms = self._first_ms.get((position.batch, position.part), clock.now_ms())
        sizes = tuple(map(len, payloads))
        text = _HEADER.dump_json(_Header(position, closed_by, stored_ms, scope.views, scope.outlets, sizes))
        content = b"".join((_LENGTH.pack(len(text)), text, *payloads))
        document.store(self.files, name, content)
        return Stored(position, len(content), stored_ms, scope.outlets)

    def begin(self, epoch: int) -> None:
        """Note the epoch of a term. Raises EpochBehindError if a larger one was noted."""
        noted = TERM.read(self.files) or 0
        if noted > epoch:
            raise EpochBehindError(noted)
        if noted < epoch:
            TERM.write(self.files, epoch)

    def set_aside(self, outlet: str, position: Position, rows: pa.Table, reasons: Sequence[str]) -> str:
        """Store rows of an entry that an outlet refuses, and return where. The same entry replaces its file."""
        file = f"refused-{outlet}-{position.name}"
        self._refused.get(outlet, {}).pop(file, None)
        name = f"{FOLDER}/{file}"
        lines = [
            json.dumps({"refused": reason, **row}, default=str, ensure_ascii=False)
            for reason, row in zip(reasons, rows.to_pylist(), strict=True)
        ]
        document.store(self.files, name, "".join(f"{line}\n" for line in lines).encode())
        return f"{self.files}/{name}"

    def refused(self, outlet: str) -> int:
        """Return the number of rows that are set aside for an outlet."""
        beginning = f"refused-{outlet}-"
        names = [name for name in self.files.names(FOLDER) if name.startswith(beginning)]
        known = self._refused.get(outlet, {})
        rows = {
            name: known[name] if name in known else document.content(self.files, f"{FOLDER}/{name}").count(b"\n")
            for name in names
        }
        self._refused[outlet] = rows
        return sum(rows.values())

    def read(self, name: str) -> tuple[list[bytes], Views]:
        """Return the payloads and views of an entry that was written under a name."""
        header, payloads = self._parse(name, document.content(self.files, name))
        return payloads, header.views

    def load(self, stored: Stored) -> Finals:
        """Read an entry."""
        header, payloads = self._parse(stored.name, document.content(self.files, stored.name))
        try:
            changes = [codec.unpack_changes(payload) for payload in payloads]
        except codec.CodecError as error:
            raise document.damaged(self.files, stored.name, error) from error
        sessions = _together([each.sessions for each in changes], session_schema(()))
        states = _together([each.devices for each in changes], transitions.SCHEMA)
        return Finals(header.position, _windows(changes), sessions, header.closed_by, header.views, states)

    def entries(self, newest: int, beside: Position) -> list[Stored]:
        """Return the entries in order, and remove those that come again: of batches after `newest`, which are not committed, and
        of entries beside a batch those after `beside`, which the file of silence.py does not name.

        What comes again keeps the time of the first attempt: an outlet lacks it since then.
        """
        found = []
        for name in self.files.names(FOLDER):
            if not name[:12].isdigit():
                continue
            batch, part = int(name[:12]), int(name[13:19])
            if batch > newest or (part and (batch, part) > (beside.batch, beside.part)):
                with suppress(CheckpointError):  # damaged: only its time is lost
                    again = self._stored(name)
                    self._first_ms[again.position.batch, again.position.part] = again.at_ms
                self.remove(f"{FOLDER}/{name}")
            else:
                found.append(self._stored(name))
        return sorted(found, key=lambda each: (each.position.epoch, each.position.batch, each.position.part))

    def remove(self, name: str) -> None:
        """Remove an entry that was written under a name, and that every outlet has, or another entry has taken."""
        with document.changing(self.files, name):
            self.files.remove(name)

    def _stored(self, name: str) -> Stored:
        content = document.content(self.files, f"{FOLDER}/{name}")
        header, _ = self._parse(f"{FOLDER}/{name}", content)
        return Stored(header.position, len(content), header.stored_ms, header.outlets)

    def _parse(self, name: str, content: bytes) -> tuple[_Header, list[bytes]]:
        try:
            (length,) = _LENGTH.unpack_from(content)
            header = _HEADER.validate_json(content[_LENGTH.size : _LENGTH.size + length])
        except (ValueError, struct.error) as error:
            raise document.damaged(self.files, name, error) from error
        at, payloads = _LENGTH.size + length, list[bytes]()
        for size in header.sizes:
            payloads.append(content[at : at + size])
            at += size
        return header, payloads


def _windows(changes: Sequence[Changes]) -> pa.Table:
    """Return all windows, with their revisions if they have some, which are no column of the state's."""
    tables = [each.windows for each in changes if each.windows.num_rows]
    if not all(REVISION in table.column_names for table in tables):
        return concat(tables)
    together = concat([table.drop_columns([REVISION]) for table in tables])
    revisions = [chunk for table in tables for chunk in table[REVISION].chunks]
    return together.append_column(REVISION, pa.chunked_array(revisions, pa.int64()))


def _together(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of all tables; without rows, a table of the schema."""
    having = [table for table in tables if table.num_rows]
    return pa.concat_tables(having, promote_options="default") if having else schema.empty_table()
