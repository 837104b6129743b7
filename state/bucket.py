"""Advance a bucket by one step: its sessions, devices and windows, by the same watermark.

    advance(state, parts, runs, watermark, rules, pace) -> (state, changes)

The stream calls it for each micro-batch (state/processor.py), a recomputation for each payload of a bucket in the order of event
time (state/history.py). Both get the same values from the same readings.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from state import runs as folding
from state import table, windows
from state.layout import BucketState, Changes
from state.rules import Rules
from state.waiting import AT_ONCE, Pace


def advance(
    state: BucketState,
    parts: Sequence[pa.Table],
    runs: Sequence[pa.Table],
    watermark_ms: int,
    rules: Rules,
    pace: Pace = AT_ONCE,
    line_ms: int | None = None,
) -> tuple[BucketState, Changes, pa.Table]:
    """One step; also returns the windows that leave for the outlets: those that it closed, but for `Rules.leads`.

    No reading may be below the watermark of the step before: its windows and session may be closed.

    `parts` are tables of `state.windows.SCHEMA`, `runs` of `state.runs.schema`; any number, in any order. The result depends
    on the set of readings only, up to the rounding of additions in another order: see `state.table.advance`. A step that
    changes nothing returns the same `state` object. `pace` says which of the values that wait are among the changes
    (state/waiting.py); closed ones always are. `line_ms` is that of statuses, by default the watermark.
    """
    tables = [folding.schema(rules.measures).empty_table(), *runs]
    after, changes = table.advance(
        state, pa.concat_tables(tables, promote_options="default"), watermark_ms, rules, pace, line_ms
    )
    step = windows.advance(
        state.windows,
        parts,
        watermark_ms,
        rules.endless,
        rules.most_readings,
        pace,
        rules.update_every,
        rules.leads,
        rules.fills,
        rules.rollups,
    )
    if step.open is not state.windows:
        after = replace(after, windows=step.open)
    return after, replace(changes, windows=step.changed), step.leaving
