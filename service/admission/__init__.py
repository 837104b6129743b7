"""Admission: decodes each record, and admits or rejects it, before the watermark."""
