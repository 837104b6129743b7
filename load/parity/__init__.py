"""Values of the stream against values that `tidemark backfill` computes from the same records, and outlets against the oracle."""
