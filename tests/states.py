"""All of a state, for a comparison that sees every difference, and what its sums are of."""

from state import moments, windows


def rows(table):
    """Types and rows; texts as such, and numbers so that -0.0 is not 0.0 and NaN is NaN."""
    types = [(field.name, "text" if field.name in windows.TEXTS else field.type) for field in table.schema]
    return types, repr(table.to_pylist())


def contents(state):
    """All that a state holds, with the order of its rows."""
    return rows(state.runs), rows(state.devices), rows(state.windows)


def finish(count, *sums):
    """Return sum, mean and deviation of merged panes: arrays of the columns `count` and `state.moments.NAMES`."""
    return *moments.totals(count, *sums[:2]), moments.deviation(count, *sums)
