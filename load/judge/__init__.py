"""The judge: an oracle that reads the topics again, and a comparer of everything in Redis and in the rejects topics with it."""
