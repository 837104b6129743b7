"""Monitoring: what operators scrape, ask and check."""
