"""Load: embedded parts, a generator, an independent oracle, the demo and the benchmark; service/ imports none of it."""
