"""Reference data: attributes of devices, in validated snapshots that are swapped between two batches."""
