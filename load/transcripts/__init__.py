"""Transcripts: what goes in and what comes out, in YAML, run by three executors. docs: load/transcripts/transcript.py."""
