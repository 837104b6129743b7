"""Read Spark's logs in a checkpoint: the position of the query, and damaged or missing files.

The logs are numbered files of a version line and lines of JSON. Spark writes `offsets/N`, the end of batch N, before the batch
runs, and `commits/N` after it. A batch in `offsets` that is not in `commits` is replayed at the next start.
tests/stream/test_checkpoint.py damages each file in turn (Spark 4.1.1).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.checkpoint import event_time, topic_log
from service.errors import CheckpointError
from service.micro_batch import MicroBatch, Offsets, format_offsets, parse_offsets
from service.spark.files import RESTORE, Files, Folder, Local

LOGS = ("offsets", "commits")
_VERSIONS = (b"v1", b"v2")
FIRST = "sources/0/0"
"""The file with the begin of the first batch: the source writes it before batch 0 runs."""
NEWEST = 3
"""How many of the newest files `damage` reads. A restarted query reads the last two."""

MISSING = "is missing"
_NOT_WHOLE = "is not what Spark writes: it is cut short or overwritten"


@dataclass(frozen=True, slots=True)
class Position:
    """The number of the next batch, the offsets at which it begins, and whether it was begun before and is repeated."""

    batch: int
    offsets: Offsets
    is_repeated: bool = False


def numbers(folder: Folder, log: str) -> list[int]:
    """The batches in a log, ascending."""
    return sorted(int(name) for name in folder.names(log) if name.isdecimal())


def last_batch(folder: Folder) -> int | None:
    """The number of the last batch that was begun; None for a new checkpoint."""
    return max(numbers(folder, "offsets"), default=None)


def position(folder: Folder) -> Position | None:
    """Return the position at which the next query starts; None if no batch was begun. The logs must be undamaged.

    A batch that was begun and not committed is replayed: it begins at the end of the batch before.
    """
    last = last_batch(folder)
    if last is None:
        return None
    if last in numbers(folder, "commits"):
        return Position(last + 1, ends(folder, last))
    if last > 0:
        return Position(last, ends(folder, last - 1), is_repeated=True)
    return Position(0, first(folder), is_repeated=True)


def is_begun(folder: Folder) -> bool:
    """Whether the source has stored the begin of the first batch."""
    return FIRST.rpartition("/")[2] in folder.names(FIRST.rpartition("/")[0])


def first(folder: Folder) -> Offsets:
    """The begin of the first batch."""
    # The source writes a zero byte, a line with a version, and the offsets (Spark 4.1.1).
    return parse_offsets(folder.read(FIRST).decode().rpartition("\n")[2])


def committed(folder: Folder) -> MicroBatch | None:
    """The last committed batch, None without one. Its epoch is not in the checkpoint and is 0.

    Its `start` is where the checkpoint began to read each topic, not its own. Raises CheckpointError for a damaged file.
    """
    batch = max(numbers(folder, "commits"), default=None)
    if batch is None:
        return None
    name = f"offsets/{batch}"
    for file, reason in ((name, bad_log(folder, name)), (FIRST, folder.problem(FIRST))):
        if reason:
            what = f"{folder}/{file} {reason}"
            raise CheckpointError(what, remedy=RESTORE)
    start = {**first(folder), **topic_log.read(folder).begun}
    return MicroBatch(0, batch, event_time.read(folder, batch)[0].watermark_ms, start, ends(folder, batch))


def damage(folder: Folder) -> Mapping[str, str]:
    """The files that a restarted query cannot use, and why: the newest files of the logs only; empty without damage.

    State files are not read here: Spark reads those it needs before it writes anything.
    """
    offsets, commits = (numbers(folder, log) for log in LOGS)
    reasons = {}
    for log, batches in zip(LOGS, (offsets, commits), strict=True):
        for batch in batches[-NEWEST:]:
            name = f"{log}/{batch}"
            why = bad_log(folder, name)
            if why:
                reasons[name] = why
    if folder.names("state") and not offsets:
        # Spark would begin again at batch 0, and later take the old batches' state files for its own.
        reasons["offsets"] = "no file is left, and there is state"
    elif commits and commits[-1] not in offsets:
        # Spark would run a batch again that is published already.
        reasons[f"offsets/{commits[-1]}"] = f"is missing, and commits/{commits[-1]} is there"
    elif offsets and offsets[-1] > 0 and offsets[-1] not in commits and offsets[-1] - 1 not in offsets:
        reasons[f"offsets/{offsets[-1] - 1}"] = f"is missing, and batch {offsets[-1]} begins where it ends"
    if commits:
        # The next batch begins with the event time of the last committed one.
        name = f"{event_time.FOLDER}/{commits[-1]}"
        try:
            event_time.read(folder, commits[-1])
        except CheckpointError:
            reasons[name] = _NOT_WHOLE if str(commits[-1]) in folder.names(event_time.FOLDER) else MISSING
    if "metadata" in folder.names(""):
        why = _bad_json(folder, "metadata")
        if why:
            reasons["metadata"] = why
    elif offsets:
        reasons["metadata"] = MISSING
    return reasons


def require_whole(folder: Folder) -> None:
    """Raise one CheckpointError that names all damaged files."""
    broken = damage(folder)
    if broken:
        what = f"{folder}: {'; '.join(f'{name} {why}' for name, why in broken.items())}"
        raise CheckpointError(what, remedy=RESTORE)


def state_ids(folder: Folder, batch: int) -> Mapping[str, str]:
    """The id of the attempt whose state a batch has committed, by store folder; its files there are `<batch + 1>_<id>`."""
    _, _, text = folder.read(f"commits/{batch}").partition(b"\n")
    operators = json.loads(text).get("stateUniqueIds") or {}
    return {f"state/{name}/{number}": ids[0] for name, stores in operators.items() for number, ids in enumerate(stores)}


def state_damage(folder: Folder, last_committed: int) -> Mapping[str, str]:
    """The damaged state files, and the missing ones that the next batch needs, and why."""
    reasons = {}
    names = set()
    for file in folder.walk():
        if not file.name.startswith("state/"):
            continue
        why = folder.problem(file.name)
        if not why and file.size == 0:
            why = "is empty"
        if why:
            reasons[file.name] = why
        names.add(file.name)
    # Back from the last batch, until each store has a snapshot. `damage` reports damaged logs.
    complete: set[str] = set()
    logs = set(numbers(folder, "commits"))
    for batch in range(last_committed, -1, -1):
        if batch not in logs or bad_log(folder, f"commits/{batch}"):
            break
        ids = state_ids(folder, batch)
        for store, attempt in ids.items():
            name = f"{store}/{batch + 1}_{attempt}"
            if f"{name}.zip" in names:
                complete.add(store)
            elif store not in complete and f"{name}.changelog" not in names:
                reasons[f"{name}.changelog"] = MISSING
        if complete.issuperset(ids):
            break
    return reasons


def partitions(folder: Folder) -> int:
    """The number of state partitions, from the newest offset log file; raises CheckpointError."""
    name = f"offsets/{last_batch(folder)}"
    try:
        return int(json.loads(folder.read(name).split(b"\n")[1])["conf"]["spark.sql.shuffle.partitions"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = f"{folder}/{name} has no spark.sql.shuffle.partitions"
        raise CheckpointError(what, remedy=RESTORE) from error


def damaged(folder: Path) -> list[Path]:
    """The damaged files of a checkpoint on this machine, for a message after a failure; reads all of the state."""
    mine = Local(folder)
    last = max(numbers(mine, "commits"), default=-1)
    return [folder / name for name in {**damage(mine), **state_damage(mine, last)}]


def bad_log(folder: Folder, name: str) -> str:
    """Why a log file is not a version line followed by lines of JSON, as Spark writes it; "" when it is."""
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
    """The end of a batch that was begun; raises CheckpointError."""
    name = f"offsets/{batch}"
    # Spark writes a line for every branch of the plan that reads the source, all with the same offsets.
    sources = {line for line in folder.read(name).decode().split("\n")[2:] if line != "-"}
    if len(sources) != 1:
        what = f"{folder}/{name} reads {len(sources)} sources, not one"
        raise CheckpointError(what, remedy="The checkpoint is another program's: name an empty folder")
    try:
        return parse_offsets(sources.pop())
    except (ValueError, AttributeError) as error:
        what = f"{folder}/{name} has no offsets of Kafka's: {error}"
        raise CheckpointError(what, remedy="The checkpoint is another program's: name an empty folder") from error


def replace(files: Files | Local, name: str, offsets: Offsets) -> None:
    """Replace the offsets of each source in `offsets/N` or FIRST, and nothing else."""
    lines = files.read(name).decode().split("\n")
    head = 1 if name == FIRST else 2
    text = format_offsets(offsets)
    files.replace(name, "\n".join(lines[:head] + [line if line == "-" else text for line in lines[head:]]).encode())


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
