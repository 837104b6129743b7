"""Spark: the session, its Python workers, and the file systems that it reaches."""
