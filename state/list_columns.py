"""Names of columns of windows that have a list in each row (state/blobs.py).

They are here without NumPy, because settings need the statistics' columns alone.
"""

DEVICES = "devices"
"""Needs the devices of panes: state/distinct.py."""

TRAIL = "trail"
"""Needs the readings of each device in a window, by device: state/trails.py."""

SKETCH = "quantiles"
"""A sketch of values: state/quantiles.py."""
