"""P8: after a fault the lag is back."""

from collections.abc import Iterator
from dataclasses import dataclass

from load.faults.history import Entry
from load.faults.rules import Violation
from load.servers.server_process import PATIENCE

BACK_S = 60.0 * PATIENCE


@dataclass
class Fault:
    """One that P8 judges; the lag is only back with a newer batch, after a restart of the driver with a newer epoch."""

    name: str
    ended_at: int
    epoch: int
    batch: int
    back_at: int | None = None
    is_late: bool = False


class Recovers:
    """P8, for every fault after which there was no other for a minute and the load went on.

    Back is a lag that two triggers bring, with batches going on. The trigger is the mean one before the first fault, at
    least a second: on a small machine that others use, too, a shorter one is no measure. `faults` are those after which
    the lag came back, `is_open` says that one is being waited for.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.trigger_s: float | None = None
        self._rates: dict[int, float] = {}
        self._running = 0
        self._first: Entry | None = None
        self._term = self._before = (-1, -1)
        self._newest: Entry | None = None
        self._open: Fault | None = None

    @property
    def is_open(self) -> bool:
        """Whether the lag is not yet back after a fault."""
        return self._open is not None

    def take(self, entry: Entry) -> Iterator[Violation]:
        what, at = entry["what"], entry["at"]
        if what == "load":
            yield from self._take_load(entry)
        elif what == "progress" and "shard" not in entry:
            self._term = entry["epoch"], entry["batch"]
            if self._rates:
                self._first, self._newest = self._first or entry, entry
        elif what == "fault" and entry["phase"] == "begin":
            yield from self._judge(at)
            self._open = None
            if not self._running:
                self._before = self._term
            self._running += 1
            self._measure()
        elif what == "fault":
            self._running -= 1
            if not self._running and self._rates:
                epoch, batch = self._term
                # The next epoch may be there when the end of the fault is recorded.
                self._open = Fault(entry["name"], at, self._before[0] + 1, 0) if entry.get("restarts") else None
                self._open = self._open or Fault(entry["name"], at, epoch, batch + 1)
        elif what == "lag" and self._open is not None:
            if self._term >= (self._open.epoch, self._open.batch) and entry["records"] <= self.limit:
                self._open.back_at = at
                self.faults.append(self._open)
            yield from self._judge(at)
            if self._open is not None and self._open.back_at is not None:
                self._open = None

    def end(self) -> Iterator[Violation]:
        if self._open is not None:
            text = f"the history ends before the lag is back after {self._open.name!r}"
            yield Violation("P8", self._open.ended_at, text)

    @property
    def limit(self) -> float:
        """Records that two triggers bring at the present rate."""
        return 2 * max(self.trigger_s or 1.0, 1.0) * sum(self._rates.values())

    def _take_load(self, entry: Entry) -> Iterator[Violation]:
        if entry["phase"] == "begin":
            self._rates[entry["id"]] = entry["rate"]
            return
        if self._open is not None and len(self._rates) == 1:
            text = f"the load ended before the lag was back after {self._open.name!r}"
            yield Violation("P8", entry["at"], text)
            self._open = None
        self._rates.pop(entry["id"], None)

    def _measure(self) -> None:
        first, last = self._first, self._newest
        if self.trigger_s is None and first is not None and last is not None and last["batch"] > first["batch"]:
            self.trigger_s = round((last["at"] - first["at"]) / 1000 / (last["batch"] - first["batch"]), 3)

    def _judge(self, at: int) -> Iterator[Violation]:
        """The open fault, when it has been open for too long; it stays open for the figures."""
        fault = self._open
        if fault is not None and at - fault.ended_at > BACK_S * 1000 and not fault.is_late:
            fault.is_late = True
            text = f"{(at - fault.ended_at) / 1000:.0f} s after {fault.name!r} the lag is not under {self.limit:.0f} records"
            yield Violation("P8", at, text)
