"""A progress bar, or a line that says what a command waits for, on standard error if that is a terminal."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AFTER_S = 2.0
"""A bar is shown for work that takes longer."""

_DUMB = ("dumb", "unknown")
"""Terminals, by TERM, that write control characters as they are."""


class Bar:
    """Call it with how much is done and how much there is. Without a terminal the calls do nothing."""

    def __init__(self, unit: str, *, after_s: float = AFTER_S) -> None:
        self._unit, self._is_shown = unit, sys.stderr.isatty()
        self._begin_s = time.monotonic() + after_s
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if not self._is_shown or time.monotonic() < self._begin_s:
            return
        if self._progress is None:
            self._progress = _progress(self._unit)
            self._progress.start()
            self._task = self._progress.add_task("", total=total)
        assert self._task is not None  # noqa: S101
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def bar(unit: str) -> Iterator[Bar]:
    """Return a bar that counts in `unit`, such as "records"; it is removed at the end."""
    shown = Bar(unit)
    try:
        yield shown
    finally:
        shown.close()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show `what`, cut to the width, and the seconds since on one line while the block runs. The line is removed at the end."""
    if not sys.stderr.isatty() or os.environ.get("TERM") in _DUMB:
        yield
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn()
    console = Console(stderr=True)
    room = max(1, console.width - len("- ") - len(" 0:00:00"))  # Rich would cut all columns, the seconds first
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as shown:
        shown.add_task(what if len(what) <= room else f"{what[: room - 1]}…", total=None)
        yield


def _progress(unit: str) -> "Progress":
    from rich.console import Console  # noqa: PLC0415 - it takes 60 ms, and most commands end before
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
    # Lines that go to a file must not go through the bar's console, which is standard error.
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty())
