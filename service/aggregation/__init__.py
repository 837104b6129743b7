"""Aggregation before the shuffle: readings become partial aggregates of windows, runs of sessions, and counts."""
