"""`tidemark checkpoint verify`: read every file of a checkpoint, and all of the state as the next batch would find it.

Nothing is written and no lock is taken, so a service may be running on it. It cleans up old files meanwhile: a file that
is gone before it could be read is no damage.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.checkpoint import logs, manifest
from service.errors import CheckpointError
from service.settings import Settings
from service.spark.files import Folder, opened
from service.spark.internals import commit_log, damage, jvm, log_files, offset_log, state_files
from state import codec, reader

Watch = Callable[[int, int], object]
SECOND_LOOK_S = 1.0
ATTEMPTS = 3
"""How often the state is read. A running service may remove the batch during the read; then a newer batch is read."""


@dataclass(slots=True)
class Report:
    """The result: `damage` has the reason by file, `rows` the number of rows of the state by kind."""

    place: str
    files: int = 0
    bytes: int = 0
    batches: int = 0
    committed: int | None = None
    next_batch: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    damage: dict[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """For people."""
        committed = "none" if self.committed is None else self.committed
        yield f"{self.place}: {self.files} files, {self.bytes} bytes"
        yield f"batches: {self.batches} in the log, newest committed {committed}, next {self.next_batch}"
        if self.rows:
            yield "state: " + ", ".join(f"{rows} {what}" for what, rows in self.rows.items())
        for name, why in sorted(self.damage.items()):
            yield f"FAIL {name}: {why}"


def verify(spark: SparkSession, settings: Settings, watch: Watch = lambda _done, _total: None) -> Report:
    """Read all files and the state of the checkpoint. `watch` gets how many of its files are read.

    Raises CheckpointError only when the folder cannot be read at all.
    """
    root = settings.service.checkpoint
    try:
        folder: Folder = opened(spark, root)
        report = Report(str(folder))
        _read_files(folder, report, watch)
    except OSError as error:
        raise CheckpointError(str(error), remedy="Mend service.checkpoint, or bring its file system back") from error
    if report.committed is not None and not any(name.startswith(("state", "commits")) for name in report.damage):
        _read_state(spark, root, folder, report)
    return report


def _read_files(folder: Folder, report: Report, watch: Watch) -> None:
    reasons = _damage(folder, report, watch)
    if reasons:
        # A running service may write or remove files during the read. Only damage that is still there counts.
        time.sleep(SECOND_LOOK_S)
        again = _damage(folder, report, watch)
        reasons = {name: why for name, why in again.items() if name in reasons}
    report.damage = reasons


def _damage(folder: Folder, report: Report, watch: Watch) -> dict[str, str]:
    report.files = report.bytes = 0
    offsets, commits = log_files.numbers(folder, offset_log.FOLDER), commit_log.numbers(folder)
    report.batches, report.committed = len(offsets), max(commits, default=None)
    report.next_batch = report.committed + 1 if report.committed is not None else 0
    reasons = dict(logs.damaged(folder, newest=None))
    try:
        there = manifest.read(folder)
    except CheckpointError as error:
        reasons[manifest.NAME] = error.what
    else:
        if there is None and offsets:
            reasons[manifest.NAME] = "is missing"
    files = list(folder.walk())
    for file in files:
        report.files += 1
        watch(report.files, len(files))
        report.bytes += file.size
        if not file.name.startswith(f"{state_files.FOLDER}/") and file.name not in reasons:
            why = folder.problem(file.name)
            if why and why != log_files.MISSING:
                reasons[file.name] = why
    if report.committed is not None:
        # A running service may have cleaned up meanwhile, so the files that the *newest* batch needs are checked.
        reasons |= damage.of_state(folder, commit_log.last(folder) or 0)
    return reasons


def _read_state(spark: SparkSession, root: str, folder: Folder, report: Report) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            report.rows = dict(_rows(spark, root))
        except (PySparkException, Py4JJavaError, codec.CodecError) as error:
            newest = commit_log.last(folder)
            if attempt < ATTEMPTS and newest != report.committed:
                report.committed = newest
                continue
            report.damage["state"] = f"cannot be read as of batch {report.committed}: {message(error)}"
        return


def message(error: Exception) -> str:
    """Return the innermost of the JVM's exceptions, or ours, on one line."""
    java: Any = jvm.throwable(error)
    if java is None:
        return " ".join(str(error).split())[:500]
    while java.getCause() is not None:
        java = java.getCause()
    return f"{java.getClass().getSimpleName()}: {java.getMessage()}"[:500]


def _rows(spark: SparkSession, root: str) -> Mapping[str, int]:
    counts = Counter[str]()
    for _, state in reader.states(spark, root):
        tables = {"runs of open sessions": state.runs, "devices": state.devices, "windows": state.windows}
        counts.update({name: table.num_rows for name, table in tables.items()})
    return counts
