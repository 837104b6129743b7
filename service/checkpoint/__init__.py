"""The checkpoint: its logs, its manifest, its event time, and what must hold before a query goes on from it."""
