"""The parts that docs/tutorial.md uses: Kafka with a login, a registry, PostgreSQL, Redis, and two topics with readings."""
