"""Flink SQL, Flink DataStream and Kafka Streams with Tidemark's works, beside Tidemark."""
