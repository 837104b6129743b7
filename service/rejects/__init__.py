"""Rejects: kept byte for byte in Kafka, listed, shown and replayed."""
