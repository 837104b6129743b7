"""Data quality: expectations that are drawn from a sample of the topics, and held against samples while the service runs.

sample      records of the topics as columns that an expectation can speak of; by the stream's own builders
profile     `tidemark profile`: what a sample has, as a suite of Great Expectations
checker     beside the stream: every `quality.every` a sample, and what became of it
validation  a process of its own that holds a sample against a suite, and renders the report
page        what is served at /quality
gauges      metrics
"""
