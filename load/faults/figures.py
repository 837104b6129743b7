"""Figures of a run, from its history alone: how long restarts took, how old values were, what memory did."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from load.faults.history import Entry
from load.faults.recovery import Recovers
from load.testbed import percentile

_LATENCY = "tidemark_event_to_redis_seconds"


def figures(entries: Iterable[Entry]) -> dict[str, Any]:
    recovers, restarts, latency, counts = Recovers(), Restarts(), Latency(), Counts()
    for entry in entries:
        for _ in recovers.take(entry):
            pass
        for each in (restarts, latency, counts):
            each.take(entry)
    return {
        "batches": counts.batches,
        "epochs": counts.epochs,
        "values_observed": counts.values,
        "feed_entries": counts.feed,
        "feed_missed": counts.missed,
        "overlapping_epochs": counts.overlapping,
        "faults": counts.faults,
        "restart_to_first_batch_s": restarts.seconds,
        "restart_to_first_batch_median_s": _median(restarts.seconds),
        "lag_back_s": [round((each.back_at - each.ended_at) / 1000, 1) for each in recovers.faults if each.back_at],
        "trigger_s": recovers.trigger_s,
        "p50_ms": latency.percentile(0.5),
        "p99_ms": latency.percentile(0.99),
        "rss_peak_mb": counts.peak_mb,
        "machine_load_mean": round(statistics.fmean(counts.busy), 1) if counts.busy else None,
        "query_restarts": counts.query_restarts,
    }


class Restarts:
    """From a fault that restarts the driver to the first batch of the next epoch, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._epoch = -1
        self._killed: tuple[int, int] | None = None

    def take(self, entry: Entry) -> None:
        if entry["what"] == "fault" and entry["phase"] == "end" and entry.get("restarts"):
            self._killed = entry["at"], self._epoch
        elif entry["what"] == "progress" and "shard" not in entry:
            if self._killed is not None and entry["epoch"] > self._killed[1]:
                self.seconds.append(round((entry["at"] - self._killed[0]) / 1000, 2))
                self._killed = None
            self._epoch = entry["epoch"]


class Latency:
    """The service's histogram, summed over its lives: a counter that falls is a new life."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def take(self, entry: Entry) -> None:
        if entry["what"] != "metrics":
            return
        now = {name: value for name, value in entry["samples"].items() if name.startswith(f"{_LATENCY}_bucket")}
        is_new = any(value < self._last.get(name, 0.0) for name, value in now.items())
        for name, value in now.items():
            before = 0.0 if is_new else self._last.get(name, 0.0)
            self._sums[name] = self._sums.get(name, 0.0) + value - before
        self._last = now

    def percentile(self, share: float) -> float | None:
        ms = percentile(self._sums, share)
        return None if math.isnan(ms) else round(ms, 1)


class Counts:
    """Events that are counted and not judged."""

    def __init__(self) -> None:
        self.values = self.feed = self.overlapping = self.faults = self.batches = 0
        self.missed = False
        self.peak_mb: float | None = None
        self.busy: list[float] = []
        self.query_restarts = 0.0
        self._restarts = 0.0
        self._epochs: set[int] = set()
        self._newest: dict[int, int] = {}

    @property
    def epochs(self) -> int:
        """Epochs whose writes were accepted."""
        return len(self._epochs)

    def take(self, entry: Entry) -> None:
        what = entry["what"]
        if what == "value":
            self.values += 1
        elif what == "feed":
            self.missed |= entry.get("missed", False)
            shard = entry.get("shard", 0)
            for epoch, _, entries in entry["spans"]:
                self.feed += entries
                self._epochs.add(epoch)
                self.overlapping += epoch < self._newest.get(shard, -1)
                self._newest[shard] = max(self._newest.get(shard, -1), epoch)
        elif what == "fault":
            self.faults += entry["phase"] == "begin"
        elif what == "progress" and "shard" not in entry:
            self.batches = max(self.batches, entry["batch"] + 1)
        elif what == "memory":
            self.peak_mb = max(entry["mb"], self.peak_mb or 0.0)
            self.busy.append(entry["busy"])
        elif what == "metrics":
            self._count_restarts(entry["samples"])

    def _count_restarts(self, samples: dict[str, float]) -> None:
        now = sum(value for name, value in samples.items() if name.startswith("tidemark_query_restarts_total"))
        self.query_restarts += now - self._restarts if now >= self._restarts else now
        self._restarts = now


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None
