"""Load: embedded servers, a generator, an independent oracle, the demo and the benchmark; service/ imports none of it."""
