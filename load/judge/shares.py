"""The oracle in several processes: each takes the records of some partitions, and one ledger gets what all have decided.

A record costs the oracle some 40 us of a core, so six million of them take four minutes. Partitions can be shared only where each
record is decided by itself: not with `admission.distinct`, and not with columns of the record, whose first values have keys.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from load.judge.oracle import Coordinate, Ledger, Offsets, Taken, records
from load.judge.rules import Reference, Rules, read_rules

Place = tuple[str, int]


def may_be_shared(rules: Rules) -> bool:
    """Whether records of different partitions are decided independently of each other."""
    return not rules.distinct and not any(shape.max_values for shape in rules.shapes)


def fill(
    ledger: Ledger,
    reference: Reference,
    *,
    settings_path: Path,
    bootstrap: str | None,
    ends: Offsets,
    refused: Mapping[Coordinate, str],
    processes: int,
) -> None:
    """Give the ledger all records up to `ends` (exclusive), by so many processes. Raises as `records` does."""
    places = [(topic, partition) for topic, of_topic in sorted(ends.items()) for partition in sorted(of_topic)]
    shares = [share for share in (places[number::processes] for number in range(processes)) if share]
    context = multiprocessing.get_context(
        "spawn"
    )  # a fork would have the threads of Kafka's client, and none of them runs
    with ProcessPoolExecutor(len(shares), context, _end_with, (os.getpid(),)) as pool:
        futures = [
            pool.submit(_taken, settings_path, bootstrap, _only(ends, share), reference, refused) for share in shares
        ]
        for future in futures:
            ledger.join(future.result())


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: after SIGKILL to the parent it would wait for work for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="oracle-parent", daemon=True).start()


def _only(ends: Offsets, share: Sequence[Place]) -> Offsets:
    return {
        topic: {place[1]: of_topic[place[1]] for place in share if place[0] == topic}
        for topic, of_topic in ends.items()
    }


def _taken(
    settings_path: Path, bootstrap: str | None, ends: Offsets, reference: Reference, refused: Mapping[Coordinate, str]
) -> Taken:
    rules = read_rules(settings_path)
    ledger = Ledger(rules, reference, refused=refused)
    for record in records(rules, rules.topics, bootstrap, ends=ends, partitions=ledger.partitions):
        ledger.take(record)
    return ledger.taken(ends)
