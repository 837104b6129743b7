"""The checkpoint: its logs, its manifest, its event time, and the checks before a query continues from it."""
