"""The scheduling delay: from the time that a trigger was due until its batch began to run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.pipeline.batch_report import Progress

_BEFORE = ("latestOffset", "getBatch", "queryPlanning", "walCommit")
"""Spark's phases before a batch runs."""


@dataclass(slots=True)
class Schedule:
    """Computes the delay of each committed batch from Spark's own times; call `delay_s` once for each, in order.

    With `service.trigger` a trigger is due at the multiples of that interval (ProcessingTimeExecutor, Spark 4.1.1). A batch
    that runs longer makes the next trigger late. Without it a trigger is due when it begins.
    """

    trigger_ms: int = 0
    _ended_ms: int = 0
    _due_ms: int = 0

    def delay_s(self, progress: "Progress") -> float:
        """Return the delay of a batch in seconds."""
        late_ms = 0
        if self.trigger_ms:
            # A batch that ended after the next trigger was due makes that one begin at its end, in between two multiples.
            waited = (
                self._ended_ms > self._due_ms
                and progress.begun_ms // self.trigger_ms == self._ended_ms // self.trigger_ms
            )
            due_ms = self._due_ms if waited else progress.begun_ms // self.trigger_ms * self.trigger_ms
            late_ms = progress.begun_ms - due_ms
            self._due_ms = (progress.begun_ms // self.trigger_ms + 1) * self.trigger_ms
            self._ended_ms = progress.begun_ms + progress.durations_ms.get("triggerExecution", 0)
        return (late_ms + sum(progress.durations_ms.get(phase, 0) for phase in _BEFORE)) / 1000
