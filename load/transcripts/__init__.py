"""Transcripts: what goes in and what comes out, in YAML, run by two executors. docs: load/transcripts/transcript.py."""
