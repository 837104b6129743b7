"""The logs of a checkpoint, Spark's and the log of event time, together: the last committed batch, and damaged files."""

from collections.abc import Mapping
from pathlib import Path

from service.checkpoint import event_time, topic_log
from service.errors import CheckpointError
from service.micro_batch import MicroBatch
from service.spark.files import RESTORE, Folder, Local
from service.spark.internals import commit_log, damage, log_files, offset_log
from service.spark.internals.log_files import MISSING, NOT_WHOLE


def committed(folder: Folder) -> MicroBatch | None:
    """Return the last committed batch, None without one. Its epoch is not in the checkpoint and is 0.

    Its `start` is where the checkpoint began to read each topic, not its own. Raises CheckpointError for a damaged file.
    """
    batch = commit_log.last(folder)
    if batch is None:
        return None
    name, first = offset_log.name(batch), offset_log.FIRST
    for file, reason in ((name, log_files.problem(folder, name)), (first, folder.problem(first))):
        if reason:
            raise CheckpointError(f"{folder}/{file} {reason}", remedy=RESTORE)
    start = {**offset_log.first(folder), **topic_log.read(folder).begun}
    after = event_time.read(folder, batch)[0]
    ends = offset_log.ends(folder, batch)
    return MicroBatch(0, batch, after.watermark_ms, start, ends, newest_ms=after.newest_ms)


def damaged(folder: Folder, newest: int | None = damage.NEWEST) -> Mapping[str, str]:
    """Return the files that a restarted query cannot use, and why: as `damage.of_logs`, and of the log of event time."""
    reasons = dict(damage.of_logs(folder, newest))
    batch = commit_log.last(folder)
    if batch is not None:
        # The next batch begins with the event time of the last committed one.
        try:
            event_time.read(folder, batch)
        except CheckpointError:
            is_there = str(batch) in folder.names(event_time.FOLDER)
            reasons[f"{event_time.FOLDER}/{batch}"] = NOT_WHOLE if is_there else MISSING
    return reasons


def require_whole(folder: Folder) -> None:
    """Raise one CheckpointError that names all damaged files."""
    broken = damaged(folder)
    if broken:
        raise CheckpointError(f"{folder}: {'; '.join(f'{name} {why}' for name, why in broken.items())}", remedy=RESTORE)


def damaged_files(folder: Path) -> list[Path]:
    """Return the damaged files of a checkpoint on this machine, for a message after a failure; reads all of the state."""
    mine = Local(folder)
    last = commit_log.last(mine)
    return [folder / name for name in {**damaged(mine), **damage.of_state(mine, -1 if last is None else last)}]
