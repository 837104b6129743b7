"""One module per row: what goes wrong, in which order."""
