"""What a supervisor or an operator does, for rows that play on a service without a supervisor."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.cimpl import NewPartitions

from load.faults.run import STARTS_S, Run
from load.servers.redis import Redis
from load.testbed import PARTITIONS, TOPIC
from service.errors import SetupError

SETTLED_BATCHES = 3
MOUNTS = "Play it as root, where mounting is allowed"
_BLOCK = bytes(1 << 16)


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a service ended that was not asked to: its exit status and its last words."""

    status: int
    text: str

    @classmethod
    def of(cls, run: Run) -> "Refusal":
        """That of a service that has ended."""
        return cls(run.testbed.exit_status or 0, run.testbed.last_words())

    def __str__(self) -> str:
        return f"status {self.status}, {self.text}"


def start_again(run: Run, within_s: float = STARTS_S) -> int:
    """Until the query runs: a service that has ended is started again. How often it was; SetupError after `within_s`."""
    starts = 0

    def runs() -> bool:
        nonlocal starts
        if run.testbed.exit_status is not None:
            starts += 1
            run.start_again()
        return bool(run.testbed.metrics().get("tidemark_query_running"))

    run.until(runs, within_s, "the query to run")
    return starts


def start_damaged(run: Run, within_s: float = STARTS_S) -> Refusal | None:
    """Start the service on something that is not as it left it: its refusal, or None when it has published some batches."""
    begun = run.observer.epoch
    batches: set[tuple[int, int]] = set()
    run.start(wait=False)

    def decided() -> bool:
        if run.observer.progress[0] > begun:
            batches.add(run.observer.progress)
        return len(batches) >= SETTLED_BATCHES or run.testbed.exit_status is not None

    run.until(decided, within_s, "the service to go on, or to refuse")
    return None if run.testbed.exit_status is None else Refusal.of(run)


def add_partition(run: Run) -> int:
    """Give the topic one more partition; return its number."""
    admin = run.testbed.broker.admin
    admin.create_partitions([NewPartitions(TOPIC, PARTITIONS + 1)])[TOPIC].result(30)
    return PARTITIONS


@contextlib.contextmanager
def small_disk(run: Run, folder: Path, size: str, *options: str) -> Iterator[bool]:
    """Mount a disk of `size`, such as "4m", at a folder, with options of mount; yield False where mounting is not allowed.

    The service is killed before the disk goes.
    """
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "tidemark-disk", str(folder)]
    is_mounted = shutil.which("mount") is not None and not subprocess.run(mount, check=False).returncode
    try:
        yield is_mounted
    finally:
        if is_mounted:
            run.testbed.kill_service()
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


@contextlib.contextmanager
def between(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Call `begin` before the block and `end` after it, whatever happens in it."""
    begin()
    try:
        yield
    finally:
        end()


def ask(redis: Redis, text: str) -> None:
    """Give Redis a command, such as "CONFIG SET maxmemory 1"."""
    with redis.client() as client:
        client.execute_command(*text.split())


def asked(redis: Redis, begin: str, end: str) -> AbstractContextManager[None]:
    """A command before the block and one after it."""
    return between(partial(ask, redis, begin), partial(ask, redis, end))


def fill_disk(folder: Path) -> Path:
    """Write a file that takes all the room of a folder that is a disk of its own; return it, to be deleted.

    Raises SetupError for any other folder: its disk would be the machine's.
    """
    if not folder.is_mount():
        raise SetupError(f"{folder} is no disk of its own, and the machine's is not filled", remedy=MOUNTS)
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(_BLOCK):
            pass
    return ballast


def one_by_one(*steps: Callable[[], object]) -> None:
    for step in steps:
        step()
