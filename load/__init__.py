"""Load: embedded parts, a seeded generator, an independent oracle, the demo and the benchmark. Nothing in service/ imports it."""
