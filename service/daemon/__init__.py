"""The daemon: the life of the process and its lease, and the threads that run in addition to its query."""
