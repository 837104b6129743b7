"""Aggregation: readings become parts of windows and runs of sessions before the shuffle, and whole ones after it."""
