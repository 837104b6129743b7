"""The documentation site: the pages of the repository, and reference pages that are generated from their sources."""
