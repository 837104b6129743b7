"""Recovery: what must hold before the query goes on from its checkpoint, and what Redis has lost is published again."""
