"""Files of Spark's that are damaged or missing, so that a query could not continue, or would begin again.

tests/stream/test_checkpoint.py damages each file in turn (Spark 4.1.4).
"""

from collections.abc import Mapping

from service.spark.files import Folder
from service.spark.internals import commit_log, log_files, offset_log, state_files
from service.spark.internals.log_files import MISSING, NOT_WHOLE

METADATA = "metadata"
"""The file with the id of the query."""
NEWEST = 3
"""Files of a log. A restarted query reads the last two."""


def of_logs(folder: Folder, newest: int | None = NEWEST) -> Mapping[str, str]:
    """Return the files that a restarted query cannot use, and why, of the newest files of each log; of all with None.

    State files are not read here: Spark reads those it needs before it writes anything.
    """
    offsets, commits = log_files.numbers(folder, offset_log.FOLDER), commit_log.numbers(folder)
    reasons = {}
    for log, batches in ((offset_log.FOLDER, offsets), (commit_log.FOLDER, commits)):
        for batch in batches[-newest:] if newest else batches:
            name = f"{log}/{batch}"
            if why := log_files.problem(folder, name):
                reasons[name] = why
    if folder.names(state_files.FOLDER) and not offsets:
        # Spark would begin again at batch 0, and later take the old batches' state files for its own.
        reasons[offset_log.FOLDER] = "no file is left, and there is state"
    elif commits and commits[-1] not in offsets:
        # Spark would run a batch again that is published already.
        reasons[offset_log.name(commits[-1])] = f"is missing, and commits/{commits[-1]} is there"
    elif offsets and offsets[-1] > 0 and offsets[-1] not in commits and offsets[-1] - 1 not in offsets:
        reasons[offset_log.name(offsets[-1] - 1)] = f"is missing, and batch {offsets[-1]} begins where it ends"
    if METADATA in folder.names(""):
        if why := _of_metadata(folder):
            reasons[METADATA] = why
    elif offsets:
        reasons[METADATA] = MISSING
    return reasons


def of_state(folder: Folder, last_committed: int) -> Mapping[str, str]:
    """Return the damaged state files, and the missing ones that the next batch needs, and why."""
    reasons = {}
    names = set()
    for file in folder.walk():
        if not file.name.startswith(f"{state_files.FOLDER}/"):
            continue
        why = folder.problem(file.name)
        if not why and file.size == 0:
            why = "is empty"
        if why:
            reasons[file.name] = why
        names.add(file.name)
    # Back from the last batch, until each store has a snapshot. `of_logs` reports damaged logs.
    complete: set[str] = set()
    logs = set(commit_log.numbers(folder))
    for batch in range(last_committed, -1, -1):
        if batch not in logs or log_files.problem(folder, f"{commit_log.FOLDER}/{batch}"):
            break
        attempts = commit_log.attempts(folder, batch)
        for store, attempt in attempts.items():
            changes = state_files.changelog(store, batch, attempt)
            if state_files.snapshot(store, batch, attempt) in names:
                complete.add(store)
            elif store not in complete and changes not in names:
                reasons[changes] = MISSING
        if complete.issuperset(attempts):
            break
    return reasons


def _of_metadata(folder: Folder) -> str:
    try:
        return folder.problem(METADATA) if log_files.is_object(folder.read(METADATA)) else NOT_WHOLE
    except OSError as error:
        return f"cannot be read: {error}"
