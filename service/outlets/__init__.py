"""Outlets: final windows and closed sessions go to Kafka, a database or files, for good."""
