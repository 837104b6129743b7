"""Questions in SQL about the values of a service: DuckDB over Arrow tables that are read for the question."""
