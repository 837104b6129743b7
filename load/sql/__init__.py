"""Ten questions in SQL about a large fleet: answers against the oracle's, and seconds."""
