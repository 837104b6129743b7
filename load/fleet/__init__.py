"""A seeded fleet of devices, and the generator that sends its readings to Kafka. It shares nothing with the judge."""
