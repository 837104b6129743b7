"""The status of the service: the daemon sets it, /status serves it, service/commands/status.py prints it.

    state     waiting     for the lease, or for Redis before the lease is acquired
              starting    the lease is held; Spark, the reference and the query start
              running     the query runs, or waits for records
              restarting  the query has failed for a reason that may pass, and restarts
              stopping    a stop is requested
              stopped     of a pipeline among several: an operator has stopped it
              failed      of a pipeline among several: it has ended by an error, and begins again after a pause

This module imports neither Spark nor a client, so that `tidemark status` starts fast.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

from service import clock
from service.monitoring import pages
from service.monitoring.course import Marks
from service.monitoring.pages import NoServiceError

if TYPE_CHECKING:
    from service.errors import TidemarkError
    from service.micro_batch import Offsets
    from service.pipeline.batch import BatchReport
    from service.pipeline.batch_report import Progress
    from service.settings import Metrics

State = Literal["waiting", "starting", "running", "restarting", "stopping", "stopped", "failed"]
STATES: tuple[State, ...] = get_args(State)
KEPT = 50
"""The number of batches in the document."""


class Status:
    """One run of the service. Its methods may be called from any thread."""

    def __init__(self, service: str) -> None:
        self.marks = Marks()
        self._lock = threading.RLock()  # a signal handler may run while its own thread holds the lock
        self.service = service
        self._started_ms = clock.now_ms()
        self._state: State = "waiting"
        self._has_failed = False
        self._epoch: int | None = None
        self._query_since_ms: int | None = None
        self._restarts = 0
        self._error: Mapping[str, Any] | None = None
        self._batches: list[Mapping[str, Any]] = []
        self.reference: Callable[[], Mapping[str, Any]] | None = None
        self.views: Callable[[], Mapping[str, Any]] | None = None
        self.outlets: Callable[[], Mapping[str, Any]] = dict
        """The sources of the parts of these names; each answer calls them."""
        self.inputs: Sequence[Mapping[str, Any]] = ()
        self._checkpoint: Mapping[str, Any] | None = None
        self.marks.add("start", "The process starts", self._started_ms)

    def becomes(self, state: State) -> None:
        """Set the state. After `stopping` it does not change until `ended`."""
        with self._lock:
            if self._state != "stopping":
                self._state = state

    def begins(self) -> None:
        """Note that the pipeline begins: for the first time, or again after `ended`."""
        with self._lock:
            self._state, self._epoch, self._query_since_ms = "waiting", None, None

    def ended(self, error: "TidemarkError | None") -> None:
        """Note that the pipeline has ended: by an error, or because an operator has stopped it."""
        with self._lock:
            self._query_since_ms = None
            self._state, self._has_failed = ("stopped", False) if error is None else ("failed", True)
            self.marks.add(
                "stop", "An operator stops the pipeline" if error is None else f"The pipeline ends: {error.code}"
            )
            if error is not None:
                self.failed(error)

    @property
    def state(self) -> State:
        with self._lock:
            return self._state

    @property
    def has_failed(self) -> bool:
        """Whether the pipeline has ended by an error and its query has not run since."""
        with self._lock:
            return self._has_failed

    def term(self, epoch: int) -> None:
        """Set the epoch of the acquired lease."""
        with self._lock:
            self._epoch = epoch
            if self._state == "waiting":
                self.becomes("starting")

    def query_started(self) -> None:
        with self._lock:
            self._query_since_ms, self._has_failed = clock.now_ms(), False
            self.marks.add("query", f"The query starts, epoch {self._epoch}", self._query_since_ms)
            self.becomes("running")

    def failed(self, error: "TidemarkError") -> None:
        """Set the last error."""
        with self._lock:
            self._error = {"code": error.code, "text": str(error), "at_ms": clock.now_ms()}

    def restarts(self) -> None:
        with self._lock:
            self._restarts += 1
            code = self._error["code"] if self._error is not None else "unknown"
            self.marks.add("restart", f"The query restarts: {code}")
            self._query_since_ms = None
            self.becomes("restarting")

    def batch(self, report: "BatchReport") -> None:
        """Add a published batch; a replayed batch replaces itself."""
        micro_batch = report.micro_batch
        entry = {
            "batch": micro_batch.batch,
            "rows": micro_batch.rows,
            "limit": report.limit,
            "start": _offsets(micro_batch.start),
            "end": _offsets(micro_batch.end),
            "phases": {name: round(seconds, 4) for name, seconds in report.phases.items()},
            "watermark_ms": micro_batch.watermark_ms,
            "finished_ms": clock.now_ms(),
        }
        with self._lock:
            before = [each for each in self._batches if each["batch"] < micro_batch.batch]
            self._batches = [*before[1 - KEPT :], entry]

    def committed(self, progress: "Progress") -> None:
        """Set what the checkpoint's store has of the last committed batch."""
        with self._lock:
            self._checkpoint = {
                "batch": progress.batch,
                "log_ms": progress.log_ms,
                "state_ms": progress.state_ms,
                "snapshot_batches": progress.snapshot_batches,
            }

    def document(self) -> dict[str, Any]:
        with self._lock:
            return {
                "service": self.service,
                "state": self._state,
                "epoch": self._epoch,
                "started_ms": self._started_ms,
                "query_since_ms": self._query_since_ms,
                "restarts": self._restarts,
                "last_error": self._error,
                "reference": self.reference() if self.reference is not None else None,
                "views": self.views() if self.views is not None else None,
                "inputs": list(self.inputs),
                "outlets": self.outlets(),
                "checkpoint": self._checkpoint,
                "batches": self._batches,
            }


def asked(metrics: "Metrics", name: str = "") -> dict[str, Any]:
    """Return the document of the running service. Raises NoServiceError when no Tidemark service answers.

    `name` is that of the pipeline, where the process may have several; a process of one answers whatever the name.
    """
    return pages.document(metrics, f"/status{query(name)}", "batches")


def asked_all(metrics: "Metrics") -> dict[str, Any]:
    """Return the document of the process: of its one service, or `pipelines` with a document of each by name.

    Raises NoServiceError.
    """
    return pages.document(metrics, "/status", "batches", "pipelines")


def ask(metrics: "Metrics", name: str = "") -> dict[str, Any] | None:
    """`asked`, but None when no Tidemark service answers."""
    with suppress(NoServiceError):
        return asked(metrics, name)
    return None


def query(name: str) -> str:
    """Return what chooses a pipeline in the URL of a page."""
    return f"?pipeline={quote(name)}" if name else ""


def _offsets(offsets: "Offsets") -> dict[str, dict[str, int]]:
    return {topic: {str(p): offset for p, offset in sorted(ps.items())} for topic, ps in sorted(offsets.items())}
