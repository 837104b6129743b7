"""Per-device session state: pure algebra on columns, its versioned codec, and the thin Spark processor around them."""
