"""The daemon: the life of the process, of its lease and of the work beside its query."""
