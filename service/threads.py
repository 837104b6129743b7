"""Threads that belong to a pipeline: the log of a process with several pipelines names the one of each line."""

import threading
from typing import Any


class Thread(threading.Thread):
    """A thread that belongs to the pipeline of the thread that made it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pipeline = pipeline()


def pipeline() -> str:
    """Return the name of the pipeline that the calling thread belongs to; "" where the process has only one."""
    return getattr(threading.current_thread(), "pipeline", "")


def belong_to(name: str) -> None:
    """Have the calling thread, and the threads that it makes, belong to a pipeline."""
    threading.current_thread().pipeline = name  # type: ignore[attr-defined]
