"""Data quality. `tidemark profile` draws expectations from the topics; the service checks samples against them."""
