"""What can be told of a checkpoint from its small files: how far it has come, and what in it is damaged or missing.

Spark's logs in a checkpoint are numbered files of a version and lines of JSON: `offsets/N` is written before batch N runs
and says where it ends, `commits/N` after it. A batch in `offsets` that is not in `commits` is replayed at the next start.
What is said here of Spark's files was tried with 4.1.1: tests/stream/test_checkpoint.py damages each of them in turn.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.checkpoint import event_time
from service.errors import CheckpointError
from service.micro_batch import Offsets, parse_offsets
from service.spark.files import RESTORE, Folder, Local, local

__all__ = [
    "FIRST",
    "LOGS",
    "MISSING",
    "RESTORE",
    "Position",
    "bad_log",
    "damage",
    "damaged",
    "ends",
    "last_batch",
    "local",
    "numbers",
    "partitions",
    "position",
    "require_whole",
    "state_damage",
    "state_ids",
]

LOGS = ("offsets", "commits")
_VERSIONS = (b"v1", b"v2")
FIRST = "sources/0/0"
"""Where the first batch begins, as the source has noted it for itself."""
NEWEST = 3
"""So many of the newest files are looked at; a query that goes on reads the last two."""

MISSING = "is missing"
_NOT_WHOLE = "is not what Spark writes: it is cut short or overwritten"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query goes on: `batch` is the number of the batch that comes next, `offsets` where it begins."""

    batch: int
    offsets: Offsets


def numbers(folder: Folder, log: str) -> list[int]:
    """The batches in a log, ascending."""
    return sorted(int(name) for name in folder.names(log) if name.isdecimal())


def last_batch(folder: Folder) -> int | None:
    """The number of the last batch that was begun, None for a new checkpoint."""
    return max(numbers(folder, "offsets"), default=None)


def position(folder: Folder) -> Position | None:
    """Where the query of a checkpoint without damage goes on; None for one in which no batch was begun.

    A batch that was begun and not committed is replayed: it begins where the one before ended.
    """
    last = last_batch(folder)
    if last is None:
        return None
    if last in numbers(folder, "commits"):
        return Position(last + 1, ends(folder, last))
    if last > 0:
        return Position(last, ends(folder, last - 1))
    # A byte for older versions stands before it.
    _, _, text = folder.read(FIRST).partition(b"v1\n")
    return Position(0, parse_offsets(text.decode()))


def damage(folder: Folder) -> Mapping[str, str]:
    """What keeps a query from going on as it was, by file: only logs, only their newest files; empty when all is well.

    The state's files are not looked at: Spark reads those it needs before it writes anything.
    """
    offsets, commits = (numbers(folder, log) for log in LOGS)
    found = {}
    for log, batches in zip(LOGS, (offsets, commits), strict=True):
        for batch in batches[-NEWEST:]:
            name = f"{log}/{batch}"
            why = bad_log(folder, name)
            if why:
                found[name] = why
    if folder.names("state") and not offsets:
        # Spark would begin again at batch 0 and sooner or later read what the old batches have left as its own.
        found["offsets"] = "no file is left, and there is state"
    elif commits and commits[-1] not in offsets:
        # Spark would run a batch again that is published and counted already.
        found[f"offsets/{commits[-1]}"] = f"is missing, and commits/{commits[-1]} is there"
    elif offsets and offsets[-1] > 0 and offsets[-1] not in commits and offsets[-1] - 1 not in offsets:
        found[f"offsets/{offsets[-1] - 1}"] = f"is missing, and batch {offsets[-1]} begins where it ends"
    if commits:
        # The next batch begins with it; one that is repeated begins with that of the one before.
        name = f"{event_time.FOLDER}/{commits[-1]}"
        try:
            event_time.read(folder, commits[-1])
        except CheckpointError:
            found[name] = _NOT_WHOLE if str(commits[-1]) in folder.names(event_time.FOLDER) else MISSING
    if "metadata" in folder.names(""):
        why = _bad_json(folder, "metadata")
        if why:
            found["metadata"] = why
    elif offsets:
        found["metadata"] = MISSING
    return found


def require_whole(folder: Folder) -> None:
    """Raise one CheckpointError that names all of `damage`."""
    broken = damage(folder)
    if broken:
        what = f"{folder}: {'; '.join(f'{name} {why}' for name, why in broken.items())}"
        raise CheckpointError(what, remedy=RESTORE)


def state_ids(folder: Folder, batch: int) -> Mapping[str, str]:
    """Which attempt's state a batch has committed, by the store's folder: its files are `<batch + 1>_<id>`, changelog or zip."""
    _, _, text = folder.read(f"commits/{batch}").partition(b"\n")
    operators = json.loads(text).get("stateUniqueIds") or {}
    return {f"state/{name}/{number}": ids[0] for name, stores in operators.items() for number, ids in enumerate(stores)}


def state_damage(folder: Folder, last_committed: int) -> Mapping[str, str]:
    """What is damaged among the state's files, by file, and which are missing of those that the next batch needs."""
    found = {}
    there = set()
    for file in folder.walk():
        if not file.name.startswith("state/"):
            continue
        why = folder.problem(file.name)
        if not why and file.size == 0:
            why = "is empty"
        if why:
            found[file.name] = why
        there.add(file.name)
    # Back from the last batch, until each store has a snapshot. What is wrong with a log is told by `damage`.
    complete: set[str] = set()
    logs = set(numbers(folder, "commits"))
    for batch in range(last_committed, -1, -1):
        if batch not in logs or bad_log(folder, f"commits/{batch}"):
            break
        ids = state_ids(folder, batch)
        for store, attempt in ids.items():
            name = f"{store}/{batch + 1}_{attempt}"
            if f"{name}.zip" in there:
                complete.add(store)
            elif store not in complete and f"{name}.changelog" not in there:
                found[f"{name}.changelog"] = MISSING
        if complete.issuperset(ids):
            break
    return found


def partitions(folder: Folder) -> int:
    """Into how many parts the state is divided, as the newest batch says; CheckpointError when it does not."""
    name = f"offsets/{last_batch(folder)}"
    try:
        return int(json.loads(folder.read(name).split(b"\n")[1])["conf"]["spark.sql.shuffle.partitions"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = f"{folder}/{name} has no spark.sql.shuffle.partitions"
        raise CheckpointError(what, remedy=RESTORE) from error


def damaged(folder: Path) -> list[Path]:
    """All that is damaged in a folder of this machine, for a message after a failure; reads all of the state."""
    mine = Local(folder)
    last = max(numbers(mine, "commits"), default=-1)
    return [folder / name for name in {**damage(mine), **state_damage(mine, last)}]


def bad_log(folder: Folder, name: str) -> str:
    """Why a file of a log is not what Spark writes: a version, then lines of JSON; "" when it is."""
    try:
        version, *lines = folder.read(name).split(b"\n")
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read: {error}"
    # An offset line is "-" for a source that had none.
    whole = version in _VERSIONS and lines and all(line == b"-" or _is_object(line) for line in lines)
    return folder.problem(name) if whole else _NOT_WHOLE


def _bad_json(folder: Folder, name: str) -> str:
    try:
        return folder.problem(name) if _is_object(folder.read(name)) else _NOT_WHOLE
    except OSError as error:
        return f"cannot be read: {error}"


def ends(folder: Folder, batch: int) -> Offsets:
    """Where a batch that was begun ends; raises CheckpointError."""
    name = f"offsets/{batch}"
    # One source stands once for every branch of the plan that reads it, each time with the same offsets.
    found = {line for line in folder.read(name).decode().split("\n")[2:] if line != "-"}
    if len(found) != 1:
        what = f"{folder}/{name} reads {len(found)} sources, not one"
        raise CheckpointError(what, remedy="The checkpoint is another program's: name an empty folder")
    try:
        return parse_offsets(found.pop())
    except (ValueError, AttributeError) as error:
        what = f"{folder}/{name} has no offsets of Kafka's: {error}"
        raise CheckpointError(what, remedy="The checkpoint is another program's: name an empty folder") from error


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
