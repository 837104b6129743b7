"""The pipeline: the one query, what publishes each of its batches, and what is reported of them."""
