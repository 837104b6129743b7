"""Admission: what a record says, and whether it counts: one decision per record, before the watermark."""
