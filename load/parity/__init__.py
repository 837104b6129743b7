"""Values of the stream against a backfill of the same records, and against SQL over the readings."""
