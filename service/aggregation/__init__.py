"""Aggregation: the partial aggregation before the shuffle. Readings become parts of windows, runs of sessions, and counts."""
