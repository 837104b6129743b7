"""Publication: what a batch has changed, written to Redis under the epoch."""
