"""Kafka: one set of options for both client libraries, and the consumers, producers, admin requests and offsets built on it."""
