"""Benchmarks: the service and its references measured in one run, and the restart of a driver."""

RATE = 10_000.0
"""Readings a second of a steady load."""
