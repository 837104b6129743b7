"""Reference data: static facts about devices, as validated snapshots that are swapped between two batches."""
