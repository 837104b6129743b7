"""What a release has stored: the states of a bucket as its own code wrote them, in tests/unit/data.

    git archive COMMIT | tar -x -C FOLDER           # of the release: load/releases.py
    PYTHONPATH=FOLDER python tests/stored.py        # prints the file stored_VERSION.json

The steps are the same for every release, so that today's code can make them again and compare.
"""

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from load.walks.entries import Entries
from state import windows
from state.bucket import advance
from state.layout import BucketState, empty_state
from state.rules import Rules
from state.store import Cache, Store
from state.window_columns import COLUMNS, PaneReadings, columns_of
from tests.runs import fold

RULES = Rules(gap_ms=10_000, max_duration_ms=64_000, retain_ms=86_400_000, measures=("t", "h"))
BASE_MS = 1_700_000_040_000
VIEWS: dict[str, dict[str, tuple[str, ...]]] = {
    "plain": {"device": ("count", "sum", "mean", "min", "max", "stddev", "first", "last")},
    "statistics": {"device": ("count", "mean", "last"), "site": ("median", "p99", "distinct", "rate", "first")},
}
"""Views by case, with their statistics. The first case is stored as version 2 of the codec, the second as version 3."""
STEPS = 3


def parts(case: str, step: int) -> list[pa.Table]:
    """The parts of windows of a step: ten readings in each window of each view."""
    of_views = VIEWS[case]
    schema = windows.schema_of_views(of_views.values())
    starts = np.array([0, 10, 20])
    made = []
    for view, statistics in of_views.items():
        values = np.arange(30) / 7 + step
        event_ms = BASE_MS + step * 7_000 + np.arange(30) * 100
        readings = PaneReadings(values, event_ms, starts, np.full(3, 10), np.array([3, 5, 2**40 + step]))
        columns = {name: COLUMNS[name].fold(readings) for name in columns_of(statistics)}
        start = np.full(3, BASE_MS, np.int64)
        keys = pa.array([f"{view}-1", f"{view}-naïve", f"{view}-{step}"])
        made.append(windows.parts(view, "t", keys, np.arange(3), start, start + 60_000, columns, schema))
    return made


def runs(step: int) -> pa.Table:
    """Of three devices, of which one has no humidity and one is new in each step."""
    device = pa.array(["pump-1", "naïve/Gerät", f"new-{step}", "pump-1"])
    ms = np.array([0, 500, 900, 3_000], np.int64) + BASE_MS + step * 7_000
    values = {"t": np.array([20.5, -1.0, 1e300, 21.0]) + step, "h": np.array([np.nan, np.nan, 40.0, np.nan])}
    return fold(device, ms, values, RULES)


def stepped(state: BucketState, case: str, step: int) -> BucketState:
    """The state after a step."""
    after: BucketState = advance(state, parts(case, step), [runs(step)], BASE_MS - 5_000, RULES)[0]
    return after


def replaced(measures: tuple[str, ...]) -> Rules:
    """The rules with other measures."""
    return Rules(RULES.gap_ms, RULES.max_duration_ms, RULES.retain_ms, measures)


def advanced(state: BucketState, step: int, rules: Rules) -> BucketState:
    """The state after a step of other rules, with readings of their measures."""
    device, ms = pa.array(["pump-1"]), np.array([BASE_MS + step * 7_000])
    added = fold(device, ms, {name: np.array([1.5]) for name in rules.measures}, rules)
    after: BucketState = advance(state, parts("plain", step), [added], BASE_MS - 5_000, rules)[0]
    return after


def states(case: str) -> Iterator[BucketState]:
    """The state after each step."""
    state = empty_state(RULES)
    for step in range(STEPS):
        state = stepped(state, case, step)
        yield state


def stored(case: str) -> list[bytes]:
    """The entries of a bucket after the steps: a head, a base and deltas."""
    entries = Entries()
    entries.key = 0
    for state in states(case):
        store = Store(entries, Cache())
        store.save(0, store.load(0), state)
    return [entries.states[0][key] for key in sorted(entries.states[0])]


def text(values: list[bytes]) -> list[str]:
    return [base64.b64encode(value).decode() for value in values]


def entries_of(document: Any, case: str) -> Entries:
    """Spark's map state with the entries of a file."""
    entries = Entries()
    entries.key = 0
    entries.states[0] = {key: base64.b64decode(value) for key, value in enumerate(document[case])}
    return entries


if __name__ == "__main__":
    sys.stdout.write(json.dumps({case: text(stored(case)) for case in VIEWS}, indent=1) + "\n")
