"""Recompute: values once more, from the state and from Kafka, under republish, rebuild and correct."""
