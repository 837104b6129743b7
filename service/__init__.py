"""Tidemark: device telemetry on Kafka, as live, correct numbers in Redis."""
