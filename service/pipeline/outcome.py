"""Outcome: what publishing a micro-batch, or a part of one, did."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from service.admission.readings import PARTITION_BITS, REASONS
from service.aggregation import task_counters
from service.aggregation.task_counters import Ints, Tally
from service.settings import Settings

_DECADE = (50, 60, 70, 80, 95, 110, 130, 150, 180, 210, 250, 300, 350, 420)
LATENCY_BOUNDS_MS = (10, 25, *(bound * 10**power for power in range(3) for bound in _DECADE), 50_000, 60_000)
"""Upper bounds, inclusive, of the latency histogram; one more bucket counts what is above the last bound. From 50 ms on a bound
is at most 1.2 times the one below it, so the middle of a bucket is within 10 % of every latency in it. (prometheus_client 0.26
exports no native histograms.)"""


Payload = bytes
"""Outcome has a field `bytes`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of published rows and of the records they come from. The sum of two outcomes is the outcome of both.

    Rows: `windows`, `sessions` and `devices`. Each row was `written`, `unchanged` (a repeat), `refused_old` (Redis has a newer
    or richer value, or closed values cover its span) or `refused_final` (it would have changed a final window or a closed
    session: in steady flow never). `opened` sessions and `new_devices` had no key before; `closed` sessions change no more.
    `unordered` windows lack the statistics of order (state/trails.py).
    Redis: `bytes` sent, and failed attempts (`retries`).
    Records: `rejects` copied, `admitted` readings, `unknown` of them of devices that the reference lacks, `rejected` by reason
    in the order of REASONS, `filtered` by `input.where`, `read_bytes` of keys and values, `further` readings of records with
    arrays: all but the first of each. `latency` counts readings by the time in ms from the broker to the acknowledged write,
    per bucket of LATENCY_BOUNDS_MS; `latency_ms` is their sum.
    Time and state: `times` has (partition's number, oldest, newest event time in ms) of each partition with readings,
    `event_times` the (watermark, newest event time) after the batch, one pair unless buckets disagree, and `sizes` the sizes of
    the changed buckets' states (state.processor.SIZES). `windows_open` has (bucket, number of the view, open windows) of these
    buckets, `topics` has (number of the topic, rejects copied), `others` (number of the grouped column, readings with `(other)`).
    `measured` has (number of the input, of the measure, readings with it, readings without it) of what each input maps.
    Numbers are the positions in the settings. `waiting` open windows and devices are newer in the state than in Redis
    (state/waiting.py). `finals` are the payloads of the rows of FINALS, for the outlets.
    """

    rejects: int = 0
    windows: int = 0
    sessions: int = 0
    devices: int = 0
    written: int = 0
    unchanged: int = 0
    refused_old: int = 0
    refused_final: int = 0
    opened: int = 0
    new_devices: int = 0
    closed: int = 0
    bytes: int = 0
    retries: int = 0
    latency_ms: int = 0
    admitted: int = 0
    unknown: int = 0
    filtered: int = 0
    read_bytes: int = 0
    further: int = 0
    unordered: int = 0
    waiting: int = 0
    rejected: tuple[int, ...] = (0,) * len(REASONS)
    latency: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_MS) + 1)
    event_times: tuple[tuple[int, int], ...] = ()
    times: tuple[tuple[int, int, int], ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    windows_open: tuple[tuple[int, int, int], ...] = ()
    topics: tuple[tuple[int, int], ...] = ()
    others: tuple[tuple[int, int], ...] = ()
    measured: tuple[tuple[int, int, int, int], ...] = ()
    finals: tuple["Payload", ...] = ()

    @property
    def by_reason(self) -> dict[str, int]:
        """The number of rejected records by reason, also of reasons with none."""
        return dict(zip(REASONS, self.rejected, strict=True))

    @property
    def records(self) -> int:
        """The number of records: each reading is admitted, rejected or filtered, and each record has a first one."""
        return self.admitted + sum(self.rejected) + self.filtered - self.further

    def __add__(self, other: "Outcome") -> "Outcome":
        times: dict[int, tuple[int, int]] = {}
        for code, oldest, newest in (*self.times, *other.times):
            span = times.get(code, (oldest, newest))
            times[code] = min(span[0], oldest), max(span[1], newest)
        sums: dict[str, Any] = {
            each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)
        }
        return Outcome(
            **sums
            | {
                "latency": tuple(map(sum, zip(self.latency, other.latency, strict=True))),
                "rejected": tuple(map(sum, zip(self.rejected, other.rejected, strict=True))),
                "event_times": tuple(sorted({*self.event_times, *other.event_times})),
                "times": tuple((code, *times[code]) for code in sorted(times)),
            }
        )


def latency_counts(tally: Tally, now_ms: int) -> tuple[int, tuple[int, ...]]:
    """Return the sum of the latencies in ms and their counts per bucket. A broker ahead of this clock counts as 0 ms.

    The tally rounds the broker's times down to a step; their middle is half a step later.
    """
    rows = tally.rows(task_counters.LATENCY)
    counts = np.zeros(len(LATENCY_BOUNDS_MS) + 1, np.int64)
    latencies_ms: Ints = np.maximum(now_ms - rows.at - task_counters.LATENCY_STEP_MS // 2, 0)
    np.add.at(counts, np.searchsorted(LATENCY_BOUNDS_MS, latencies_ms), rows.count)
    return int((latencies_ms * rows.count).sum()), tuple(counts.tolist())


def measured(tally: Tally, settings: Settings) -> tuple[tuple[int, int, int, int], ...]:
    """Return how many of the admitted readings of each input have and lack each measure that it maps: Outcome.measured."""
    read, having = tally.rows(task_counters.OLDEST), tally.rows(task_counters.MEASURED)
    inputs = np.array(settings.topic_inputs)[read.of >> PARTITION_BITS]
    found = []
    for number, form in enumerate(settings.forms):
        admitted = int(read.count[inputs == number].sum())
        for measure, name in enumerate(settings.measures):
            if admitted and name in form.measures:
                has = int(having.count[(having.of == measure) & (having.at == number)].sum())
                found.append((number, measure, has, admitted - has))
    return tuple(found)
