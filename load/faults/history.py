"""The history: one file of JSON lines, to which every part of a run appends what it saw or did, and when.

An entry is {"at": ms since the epoch, "what": ...} and its facts. What there is:

    run       row, seed, short, rate, shards           first; of a run in parts, once for each part
    load      phase begin | end, rate                  a generator
    fault     phase begin | end, name, ...             by the nemesis
    epoch     epoch                                    `<prefix>:epoch`, on change
    progress  epoch, batch, watermark, final, offsets  `<prefix>:progress`, on change
    feed      spans [[epoch, batch, keys], ...]        the change feed in Redis's order; `missed` when entries were trimmed
    value     key, hash (null: gone), closing          a sampled window, session or device, on change; and what progress said of
                                                       closed windows before the value was read last
    lag       records, ends                            ends of the topic minus progress
    metrics   samples                                  /metrics, those that a rule or a figure needs
    memory    mb, processes, busy                      resident, of the service and its children; the machine's load average
    redis     up                                       on change, as the observer finds it
    verdict   ok, mismatches, kinds, examples, ...     the oracle's
    gap, lost records                                  see load/faults/__init__.py
    redis_lost, rebuild, republish, views
    violation rule, text                               what a row or the runner itself recorded

With several shards, `run` has their number `shards`, and an epoch, progress, feed or value has its `shard`. A progress without
one is then as far as all shards have come. A `redis_lost` may have a `shard`, too.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from service.clock import now_ms

Entry = dict[str, Any]
LONGEST_LINE = 64 << 20


class History:
    """Appends to `path`; may be used from any thread. `hear` gets every entry, too.

    What was there before is gone, unless `keep` is set. Then only a last line that a killed runner has begun is gone.
    """

    def __init__(self, path: Path, hear: Callable[[Entry], object] = lambda _: None, *, keep: bool = False) -> None:
        self.path = path
        self._hear = hear
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        if keep and path.exists():
            with path.open("rb") as file:
                begin = file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
                os.truncate(path, begin + file.read().rfind(b"\n") + 1)
        # A line at a time: what a killed runner leaves behind can be read.
        self._file = path.open("a" if keep else "w", encoding="utf-8", errors="surrogateescape", buffering=1)

    def add(self, what: str, **facts: Any) -> None:
        with self._lock:
            entry = {"at": now_ms(), "what": what, **facts}
            self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            self._hear(entry)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Entry]:
    """The entries of a history file, in order, without a last line that is not whole."""
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.endswith("\n"):
                entry: Entry = json.loads(line)
                yield entry
