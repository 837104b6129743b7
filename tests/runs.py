"""Runs of readings in any order, for tests: the service sorts them in its own fold."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from state.columns import Column, Floats, Ints, factorise
from state.rules import Rules
from state.runs import fold_sorted


def fold(device: Column, event_ms: Ints, values: Mapping[str, Floats], rules: Rules) -> pa.Table:
    """Readings as runs, sorted by (first appearance of the device, start)."""
    codes, devices = factorise(device)
    order = np.lexsort((event_ms, codes))
    sorted_values = {name: np.asarray(column)[order] for name, column in values.items()}
    return fold_sorted(codes[order], devices, event_ms[order], sorted_values, rules)
