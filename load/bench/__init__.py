"""Benchmarks: the service and its references measured in one run, the restart of a driver, the swap of a large reference."""

RATE = 10_000.0
"""Readings a second of a steady load."""
