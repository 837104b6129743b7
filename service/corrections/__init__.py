"""Corrections: late readings that were rejected become part of closed values."""
