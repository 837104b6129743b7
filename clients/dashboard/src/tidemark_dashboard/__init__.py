"""A page that shows what Tidemark keeps in Redis, and how its service runs.

tidemark-dashboard --redis redis://localhost:6379/0 --service http://127.0.0.1:9400
"""
