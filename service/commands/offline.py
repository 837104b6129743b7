"""The lease, for commands that change a checkpoint: while such a command runs, no service reads or writes."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.daemon import owner
from service.daemon.lease import Lease, Waiting
from service.errors import FencedError
from service.settings import Settings

WAIT_S = 60.0
"""How long a command waits for the lease. A service that its supervisor restarts again and again holds it most of the time."""


@contextmanager
def outliving_hang_ups() -> Iterator[None]:
    """Have SIGHUP do nothing: `tidemark views` sends it to the holder of the lease, to have a service read its settings."""
    former = signal.signal(signal.SIGHUP, lambda *_: None)  # a handler, because children inherit SIG_IGN
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former)


@contextmanager
def term(settings: Settings, say: Callable[[str], object]) -> Iterator[Lease]:
    """Take the lease and hold it; FencedError when another process has it for WAIT_S."""
    lease, given_up, holders = Lease(settings, owner.here()), threading.Event(), list[str]()
    timer = threading.Timer(WAIT_S, given_up.set)
    timer.daemon = True
    timer.start()

    def waiting(other: Waiting) -> None:
        if not holders:
            say(f"{other.holder} holds the lease: waiting for {WAIT_S:.0f} s")
            holders.append(other.holder)

    with outliving_hang_ups():
        try:
            if lease.acquire(waiting, given_up) is None:
                what = f"{holders[0] if holders else 'Another process'} holds the lease: the service runs"
                raise FencedError(what, remedy="Stop the service, run the command, and start the service again")
            yield lease
        finally:
            timer.cancel()
            lease.release()


def confirm(lease: Lease, done: str) -> None:
    """Raise FencedError if the lease is lost. `done` says what has been done by then."""
    if not lease.confirm():
        raise FencedError(f"The lease is lost: {lease.reason}. {done}", remedy="Run it again")
